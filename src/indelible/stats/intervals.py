"""Intervals and tests for one column of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from .bootstrap import (
    Weights,
    bootstrap_auc,
    bootstrap_tpr,
    cluster_weights,
    distinct_groups,
    is_grouped,
    percentile_interval,
    side_units,
)
from .roc import OperatingPoint, auc, finite_scores, placements


@dataclass(frozen=True)
class Interval:
    """A two-sided interval: ends, confidence level (0.95 = 95%), and how it was made."""

    low: float
    high: float
    level: float
    method: str


def check_level(level: float) -> None:
    """Raises ValueError unless 0 < level < 1."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"a confidence level must lie strictly between 0 and 1, got {level}")


def normal_quantile(level: float) -> float:
    """z of a two-sided interval: 1.96 for 0.95."""
    check_level(level)
    return float(stats.norm.ppf(0.5 + level / 2.0))


def clopper_pearson(k: float, n: float, level: float = 0.95) -> Interval:
    """Exact binomial interval for k successes of n: Beta quantiles B(a/2; k, n-k+1) and B(1-a/2; k+1, n-k).

    A fractional k is allowed (a rate times a number of independent units). Raises ValueError unless 0 <= k <= n, n > 0.
    Source: Clopper and Pearson 1934.
    """
    check_level(level)
    if n <= 0 or not 0 <= k <= n:
        raise ValueError(f"expected 0 <= k <= n and n > 0, got k={k}, n={n}")
    tail = (1.0 - level) / 2.0
    low = 0.0 if k == 0 else float(stats.beta.ppf(tail, k, n - k + 1))
    high = 1.0 if k == n else float(stats.beta.ppf(1.0 - tail, k + 1, n - k))
    return Interval(low, high, level, "Clopper-Pearson")


def disjoint_pairs(area: float, n_units: int, level: float) -> Interval:
    """A bound for an AUC whose estimated variance is zero (complete separation, or one unit on a side).

    n_units member-nonmember pairs that share no record are independent, and each is in the right order with probability
    AUC. Complete separation puts all of them in order, so AUC^n_units bounds its probability and Clopper-Pearson on
    n_units pairs is valid, if wide. A zero-width interval would claim certainty that no sample can give.
    """
    bound = clopper_pearson(area * n_units, n_units, level)
    return Interval(bound.low, bound.high, level, "Clopper-Pearson on disjoint pairs")


def delong(members: ArrayLike, nonmembers: ArrayLike, level: float = 0.95) -> tuple[float, Interval]:
    """AUC and its interval for independent records.

    Var(AUC) = S10 / m + S01 / n, the sample variances of the placement values; the interval is symmetric on the logit
    scale, logit(AUC) +- z sqrt(Var) / (AUC (1 - AUC)), so it stays inside (0, 1) and behaves near the ends. Where the
    variance estimate is zero or does not exist: `disjoint_pairs` with min(m, n) pairs.
    Raises ValueError for empty samples or scores that are not finite. Source: DeLong et al. 1988; Pepe 2003, 5.2.
    """
    check_level(level)
    v10, v01 = placements(members, nonmembers)
    area = float(v10.mean())
    if min(v10.size, v01.size) < 2:
        return area, disjoint_pairs(area, 1, level)
    variance = float(v10.var(ddof=1) / v10.size + v01.var(ddof=1) / v01.size)
    if variance < 1e-18 or not 0.0 < area < 1.0:
        return area, disjoint_pairs(min(max(area, 0.0), 1.0), min(v10.size, v01.size), level)
    centre = math.log(area / (1.0 - area))
    half = normal_quantile(level) * math.sqrt(variance) / (area * (1.0 - area))
    low, high = (float(1.0 / (1.0 + np.exp(-np.clip(x, -700, 700)))) for x in (centre - half, centre + half))
    return area, Interval(low, high, level, "DeLong, logit")


def auc_from_replicates(area: float, replicates: ArrayLike, n_units: int, level: float) -> Interval:
    """Percentile interval of bootstrap AUCs; `disjoint_pairs` over groups where every replicate is the same."""
    low, high = percentile_interval(replicates, level)
    if high - low < 1e-12:
        return disjoint_pairs(area, n_units, level)
    return Interval(low, high, level, "cluster bootstrap, percentile")


