"""Cross-fitting: folds that keep groups whole, numbers of held-out folds with intervals, and a permutation test.

Shared by the scores that are fitted on membership labels: the blind control and the combination of all scores. Each
record is scored by a model that has seen neither it nor its group, and scores are only ever ranked within one fold,
because another fold's model has another scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Weights, bootstrap_auc, bootstrap_tpr, cluster_weights, side_units
from .intervals import Interval, auc_from_replicates, clopper_pearson, disjoint_pairs
from .paired import Paired, from_replicates
from .roc import Floats, auc, operating_point

Labels = NDArray[np.bool_]
Folds = NDArray[np.int64]
"""Number of the fold in which each record is held out, (n_records,)."""

Statistic = Callable[[Labels, int], float]
"""Mean of the held-out folds' AUCs, of labels and a seed; NaN where no fold holds both classes."""

WIDENED = "bootstrap within held-out folds, widened for what their models share (Nadeau and Bengio)"


def group_codes(groups: Sequence[str]) -> NDArray[np.int64]:
    """Groups as numbers, (n_records,)."""
    return np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1].astype(np.int64)


def too_few_for_folds(member: Labels, units: NDArray[np.int64], n_folds: int) -> str | None:
    """Why these records cannot be split into folds, or None. `units` are group codes, (n_records,)."""
    for side, what in ((member, "members"), (~member, "non-members")):
        n_units = np.unique(units[side]).size
        if n_units < n_folds:
            return f"{n_units} groups of {what}; {n_folds} folds need at least {n_folds} on each side"
    if np.bincount(units).max() * 2 >= member.size:
        return "one group holds half of the records or more; folds cannot be balanced"
    return None


