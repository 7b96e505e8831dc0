"""Comparisons of two sets of numbers of the same canaries, one seed at a time and over all seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from .intervals import Interval
from .matched import hodges_lehmann, mcnemar, wilcoxon
from .metrics import json_number
from .roc import Floats

MIN_CANARIES = 5
"""Nothing is concluded from fewer canaries; fewer matched pairs are not tested either."""


@dataclass(frozen=True)
class Contrast:
    """First minus second.

    Attributes:
        n: canaries compared: pairs where matched, else the smaller side.
        matched: the same canaries on both sides; otherwise different canaries, dealt at random.
        value, low, high, level, method: the typical difference and its interval.
        p, test: two-sided p-value of no difference, and the test's name.
        reason: why there is no value.
    """

    n: int
    matched: bool = True
    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    method: str | None = None
    p: float | None = None
    test: str | None = None
    reason: str | None = None


def of_seed(values: pd.Series[float], seed: int | None) -> pd.Series[float]:
    """The part of one training seed; everything for None."""
    return values if seed is None else values[values.index.get_level_values("seed") == seed]


def differences(one: pd.Series[float], two: pd.Series[float]) -> pd.Series[float]:
    """First minus second of the canaries in both, shape (n_common,)."""
    common = one.index.intersection(two.index)
    return one.loc[common] - two.loc[common]


def contrast(one: pd.Series[float], two: pd.Series[float], level: float) -> Contrast:
    """The typical difference of two columns of numbers, one a canary.

    The same canaries on both sides: Hodges-Lehmann and Wilcoxon's signed ranks. None in common (the groups of one run
    without its rotations, or other codes under the same names): the median of all differences between the sides, and
    Mann-Whitney; no interval.
    """
    shared = differences(one, two)
    if len(shared):
        if len(shared) < MIN_CANARIES:
            return Contrast(len(shared), reason=_too_few(len(shared), "canaries in both"))
        return _matched(np.asarray(shared, dtype=np.float64), level)
    n = min(len(one), len(two))
    if n < MIN_CANARIES:
        return Contrast(n, matched=False, reason=_too_few(n, "canaries on a side"))
    a, b = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    if np.unique(np.concatenate([a, b])).size == 1:
        p, test = 1.0, "all values equal"
    else:
        p, test = float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue), "Mann-Whitney, different canaries"
    middle = float(np.median(a[:, None] - b[None, :]))
    how = "median of all differences, different canaries"
    return Contrast(n, matched=False, value=middle, method=how, p=p, test=test)


def one_sample(values: pd.Series[float], level: float) -> Contrast:
    """The typical one of differences that are at hand already, one a canary."""
    if len(values) < MIN_CANARIES:
        return Contrast(len(values), reason=_too_few(len(values), "canaries"))
    return _matched(np.asarray(values, dtype=np.float64), level)


def _matched(values: Floats, level: float) -> Contrast:
    centre, ends = hodges_lehmann(values, level)
    tested = wilcoxon(values)
    low, high = json_number(ends.low), json_number(ends.high)
    return Contrast(len(values), True, centre, low, high, level, ends.method, tested.p, tested.method)


def recovery_contrast(one: pd.Series[float], two: pd.Series[float]) -> Contrast:
    """Difference of the shares recovered, for canaries in both, with McNemar's exact test.

    Both columns hold 0 or 1. No interval: that of the difference of paired shares is not exact, and the two shares
    stand beside it with theirs.
    """
    gaps = differences(one, two)
    if not len(gaps) and len(one) and len(two):
        return Contrast(0, matched=False, reason="different canaries on the two sides: no pairs")
    if len(gaps) < MIN_CANARIES:
        return Contrast(len(gaps), reason=_too_few(len(gaps), "canaries in both"))
    first, second = int((gaps > 0).sum()), int((gaps < 0).sum())
    tested = mcnemar(first, second)
    how = f"difference of shares; {first} only here, {second} only there"
    return Contrast(len(gaps), value=float(gaps.mean()), method=how, p=tested.p, test=tested.method)


def median_interval(values: Floats, level: float) -> Interval | None:
    """Interval for a median by order statistics, without any assumption on the shape; None below some 6 values.

    The k-th smallest and k-th largest value, k the largest number with P(Bin(n, 1/2) <= k - 1) <= (1 - level) / 2.
    """
    n = len(values)
    k = int(stats.binom.ppf((1.0 - level) / 2.0, n, 0.5))
    while k > 0 and stats.binom.cdf(k - 1, n, 0.5) > (1.0 - level) / 2.0:
        k -= 1
    if k < 1:
        return None
    ordered = np.sort(values)
    return Interval(float(ordered[k - 1]), float(ordered[n - k]), level, "order statistics")


def _too_few(n: int, what: str) -> str:
    return f"{n} {what}, {MIN_CANARIES} are needed"
