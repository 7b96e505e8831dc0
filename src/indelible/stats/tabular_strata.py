"""Permutation of membership within classes: what a score reaches by chance when every class keeps its members.

Scores of a tabular model depend on the label a row carries, so rows of different classes cannot change places: with 50
members, unequal classes alone move an AUC. Within a class they can, for the split drew them at random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from .bootstrap import Weights, bootstrap_auc, bootstrap_tpr, side_units
from .intervals import auc_p_value
from .roc import Floats, finite_scores
from .tabular_within import aucs_of, class_ranks

PAPER_FPRS = (0.01, 0.1)
PAPER_TPR = 0.1
"""The paper's rule for "moderate memorisation": AUC > 0.5 and TPR > 0.1 at an FPR of 1% or of 10%."""

_FEW = 10
"""Units on a side below which a permutation test is drawn rather than approximated."""

_DRAWS = 9999


@dataclass(frozen=True)
class Strata:
    """Which units may change sides with which.

    Attributes:
        unit: (n,) the unit of each record: itself, or its group's records on one side.
        is_member: (n_units,) the side each unit is on. stratum: (n_units,) units of one stratum are exchangeable.
        by_class: strata are exact in the classes (units of one stratum hold the same labels); otherwise there is one.
        label: (n,) class of each record.
    """

    unit: NDArray[np.int64]
    is_member: NDArray[np.bool_]
    stratum: NDArray[np.int64]
    by_class: bool
    label: NDArray[np.int64]


