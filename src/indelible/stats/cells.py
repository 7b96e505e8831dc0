"""Cells of a canary run: focal canaries that were treated alike, and pairs of cells that differ on one axis alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from indelible.errors import DataError

AXES = ("arm", "dose", "placement", "spacing", "population", "schedule")
"""What a protocol is made of, by the names of the columns."""

AXIS_WORDS = {"arm": "cue"} | {axis: axis for axis in AXES[1:]}
"""The same in the words of a verdict."""

HIDDEN = "redacted"
"""The probe that shows nothing of the code."""

PLACES = (*AXES, "protocol")
"""The axes, and the digest of every setting of design and training that is no axis: alike in a fair comparison."""

COLUMNS = (
    "condition", "canary_id", "canary_key", "seed", "step", "n_steps", "model", "role", *PLACES, "first_step",
    "last_step", "probe", "repeat", "rank", "n_candidates", "exposure_bits", "supplied_exposure_bits", "logprob",
    "recovered", "copied", "full_response", "positions_correct", "n_positions", "reason",
)  # fmt: skip

ONCE = ("condition", "seed", "step", "model", "canary_id", "probe", "repeat")
"""What names a reading: no two have all of them in common."""

CANARY = ("seed", "canary_key")
"""What names a canary: the seed of the training, and the digest of its code and identity. The same id in two designs
may stand for two codes, so ids match nothing."""

_NEAR = 0.05
"""Two placements, or two delays, are told apart from this share of a training on."""


@dataclass(frozen=True)
class Setting:
    """A place on every axis, and what all else adds up to.

    Attributes:
        spacing: in updates, None where none is prescribed.
        protocol: digest of all settings of design and training that are no axis. Settings of different protocol are
            never compared, because the difference could come from any of these.
    """

    arm: str
    dose: int
    placement: str
    spacing: float | None
    population: str
    schedule: str
    protocol: str = "unknown"

    def without(self, *axes: str) -> tuple[tuple[str, Any], ...]:
        """The protocol and the places on all axes but these: settings that agree here differ on those alone."""
        return tuple((axis, getattr(self, axis)) for axis in PLACES if axis not in axes)

    def differing(self, other: Setting) -> list[str]:
        """The axes on which two settings differ; whether they are of one protocol is another question."""
        return [axis for axis in AXES if getattr(self, axis) != getattr(other, axis)]

    def place(self, axis: str) -> str:
        """The place on one axis as text: "redacted", "8", "late"; "none" for a spacing that is not prescribed."""
        value = getattr(self, axis)
        return "none" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)


@dataclass(frozen=True, eq=False)
class Cell:
    """Readings of focal canaries on target models, alike on every axis.

    Attributes:
        parts: the condition, or several that are rotations of one design: alike in everything, with no canary of a
            seed in two of them.
        frame: their readings; all seeds, checkpoints and probes.
    """

    parts: tuple[str, ...]
    setting: Setting
    frame: pd.DataFrame

    @property
    def name(self) -> str:
        """The condition; several joined by " + ". To read: what they are is in `parts`."""
        return " + ".join(self.parts)

    @property
    def seeds(self) -> list[int]:
        """Training seeds, ascending."""
        return sorted(int(seed) for seed in self.frame["seed"].unique())

    @property
    def final_step(self) -> int:
        """The last checkpoint."""
        return int(self.frame["step"].max())

    @property
    def last_step(self) -> float:
        """The update of the last appearance of any of the canaries; NaN where they never appear."""
        return float(self.frame["last_step"].max())

    @property
    def steps_after(self) -> list[int]:
        """The checkpoints at or after the last appearance, ascending; none where nothing appears."""
        return sorted({int(step) for step in self.frame["step"] if step >= self.last_step})

    @property
    def centre(self) -> float:
        """The middle of training between first and last appearance, as a share of the training; NaN for none."""
        middle = (self.frame["first_step"] + self.frame["last_step"]) / 2.0 / self.frame["n_steps"]
        return float(middle.mean())

    def values(self, column: str, probe: str = HIDDEN, *, step: int | None = None) -> pd.Series[float]:
        """One number a canary that has it, indexed by `CANARY`; the mean over repeats. By default at the end."""
        step = self.final_step if step is None else step
        chosen = self.frame[(self.frame["step"] == step) & (self.frame["probe"] == probe)]
        return per_canary(chosen, column)


def per_canary(frame: pd.DataFrame, column: str) -> pd.Series[float]:
    """A column as one number a canary, the mean over its repeats, indexed by `CANARY`; missing ones left out."""
    # A column of yes, no and null comes back from a file as objects.
    numbers = [math.nan if pd.isna(value) else float(value) for value in frame[column].tolist()]
    index = pd.MultiIndex.from_arrays([frame["seed"].astype(int), frame["canary_key"].astype(str)], names=CANARY)
    made = pd.Series(numbers, index=index, dtype=float).dropna()
    return made if made.index.is_unique else made.groupby(level=[0, 1]).mean()


def check_readings(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame, once it is seen to hold what is needed, and no reading twice.

    Raises DataError naming the columns that are not there, or the first reading that is there twice: two trainings
    under one name would be averaged into one.
    """
    absent = [name for name in COLUMNS if name not in frame.columns]
    if absent:
        raise DataError(
            f"canary readings without {', '.join(absent)}; expected the columns of canaries.parquet; "
            "measure again with `indelible canary audit`"
        )
    again = frame.duplicated(list(ONCE))
    if again.any():
        first = frame[again].iloc[0]
        where = ", ".join(f"{name} {first[name]}" for name in ONCE)
        raise DataError(
            f"canary readings hold {int(again.sum())} readings twice, the first of them {where}; expected one each; "
            "give trainings that are put together conditions of different names"
        )
    return frame


