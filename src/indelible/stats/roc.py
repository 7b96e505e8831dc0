"""Rank statistics of two samples of scores: AUC, ROC curve, operating points.

Higher score = more member-like. A record is called a member when its score is strictly above the threshold, so a
block of equal scores is never split and never admitted by accident. Missing scores are the caller's business: every
function here raises ValueError for a value that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]

# Counts such as 0.1 * 30 come out as 3.0000000000000004 or 2.9999999999999996: both are three records.
_ROUNDING = 1e-9

BOUND_LEVEL = 0.95
"""Confidence of every upper bound on a population false positive rate."""


@dataclass(frozen=True)
class RocCurve:
    """Points of a ROC curve from (0, 0) to (1, 1), one per distinct score and one more.

    `fpr[i]` and `tpr[i]` are the shares of non-members and members with score > `thresholds[i]`; thresholds fall from
    the largest score to -inf.
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats


@dataclass(frozen=True)
class OperatingPoint:
    """What one threshold does. Where `reason` is set, the point does not exist and every rate and count is None.

    Attributes:
        target_fpr: the false positive rate asked for.
        threshold: a non-member's score; a record is flagged when its score is strictly larger.
        tp, fp: flagged members and flagged non-members.
        tpr, realised_fpr: tp / n_members and fp / n_nonmembers.
        fpr_upper: 95% upper bound on the false positive rate in the population the non-members were drawn from.
    """

    target_fpr: float
    threshold: float | None
    tp: int | None
    fp: int | None
    tpr: float | None
    realised_fpr: float | None
    fpr_upper: float | None
    n_members: int
    n_nonmembers: int
    reason: str | None


