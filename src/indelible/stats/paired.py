"""Comparison of two score columns on the same records, Holm's correction, and the smallest effect a cohort can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from .bootstrap import bootstrap_auc, cluster_weights, percentile_interval
from .intervals import Interval, check_level, delong, normal_quantile
from .roc import Floats, auc, placements


@dataclass(frozen=True)
class Paired:
    """AUC of a minus AUC of b. `p_value` tests a difference of zero, two-sided; None where no test exists."""

    auc_a: float
    auc_b: float
    difference: float
    interval: Interval
    p_value: float | None


def _same_length(a: Sequence[float] | ArrayLike, b: Sequence[float] | ArrayLike, what: str) -> None:
    if np.shape(a) != np.shape(b):
        raise ValueError(f"{what}: paired columns need the same records, got shapes {np.shape(a)} and {np.shape(b)}")


def paired_delong(
    members_a: ArrayLike, nonmembers_a: ArrayLike, members_b: ArrayLike, nonmembers_b: ArrayLike, level: float = 0.95
) -> Paired:
    """Difference of two AUCs measured on the same independent records, row i of a and b being the same record.

    Var = S10 / m + S01 / n, sample variances of the differences of placement values, which is the covariance form
    Var(A) + Var(B) - 2 Cov(A, B). Normal interval clipped to [-1, 1], and the normal test. Where that variance is zero
    (for instance complete separation against a constant) the interval combines those of the two AUCs (Newcombe's
    square-and-add) and p is 1 for equal AUCs, else None. Raises ValueError for columns of different length. Source:
    DeLong et al. 1988.
    """
    check_level(level)
    _same_length(members_a, members_b, "members")
    _same_length(nonmembers_a, nonmembers_b, "nonmembers")
    a10, a01 = placements(members_a, nonmembers_a)
    b10, b01 = placements(members_b, nonmembers_b)
    area_a, area_b = float(a10.mean()), float(b10.mean())
    difference = area_a - area_b
    variance = 0.0
    if min(a10.size, a01.size) >= 2:
        variance = float((a10 - b10).var(ddof=1) / a10.size + (a01 - b01).var(ddof=1) / a01.size)
    if variance < 1e-18:
        (_, one), (_, two) = delong(members_a, nonmembers_a, level), delong(members_b, nonmembers_b, level)
        low = difference - math.hypot(area_a - one.low, two.high - area_b)
        high = difference + math.hypot(one.high - area_a, area_b - two.low)
        interval = Interval(max(low, -1.0), min(high, 1.0), level, "square-and-add of two AUC intervals")
        return Paired(area_a, area_b, difference, interval, 1.0 if abs(difference) < 1e-12 else None)
    error = math.sqrt(variance)
    half = normal_quantile(level) * error
    interval = Interval(max(difference - half, -1.0), min(difference + half, 1.0), level, "DeLong, paired")
    return Paired(area_a, area_b, difference, interval, float(2.0 * stats.norm.sf(abs(difference) / error)))


def from_replicates(area_a: float, area_b: float, replicates: Floats, level: float) -> Paired:
    """Percentile interval and add-one two-sided p-value from bootstrap replicates of the difference."""
    low, high = percentile_interval(replicates, level)
    smaller = min(int((replicates <= 0.0).sum()), int((replicates >= 0.0).sum()))
    p_value = min(1.0, 2.0 * (1 + smaller) / (1 + replicates.size))
    return Paired(area_a, area_b, area_a - area_b, Interval(low, high, level, "cluster bootstrap, paired"), p_value)


def paired_cluster_bootstrap(
    members_a: ArrayLike,
    nonmembers_a: ArrayLike,
    members_b: ArrayLike,
    nonmembers_b: ArrayLike,
    member_groups: Sequence[str],
    nonmember_groups: Sequence[str],
    *,
    level: float = 0.95,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> Paired:
    """Difference of two AUCs on the same records in groups: both columns see the same resampled groups."""
    check_level(level)
    _same_length(members_a, members_b, "members")
    _same_length(nonmembers_a, nonmembers_b, "nonmembers")
    rng = np.random.default_rng(seed)
    w_m = cluster_weights(member_groups, None, n_bootstrap, rng)
    w_n = cluster_weights(nonmember_groups, None, n_bootstrap, rng)
    difference = bootstrap_auc(members_a, nonmembers_a, w_m, w_n) - bootstrap_auc(members_b, nonmembers_b, w_m, w_n)
    return from_replicates(auc(members_a, nonmembers_a), auc(members_b, nonmembers_b), difference, level)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given; rejecting those <= alpha keeps the family-wise error.

    Sorted p_(i) becomes max over j <= i of min(1, (n - j + 1) p_(j)). Raises ValueError for a value outside [0, 1] or
    NaN: a test that was not done must be left out, not counted. Source: Holm 1979.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.size == 0:
        return []
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError(f"p-values must lie in [0, 1], got {list(p_values)}")
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(1.0, values[order] * np.arange(values.size, 0, -1))
    adjusted = np.empty(values.size)
    adjusted[order] = np.maximum.accumulate(stepped)
    return [float(p) for p in adjusted]


def hanley_mcneil_variance(area: float, n_members: int, n_nonmembers: int) -> float:
    """Variance of the AUC estimate under exponential scores. Source: Hanley and McNeil 1982."""
    q1, q2 = area / (2.0 - area), 2.0 * area * area / (1.0 + area)
    top = area * (1.0 - area) + (n_members - 1) * (q1 - area * area) + (n_nonmembers - 1) * (q2 - area * area)
    return top / (n_members * n_nonmembers)


def smallest_effect(
    n_members: int, n_nonmembers: int, alpha: float = 0.05, power: float = 0.8, n_tests: int = 1
) -> float | None:
    """Smallest true AUC above one half that the two-sided test would have found with the given power.

    Solves A - 1/2 - z_(1-a/2) sqrt((m+n+1)/(12 m n)) = z_power sqrt(Var(A)), a = alpha / n_tests being Holm's worst
    case, Var that of Hanley and McNeil. An AUC as far below one half is as visible. Units: independent records, so pass
    the numbers of groups for grouped data. None where not even an AUC of 1 could be significant.
    Raises ValueError for counts below 1 or rates outside (0, 1).
    """
    if min(n_members, n_nonmembers, n_tests) < 1 or not (0.0 < alpha < 1.0 and 0.0 < power < 1.0):
        raise ValueError("counts must be positive, alpha and power strictly between 0 and 1")
    z_alpha = float(stats.norm.isf(alpha / n_tests / 2.0))
    z_power = float(stats.norm.ppf(power))
    null_error = math.sqrt((n_members + n_nonmembers + 1) / (12.0 * n_members * n_nonmembers))
    critical = 0.5 + z_alpha * null_error
    if critical >= 1.0:
        return None

    def shortfall(area: float) -> float:
        variance = max(hanley_mcneil_variance(area, n_members, n_nonmembers), 0.0)
        return area - critical - z_power * math.sqrt(variance)

    if shortfall(critical) >= 0.0:  # power below one half: the critical value itself is enough
        return critical
    return float(optimize.brentq(shortfall, critical, 1.0, xtol=1e-10))
