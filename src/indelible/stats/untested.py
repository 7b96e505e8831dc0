"""What a canary run leaves open, for the verdict to name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from .cells import AXES, AXIS_WORDS, HIDDEN, Cell, delay_open, pairs, unlike
from .questions import Question

_PROBES = {
    HIDDEN: "recall with the cue hidden",
    "as-trained": "the canaries as they were trained",
    "substituted": "copying of another canary's cue against recall",
    "unseen": "new codes in the trained form of the cue",
    "plain": "new codes in the clear",
}

_ON_SCREENS = {
    "substituted": "copying of a replaced code against recall",
    "visible": "the own code in the clear",
    "absent": "recall without the pane that held the code",
}

_RECORDS = (
    "natural records: canaries are made-up codes in a fixed place, and no rate here carries over to other rows; other "
    "prompts, sampling or search may bring out what greedy decoding under these probes did not"
)


def not_tested(
    frame: pd.DataFrame,
    found: Sequence[Cell],
    asked: Sequence[Question],
    notes: Sequence[str],
    controls: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, str]]:
    """Entries {axis, reason}: axes with one place or never varied alone, conditions that differ in what is no axis,
    placements without a matched delay, settings that could not be judged, probes not asked, controls not run, seeds too
    few, and what no canary run shows.
    """
    made: list[tuple[str, str]] = []
    compared = {axis for axis, _, _ in pairs(found)}
    for axis in AXES:
        places = list(dict.fromkeys(cell.setting.place(axis) for cell in found))
        word = AXIS_WORDS[axis]
        if len(places) > 1 and axis not in compared:
            made.append((word, f"varied ({', '.join(places)}), but never alone: no fair comparison"))
        elif len(places) == 1:
            only = "no spacing was prescribed" if places == ["none"] else f"one {word} only: {places[0]}"
            made.append((word, only))
    made += [*_unlike(found), *_delays(found)]
    made += [
        (question.axis, f"{answer.why} ({question.id})")
        for question in asked
        for answer in question.answers
        if answer.call in ("untested", "saturated")
    ]
    focal = frame[(frame["model"] == "target") & (frame["role"] == "focal")]
    probes = set(focal["probe"].unique())
    on_screens = "task" in focal and (focal["task"] == "screens").any()
    asked_for = _PROBES | (_ON_SCREENS if on_screens else {})
    made += [
        ("probe", f"{what}: the probe '{name}' was not asked") for name, what in asked_for.items() if name not in probes
    ]
    if "substituted" in probes and not focal["supplied_exposure_bits"].notna().any():
        made.append(("probe", "copying of another canary's cue: no cue of this run shows a code"))
    made += [("controls", str(check["reason"])) for check in controls.values() if not check["ran"]]
    seeds = {seed for cell in found for seed in cell.seeds}
    if 0 < len(seeds) < 3:
        made.append(
            ("seed", f"{len(seeds)} training seed{'s' if len(seeds) > 1 else ''}; three or more show replication")
        )
    made += [("other", note) for note in notes]
    made.append(("records", _RECORDS))
    return [{"axis": axis, "reason": reason} for axis, reason in dict.fromkeys(made)]


def _unlike(found: Sequence[Cell]) -> list[tuple[str, str]]:
    """Conditions that would be compared if their other settings were alike."""
    made = []
    for axis, one, two in unlike(found):
        word, also = ("other", "differ only") if axis is None else (AXIS_WORDS[axis], "also differ")
        names = " and ".join(dict.fromkeys((one.name, two.name)))
        made.append((word, f"conditions {names} {also} in settings that are not axes: not compared"))
    return made


def _delays(found: Sequence[Cell]) -> list[tuple[str, str]]:
    """Comparisons that mix where canaries stood with how long ago that was."""
    made = []
    for axis, one, two in pairs(found):
        if axis in ("placement", "spacing") and delay_open(one, two):
            sides = f"{one.setting.place(axis)} against {two.setting.place(axis)}"
            why = "no two checkpoints stand equally long after the last appearance"
            made.append((axis, f"{sides}: compared at the end of training only, because {why}"))
    return made
