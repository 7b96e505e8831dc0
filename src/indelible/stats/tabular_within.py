"""The AUC within classes: of one member and one non-member that carry the same label, which scores higher.

A tabular model's score of a row depends on the label the row carries. Over all classes together, what classes differ by
hides what members and non-members of one class differ by: with classes three standard deviations apart, members that
reach 0.64 within their class reach 0.58 over all. Pairs of one class alone compare like with like, and their AUC is the
statistic that permuting membership within classes tests (`tabular_strata`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from .bootstrap import Weights, bootstrap_auc
from .intervals import Interval, disjoint_pairs, normal_quantile
from .roc import Floats, finite_scores, placements

WITHIN = "within classes"
POOLED = "over all classes together"

Codes = NDArray[np.int64]
Members = NDArray[np.bool_]


def class_ranks(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """(n,) the rank of each score among those of its class, from 1; ties share their mean rank."""
    values, codes = finite_scores(scores, "scores"), np.asarray(labels, np.int64)
    ranks = np.empty(values.size)
    for code in np.unique(codes):
        here = codes == code
        ranks[here] = stats.rankdata(values[here])
    return ranks


def n_pairs(member: ArrayLike, labels: ArrayLike) -> int:
    """Pairs of a member and a non-member of one class."""
    side, codes = np.asarray(member, bool), np.asarray(labels, np.int64)
    return sum(int((side & (codes == c)).sum()) * int((~side & (codes == c)).sum()) for c in np.unique(codes))


def aucs_of(ranks: Floats, labels: ArrayLike, members: Members) -> Floats:
    """(k,) the AUC within classes under each of k memberships (k, n), from ranks within classes (n,).

    sum_c U_c / sum_c m_c n_c, U_c = R_c - m_c (m_c + 1) / 2, R_c the members' sum of ranks in class c: every pair of
    one class counts the same. NaN where no class has a pair.
    """
    codes = np.unique(np.asarray(labels, np.int64), return_inverse=True)[1]
    of_class = np.eye(int(codes.max()) + 1)[codes]  # (n, K)
    sides = members.astype(np.float64)
    m = sides @ of_class  # (k, K)
    wins = sides @ (ranks[:, None] * of_class) - m * (m + 1.0) / 2.0
    pairs = (m * (of_class.sum(axis=0) - m)).sum(axis=1)
    areas: Floats = np.divide(wins.sum(axis=1), pairs, out=np.full(pairs.shape, np.nan), where=pairs > 0)
    return areas


def within_auc(scores: ArrayLike, member: ArrayLike, labels: ArrayLike, level: float) -> tuple[float, Interval]:
    """The AUC within classes and its interval, for independent records (n,).

    DeLong's variance of a sum over classes: with V_i the share of a member's own class's non-members below it and A_c
    the class's AUC, members add sum_c n_c^2 / W^2 * m_c / (m_c - 1) * sum_i (V_i - A_c)^2, non-members the same the
    other way round; W = sum_c m_c n_c. A class with one record on a side is measured from the overall AUC instead of
    A_c, which errs towards wide. Symmetric on the logit scale; `disjoint_pairs` where there is no variance. With one
    class it is DeLong's interval.

    Raises ValueError where no class has a member and a non-member. Source: DeLong et al. 1988, by class.
    """
    values, side, codes = finite_scores(scores, "scores"), np.asarray(member, bool), np.asarray(labels, np.int64)
    parts = []
    for code in np.unique(codes):
        one, two = values[side & (codes == code)], values[~side & (codes == code)]
        if one.size and two.size:
            parts.append(placements(one, two))
    pairs = float(sum(v10.size * v01.size for v10, v01 in parts))
    if not pairs:
        raise ValueError("no class has a member and a non-member")
    area = sum(float(v10.sum()) * v01.size for v10, v01 in parts) / pairs
    variance = 0.0
    for v10, v01 in parts:
        for own, others in ((v10, v01.size), (v01, v10.size)):
            centre, factor = (own.mean(), own.size / (own.size - 1.0)) if own.size > 1 else (area, 1.0)
            variance += (others / pairs) ** 2 * factor * float(((own - centre) ** 2).sum())
    if variance < 1e-18 or not 0.0 < area < 1.0:
        apart = sum(min(v10.size, v01.size) for v10, v01 in parts)
        return area, disjoint_pairs(min(max(area, 0.0), 1.0), apart, level)
    middle = math.log(area / (1.0 - area))
    half = normal_quantile(level) * math.sqrt(variance) / (area * (1.0 - area))
    low, high = (float(1.0 / (1.0 + np.exp(-np.clip(x, -700, 700)))) for x in (middle - half, middle + half))
    return area, Interval(low, high, level, f"DeLong {WITHIN}, logit")


def within_replicates(scores: ArrayLike, member: ArrayLike, labels: ArrayLike, weights: Weights) -> Floats:
    """(B,) the AUC within classes of each bootstrap replicate, `weights` (B, n); NaN where one drew no pair."""
    values, side, codes = finite_scores(scores, "scores"), np.asarray(member, bool), np.asarray(labels, np.int64)
    wins, pairs = np.zeros((2, len(weights)))
    for code in np.unique(codes):
        one, two = side & (codes == code), ~side & (codes == code)
        if not one.any() or not two.any():
            continue
        drawn = weights[:, one].sum(axis=1, dtype=np.float64) * weights[:, two].sum(axis=1, dtype=np.float64)
        areas = bootstrap_auc(values[one], values[two], weights[:, one], weights[:, two])
        wins += np.where(drawn > 0, areas * drawn, 0.0)
        pairs += drawn
    found: Floats = np.divide(wins, pairs, out=np.full(pairs.shape, np.nan), where=pairs > 0)
    return found