def strata_of(member: ArrayLike, labels: ArrayLike, groups: Sequence[str] | None = None) -> Strata:
    """Units and strata of records with membership (n,) and class codes (n,).

    Groups are kept together, and two of them are exchangeable where they hold the same number of rows of every class.
    Where that leaves less than half of the members' groups free to move, classes are given up: groups are exchangeable
    whatever they hold.
    """
    sides, codes = np.asarray(member, bool), np.asarray(labels, np.int64)
    if groups is None:
        return Strata(
            np.arange(sides.size), sides, np.unique(codes, return_inverse=True)[1].astype(np.int64), True, codes
        )
    unit, is_member = side_units(groups, sides)
    classes, place = np.unique(codes, return_inverse=True)
    held = np.zeros((is_member.size, classes.size), np.int64)
    np.add.at(held, (unit, place), 1)
    stratum = np.unique(held, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    strata = Strata(unit, is_member, stratum, True, codes)
    if _free_members(strata) * 2 >= is_member.sum():
        return strata
    return Strata(unit, is_member, np.zeros(is_member.size, np.int64), False, codes)


def _free_members(strata: Strata) -> int:
    """Member units that have a non-member unit to change places with."""
    n = np.bincount(strata.stratum)
    m = np.bincount(strata.stratum, weights=strata.is_member)
    return int(m[(m > 0) & (m < n)].sum())


def permuted(strata: Strata, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Membership of every record in `n` permutations, (n, n_records)."""
    out = np.empty((n, strata.is_member.size), bool)
    for k in np.unique(strata.stratum):
        here = np.flatnonzero(strata.stratum == k)
        out[:, here] = rng.permuted(np.tile(strata.is_member[here], (n, 1)), axis=1)
    return out[:, strata.unit]


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(random.Random(f"{seed}:{purpose}").getrandbits(64))


def stratified_p(
    scores: ArrayLike, strata: Strata, groups: Sequence[str] | None = None, *, seed: int = 0
) -> tuple[float, str]:
    """Two-sided p-value of "members rank as others of their class do", and the test's name.

    The statistic is the members' sum of ranks within their classes, as in the AUC within classes. Membership is
    permuted within strata, so its mean is sum over strata of m_s mean_s, its variance sum of m_s (N_s - m_s) / (N_s -
    1) var_s, m_s of N_s units being members and mean_s, var_s those of the units' rank sums; normal, with the
    Mann-Whitney test's continuity correction, which makes the two equal with one stratum. Below 10 units on a side:
    9,999 permutations, p = (1 + hits) / 10,000 (Phipson and Smyth 2010). Nothing that could move a rank: p = 1.
    Without class strata: `auc_p_value` over `groups`, of ranks within classes as shares of the class.
    """
    values = finite_scores(scores, "scores")
    of_member = strata.is_member[strata.unit]
    if not strata.by_class:
        if groups is None:
            raise ValueError("without class strata, groups are needed")
        inside, outside = ([g for g, k in zip(groups, side, strict=True) if k] for side in (of_member, ~of_member))
        share = (class_ranks(values, strata.label) - 0.5) / np.bincount(strata.label)[strata.label]
        p_value, test = auc_p_value(share[of_member], share[~of_member], inside, outside, seed=seed)
        return p_value, f"{test}; no two groups hold the same classes often enough to permute within classes"
    ranks = class_ranks(values, strata.label)
    sums = np.bincount(strata.unit, weights=ranks)
    size = np.bincount(strata.stratum).astype(np.float64)
    m = np.bincount(strata.stratum, weights=strata.is_member)
    mean = np.bincount(strata.stratum, weights=sums) / size
    spread = np.bincount(strata.stratum, weights=(sums - mean[strata.stratum]) ** 2) / size
    variance = float((m * (size - m) / np.maximum(size - 1.0, 1.0) * spread).sum())
    away = abs(float(ranks[of_member].sum()) - float((m * mean).sum()))
    if variance < 1e-9:
        return 1.0, "permutation within classes: no score differs within a class"
    unit = "groups permuted" if groups is not None else "permutation"
    if min(int(strata.is_member.sum()), int((~strata.is_member).sum())) >= _FEW:
        p_value = 2.0 * float(stats.norm.sf((away - 0.5) / np.sqrt(variance)))
        return min(1.0, p_value), f"{unit} within classes, exact mean and variance, normal"
    drawn = permuted(strata, _DRAWS, _rng(seed, "permutation test")) @ ranks
    hits = int((np.abs(drawn - float((m * mean).sum())) >= away - 1e-9).sum())
    return (1 + hits) / (1 + _DRAWS), f"{unit} within classes, {_DRAWS} draws"


@dataclass(frozen=True)
class ByChance:
    """What permutations of membership give: how often the paper's rule is met, mean and deviation of the AUC within
    classes."""

    rule_rate: float
    auc_mean: float
    auc_sd: float
    n_permutations: int


def by_chance(scores: ArrayLike, strata: Strata, n_permutations: int, *, seed: int = 0) -> ByChance:
    """How often scores (n,) that know nothing of membership meet the paper's rule, by permutation within strata. The
    rule's own AUC and rates are over all classes together; mean and deviation are those of the AUC within classes."""
    values = finite_scores(scores, "scores")
    drawn = permuted(strata, n_permutations, _rng(seed, "paper's rule"))
    members: Weights = drawn.astype(np.int32)
    others: Weights = 1 - members
    areas = bootstrap_auc(values, values, members, others)
    n_others = int((~strata.is_member)[strata.unit].sum())
    rates = [bootstrap_tpr(values, values, members, others, fpr) for fpr in PAPER_FPRS if fpr * n_others >= 1.0 - 1e-9]
    met = meets_rule(areas, rates)
    own = aucs_of(class_ranks(values, strata.label), strata.label, drawn)
    own = own[np.isfinite(own)] if np.isfinite(own).any() else np.array([0.5])
    return ByChance(float(met.mean()), float(own.mean()), float(own.std()), n_permutations)


def meets_rule(areas: Floats, rates: Sequence[Floats]) -> NDArray[np.bool_]:
    """The paper's rule on AUCs and, at each false-positive rate, true-positive rates, all of one shape."""
    enough = np.zeros(np.shape(areas), bool)
    for rate in rates:
        enough |= np.asarray(rate) > PAPER_TPR
    return np.asarray((np.asarray(areas) > 0.5) & enough)
