"""A lower bound on the privacy parameter epsilon from one training run with coin-flipped canaries.

For every coin canary a fair coin decided whether it is in the training file. An auditor who sees the model guesses some
of the coins. The more private the training, the closer must the guesses be to tossing coins; so many right guesses rule
out small epsilons. The bound speaks of the training procedure (the mechanism), holds with the stated confidence, and is
a lower bound only: a small or zero one never certifies privacy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

REPLACE_ONE = (
    "replace one row: neighbouring training files differ in one row, which holds the canary in one and the background "
    "row it displaced in the other; half the bound holds for adding or removing one row (at delta 0)"
)

# Fair coins fail this check once in a thousand designs; a file in which every coin canary was planted always does.
_UNFAIR_BELOW = 1e-3


@dataclass(frozen=True)
class OneRunBound:
    """The bound, or why there is none.

    Attributes:
        epsilon: lower bound on epsilon; 0.0 if nothing was shown; None where refused.
        r, v, m: guesses, right guesses (None where refused), coins.
        delta, significance: the bound says "not (epsilon', delta)-private for any epsilon' below epsilon", and is wrong
            with probability at most `significance`.
        adjacency: which two training files the guarantee compares.
        refused: the broken assumptions, or None.
        ceiling: the bound that only right guesses would have given: the most this design could show.
    """

    epsilon: float | None
    r: int
    v: int | None
    m: int
    delta: float
    significance: float
    adjacency: str
    refused: str | None
    ceiling: float


def _check_counts(m: int, r: int, v: int, delta: float) -> None:
    if not 0 <= v <= r <= m or r < 1:
        raise ValueError(f"expected 0 <= right <= guesses <= coins and guesses > 0, got v={v}, r={r}, m={m}")
    if not 0.0 <= delta < 1.0:
        raise ValueError(f"expected 0 <= delta < 1, got {delta}")


def one_run_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Bound, under any (epsilon, delta)-private training, on P(v or more of r guesses about m fair coins are right).

    min(1, beta + 2 m delta alpha) with W binomial, r tosses at q = e^epsilon / (1 + e^epsilon): beta = P(W >= v),
    alpha = max over i = 1..v of P(v - i <= W < v) / i. Raises ValueError unless 0 <= v <= r <= m, r > 0, epsilon >= 0
    and 0 <= delta < 1. Source: Steinke, Nasr and Jagielski 2023, main theorem and its reference code.
    """
    _check_counts(m, r, v, delta)
    if not epsilon >= 0.0:
        raise ValueError(f"expected epsilon >= 0, got {epsilon}")
    q = 1.0 / (1.0 + math.exp(-epsilon))
    beta = float(stats.binom.sf(v - 1, r, q))
    if delta == 0.0 or v == 0:
        return min(1.0, beta)
    just_below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q))  # P(v - i <= W < v), i = 1..v
    alpha = float((just_below / np.arange(1, v + 1)).max())
    return min(1.0, beta + 2.0 * m * delta * alpha)


# Cached: with delta > 0 a bound takes sixty tail sums, and audits ask for the same few counts again and again.
@functools.lru_cache(maxsize=4096)
def one_run_epsilon(m: int, r: int, v: int, delta: float, significance: float = 0.05) -> float:
    """Largest epsilon that v right guesses of r, on m fair coins, rule out at level `significance`; 0.0 if none.

    At delta = 0 it is closed: q is Clopper-Pearson's one-sided lower end for v of r, epsilon = ln(q / (1 - q)), so that
    only right guesses give q = significance^(1/r): 1.82 for 20, 2.78 for 50, 3.49 for 100, 5.11 for 500, 5.81 for 1000.
    At delta > 0 bisection below that value. Any epsilon whose p-value is at most `significance` is a valid bound,
    because a training that is epsilon-private is also private for every larger epsilon; so a p-value that were not
    monotone could only make the bound smaller, not wrong.

    r must have been fixed before the scores were seen: the largest bound over several r is no bound.
    Raises ValueError for counts or rates out of range. Source: as `one_run_p_value`.
    """
    _check_counts(m, r, v, delta)
    if not 0.0 < significance < 1.0:
        raise ValueError(f"expected 0 < significance < 1, got {significance}")
    if v == 0:
        return 0.0
    q = float(stats.beta.ppf(significance, v, r - v + 1))
    if q <= 0.5:
        return 0.0
    pure = math.log(q) - math.log1p(-q)
    if delta == 0.0:
        return pure
    if one_run_p_value(m, r, v, 0.0, delta) > significance:
        return 0.0
    low, high = 0.0, pure
    for _ in range(60):  # halves the step below the precision of a float
        middle = (low + high) / 2.0
        if one_run_p_value(m, r, v, middle, delta) <= significance:
            low = middle
        else:
            high = middle
    return low


