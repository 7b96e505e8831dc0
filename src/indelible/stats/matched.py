"""Tests and estimates for matched arms: the same canary, with the same code and identity, under two conditions.

A difference is one number a canary, first condition minus second. These tests say whether it is more than chance within
a run. Whether it survives another training is seen by looking at each training seed, because canaries of one run share
its weights. Several comparisons are corrected by `paired.holm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from .intervals import Interval, check_level, normal_quantile
from .roc import Floats, finite_scores

# log2 3 - log2 1 and log2 21 - log2 7 may differ in the last bit; differences this close tie, this close to 0 are 0.
_DECIMALS = 9

# Beyond this many differences the exact law of the signed ranks would take seconds, and the normal one is as good.
_EXACT_UP_TO = 1000


@dataclass(frozen=True)
class TestResult:
    """A two-sided p-value. `n`: differences or discordant pairs tested; `n_zero`: those of them that are zero."""

    __test__: ClassVar[bool] = False  # pytest takes classes by this name for tests

    p: float
    n: int
    n_zero: int
    method: str


def _differences(differences: ArrayLike) -> Floats:
    return np.round(finite_scores(differences, "differences"), _DECIMALS)


def _sign_flip_law(doubled_ranks: ArrayLike) -> Floats:
    """P(sum of the ranks with a positive sign = s / 2), s = 0, 1, ...: every sign is a fair coin.

    Ranks come doubled, because tied ranks are halves.
    """
    law = np.ones(1)
    for rank in np.asarray(doubled_ranks, dtype=np.int64):
        grown = np.zeros(law.size + rank)
        grown[: law.size] += law / 2.0
        grown[rank:] += law / 2.0
        law = grown
    return law


def wilcoxon(differences: ArrayLike) -> TestResult:
    """Wilcoxon's signed-rank test of differences of shape (n,) symmetric about zero, two-sided.

    Zeros are kept in the ranking and then left out (Pratt's variant). Exposures at the ceiling under both conditions
    give many zeros; dropping them before ranking, as the older variant does, makes a few small differences look like
    the whole sample. Without zeros or ties: scipy's test, exact up to 50 differences and beyond that its normal
    approximation with continuity correction. With zeros or ties, which bounded exposures nearly always have: the exact
    law over all signs given the sizes, up to 1000 differences, because scipy's exact law holds for neither and its
    permutation method enumerates them up to some 13 only; above that scipy's approximation, corrected for ties.
    All differences zero: p = 1, the conditions do not differ at all. Differences closer than 1e-9 are tied.

    Raises ValueError for no differences or a missing one. Source: Wilcoxon 1945; Pratt 1959.
    """
    d = _differences(differences)
    n_zero = int((d == 0.0).sum())
    if n_zero == d.size:
        return TestResult(1.0, d.size, n_zero, "all differences are zero")
    awkward = n_zero > 0 or np.unique(np.abs(d)).size < d.size
    if not awkward or d.size > _EXACT_UP_TO:
        exact = not awkward and d.size <= 50
        result = stats.wilcoxon(d, zero_method="pratt", correction=True, method="exact" if exact else "asymptotic")
        kind = "exact" if exact else "normal approximation"
        return TestResult(float(result.pvalue), d.size, n_zero, f"Wilcoxon signed-rank, Pratt, {kind}")
    doubled = np.rint(2.0 * stats.rankdata(np.abs(d))).astype(np.int64)
    law = _sign_flip_law(doubled[d != 0.0])
    observed = int(doubled[d > 0.0].sum())
    p = 2.0 * min(float(law[: observed + 1].sum()), float(law[observed:].sum()))
    return TestResult(min(1.0, p), d.size, n_zero, "Wilcoxon signed-rank, Pratt, exact given ties")


def hodges_lehmann(differences: ArrayLike, level: float = 0.95) -> tuple[float, Interval]:
    """The typical difference and its interval: the estimate that belongs to Wilcoxon's test.

    Estimate: the median of all n (n + 1) / 2 averages of two differences, each with itself included. Interval: the C-th
    smallest and C-th largest average, C the largest number with P(T <= C - 1) <= (1 - level) / 2 under the exact law of
    the signed-rank sum T (normal above 1000 differences). With ties or zeros it covers at least as often. Fewer than
    six differences cannot give 95%: the ends are then -inf and inf, and the report writes none.

    Its target is the centre of a symmetric law. Where many canaries sit at the ceiling in one condition only, the
    differences are cut off there and the estimate is a lower limit of the true shift; the sign test does not mind.
    Where most differences are zero, so are estimate and interval, though the test may still see the direction of the
    rest. Raises ValueError for no differences or a missing one. Source: Hodges and Lehmann 1963.
    """
    check_level(level)
    d = _differences(differences)
    rows, columns = np.triu_indices(d.size)
    averages = np.sort((d[rows] + d[columns]) / 2.0)
    centre = float(np.median(averages))
    tail = (1.0 - level) / 2.0
    n = d.size
    if n <= _EXACT_UP_TO:
        cumulative = np.cumsum(_sign_flip_law(np.arange(1, n + 1)))
        place = int(np.searchsorted(cumulative, tail * (1.0 + 1e-12), side="right"))
        method = "Hodges-Lehmann, exact signed ranks"
    else:
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24.0)
        place = math.floor(n * (n + 1) / 4.0 - normal_quantile(level) * spread)
        method = "Hodges-Lehmann, normal signed ranks"
    if place < 1:
        return centre, Interval(-math.inf, math.inf, level, "Hodges-Lehmann: too few differences for this level")
    return centre, Interval(float(averages[place - 1]), float(averages[-place]), level, method)


def _fair_coin_p(heads: int, tosses: int) -> float:
    return 1.0 if tosses == 0 else float(stats.binomtest(heads, tosses, 0.5).pvalue)


def sign_test(differences: ArrayLike) -> TestResult:
    """Exact two-sided sign test: are positive and negative differences equally likely? scipy's `binomtest`.

    Zeros say nothing about direction and are left out, which is the exact test given their number. It needs no symmetry
    and survives a ceiling, but ignores sizes. Three training seeds of one sign give p = 0.25, so seeds are shown one by
    one and counted by sign instead. All differences zero: p = 1. Raises ValueError for no differences or a missing one.
    """
    d = _differences(differences)
    up, down = int((d > 0.0).sum()), int((d < 0.0).sum())
    return TestResult(_fair_coin_p(up, up + down), d.size, d.size - up - down, "sign test, exact, zeros left out")


def mcnemar(b: int, c: int) -> TestResult:
    """Exact McNemar test on yes-no outcomes of the same canaries, two-sided; `n` of the result is b + c.

    b: recovered under the first condition only; c: under the second only. Pairs that agree say nothing about direction.
    If the conditions are alike, b is binomial with b + c tosses of a fair coin (scipy's `binomtest`); the exact form,
    because b + c is often below 25, where the chi-squared form is off. b = c = 0: p = 1. Raises ValueError for negative
    or broken counts. Source: McNemar 1947.
    """
    if min(b, c) < 0 or int(b) != b or int(c) != c:
        raise ValueError(f"expected whole counts from 0, got b={b}, c={c}")
    return TestResult(_fair_coin_p(int(b), int(b) + int(c)), int(b) + int(c), 0, "McNemar, exact")
