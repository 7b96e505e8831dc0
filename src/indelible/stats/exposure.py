"""Exposure of planted codes: from ranks to bits, what a sampled bank leaves open, and what chance alone would give.

A rank is 1 + the number of *other* candidates at least as likely as the code (ties count against the code, so it is the
pessimistic one), of `n_candidates` with the code among them. Exposure is log2 of n_candidates / rank. It is bounded on
both sides, 0 for the last place and log2 n_candidates for the first, and piles up at the upper end: medians, quartiles
and the share at the ceiling describe it, a mean does not.

What does not exist is the caller's business: every function raises ValueError for a missing rank or exposure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from .intervals import Interval, check_level, clopper_pearson
from .roc import Floats, finite_scores

# Sums and ratios of logarithms that are equal on paper differ in their last bits.
_ROUNDING = 1e-9

# Ranks held at a time in a simulation: 4e6 values are 32 MB.
_CHUNK_VALUES = 4_000_000


@dataclass(frozen=True)
class ExposureSummary:
    """Exposures of several canaries, in bits: quartiles (linear interpolation) and the share that cannot go higher."""

    n: int
    median: float
    q1: float
    q3: float
    share_at_ceiling: float
    ceiling_bits: float


def _check_candidates(n_candidates: int) -> None:
    if n_candidates < 2:
        raise ValueError(f"a rank needs at least 2 candidates, got {n_candidates}")


def _check_rank(rank: float, n_candidates: int) -> None:
    _check_candidates(n_candidates)
    if not 1 <= rank <= n_candidates:  # NaN fails as well
        raise ValueError(f"expected a rank from 1 to {n_candidates}, got {rank}")


def ceiling_bits(n_candidates: int) -> float:
    """The largest exposure there is, log2 n_candidates: 13.29 bits for 10,000, 14.29 for 20,000.

    Raises ValueError for fewer than 2 candidates.
    """
    _check_candidates(n_candidates)
    return math.log2(n_candidates)


def exposure_bits(rank: float, n_candidates: int) -> float:
    """log2 n_candidates - log2 rank, in bits.

    Every further bit halves the number of candidates that are at least as likely. A code the model never saw has a rank
    drawn evenly from 1 to n_candidates, so P(exposure >= k) is 2^-k: median 1.00 and mean 1.44 bits, not 0.
    Raises ValueError for a rank outside 1 to n_candidates. Source: canary paper, section III-B; Carlini et al. 2019.
    """
    _check_rank(rank, n_candidates)
    return math.log2(n_candidates) - math.log2(rank)


def summarise(exposures: ArrayLike, ceiling: float) -> ExposureSummary:
    """Median, quartiles and share at the ceiling of exposures in bits, shape (n_canaries,).

    An exposure at the ceiling is censored: the true one may be larger, which the median survives as long as fewer than
    half of the canaries are there. Raises ValueError for no exposures, a missing one, or one outside 0 to `ceiling`.
    """
    values = finite_scores(exposures, "exposures")
    if values.min() < -_ROUNDING or values.max() > ceiling + _ROUNDING:
        raise ValueError(
            f"expected exposures from 0 to the ceiling of {ceiling:g} bits, got {values.min():g} to {values.max():g}"
        )
    q1, median, q3 = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    return ExposureSummary(values.size, median, q1, q3, float((values >= ceiling - _ROUNDING).mean()), ceiling)


def exposure_interval(rank: float, n_candidates: int, level: float = 0.95) -> Interval:
    """Interval for the exposure in the whole space of codes, from the rank in a bank of sampled decoys, in bits.

    rank - 1 of the n_candidates - 1 decoys are at least as likely as the code. The decoys were drawn from the space, so
    that share estimates p, the share of the whole space, and -log2 p is what a complete ranking would have shown. The
    ends are -log2 of Clopper-Pearson's ends for p. At rank 1 no upper end exists (it is inf: the bank is too small to
    tell, and the report writes none), and the low end is one-sided, -log2(1 - (1 - level)^(1 / (n_candidates - 1))):
    8.38 bits for 999 decoys, 11.70 for 9,999, 12.70 for 19,999 at 95%. Choosing the one-sided end only there lets the
    coverage fall slightly below `level` for codes whose p is near that end (93.8% at 95%).

    Not for a space that was ranked completely: there the exposure is exact and has no sampling error. Raises ValueError
    for a rank outside 1 to n_candidates or one that is not whole. Source: Clopper and Pearson 1934; the paper gives no
    interval.
    """
    check_level(level)
    _check_rank(rank, n_candidates)
    if rank != int(rank):
        raise ValueError(f"expected a whole rank, got {rank}")
    above, decoys = int(rank) - 1, n_candidates - 1
    if above == 0:
        share = -math.expm1(math.log1p(-level) / decoys)  # 1 - (1 - level)^(1 / decoys)
        return Interval(-math.log2(share), math.inf, level, "Clopper-Pearson on decoys, one-sided at rank 1")
    ends = clopper_pearson(above, decoys, level)
    # Adding 0.0 turns the -0.0 of a share of one into 0.0.
    return Interval(-math.log2(ends.high) + 0.0, -math.log2(ends.low), level, "Clopper-Pearson on decoys")


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest whole number in low..high for which `holds`, which once true stays true; `high` if none before."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _middle_ranks_above(product: int, n_canaries: int, n_candidates: int) -> float:
    """P(R_(k) R_(k+1) > product) for the middle two of n_canaries = 2k even ranks on 1..n_candidates, exactly.

    Summed over the lower middle rank a. With b = product // a >= a, R_(k) = a and R_(k+1) > b means that k ranks lie at
    or below a, not all of them below it, and k above b: C(2k, k) (a^k - (a-1)^k) (N - b)^k / N^(2k). For a beyond the
    root of `product` any R_(k+1) will do.
    """
    k = n_canaries // 2
    root = min(math.isqrt(product), n_candidates)
    beyond = float(stats.binom.cdf(k - 1, n_canaries, root / n_candidates))
    a = np.arange(1, root + 1, dtype=np.int64)
    b = product // a
    a, b = a[b < n_candidates], b[b < n_candidates]
    ways = special.gammaln(n_canaries + 1) - 2.0 * special.gammaln(k + 1)
    chances = ways + k * (np.log(a / n_candidates) + np.log1p(-b / n_candidates)) + np.log1p(-(((a - 1) / a) ** k))
    return beyond + float(np.exp(chances).sum())


def null_median_interval(n_canaries: int, n_candidates: int, level: float = 0.95) -> Interval:
    """Where the median exposure of canaries that were never learned lies with probability `level`, in bits.

    Exact, with at most (1 - level) / 2 on either side; exposures take discrete values, so the real probability is
    somewhat above `level`. The ranks are independent and even on 1..n_candidates, because each code was drawn at random
    from its space. Odd numbers of canaries: the median is one order statistic of the ranks, a binomial count. Even
    numbers: it is the mean of two, so its exposure is log2 n_candidates minus half the log2 of their product, whose
    law is summed exactly. [0.69, 1.39] for 64 canaries at 95%. Codes drawn without replacement or digit-balanced vary a
    little less, so the interval errs towards being wide; pessimistic ranks with many ties may fall below it.
    Memory and time grow with n_candidates. Raises ValueError for no canaries or fewer than 2 candidates.
    """
    check_level(level)
    _check_candidates(n_candidates)
    if n_canaries < 1:
        raise ValueError(f"a median needs at least 1 canary, got {n_canaries}")
    tail = (1.0 - level) / 2.0
    if n_canaries % 2:
        power, largest = 1, n_candidates

        def above(value: int) -> float:  # P(middle rank > value): fewer than half of the ranks are at or below it
            return float(stats.binom.cdf(n_canaries // 2, n_canaries, value / n_candidates))
    else:
        power, largest = 2, n_candidates**2

        def above(value: int) -> float:
            return _middle_ranks_above(value, n_canaries, n_candidates)

    # A large rank is a low exposure. worst: the smallest with P(R > worst) <= tail; best: the largest with
    # P(R < best) <= tail, which is the smallest with P(R <= best) > tail.
    worst = _first(lambda value: above(value) <= tail, 1, largest)
    best = _first(lambda value: 1.0 - above(value) > tail, 1, largest)
    low, high = (math.log2(n_candidates) - math.log2(value) / power + 0.0 for value in (worst, best))
    return Interval(low, high, level, "order statistics of even ranks, exact")


def _log_rank_sums(n_ranks: int, n_candidates: int, n_draws: int, rng: np.random.Generator) -> Floats:
    """Sums of log2 rank over n_ranks even ranks, shape (n_draws,)."""
    logs = np.log2(np.arange(1, n_candidates + 1))
    step = max(1, _CHUNK_VALUES // n_ranks)
    parts = []
    for start in range(0, n_draws, step):
        rows = min(step, n_draws - start)
        parts.append(logs[rng.integers(0, n_candidates, size=(rows, n_ranks))].sum(axis=1))
    return np.concatenate(parts)


def uniformity_p(ranks: ArrayLike, n_candidates: int, seed: int, *, n_draws: int = 9999) -> float:
    """One-sided p-value of "these codes rank no better than codes drawn at random", from ranks of shape (n_canaries,).

    The design draws every code at random, so had the model learned none of them, each rank would be even on
    1..n_candidates whatever the model prefers: the test needs nothing but that draw. Statistic: the sum of exposures.
    p = (1 + draws whose sum is at least as large) / (1 + n_draws), so it never is 0 and equal sums count against a
    finding; give pessimistic ranks and ties among candidates do too. For independent codes 2 ln 2 times the sum is
    nearly chi-squared with 2 n_canaries degrees of freedom. The draws come from `seed` and are the same everywhere.

    Ranks of one canary under several probes, or of several checkpoints, are not independent: give one per code.
    Raises ValueError for no ranks or a rank outside 1 to n_candidates. Source: Phipson and Smyth 2010 for the add-one
    p-value; the paper gives no test.
    """
    values = finite_scores(ranks, "ranks")
    _check_rank(float(values.min()), n_candidates)
    _check_rank(float(values.max()), n_candidates)
    if n_draws < 1:
        raise ValueError(f"at least one draw is needed, got {n_draws}")
    rng = np.random.default_rng(random.Random(f"{seed}:uniformity").getrandbits(64))
    observed = float(np.log2(values).sum())  # small sum of log ranks = large sum of exposures
    sums = _log_rank_sums(values.size, n_candidates, n_draws, rng)
    return (1 + int((sums <= observed + _ROUNDING).sum())) / (1 + n_draws)
