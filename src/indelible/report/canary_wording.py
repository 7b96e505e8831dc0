"""The sentences of a canary report: what a verdict means, what each cue and probe shows, what an audit cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEANING = {
    "protocol-sensitive": (
        "At least one conclusion changes when the protocol changes: another cue, dose, placement, spacing, schedule or "
        "population would have given another answer. No single number of this run stands for the training as a whole."
    ),
    "stable": (
        "Every conclusion that could be tested kept its direction in every arm and with every seed that ran. Stable "
        "says that the answers do not hang on the choices tried here; whether an answer is a good one stands in the "
        "table of conclusions."
    ),
    "not settled": (
        "No conclusion was seen to change with the protocol, but some could not be decided: too few canaries, or seeds "
        "that disagree. The run is no evidence that its answers do not depend on the protocol."
    ),
    "one protocol only": (
        "One protocol was tried, so nothing can be said on how far its numbers depend on it. A low exposure here is "
        "no evidence for a low one under another cue, dose, placement or population."
    ),
    "not evaluable": "This run cannot answer the question; the reasons are given below. It is not a pass.",
}
UNKNOWN_MEANING = "This run holds no verdict that this version knows."

NEXT_STEPS = {
    "protocol-sensitive": [
        (
            "Find out which setting is closest to the real training rows: does their input show what they must not "
            "reveal, how often do they occur, and when?"
        ),
        "Decide on the highest exposure among the settings that may apply, not on an average over them.",
        "Test the axes listed as not tested before the result is carried over to other data.",
    ],
    "stable": [
        "Read the table of conclusions: stable is not safe.",
        "Test the axes listed as not tested; repeat the run whenever data, recipe or schedule change.",
    ],
    "not settled": [
        "Repeat the run with more canaries and seeds, so that the unclear conclusions can be decided.",
        "Read the table of conclusions for those that hold.",
    ],
    "one protocol only": [
        (
            "Add arms: at least the code visible and the code redacted in training, two doses, and early and late "
            "placement under the schedule that you train with."
        ),
        "Train with three seeds or more, so that a conclusion can be seen to hold.",
    ],
    "not evaluable": ["Mend what the reasons name (more canaries, controls, missing probes) and run again."],
}

WORDS = ("flips", "holds", "unclear")
"""Words of a conclusion, in the order of the report; they are CSS classes as well."""

PLURALS = {"flips": "flip", "holds": "hold"}

CUES = {
    "visible": "the code itself: the answer can be copied",
    "redacted": "“[redacted]”: nothing of the code, the answer must be remembered",
    "binary": "the code in binary: decodable with effort",
    "chained-fruit": "one fruit a symbol, each depending on the symbol before: decodable with effort",
    "direct-fruit": "one fruit a symbol, by a fixed dictionary: decodable",
}
COMPOSED_CUE = "the code with its symbols moved or shifted by a fixed rule ({name}): decodable"
UNKNOWN_CUE = "a form of its own ({name})"

PROBES = {
    "redacted": (
        "cue hidden",
        "Nothing of the code; all else as in training. What comes out was remembered.",
    ),
    "as-trained": (
        "as trained",
        "The same input as in training. A right code may be copied, decoded or remembered.",
    ),
    "visible": (
        "own code in the clear",
        "The canary's own code, shown as it is. A right code may be copied or remembered.",
    ),
    "substituted": (
        "cue replaced",
        "The cue of another canary. The shown code coming out is copying or decoding; the trained one is recall.",
    ),
    "absent": (
        "pane absent",
        "Nothing of the code, and not the pane that held it. What comes out was remembered.",
    ),
    "unseen": (
        "new code, trained cue form",
        "The cue of a code that training never held. The shown code coming out is copying or decoding.",
    ),
    "plain": (
        "new code in the clear",
        "A code that training never held, shown as it is. The shown code coming out is copying.",
    ),
}

ON_SCREENS = {
    "redacted": "The source region masked; all else as in training. What comes out was remembered.",
    "substituted": (
        "A separately drawn code in the trained form. The shown code coming out is copying or decoding; the trained "
        "one is recall."
    ),
}
"""What probes show of canaries on screens, where it is put otherwise."""

SCREENS = "screens.png"
"""Thumbnails of canary screens, in a run."""

THUMBNAILS = (
    "Screens of canaries, left to right: the code in the clear, as training showed it where that was another form, "
    "masked, and without its pane. The codes shown here are made up for this figure."
)

UNKNOWN_TOKENS = (
    "the trainer left no vision.json beside the model, so that training made as many image tokens of these pictures as "
    "the probes do is taken on trust"
)

AXES = {
    "cue": "cue",
    "dose": "dose",
    "placement": "placement",
    "schedule": "schedule",
    "spacing": "spacing",
    "population": "population",
    "probe": "probe",
    "controls": "controls",
}

CONTROLS = {
    "never_inserted": "never-inserted canaries: made the same way, kept out of training",
    "base": "base model: the same probes before fine-tuning",
    "clean": "clean model: the same training without canaries",
}

WITHIN = {
    "supplied_minus_assigned": (
        "exposure of the shown code minus that of the trained one, cue replaced, bits",
        "gap",
    ),
    "recovered_minus_hidden": ("trained codes recovered as trained minus with the cue hidden", "points"),
    "trained_minus_unseen": ("trained codes recovered as trained minus new codes given, trained cue form", "points"),
}

MODELS = {"target": "with canaries", "clean": "the same training without", "base": "before training"}

ROLES = {
    "focal": "focal canaries",
    "auxiliary": "auxiliary canaries",
    "support": "support identities",
    "coin": "coin-flip canaries",
    "control": "never-inserted canaries",
}

ACCESS = [
    ("Access assumed, exposure", "log-probabilities that the model gives to chosen text"),
    ("Access assumed, recovery", "generated text, greedy decoding"),
    (
        "Knowledge assumed",
        "everything of a canary but its code: instruction, context, beginning and rest of the answer",
    ),
]

EXPOSURE = (
    "Exposure is log2 of the number of candidate codes less log2 of the rank of the code among them; on a tie the code "
    "takes the worst rank. 1.0 bit is the median of codes that the model does not know; the ceiling is reached at "
    "rank 1, and the true value may lie above it."
)

LIMITS = [
    (
        "Canaries are not natural records. A made-up code in a fixed place may be remembered more or less easily than "
        "a fact about a person, and no rate here carries over to other rows."
    ),
    (
        "Low exposure under one protocol is no evidence for low exposure under another. A code shown in the "
        "training input can be copied instead of learnt: its low exposure says nothing on secrets that no input shows."
    ),
    (
        "Failure to recover a code holds for these probes, one prompt form and greedy decoding. Other prompts, "
        "sampling or search may bring out what these did not."
    ),
    (
        "Exposure ends at the ceiling of its list of candidates; canaries at the ceiling cannot be told apart. With a "
        "sampled list, rank 1 says nothing on codes outside the list."
    ),
    (
        "The training seed is the replicate. Canaries of one training share its weights and influence each other; "
        "p-values within a training come from the random choice of codes, and speak of that training alone."
    ),
    (
        "Canary rows replace background rows. A change of dose or population therefore changes the background too; "
        "its effect is that of both."
    ),
    (
        "Results hold for this model, recipe, precision and prompt format. A merged, quantised or further trained copy "
        "is another model."
    ),
]

NO_EPSILON = "no bound was asked for: the design has no coin-flip canaries"
EPSILON = (
    "Lower bound on the epsilon of the training procedure from canaries put in or left out by a fair coin, in one "
    "run (Steinke, Nasr and Jagielski 2023). It bounds the procedure from below; it is never a guarantee from above."
)


def cue(name: str) -> str:
    """What the training input shows of a code, by the name of the cue."""
    composed = name.startswith(("reverse-", "shift-"))
    return CUES.get(name, (COMPOSED_CUE if composed else UNKNOWN_CUE).format(name=name))


def probe(name: str) -> str:
    """A probe's name with what it does: "cue hidden (redacted)"."""
    return f"{PROBES[name][0]} ({name})" if name in PROBES else name


def said_of_screens(seen: Mapping[str, Any]) -> str:
    """What the check of screens before training found."""
    said = f"{seen['screen_pictures']} pictures of screens differ in their source region alone"
    if seen["smallest_letters_px"] is not None:
        said += f", letters of at least {seen['smallest_letters_px']} pixels"
        said += f" ({seen['smallest_letters_processed_px']} as the model sees them)"
    if seen["not_read"]:
        said += f"; not read: {seen['not_read']}"
    else:
        said += f"; {seen['read']} read by OCR (those with a text; on screens of yours those without, too)"
        said += f", {seen['unread']} not legible, first of screen {seen['first_unread']}" if seen["unread"] else ""
    if seen.get("image_tokens_known") is False:  # asked of trained models alone
        said += "; " + UNKNOWN_TOKENS
    return said
