"""The sentences of a tabular report: what the words mean here, what to do, what such a run cannot show."""

from __future__ import annotations

MEANING = {
    "detected": (
        "Under a context that says nothing about labels, the tuned model is surer of the labels it was tuned on than "
        "of others, and more so than the model before tuning: its weights give away who was among its query rows."
    ),
    "not attributable": (
        "Members and non-members can be told apart under contexts that say nothing, but no score was shown to go "
        "beyond its controls: the base model, or the rows themselves, may explain the difference."
    ),
    "not detected": (
        "Contexts that say nothing about labels told members from non-members no better than chance. That is no sign "
        "that nothing was memorised: look at the positive control, which shows whether labels were fitted at all."
    ),
    "not evaluable": "This run cannot answer the question; the reasons are given below. It is not a pass.",
}

UNKNOWN = "This run holds no verdict that this version knows."

NEXT_STEPS = {
    "detected": [
        "Do not hand out this model, or unlimited queries to it, where the query rows of its tuning are confidential.",
        "Compare defences on the same table (--defences): what each leaves of the leakage, and what it costs.",
        "Repeat with other seeds before you name a row: the finding is about the set, not about one record.",
    ],
    "not attributable": [
        "Draw members and non-members at random from one table, or audit more of them.",
        "Until then, count the risk as open.",
    ],
    "not detected": [
        "Read the positive control: where the training context separates members, whoever has it can tell them.",
        "Check that the smallest AUC this run could show is small enough for you; if not, use a larger table.",
    ],
    "not evaluable": ["Mend what the reasons name (more rows, fewer query rows, a lower learning rate) and run again."],
}

PROBE_NEXT_STEPS = {
    "detected": [
        NEXT_STEPS["detected"][0],
        "Tune again with a defence (`indelible tabular run --defences` compares them) and probe with the same files.",
        "Name no single row: the finding is about the set, not about one record.",
    ],
    "not attributable": [
        "Give non-members that were drawn at random from the table the members are from, or more rows of both.",
        NEXT_STEPS["not attributable"][1],
    ],
    "not detected": [
        NEXT_STEPS["not detected"][0],
        "Check that the smallest AUC this probe could show is small enough for you; if not, give more rows a side.",
    ],
    "not evaluable": ["Mend what the reasons name (more rows, other files, another model) and probe again."],
}
"""For a model that was tuned elsewhere."""

LIMITS = [
    (
        "A context without information that shows nothing does not show absence of memorisation. It removes one way "
        "of reading the weights and leaves others; the paper's own context is known to us only from a text that "
        "breaks off, and ours is a reading of it."
    ),
    (
        "AUC is over pairs of one class, rows with the labels they carry; rates and the paper's rule are over all "
        "classes together. With randomised labels the question is whether a label was "
        "seen, which is a worst case: true labels can be predicted, and are harder to tell from memorised ones."
    ),
    (
        "The line 1 − 1/(2K) is what a score reaches that only tells right answers from wrong ones when every member "
        "is right and labels are random. It is a line, not a bound: a score that also measures confidence can pass "
        "it."
    ),
    (
        "The paper's rule (AUC above 0.5 and a true-positive rate above 0.1 at 1% or at 10% false positives) asks at "
        "10% for what chance gives: models that know nothing meet it again and again, and the count by chance stands "
        "beside it."
    ),
    (
        "Contexts that carry labels (train-context, fresh-context; wrong-majority says which label is rare) are "
        "controls. Under the training context a model that fitted its labels separates members whether or not its "
        "weights would give them away elsewhere."
    ),
    (
        "Rows of the training context are no members here and are reported apart; nothing is said about rows that "
        "are handed to the model as context when it is used, or that are saved with it."
    ),
    (
        "Configurations of one table and seed share their rows, and are no independent evidence. Seeds draw members "
        "anew from one table: their tests may be combined, and what comes out is about this table."
    ),
    (
        "Results hold for this model, its encoding and these tables. A larger model, real pretraining or another "
        "preprocessing can memorise more, or less."
    ),
]

PROBE_LIMITS = [
    (
        "Rows reach the model under an encoding frozen on the context file. If the tuning used another "
        "preprocessing, the probes ask about other numbers than those it was tuned on, and can miss what it "
        "memorised."
    ),
    (
        "Who is a member is what the files say. Labels are as in the files, and classes are coded in order of their "
        "values over all files: a model tuned under another order of classes is asked the wrong question."
    ),
]

RANDOMISED = "Labels were shuffled within each group of rows before tuning, so that nothing but memory can tell them."
TRUE_LABELS = "Labels are those of the table: what can be predicted from a row is no sign of memory by itself."

HEAT = (
    "Mean over the seeds; 0.5 is chance. Left: a context without information, the paper's probe. Right: the training "
    "context, which shows whether labels were fitted. One colour scale for both."
)
SUITE = (
    "Scores are log-probabilities of a row's label minus the base model's under the same context. Brackets: interval "
    "over records, mean of the seeds' own; beside it the least and the most of the seeds."
)
DEFENCES = (
    "Leakage: AUC with shuffled labels, whatever the grid was tuned on, the worst case. Accuracy: on held-out rows "
    "under a fresh context, from a second training on the true labels of the same rows; with randomised labels there "
    "is nothing to be accurate about. Early stopping ends where the held-out loss with true labels stops falling, and "
    "its leakage is that of as many epochs on randomised ones. Under DP-SGD members are the query rows of one "
    "step, so that every step has every row and nothing is won by sampling: its cost in accuracy is a worst case."
)
GUARD = (
    "The guard knows rules, not attacks: whoever pads a context with honest rows until it passes is answered. It is "
    "measured against the probes of this run alone. DP-SGD covers query rows, not rows of the context."
)
CARDINALITY = (
    "One point a table, in the cell that is shown in full; the dashed line is 1 − 1/(2K), which a score that only "
    "tells right from wrong reaches at best when labels are random."
)
