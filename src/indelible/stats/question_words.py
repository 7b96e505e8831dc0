"""What the questions of the verdict say, in plain English: their names, what they ask, and what each answer means."""

from __future__ import annotations

import re

Words = tuple[str, str, str, str, str, str]
"""id, axis, what is asked ("whether ..."), and the sentences for yes, the opposite, and no difference."""


def direction_words(axis: str, first: str, second: str) -> Words:
    """The words of a question on which of two places on an axis has the higher exposure."""
    if axis == "arm":
        return (
            "redacted-above-visible", "cue", "whether hiding the code from the training input raises exposure",
            "Codes that the training input hid had a higher exposure than codes that it showed",
            "Codes that the training input hid had a lower exposure than codes that it showed",
            "Hiding the code from the training input changed exposure by less than 1 bit",
        )  # fmt: skip
    if axis == "dose":
        return (
            "dose-response", "dose", "whether more appearances in training raise exposure",
            "More appearances in training went with a higher exposure",
            "More appearances in training went with a lower exposure",
            "More appearances in training changed exposure by less than 1 bit",
        )  # fmt: skip
    if axis == "spacing":
        return (
            "longer-spacing", "spacing", "whether a longer time between first and last appearance raises exposure",
            "Longer spacing went with a higher exposure", "Longer spacing went with a lower exposure",
            "Spacing changed exposure by less than 1 bit",
        )  # fmt: skip
    ids = re.sub(r"[^a-z0-9]+", "-", f"{axis}-{first}-against-{second}".lower()).strip("-")
    thing = "learning-rate schedule" if axis == "schedule" else "population"
    return (
        ids, axis, f"whether the {thing} '{first}' gives a higher exposure than '{second}'",
        f"The {thing} '{first}' went with a higher exposure than '{second}'",
        f"The {thing} '{first}' went with a lower exposure than '{second}'",
        f"The {thing}s '{first}' and '{second}' differed in exposure by less than 1 bit",
    )  # fmt: skip


PROBE_WORDS: dict[str, Words] = {
    "supplied_minus_assigned": (
        "follows-substituted-cue", "probe",
        "whether a model that is shown the cue of another canary follows the cue rather than recall the trained code",
        "Shown the cue of another canary, the model ranked the code of that cue above the trained code",
        "Shown the cue of another canary, the model still ranked the trained code above the code of that cue",
        "Shown the cue of another canary, the model ranked its code and the trained code within 1 bit of each other",
    ),
    "recovered_minus_hidden": (
        "recovery-needs-the-cue", "probe",
        "whether more trained codes come out, word for word, with the training cue shown than with it hidden",
        "More trained codes came out with their training cue shown than with it hidden",
        "Fewer trained codes came out with their training cue shown than with it hidden",
        "The same trained codes came out whether their cue was shown or hidden",
    ),
    "trained_minus_unseen": (
        "trained-codes-above-new-ones", "probe",
        "whether trained codes come out from their cues more often than new codes from cues of the same kind",
        "Trained codes came out from their cues more often than new codes did from cues of the same kind",
        "Trained codes came out from their cues less often than new codes did from cues of the same kind",
        "Trained and new codes came out equally often from cues of the same kind",
    ),
}  # fmt: skip
"""By the comparison in metrics.json that they rest on."""