def setting_of(row: Any) -> Setting:
    """The setting of a reading: anything with the axes as keys."""
    spacing = row["spacing"]
    return Setting(
        str(row["arm"]), int(row["dose"]), str(row["placement"]),
        None if spacing is None or math.isnan(float(spacing)) else float(spacing),
        str(row["population"]), str(row["schedule"]), str(row["protocol"]),
    )  # fmt: skip


def cells(frame: pd.DataFrame) -> tuple[list[Cell], list[str]]:
    """The cells of a run in the order of its readings, and notes on those that could not be told apart.

    Conditions alike on every axis and of one protocol are rotations of one design, and one cell, as long as no canary
    of a seed is in two of them. Otherwise they are repeats of each other, or differ in something that the readings do
    not record; each stays a cell of its own, and a note says so.
    """
    focal = frame[(frame["model"] == "target") & (frame["role"] == "focal")]
    parts: dict[Setting, dict[str, pd.DataFrame]] = defaultdict(dict)
    for _, part in focal.groupby(["condition", *PLACES], dropna=False, sort=False, observed=True):
        first: Any = part.iloc[0]
        parts[setting_of(first)][str(first["condition"])] = part
    found, notes = [], []
    for setting, by_name in parts.items():
        canaries = [set(zip(*(part[name] for name in CANARY), strict=True)) for part in by_name.values()]
        if sum(map(len, canaries)) == len(set().union(*canaries)):
            found.append(Cell(tuple(by_name), setting, pd.concat(list(by_name.values()))))
            continue
        found += [Cell((name,), setting, part) for name, part in by_name.items()]
        notes.append(f"conditions {', '.join(by_name)} have the same canaries and differ on no axis that is recorded")
    return found, notes


def _order(cell: Cell, axis: str) -> tuple[Any, ...]:
    """Places of an axis in the order in which a contrast takes the later minus the earlier one."""
    place = getattr(cell.setting, axis)
    if axis == "arm":
        return {"visible": 0, HIDDEN: 2}.get(place, 1), place
    if axis == "placement":
        return (-1.0 if math.isnan(cell.centre) else cell.centre), place
    if axis == "population":
        return place != "alone", place
    if axis == "schedule":
        return place != "constant", place
    return (-1.0 if place is None else float(place),)


def pairs(found: Sequence[Cell]) -> list[tuple[str, Cell, Cell]]:
    """(axis, cell, against) for all pairs of one protocol that differ on one axis alone.

    The first has the higher dose, the longer spacing, the later placement, the cue that shows less (visible, encoded,
    redacted), the population that isn't alone, the schedule that isn't constant; else the alphabet decides.
    """
    result = []
    for one, two in combinations(found, 2):
        differing = one.setting.differing(two.setting)
        if len(differing) == 1 and one.setting.protocol == two.setting.protocol:
            low, high = sorted((one, two), key=lambda cell: _order(cell, differing[0]))
            result.append((differing[0], high, low))
    return result


def unlike(found: Sequence[Cell]) -> list[tuple[str | None, Cell, Cell]]:
    """(axis, cell, cell) for pairs that differ on one axis at most (None: on none), but not in their protocol alike."""
    result: list[tuple[str | None, Cell, Cell]] = []
    for one, two in combinations(found, 2):
        differing = one.setting.differing(two.setting)
        if len(differing) <= 1 and one.setting.protocol != two.setting.protocol:
            result.append((differing[0] if differing else None, one, two))
    return result


def later(one: Cell, two: Cell) -> bool:
    """Whether the first cell's canaries stand clearly later in training, by 5% of it or more."""
    return one.centre - two.centre >= _NEAR


def matched_delay(one: Cell, two: Cell) -> tuple[int, int] | None:
    """Checkpoints at which both cells' last appearance is about equally long ago; None if these aren't recorded.

    Of all pairs of checkpoints after the last appearances, that whose delays are nearest to each other, and among
    equals the one soonest after; within 5% of the training. A checkpoint that was saved for another purpose therefore
    hides none. The last ones of both are left out, because the comparison at the end of training is the same.
    """
    steps = [(a, b) for a in one.steps_after for b in two.steps_after if (a, b) != (one.final_step, two.final_step)]
    near = [pair for pair in steps if _alike(one, two, pair)]
    return min(near, key=lambda pair: (_gap(one, two, pair), sum(pair)), default=None)


def delay_open(one: Cell, two: Cell) -> bool:
    """Whether two cells could be compared at the end of training only, after different delays."""
    if not one.steps_after or not two.steps_after:
        return False
    return matched_delay(one, two) is None and not _alike(one, two, (one.final_step, two.final_step))


def _gap(one: Cell, two: Cell, steps: tuple[int, int]) -> float:
    """How far the delays since the last appearances lie apart, in updates."""
    return abs((steps[0] - one.last_step) - (steps[1] - two.last_step))


def _alike(one: Cell, two: Cell, steps: tuple[int, int]) -> bool:
    return _gap(one, two, steps) <= _NEAR * float(max(one.frame["n_steps"].max(), two.frame["n_steps"].max()))


def in_words(settings: Iterable[Setting], varying: Sequence[str], *, without: Sequence[str] = ()) -> str:
    """Settings as text, by their places on the axes that vary: "redacted, dose 8; visible, dose 8"; "" for none."""
    return "; ".join(dict.fromkeys(_one(setting, varying, without) for setting in settings))


def _one(setting: Setting, varying: Sequence[str], without: Sequence[str]) -> str:
    words = []
    for axis in AXES:
        place = setting.place(axis)
        if axis not in varying or axis in without or (axis == "spacing" and place == "none"):
            continue
        words.append(f"{axis} {place}" if axis in ("dose", "spacing") else place)
    return ", ".join(words)
