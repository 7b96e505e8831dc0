"""The sentences of a report: what a verdict means, what to do, what an audit cannot show."""

from __future__ import annotations

MEANING = {
    "detected": (
        "The model treats records it was trained on differently from records it never saw, and no control that ran "
        "explains the difference: whoever has the access described here can tell members from non-members better "
        "than by chance."
    ),
    "not attributable": (
        "Members and non-members can be told apart, but no attack was shown to go beyond its controls: the difference "
        "may lie in the data, or the cohort is too small to show that it does not."
    ),
    "not detected": (
        "None of the attacks that ran told members from non-members on this cohort. This is no proof that the model "
        "memorised nothing: an effect smaller than the one stated below would have gone unseen."
    ),
    "not evaluable": "This audit cannot answer the question; the reasons are given below. It is not a pass.",
}

UNCONTROLLED_MEANING = (
    "The model treats records it was trained on differently from the other records, but no control ran: a difference "
    "in the data, rather than what the model memorised, may explain all of it."
)

UNKNOWN_MEANING = "This run holds no verdict that this version knows."

NEXT_STEPS = {
    "detected": [
        "Do not ship this model where the training records are confidential, until the findings below are dealt with.",
        "Look at the most exposed records: repeated, rare or personal text is the usual cause.",
        "Retrain with a mitigation from the findings, and repeat this audit with the same records and seeds.",
    ],
    "not attributable": [
        "Where a control separates the two sides, draw them at random from one source; else audit more records.",
        "Repeat the audit; until then, count the risk as open.",
    ],
    "not detected": [
        "Check that the smallest effect this cohort could show is small enough for your decision; if not, add records.",
        "Keep this run: repeat it whenever the data, the recipe or the number of epochs changes.",
    ],
    "not evaluable": [
        "Mend what the reasons name (more records, a usable split, a model that can be scored) and run again.",
    ],
}

UNCONTROLLED_STEPS = [
    "Run a control before you decide: the base model (--base) and the blind baseline (bag-of-words).",
    "Until then treat the model as if it leaked: do not ship it where the training records are confidential.",
]

UPPER_VIEW = (
    "what a logistic regression on all scores of this run would reach if fitted on records whose membership is known, "
    "which an attacker seldom has; no part of the verdict"
)
NO_EVIDENCE = "an upper view is no evidence and is not held against this control"

LIMITS = [
    (
        "“Not detected” is not proof of absence: only the attacks listed here ran, with the settings listed here. A "
        "stronger attack, other access or a larger cohort may find what these did not."
    ),
    (
        "“Detected” says that members can be told from non-members on average. It does not say that any single "
        "record's text can be extracted, and a record high in the list of exposed ones is not thereby proven a member."
    ),
    (
        "If members and non-members differ in source, date, topic or length, an attack may measure that difference. "
        "The base model and the blind baseline look for it; neither can rule it out."
    ),
    (
        "Rates at low false-positive rates rest on few records. Read them with their interval, the false-positive rate "
        "that was realised and its upper bound."
    ),
    (
        "Results hold for these records. Canaries differ from natural records, and records of another kind, rarer or "
        "more often repeated, may leak more."
    ),
    (
        "Results hold for this model file, adapter, precision and prompt format. A merged, quantised or further "
        "trained copy is another model."
    ),
]

SEVERITY_RULE = (
    "Severity: high, an attack is detected and either its AUC is 0.75 or further from one half, or the lower bound of "
    "its true-positive rate at 1% false positives is above 5%; medium, detected otherwise, or the split itself can be "
    "told apart; low, a weakness of the audit or of the data that should be mended; info, for the record."
)

RETEST = (
    "Repeat the audit with the same members, non-members, settings and seeds, into a new folder, and compare the two "
    "(indelible report OLD NEW)."
)

MITIGATE_MEMORISATION = (
    "Remove duplicates from the training data; redact or drop the records that carry secrets; train for fewer epochs "
    "or with a smaller learning rate or adapter; where a guarantee is needed, train with differential privacy and "
    "state its budget. Hiding log-probabilities narrows this attack's access; it does not undo the memorisation."
)

MITIGATE_UNCLEAR = (
    "If a control separates the two sides too, split members and non-members at random from one pool. If none does, "
    "the cohort is too small to show that the attack goes beyond chance in the controls: audit more records."
)

MITIGATE_REVERSED = (
    "Check first that the training file and the held-out file are not swapped, and that a score made elsewhere is "
    "higher for members. If they are right, lower scores betray members just as well."
)

MITIGATE_SPLIT = (
    "Split members and non-members at random from one pool before training, and remove near duplicates across the "
    "split; where the model is already trained, find held-out records of the same source, period and length."
)

MITIGATE_FLAGGED = (
    "Review the flagged records first: remove or redact them, check how often each occurs in the training data, and "
    "retrain. Taking out only these records may expose others, so audit again."
)

MITIGATE_CONTROL = "Give what the control needs (the base model, the records' text) and run the audit again."

MITIGATE_DROPPED = (
    "Remove duplicates from the training file before training: repeated records are memorised first. Keep held-out "
    "records out of the training file."
)

MITIGATE_UNSCORABLE = (
    "Read the reasons; scores that do not exist are left out, so the cohort of that attack is smaller."
)
