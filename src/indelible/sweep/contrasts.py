"""Weighted sums of a study's numbers with their errors: paired over the records they share, pooled over the seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from indelible.stats.intervals import normal_quantile
from indelible.sweep.places import Place, Places, Row

Pulls = Mapping[str, float]
"""Group of records to what it adds to a number's sampling error, so that the variance of a weighted sum of numbers is
the sum over all groups of the square of their weighted pulls. Numbers on the same records are thereby paired."""

RowKey = tuple[Any, ...]


def row_key(row: Row) -> RowKey:
    """What tells a row of one seed from all others."""
    own = (row.get(key) for key in ("seed", "attack", "model", "metric", "part", "block"))
    return (*own, tuple(sorted(row["axes"].items())))


@dataclass(frozen=True)
class Measured:
    """A number of one seed: `error` is its standard error over records, None where it has no interval."""

    value: float
    error: float | None
    pulls: Pulls | None = None


Number = Mapping[int, Measured]
"""A number of a study, by seed. Empty where it was not measured."""


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of numbers, and its standard error over records and seeds; None where nothing tells it. `freedom`:
    the degrees of freedom of that error, n - 1 where it comes from the scatter of n seeds."""

    value: float
    error: float | None
    freedom: float = math.inf

    def interval(self, level: float) -> tuple[float, float] | None:
        """value -+ t error, t the quantile for this level and freedom (normal where that is infinite)."""
        if self.error is None:
            return None
        half = self.error * (normal_quantile(level) if math.isinf(self.freedom) else t_quantile(level, self.freedom))
        return self.value - half, self.value + half

    def sign(self, level: float) -> int:
        """1 or -1 where the interval leaves zero out on that side, else 0: too close to tell."""
        ends = self.interval(level)
        if ends is None:
            return 0
        return 1 if ends[0] > 0 else -1 if ends[1] < 0 else 0


@dataclass
class Numbers:
    """The numbers of a study by place, with the pulls of those that have them."""

    places: Places
    pulls: Mapping[RowKey, Pulls] = field(default_factory=dict)

    @property
    def level(self) -> float:
        return self.places.config.level

    @property
    def z(self) -> float:
        """The normal quantile of the study's intervals."""
        return normal_quantile(self.level)

    def number(self, place: Place, metric: str) -> Number:
        """What each seed measured in a place."""
        rows = {seed: self.places.row(place, metric, seed) for seed in self.places.config.seeds}
        return {seed: self._measured(row) for seed, row in rows.items() if row is not None and row["value"] is not None}

    def _measured(self, row: Row) -> Measured:
        low, high = row.get("low"), row.get("high")
        error = None
        if low is not None and high is not None:
            error = (float(high) - float(low)) / 2 / normal_quantile(row.get("level") or self.level)
        return Measured(float(row["value"]), error, self.pulls.get(row_key(row)))


def t_quantile(level: float, freedom: float) -> float:
    """Half the width of Student's two-sided interval, in standard errors."""
    from scipy.stats import t

    return float(t.ppf(0.5 + level / 2, freedom))


def mean(number: Number) -> float | None:
    """Over the seeds; None where there is none."""
    return statistics.fmean(one.value for one in number.values()) if number else None


def contrast(numbers: Sequence[Number], weights: Sequence[float]) -> Contrast | None:
    """sum_i w_i number_i, on the seeds that have all of them; None where no seed does."""
    seeds = [seed for seed in numbers[0] if all(seed in number for number in numbers)]
    return pooled([_of_one_seed([number[seed] for number in numbers], weights) for seed in seeds])


def difference(a: Number, b: Number) -> Contrast | None:
    """a minus b."""
    return contrast([a, b], [1.0, -1.0])


def _of_one_seed(measured: Sequence[Measured], weights: Sequence[float]) -> Contrast:
    """Paired where every number has pulls, and some record moves the sum; else as if the numbers were independent,
    which is too wide for numbers on the same records, since those move together."""
    value = math.fsum(w * one.value for w, one in zip(weights, measured, strict=True))
    if all(one.pulls is not None for one in measured):
        sums: dict[str, float] = {}
        for weight, one in zip(weights, measured, strict=True):
            for group, pull in (one.pulls or {}).items():
                sums[group] = sums.get(group, 0.0) + weight * pull
        variance = math.fsum(s * s for s in sums.values())
        if variance > 1e-18:
            return Contrast(value, math.sqrt(variance))
    errors = [one.error for one in measured]
    if any(error is None for error in errors):
        return Contrast(value, None)
    return Contrast(value, math.hypot(*(w * e for w, e in zip(weights, errors, strict=True) if e is not None)))


def pooled(found: Sequence[Contrast]) -> Contrast | None:
    """The mean over seeds of one contrast, each with its standard error over records.

    Variance: max(mean of squared errors, variance between seeds) / n, the moment estimate where seeds differ by chance
    of their own too (random effects with equal weights; the part between seeds never below zero). More seeds make it
    smaller. Where the variance between seeds decides it has n - 1 degrees of freedom: two or three seeds tell their
    scatter poorly, and the t interval is as wide as that asks for. None without a seed.
    """
    if not found:
        return None
    values = [one.value for one in found]
    errors = [one.error for one in found if one.error is not None]
    within = statistics.fmean(e * e for e in errors) if len(errors) == len(found) else None
    between = statistics.variance(values) if len(values) > 1 else None
    known = [variance for variance in (within, between) if variance is not None]
    by_seeds = between is not None and (within is None or between > within)
    error = math.sqrt(max(known) / len(values)) if known else None
    return Contrast(statistics.fmean(values), error, len(values) - 1 if by_seeds else math.inf)