def _right_guesses(scores: ArrayLike, included: Sequence[bool], n_guesses: int) -> int:
    """Right guesses when half of them say "out" for the lowest scores and half "in" for the highest.

    Among equal scores the included come first, so a tie at either threshold is always broken into wrong guesses: this
    count is at most that of any other way to break it, hence valid for it.
    """
    inside = np.asarray(included, dtype=bool)
    order = np.lexsort((~inside, np.asarray(scores, dtype=np.float64)))
    half = n_guesses // 2
    return int((~inside[order[:half]]).sum() + inside[order[-half:]].sum())


def one_run_bound(
    scores: ArrayLike,
    included: Sequence[bool],
    *,
    dose: int,
    n_guesses: int,
    delta: float = 0.0,
    significance: float = 0.05,
    inclusion_probability: float = 0.5,
    adjacency: str = REPLACE_ONE,
) -> OneRunBound:
    """Lower bound on epsilon from the scores (m,) of all coin canaries, higher = more like one that was trained on.

    The n_guesses / 2 lowest scores are guessed out, as many highest guessed in, the rest abstained from; ties at a
    threshold are resolved against us. `n_guesses` is even and chosen before any score is seen: no function can check
    that.

    Refused, with every reason and no number, where an assumption is broken: a canary appears more than once (several
    rows differ then, and the bound would be about a group of rows); the coins were not fair, by their stated
    probability or by a count that fair coins give less than once in a thousand; a score is missing (a gap may itself
    betray the coin); more guesses than coins; or so few guesses, for this delta and significance, that even only right
    ones would show nothing. Independence of the coins is the design's duty: a design that plants exactly half of the
    canaries has none. Give every coin canary, those that fell out included.

    The guarantee bounded is that of flipping one coin, all other coins and rows fixed: `adjacency` says in words what
    that changes in the file. The default is true where the canary takes a background row's place and all other rows
    stay where they are.
    Raises ValueError for lengths that differ, an odd or non-positive `n_guesses`, or rates out of range.
    Source: Steinke, Nasr and Jagielski 2023, algorithm 1 with a fixed number of guesses on each side.
    """
    values = np.asarray(scores, dtype=np.float64)
    inside = np.asarray(included)
    if values.ndim != 1 or values.shape != inside.shape:
        raise ValueError(f"expected one score and one coin a canary, got shapes {values.shape} and {inside.shape}")
    if inside.size and inside.dtype != np.bool_:
        raise ValueError("expected True or False for every coin")
    if n_guesses < 2 or n_guesses % 2:
        raise ValueError(f"expected an even number of guesses from 2, half on each side, got {n_guesses}")
    m, n_in = int(values.size), int(inside.sum())
    reasons = []
    if dose != 1:
        reasons.append(f"a canary that was included appears {dose} times, but the bound is about one row (dose 1)")
    if inclusion_probability != 0.5:
        reasons.append(f"inclusion had probability {inclusion_probability:g}, but the bound needs fair coins (0.5)")
    elif m and float(stats.binomtest(n_in, m, 0.5).pvalue) < _UNFAIR_BELOW:
        reasons.append(f"{n_in} of {m} canaries were included, which fair coins give less than once in 1000 designs")
    n_missing = int((~np.isfinite(values)).sum())
    if n_missing:
        reasons.append(f"{n_missing} of {m} coin canaries have no score, and a gap may itself betray the coin")
    ceiling = one_run_epsilon(max(m, n_guesses), n_guesses, n_guesses, delta, significance)
    if n_guesses > m:
        reasons.append(f"{n_guesses} guesses for {m} coins")
    elif ceiling == 0.0:
        reasons.append(
            f"with {n_guesses} guesses on {m} coins at delta {delta:g} and significance {significance:g} even only "
            "right guesses would show nothing (plan more)"
        )
    if reasons:
        refused = "; ".join(reasons)
        return OneRunBound(None, n_guesses, None, m, delta, significance, adjacency, refused, ceiling)
    v = _right_guesses(values, [bool(x) for x in inside], n_guesses)
    epsilon = one_run_epsilon(m, n_guesses, v, delta, significance)
    return OneRunBound(epsilon, n_guesses, v, m, delta, significance, adjacency, None, ceiling)