def finite_scores(values: ArrayLike, what: str) -> Floats:
    """`values` as a 1-d float64 array. Raises ValueError if it is empty, not 1-d, or holds NaN or an infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{what}: expected a non-empty list of scores, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: {int((~np.isfinite(array)).sum())} scores are not finite; remove them first")
    return array


def _share_below(scores: Floats, others: Floats) -> Floats:
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    not_above = np.searchsorted(ordered, scores, side="right")
    return (below + not_above) / (2.0 * others.size)


def placements(members: ArrayLike, nonmembers: ArrayLike) -> tuple[Floats, Floats]:
    """Placement values (V10, V01), shapes (n_members,) and (n_nonmembers,).

    V10[i] is the share of non-members below member i, V01[j] the share of members above non-member j; ties count one
    half. Either mean is the AUC. Source: DeLong, DeLong and Clarke-Pearson 1988.
    """
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    return _share_below(m, n), 1.0 - _share_below(n, m)


def auc(members: ArrayLike, nonmembers: ArrayLike) -> float:
    """P(random member scores above random non-member) + half P(they tie): the Mann-Whitney U over m n, in [0, 1]."""
    return float(placements(members, nonmembers)[0].mean())


def roc_curve(members: ArrayLike, nonmembers: ArrayLike) -> RocCurve:
    """The ROC curve, with one point after each whole block of tied scores; the area under it is `auc`."""
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    thresholds = np.append(np.unique(np.concatenate([m, n]))[::-1], -np.inf)
    tpr = 1.0 - np.searchsorted(np.sort(m), thresholds, side="right") / m.size
    fpr = 1.0 - np.searchsorted(np.sort(n), thresholds, side="right") / n.size
    return RocCurve(fpr, tpr, thresholds)


def allowed_false_positives(fpr: float, n: int) -> int:
    """Most non-members of n that may be flagged so that the realised rate stays at or below `fpr`."""
    return math.floor(fpr * n + _ROUNDING)


def population_fpr_upper(rank: int, n: int, level: float = BOUND_LEVEL) -> float:
    """Upper bound on the population false positive rate when the threshold is the `rank`-th largest of n scores.

    For continuous scores that rate is distributed Beta(rank, n + 1 - rank), whatever the distribution of the scores;
    for scores with ties it is stochastically smaller, so the bound holds as long as `rank` does not depend on the data.
    """
    if not 1 <= rank <= n:
        raise ValueError(f"rank must be in 1..{n}, got {rank}")
    return float(stats.beta.ppf(level, rank, n + 1 - rank))


def nonmembers_needed(fpr: float, level: float = BOUND_LEVEL) -> int:
    """Fewest independent non-members whose largest score bounds the population rate by `fpr`: 29, 299, 2995."""
    return math.ceil(math.log(1.0 - level) / math.log1p(-fpr) - _ROUNDING)


def group_maxima(scores: ArrayLike, groups: Sequence[str] | None) -> Floats:
    """The largest score of each group, or the scores themselves without groups.

    Records of one group are not independent, and the bounds count independent units. A group's largest score exceeds a
    threshold at least as often as any one record of it, so a bound on that rate is conservative for records.
    """
    values = finite_scores(scores, "nonmembers")
    if groups is None:
        return values
    if len(groups) != values.size:
        raise ValueError(f"{len(groups)} groups for {values.size} scores")
    names, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    top = np.full(names.size, -np.inf)
    np.maximum.at(top, codes, values)
    return top


def _check_rate(fpr: float) -> None:
    if not 0.0 < fpr < 1.0:
        raise ValueError(f"a false positive rate must lie strictly between 0 and 1, got {fpr}")


def _null_point(fpr: float, m: int, n: int, reason: str) -> OperatingPoint:
    return OperatingPoint(fpr, None, None, None, None, None, None, m, n, reason)


def _point(fpr: float, threshold: float, upper: float, members: Floats, nonmembers: Floats) -> OperatingPoint:
    tp, fp = int((members > threshold).sum()), int((nonmembers > threshold).sum())
    return OperatingPoint(
        fpr, threshold, tp, fp, tp / members.size, fp / nonmembers.size, upper, members.size, nonmembers.size, None
    )


def operating_point(
    members: ArrayLike, nonmembers: ArrayLike, fpr: float, nonmember_groups: Sequence[str] | None = None
) -> OperatingPoint:
    """The threshold with the largest TPR whose realised FPR is at most `fpr`.

    The threshold is the (k+1)-th largest non-member score, k = floor(fpr n): with ties fewer than k are flagged, never
    more. `fpr_upper` uses rank k + 1, fixed in advance, so it is valid with ties too; with groups it counts groups
    whose largest score lies above the threshold (conservative, and approximate because that rank depends on the data).
    Null with a reason below 1 / fpr non-members, where the rate is finer than the sample can resolve.
    Raises ValueError for a rate outside (0, 1), empty samples, or scores that are not finite.
    """
    _check_rate(fpr)
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    allowed = allowed_false_positives(fpr, n.size)
    if allowed < 1:
        needed = math.ceil(1.0 / fpr - _ROUNDING)
        return _null_point(fpr, m.size, n.size, f"{n.size} non-members; an FPR of {fpr:g} needs at least {needed}")
    threshold = float(np.sort(n)[::-1][allowed])
    if nonmember_groups is None:
        upper = population_fpr_upper(allowed + 1, n.size)
    else:
        tops = group_maxima(n, nonmember_groups)
        above = int((tops > threshold).sum())
        upper = 1.0 if above == tops.size else population_fpr_upper(above + 1, tops.size)
    return _point(fpr, threshold, upper, m, n)


def bounded_rank(fpr: float, n: int) -> int | None:
    """Largest rank whose population FPR is at most `fpr` with 95% confidence; None where even rank 1 is not."""
    fits = [j for j in range(1, allowed_false_positives(fpr, n) + 2) if j <= n and population_fpr_upper(j, n) <= fpr]
    return max(fits) if fits else None


def bounded_operating_point(
    members: ArrayLike, nonmembers: ArrayLike, fpr: float, nonmember_groups: Sequence[str] | None = None
) -> OperatingPoint:
    """The threshold with the largest TPR whose 95% upper bound on the population FPR is at most `fpr`.

    Needs 29 independent non-members for 10%, 299 for 1%, 2995 for 0.1%; null with a reason below. With groups the
    independent units are the groups, each standing for its largest score.
    Raises ValueError as `operating_point` does.
    """
    _check_rate(fpr)
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    tops = group_maxima(n, nonmember_groups)
    rank = bounded_rank(fpr, tops.size)
    if rank is None:
        units = "non-members" if nonmember_groups is None else "groups of non-members"
        needed = nonmembers_needed(fpr)
        reason = f"{tops.size} {units}; bounding the population FPR by {fpr:g} needs at least {needed}"
        return _null_point(fpr, m.size, n.size, reason)
    threshold = float(np.sort(tops)[::-1][rank - 1])
    return _point(fpr, threshold, population_fpr_upper(rank, tops.size), m, n)