def cluster_bootstrap_auc(
    members: ArrayLike,
    nonmembers: ArrayLike,
    member_groups: Sequence[str],
    nonmember_groups: Sequence[str],
    *,
    level: float = 0.95,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> Interval:
    """Interval for the AUC when records of one group (one question, one author) are not independent.

    Whole groups are drawn with replacement within each side; percentiles of the AUC over the replicates. Too narrow
    below some ten groups a side. Raises ValueError for empty samples, scores that are not finite, or lengths that
    differ.
    """
    check_level(level)
    area = auc(members, nonmembers)
    rng = np.random.default_rng(seed)
    w_m = cluster_weights(member_groups, None, n_bootstrap, rng)
    w_n = cluster_weights(nonmember_groups, None, n_bootstrap, rng)
    units = min(distinct_groups(member_groups), distinct_groups(nonmember_groups))
    return auc_from_replicates(area, bootstrap_auc(members, nonmembers, w_m, w_n), units, level)


def auc_p_value(
    members: ArrayLike,
    nonmembers: ArrayLike,
    member_groups: Sequence[str] | None = None,
    nonmember_groups: Sequence[str] | None = None,
    *,
    n_permutations: int = 9999,
    seed: int = 0,
) -> tuple[float, str]:
    """Two-sided p-value of AUC = 1/2, and the test's name.

    Independent records: Mann-Whitney (tie-corrected normal approximation with continuity correction, exact for small
    samples without ties). Any group with more than one record: membership is permuted over whole groups, p = (1 +
    number of |AUC - 1/2| at least as large) / (1 + n_permutations). All scores equal: p = 1. Source: Phipson and Smyth
    2010.
    """
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    grouped = member_groups is not None and nonmember_groups is not None
    if grouped and (len(member_groups or ()) != m.size or len(nonmember_groups or ()) != n.size):
        raise ValueError("one group per score is needed")
    pooled = np.concatenate([m, n])
    if pooled.max() == pooled.min():
        return 1.0, "all scores equal"
    if member_groups is None or nonmember_groups is None or not is_grouped(member_groups, nonmember_groups):
        result = stats.mannwhitneyu(m, n, alternative="two-sided", method="auto")
        return float(result.pvalue), "Mann-Whitney"
    labels = np.r_[np.ones(m.size, bool), np.zeros(n.size, bool)]
    codes, is_member_unit = side_units([*member_groups, *nonmember_groups], labels)
    ranks = stats.rankdata(pooled)
    rank_sums = np.bincount(codes, weights=ranks)
    sizes = np.bincount(codes).astype(np.float64)
    rng = np.random.default_rng(seed)
    table = np.stack([sizes, rank_sums], axis=1)
    parts = []
    for start in range(0, n_permutations, 500):  # all at once would take permutations x groups x 8 bytes
        rows = min(500, n_permutations - start)
        parts.append(rng.permuted(np.tile(is_member_unit, (rows, 1)), axis=1).astype(np.float64) @ table)
    counts, drawn_ranks = np.concatenate(parts).T
    areas = (drawn_ranks - counts * (counts + 1.0) / 2.0) / (counts * (pooled.size - counts))
    observed = abs(auc(m, n) - 0.5)
    # Equal statistics computed in two orders may differ in the last bits; they count as ties.
    hits = int((np.abs(areas - 0.5) >= observed - 1e-12).sum())
    return (1 + hits) / (1 + n_permutations), f"group permutation, {n_permutations}"


def tpr_interval(
    point: OperatingPoint,
    members: ArrayLike,
    nonmembers: ArrayLike,
    member_groups: Sequence[str] | None = None,
    nonmember_groups: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    n_bootstrap: int = 2000,
    seed: int = 0,
    repick: bool = True,
    weights: tuple[Weights, Weights] | None = None,
) -> Interval | None:
    """Interval for the TPR of an operating point; None where the point does not exist.

    Independent records: Clopper-Pearson. It is exact for the population TPR *at this threshold*, because the threshold
    depends on the non-members alone; the threshold's own uncertainty is what `fpr_upper` states.
    Grouped records: percentiles over a bootstrap of whole groups on both sides, picking the threshold again each time
    by the rule of `operating_point`; with `repick=False` the threshold stays and members alone are resampled (for
    `bounded_operating_point`, whose rule counts groups). Clopper-Pearson on the number of member groups where every
    replicate is the same. `weights`, from `cluster_weights` on each side, spares drawing them again for every column.
    """
    if point.tp is None or point.tpr is None or point.threshold is None:
        return None
    if member_groups is None or nonmember_groups is None or not is_grouped(member_groups, nonmember_groups):
        return clopper_pearson(point.tp, point.n_members, level)
    if weights is None:
        rng = np.random.default_rng(seed)
        drawn = [cluster_weights(groups, None, n_bootstrap, rng) for groups in (member_groups, nonmember_groups)]
        weights = (drawn[0], drawn[1])
    w_m, w_n = weights
    if repick:
        rates = bootstrap_tpr(members, nonmembers, w_m, w_n, point.target_fpr)
    else:
        flagged = (finite_scores(members, "members") > point.threshold).astype(np.float64)
        with np.errstate(invalid="ignore"):
            rates = (w_m @ flagged) / w_m.sum(axis=1)
    rates = rates[np.isfinite(rates)]  # a draw of groups none of whose records is scored has no rate
    if not rates.size:
        return None
    low, high = percentile_interval(rates, level)
    if high - low < 1e-12:
        units = distinct_groups(member_groups)
        flat = clopper_pearson(point.tpr * units, units, level)
        return Interval(flat.low, flat.high, level, "Clopper-Pearson on groups")
    return Interval(low, high, level, "cluster bootstrap, percentile")
