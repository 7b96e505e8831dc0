"""One question, asked in every setting of a canary run: an answer each, and whether the answers agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd

from .cells import AXES, AXIS_WORDS, HIDDEN, PLACES, Cell, Setting
from .contrasts import MIN_CANARIES, contrast, differences, median_interval, of_seed
from .paired import holm
from .protocol_contrasts import against_of, keys_of, names

Call = Literal["yes", "opposite", "flat", "unclear", "saturated", "untested"]
DECIDED: tuple[Call, ...] = ("yes", "opposite", "flat")

MARGIN_BITS = 1.0
"""A difference whose whole interval lies within this many bits of zero is called none."""

_FIELDS = (
    "condition", "parts", "seed", "step", "model", "role", *PLACES, "probe", "metric", "axis", "against",
    "against_condition", "against_step",
)  # fmt: skip


class Numbers:
    """Rows of metrics.json by what they are about."""

    def __init__(self, metrics: Iterable[Mapping[str, Any]]) -> None:
        self._rows = {_named(row): row for row in metrics}

    def row(self, keys: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
        """The row, or an empty one with a reason."""
        return self._rows.get(
            _named({**keys, "metric": metric}), {"value": None, "n": 0, "reason": "not in the metrics"}
        )


def _named(row: Mapping[str, Any]) -> tuple[Any, ...]:
    values = (row.get(name) for name in _FIELDS)
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


@dataclass(frozen=True)
class SeedAnswer:
    """What one training seed says. `sign`: 1 yes, -1 the opposite, 0 neither or nothing."""

    where: str
    seed: int
    value: float | None
    sign: int
    p: float | None


@dataclass(frozen=True, eq=False)
class Answer:
    """What one setting says.

    Attributes:
        where: the setting in words. setting: the same; `free` are the axes that the question itself varies.
        call: yes; opposite; flat: no effect, or at chance; unclear; saturated: at the ceiling on both sides, so that no
            difference can show; untested: too few canaries.
        why: the numbers in one sentence.
        values: one number a canary that the answer rests on, to compare settings with.
    """

    where: str
    setting: Setting
    free: tuple[str, ...]
    by_seed: tuple[SeedAnswer, ...]
    call: Call
    why: str
    values: pd.Series[float] | None = None


def _sign(value: float | None) -> int:
    return 0 if value is None or value == 0.0 else int(math.copysign(1, value))


def _shown(value: float | None, unit: str) -> str:
    return "no value" if value is None else f"{value:+.2f}{unit}"


def compared(
    numbers: Numbers,
    kind: str,
    keys: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    alpha: float,
    where: str,
    setting: Setting,
    free: tuple[str, ...],
    unit: str = " bits",
    values: pd.Series[float] | None = None,
    saturated: bool = False,
) -> Answer:
    """The answer that a comparison in metrics.json gives; `kind` names its metrics, `keys` its two sides.

    yes: every seed has a value above 0 and p over all seeds, after Holm, is at most alpha; opposite: below 0. flat: not
    significant, and the interval over all seeds lies within one bit of 0 (for shares: every canary has the same
    outcome on both sides). A seed with fewer than 5 canaries leaves the answer untested.
    """
    value_name, p_name, holm_name = names(kind)
    by_seed = []
    for seed in seeds:
        row = numbers.row({**keys, "seed": seed}, value_name)
        p = numbers.row({**keys, "seed": seed}, p_name)["value"]
        by_seed.append(SeedAnswer(where, seed, row["value"], _sign(row["value"]), p))
    pooled = numbers.row({**keys, "seed": None}, value_name)
    p_holm = numbers.row({**keys, "seed": None}, holm_name)["value"]
    if pooled["value"] is None or p_holm is None or any(one.value is None for one in by_seed) or not by_seed:
        small = [numbers.row({**keys, "seed": s}, value_name) for s in (*seeds, None)]
        why = next((str(row["reason"]) for row in small if row["value"] is None), "no seed has both sides")
        return Answer(where, setting, free, tuple(by_seed), "untested", f"{where}: {why}", values)
    signs = {one.sign for one in by_seed}
    low, high = pooled.get("low"), pooled.get("high")
    call: Call = "unclear"
    if p_holm <= alpha and signs in ({1}, {-1}):
        call = "yes" if signs == {1} else "opposite"
    elif saturated:
        call = "saturated"
    elif p_holm > alpha and (
        _within(low, high, 0.0)
        if low is not None and high is not None and unit
        else not unit and pooled["value"] == 0.0 and p_holm == 1.0
    ):
        call = "flat"
    ends = "" if low is None or high is None else f" ({low:+.2f} to {high:+.2f})"
    matched = ", different canaries" if "different" in str(pooled.get("method")) else ""
    each = ", ".join(f"seed {one.seed} {_shown(one.value, '')}" for one in by_seed)
    size = f"{pooled['n']} canaries{matched}"
    why = f"{where}: {_shown(pooled['value'], unit)}{ends}, {size}, p = {p_holm:.2g} after Holm; {each}"
    if {1, -1} <= signs:
        why += "; seeds disagree"
    if call == "saturated":
        why += "; most canaries are at the ceiling on both sides"
    return Answer(where, setting, free, tuple(by_seed), call, why, values)


def between_cells(
    numbers: Numbers, axis: str, one: Cell, two: Cell, *, steps: tuple[int, int], alpha: float, where: str
) -> Answer:
    """Exposure with the cue hidden in one cell against the other, which differs on `axis` alone."""
    other = against_of(AXIS_WORDS[axis], two.setting.place(axis), two.name, steps[1])
    keys = keys_of(one, None, steps[0], HIDDEN) | other
    first, second = (cell.values("rank", step=step) for cell, step in zip((one, two), steps, strict=True))
    common = first.index.intersection(second.index)
    left, right = (first.loc[common], second.loc[common]) if len(common) else (first, second)
    # A mean of nothing is NaN, which is not above one half.
    first_of_all = (
        ((left == 1.0) & (right == 1.0)).mean() if len(common) else min((s == 1.0).mean() for s in (left, right))
    )
    values = differences(one.values("exposure_bits", step=steps[0]), two.values("exposure_bits", step=steps[1]))
    return compared(
        numbers, "contrast", keys, sorted({*one.seeds} & {*two.seeds}), alpha=alpha, where=where, setting=one.setting,
        free=(axis,), values=values if len(values) else None, saturated=bool(first_of_all > 0.5),
    )  # fmt: skip


def _of_chance(n_candidates: int) -> float:
    """The median exposure of codes that nobody taught, bits: 1.0 unless there are few candidates."""
    return math.log2(n_candidates) - math.log2((n_candidates + 1) / 2)


def _within(low: float | None, high: float | None, middle: float) -> bool:
    """Whether an interval is known and lies within a bit of a value."""
    return low is not None and high is not None and max(middle - low, high - middle) <= MARGIN_BITS


def recalls(numbers: Numbers, found: Sequence[Cell], wheres: Sequence[str], *, alpha: float) -> list[Answer]:
    """Whether the trained codes of each cell rank above chance with the cue hidden at the end of training.

    yes: in every seed the median lies above that of chance, log2 n - log2 ((n + 1) / 2), 1.0 bit, and the test of the
    randomisation of codes over all seeds gives at most alpha after Holm over the cells. flat (at chance): that test
    gives more than alpha before Holm, and the median's interval over all seeds lies within one bit of chance, so that
    few canaries alone never make an answer; no seed has a sign then. That interval has level 1 - 2 alpha, which makes
    of its two ends two one-sided tests at alpha.
    """
    base = [keys_of(cell, None, cell.final_step, HIDDEN) for cell in found]
    pooled = [numbers.row(keys, "uniformity_p") for keys in base]
    adjusted = iter(holm([row["value"] for row in pooled if row["value"] is not None]))
    answers = []
    for cell, where, keys, test in zip(found, wheres, base, pooled, strict=True):
        p_holm = next(adjusted) if test["value"] is not None else None
        n_candidates = int(cell.frame["n_candidates"].max())
        chance = _of_chance(n_candidates)
        by_seed, sizes = [], []
        for seed in cell.seeds:
            row = numbers.row(keys | {"seed": seed}, "exposure_median")
            p = numbers.row(keys | {"seed": seed}, "uniformity_p")["value"]
            above = 0 if row["value"] is None else _sign(row["value"] - chance)
            by_seed.append(SeedAnswer(where, seed, row["value"], above, p))
            sizes.append(int(row["n"]))
        median = numbers.row(keys, "exposure_median")
        values = cell.values("exposure_bits")
        if median["value"] is None or p_holm is None or min(sizes) < MIN_CANARIES:
            n = min(sizes, default=0)
            reason = median["reason"] if median["value"] is None else None
            why = f"{where}: {reason or f'{n} canaries with a rank in a seed, {MIN_CANARIES} are needed'}"
            answers.append(Answer(where, cell.setting, (), tuple(by_seed), "untested", why, values))
            continue
        known = median_interval(np.asarray(values, dtype=np.float64), 1.0 - 2.0 * alpha)
        low, high = (known.low, known.high) if known is not None else (None, None)
        signs = {one.sign for one in by_seed}
        call: Call = "unclear"
        if signs == {1} and p_holm <= alpha:
            call = "yes"
        elif test["value"] > alpha and _within(low, high, chance):
            call = "flat"
            by_seed = [replace(one, sign=0) for one in by_seed]
        each = ", ".join(f"seed {one.seed} {one.value:.2f} (p = {one.p:.2g})" for one in by_seed if one.p is not None)
        ends = "" if known is None else f" ({low:.2f} to {high:.2f}, {known.level:.0%})"
        why = (
            f"{where}: median {median['value']:.2f}{ends} of {math.log2(n_candidates):.2f} bits, {median['n']} "
            f"canaries, chance gives {chance:.2f}, p = {p_holm:.2g} after Holm; {each}"
        )
        answers.append(Answer(where, cell.setting, (), tuple(by_seed), call, why, values))
    return answers


def flips(answers: Sequence[Answer], *, alpha: float, axes: Sequence[str] = AXES) -> list[tuple[str, Answer, Answer]]:
    """(axis, yes, other) for settings of one protocol that differ on one axis alone and answer differently.

    yes against opposite is a flip. yes, or opposite, against flat is one if the two answers also differ from each
    other: same sign in every seed, and p at most alpha after Holm over these pairs. One answer being significant and
    the other not is no flip.
    """
    certain, open_pairs = [], []
    for one, two in combinations([a for a in answers if a.call in DECIDED], 2):
        differing = [axis for axis in one.setting.differing(two.setting) if axis not in one.free]
        alike = one.free == two.free and one.setting.protocol == two.setting.protocol
        if not alike or len(differing) != 1 or differing[0] not in axes or one.call == two.call:
            continue
        first, second = sorted((one, two), key=lambda a: DECIDED.index(a.call))
        if "flat" not in (first.call, second.call):
            certain.append((differing[0], first, second))
        elif first.values is not None and second.values is not None:
            whole = contrast(first.values, second.values, 0.95)
            seeds = sorted({s.seed for s in first.by_seed} & {s.seed for s in second.by_seed})
            each = [contrast(of_seed(first.values, s), of_seed(second.values, s), 0.95).value for s in seeds]
            wanted = 1 if first.call == "yes" else -1
            if whole.p is not None and each and all(_sign(value) == wanted for value in each):
                open_pairs.append(((differing[0], first, second), whole.p))
    adjusted = holm([p for _, p in open_pairs])
    return certain + [pair for (pair, _), p in zip(open_pairs, adjusted, strict=True) if p <= alpha]