def split_folds(member: Labels, units: NDArray[np.int64], n_folds: int, seed: int) -> Folds:
    """Shuffled folds that keep groups whole and the share of members even. `units` are group codes, (n_records,)."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    folds = np.zeros(member.size, np.int64)
    # With one record a group both splitters stratify records; the plain one is a hundred times faster.
    alone = np.unique(units).size == units.size
    splitter = (StratifiedKFold if alone else StratifiedGroupKFold)(n_splits=n_folds, shuffle=True, random_state=seed)
    for k, (_, test) in enumerate(splitter.split(np.zeros((member.size, 1)), member, None if alone else units)):
        folds[test] = k
    return folds


def fold_sides(member: Labels, folds: Folds) -> list[tuple[Labels, Labels]]:
    """Members and non-members of every fold that holds both."""
    sides = [((folds == k) & member, (folds == k) & ~member) for k in np.unique(folds)]
    return [(one, two) for one, two in sides if one.any() and two.any()]


def fold_aucs(scores: Floats, member: Labels, folds: Folds) -> list[float]:
    """AUC of every fold that holds both classes."""
    return [auc(scores[one], scores[two]) for one, two in fold_sides(member, folds)]


def fold_weights(
    member: Labels, groups: Sequence[str], folds: Folds, n_bootstrap: int, rng: np.random.Generator
) -> Weights:
    """Bootstrap weights (n_bootstrap, n_records): whole groups, drawn within each fold and side."""
    return cluster_weights(groups, (folds * 2 + member).tolist(), n_bootstrap, rng)


def _mean_drawn(per_fold: Sequence[Floats]) -> Floats:
    """Mean over folds of each replicate; one that drew nobody on a side of a fold rests on its other folds."""
    values = np.stack(per_fold)
    drawn = np.isfinite(values)
    total, n_folds = np.where(drawn, values, 0.0).sum(axis=0), drawn.sum(axis=0)
    return np.asarray(np.divide(total, n_folds, out=np.full(total.shape, np.nan), where=n_folds > 0), np.float64)


def weighted_fold_aucs(scores: Floats, member: Labels, folds: Folds, weights: Weights) -> Floats:
    """Mean of the folds' AUCs in each replicate, (n_bootstrap,), NaN where nobody was drawn; models are held fixed.

    Raises ValueError where no fold holds both classes.
    """
    sides = fold_sides(member, folds)
    return _mean_drawn(
        [bootstrap_auc(scores[one], scores[two], weights[:, one], weights[:, two]) for one, two in sides]
    )


def permutation_p(
    statistic: Statistic, member: Labels, groups: Sequence[str], n_permutations: int, seed: int, *, purpose: int
) -> float:
    """One-sided p-value of a cross-fitted AUC above one half: labels are permuted over whole groups and refitted.

    p = (1 + hits) / (1 + n_permutations). One-sided, because a fitted score below chance has learned nothing. A
    permutation whose statistic does not exist counts as a hit. Source: Phipson and Smyth 2010.
    """
    rng = np.random.default_rng([seed, purpose])
    codes, unit_is_member = side_units(groups, member)
    observed = statistic(member, seed)
    drawn = [statistic(rng.permutation(unit_is_member)[codes], seed + 7919 * (b + 1)) for b in range(n_permutations)]
    return (1 + sum(not value < observed - 1e-12 for value in drawn)) / (1 + n_permutations)


@dataclass(frozen=True)
class Rate:
    """True-positive rate at a false-positive rate, each held-out fold with a threshold of its own."""

    fpr: float
    tpr: float | None
    realised_fpr: float | None
    interval: Interval | None
    reason: str | None


@dataclass(frozen=True)
class Splits:
    """The same records split into folds several times; every number is a mean over the folds of all splits.

    Scores are given as one vector (n_records,) a split, NaN where a record has none. The bootstrap resamples the first
    split's held-out records (`weights` (n_bootstrap, n_records), drawn within its folds and sides) under fixed models.
    That misses that the folds' models learned from each other's records and so err together: with scores that know
    nothing, 95% intervals covered 88% of the time. Deviations are therefore widened by sqrt(1 / R + K / (K - 1)), K
    folds and R splits, which is the variance of Nadeau and Bengio 2003, 1 / (K R) + n_test / n_train of one fold's,
    against the 1 / K that the bootstrap sees; and centred on the mean over all splits. Intervals then covered 93 to 98%
    of the time, those of differences 90 to 99%, the least where no score knows anything (150 to 200 simulations each).
    """

    member: Labels
    units: NDArray[np.int64]
    folds: tuple[Folds, ...]
    weights: Weights
    level: float

    def areas(self, scores: Sequence[Floats]) -> list[list[float]]:
        """AUC of every fold of every split, on the records that have a score."""
        known = [np.isfinite(one) for one in scores]
        return [
            fold_aucs(one[k], self.member[k], folds[k])
            for one, k, folds in zip(scores, known, self.folds, strict=True)
        ]  # fmt: skip

    def _centred(self, replicates: Floats, first: float, mean: float) -> Floats:
        """Replicates of the first split's number `first`, widened and moved to the mean over all splits."""
        n_folds = np.unique(self.folds[0]).size
        widening = math.sqrt(1.0 / len(self.folds) + n_folds / (n_folds - 1.0))
        return mean + widening * (replicates[np.isfinite(replicates)] - first)

    def _n_units(self, known: Labels) -> int:
        return min(np.unique(self.units[known & side]).size for side in (self.member, ~self.member))

    def _replicates(self, scores: Floats, known: Labels) -> Floats:
        return weighted_fold_aucs(scores[known], self.member[known], self.folds[0][known], self.weights[:, known])

    def interval(self, scores: Sequence[Floats]) -> tuple[float, Interval]:
        """Mean AUC and its percentile interval. Raises ValueError where a split has no fold with both classes."""
        areas = self.areas(scores)
        area = float(np.mean([np.mean(a) for a in areas]))
        known = np.isfinite(scores[0])
        drawn = self._centred(self._replicates(scores[0], known), float(np.mean(areas[0])), area)
        drawn = np.clip(drawn, 0.0, 1.0)
        ends = auc_from_replicates(area, drawn, self._n_units(known), self.level)
        return area, replace(ends, method=WIDENED) if np.ptp(drawn) > 1e-12 else ends

    def compare(self, a: Sequence[Floats], b: Sequence[Floats]) -> Paired | str:
        """Mean AUC of a minus mean AUC of b, ranked within the same folds on the records both score, or why not."""
        known = [np.isfinite(x) & np.isfinite(y) for x, y in zip(a, b, strict=True)]
        if min(self._n_units(k) for k in known) < 2:
            return "fewer than 2 members or non-members have both scores"
        x, y = ([np.where(k, one, np.nan) for one, k in zip(side, known, strict=True)] for side in (a, b))
        areas_x, areas_y = self.areas(x), self.areas(y)
        if not all(areas_x):
            return "no fold holds a member and a non-member with both scores"
        area_x, area_y = (float(np.mean([np.mean(one) for one in areas])) for areas in (areas_x, areas_y))
        drawn = self._replicates(x[0], known[0]) - self._replicates(y[0], known[0])
        drawn = self._centred(drawn, float(np.mean(areas_x[0]) - np.mean(areas_y[0])), area_x - area_y)
        drawn = np.clip(drawn, -1.0, 1.0)
        found = from_replicates(area_x, area_y, drawn, self.level)
        if np.ptp(drawn) > 1e-12:
            return replace(found, interval=replace(found.interval, method=f"{WIDENED}, paired"))
        # No replicate differs, as for two perfect scores: never an interval of zero width.
        one, two = (disjoint_pairs(area, self._n_units(known[0]), self.level) for area in (area_x, area_y))
        low = found.difference - math.hypot(area_x - one.low, two.high - area_y)
        high = found.difference + math.hypot(one.high - area_x, area_y - two.low)
        wide = Interval(max(low, -1.0), min(high, 1.0), self.level, "square-and-add of two AUC intervals")
        return replace(found, interval=wide, p_value=1.0 if abs(found.difference) < 1e-12 else None)

    def rate(self, scores: Sequence[Floats], fpr: float) -> Rate:
        """TPR at `fpr`: every fold picks its own threshold on its non-members, for each has a scale of its own.

        Null where a fold has fewer than 1 / fpr non-members. All scores must be finite. There is no bound on the
        population's FPR: it would hold for one threshold.
        """
        points = [
            [operating_point(one[m], one[n], fpr) for m, n in fold_sides(self.member, folds)]
            for one, folds in zip(scores, self.folds, strict=True)
        ]
        short = next((p for split in points for p in split if p.reason is not None), None)
        if short is not None:
            return Rate(fpr, None, None, None, f"each held-out fold picks its own threshold: {short.reason} in each")
        tpr = float(np.mean([np.mean([p.tpr for p in split]) for split in points]))
        realised = float(np.mean([sum(p.fp or 0 for p in split) / (~self.member).sum() for split in points]))
        first = float(np.mean([p.tpr for p in points[0]]))
        w, one = self.weights, scores[0]
        drawn = _mean_drawn(
            [bootstrap_tpr(one[m], one[n], w[:, m], w[:, n], fpr) for m, n in fold_sides(self.member, self.folds[0])]
        )
        drawn = np.clip(self._centred(drawn, first, tpr), 0.0, 1.0)
        if np.ptp(drawn) < 1e-12:
            units = np.unique(self.units[self.member]).size
            return Rate(fpr, tpr, realised, clopper_pearson(tpr * units, units, self.level), None)
        low, high = np.quantile(drawn, [(1 - self.level) / 2, (1 + self.level) / 2])
        return Rate(fpr, tpr, realised, Interval(float(low), float(high), self.level, WIDENED), None)
