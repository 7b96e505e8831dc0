"""The blind control: can membership be told from the texts alone, without any model?

If a bag-of-words classifier separates members from non-members, the two were drawn from different distributions, and a
membership score that separates them too says little about memorisation. Source: Meeus et al., "SoK: Membership
Inference Attacks on LLMs are Rushing Nowhere" (2024); Das, Zhang and Tramèr, "Blind Baselines Beat Membership
Inference Attacks for Foundation Models" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bootstrap import bootstrap_auc
from .crossfit import (
    Folds,
    Labels,
    fold_aucs,
    fold_weights,
    group_codes,
    permutation_p,
    split_folds,
    too_few_for_folds,
    weighted_fold_aucs,
)
from .intervals import check_level
from .paired import Paired, from_replicates
from .roc import Floats, auc

BLIND_ATTACK = "bag-of-words"
MIN_DF = 0.05
N_TREES = 100
# The permutation test refits 5 forests a permutation. A quarter of the trees keeps 700 records and 99 permutations
# within about 15 s of one core; the observed statistic of the test uses the same small forest, so the test stays exact.
N_TREES_PERMUTATION = 25


@dataclass(frozen=True)
class BlindResult:
    """What the blind classifier reached. Where `reason` is set it could not run, and every number is None or empty.

    Attributes:
        auc: mean of the AUCs of the held-out folds.
        low, high: percentile interval of `auc`, resampling groups within folds with the fitted forests held fixed.
        p_value: one-sided permutation p-value of `auc` above one half; None where no permutations were asked for.
        fold_aucs: one per fold and repeat.
        scores: out-of-fold score of each record, in the order given, mean over repeats.
        folds: fold in which each record was held out, first repeat.
    """

    auc: float | None
    low: float | None
    high: float | None
    level: float
    p_value: float | None
    fold_aucs: tuple[float, ...]
    scores: tuple[float, ...]
    folds: tuple[int, ...]
    method: str
    reason: str | None


def _not_run(level: float, reason: str) -> BlindResult:
    return BlindResult(None, None, None, level, None, (), (), (), "not run", reason)


def word_counts(texts: Sequence[str]) -> NDArray[np.float32]:
    """Counts (n_records, n_words) of words that could pass `MIN_DF` in a training fold of at least half the records.

    The vocabulary used for a fold is chosen in `training_words`, from training texts alone. Counting everything once
    gives the same matrix as a CountVectorizer(min_df=0.05) fitted on each training fold, and spares refitting it.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    analyse = vectorizer.build_analyzer()
    if not any(analyse(text) for text in texts):
        return np.zeros((len(texts), 0), np.float32)
    counts = vectorizer.fit_transform(texts)
    kept = np.asarray((counts > 0).sum(axis=0)).ravel() >= MIN_DF * len(texts) / 2.0
    return np.asarray(counts[:, kept].toarray(), dtype=np.float32)


def training_words(counts: NDArray[np.float32], train: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask (n_words,) of the words found in at least 5% of the training texts."""
    present: NDArray[np.int64] = (counts[train] > 0).sum(axis=0)
    return np.asarray(present >= MIN_DF * train.size)


def _out_of_fold(counts: NDArray[np.float32], member: Labels, folds: Folds, n_trees: int, seed: int) -> Floats:
    from sklearn.ensemble import RandomForestClassifier

    scores = np.full(member.size, np.nan)
    for k in np.unique(folds):
        train, test = np.flatnonzero(folds != k), np.flatnonzero(folds == k)
        words = training_words(counts, train)
        if not words.any():  # nothing to learn from: one score for all, which ranks nobody
            scores[test] = member[train].mean()
            continue
        forest = RandomForestClassifier(n_trees, max_depth=2, min_samples_leaf=5, random_state=seed + int(k))
        forest.fit(counts[train][:, words], member[train])
        scores[test] = forest.predict_proba(counts[test][:, words])[:, list(forest.classes_).index(True)]
    return scores


def bag_of_words(
    texts: Sequence[str],
    member: ArrayLike,
    groups: Sequence[str],
    *,
    seed: int = 0,
    n_folds: int = 5,
    n_permutations: int = 99,
    n_repeats: int = 1,
    level: float = 0.95,
    n_bootstrap: int = 2000,
) -> BlindResult:
    """Cross-validated bag-of-words baseline: word counts, a random forest (100 trees, depth 2, 5 records a leaf).

    Words and forest are fitted on training folds only; folds keep groups whole and the share of members even. The
    headline is the mean of the held-out folds' AUCs: pooling scores of different forests would mix their scales. The
    permutation test permutes labels over groups, splits again and refits, with 25 trees on both sides of the
    comparison; p = (1 + hits) / (1 + n_permutations), one-sided, because a blind classifier below chance has learned
    nothing. 99 permutations on 700 records take about 15 s of one core, and their smallest p is 0.01.
    Could not run (reason set): fewer than n_folds groups on a side, no word in 5% of the texts, a group with half the
    records.
    Raises ValueError for lists of different length, fewer than 2 folds or less than one repeat.
    """
    check_level(level)
    labels = np.asarray(member, dtype=bool)
    if not len(texts) == labels.size == len(groups):
        raise ValueError(f"{len(texts)} texts, {labels.size} labels and {len(groups)} groups do not match")
    if n_folds < 2 or n_repeats < 1 or n_permutations < 0:
        raise ValueError("at least 2 folds, 1 repeat and 0 permutations are needed")
    units = group_codes(groups)
    why = too_few_for_folds(labels, units, n_folds)
    if why is not None:
        return _not_run(level, why)
    counts = word_counts(texts)
    if not training_words(counts, np.arange(labels.size)).any():
        return _not_run(level, "no word occurs in 5% of the texts")

    splits = [split_folds(labels, units, n_folds, seed + 1000 * r) for r in range(n_repeats)]
    runs = [_out_of_fold(counts, labels, folds, N_TREES, seed + 1000 * r) for r, folds in enumerate(splits)]
    per_fold = [fold_aucs(scores, labels, folds) for scores, folds in zip(runs, splits, strict=True)]
    if any(len(aucs) < n_folds for aucs in per_fold):
        return _not_run(level, "a fold holds no member or no non-member: the groups are too uneven")
    headline = float(np.mean(per_fold))
    scores = np.mean(runs, axis=0)
    weights = fold_weights(labels, groups, splits[0], n_bootstrap, np.random.default_rng(seed))
    replicates = weighted_fold_aucs(runs[0], labels, splits[0], weights)
    # The bootstrap sees the first repeat; shifting by its AUC centres it on the headline.
    shifted = replicates - float(np.mean(per_fold[0])) + headline
    low, high = np.clip(np.quantile(shifted, [(1 - level) / 2, (1 + level) / 2]), 0.0, 1.0)
    p_value = _permutation_p(counts, labels, units, groups, n_folds, n_permutations, seed) if n_permutations else None
    flat = tuple(float(a) for aucs in per_fold for a in aucs)
    method = f"{n_folds}-fold random forest on word counts, {n_permutations} permutations"
    return BlindResult(
        headline, float(low), float(high), level, p_value, flat, tuple(map(float, scores)),
        tuple(map(int, splits[0])), method, None,
    )  # fmt: skip


def _permutation_p(
    counts: NDArray[np.float32],
    labels: Labels,
    units: NDArray[np.int64],
    groups: Sequence[str],
    n_folds: int,
    n_permutations: int,
    seed: int,
) -> float:
    def statistic(member: Labels, run_seed: int) -> float:
        folds = split_folds(member, units, n_folds, run_seed)
        areas = fold_aucs(_out_of_fold(counts, member, folds, N_TREES_PERMUTATION, run_seed), member, folds)
        return float(np.mean(areas)) if areas else float("nan")

    return permutation_p(statistic, labels, groups, n_permutations, seed, purpose=1)


def departure_minus_blind(
    target: ArrayLike,
    blind_scores: ArrayLike,
    folds: Sequence[int],
    member: ArrayLike,
    groups: Sequence[str],
    *,
    direction: int,
    level: float = 0.95,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> Paired:
    """How much further the target's AUC lies from one half than the blind classifier's, on the same records.

    direction * (AUC_target - 1/2) - max(AUC_blind - 1/2, 0), direction being +1 or -1. The blind AUC is the mean over
    folds and counts as chance when below it. Groups are resampled within fold and side, the same for both; the
    percentile interval leaves out the variation of refitting the classifier. All columns (n_records,), finite. `auc_b`
    is the clamped blind AUC.
    Raises ValueError for lengths that differ, a direction other than +-1, or no fold with both classes.
    """
    check_level(level)
    scores, blind = np.asarray(target, np.float64), np.asarray(blind_scores, np.float64)
    labels, fold = np.asarray(member, dtype=bool), np.asarray(folds, np.int64)
    if not scores.shape == blind.shape == labels.shape == fold.shape == (len(groups),):
        raise ValueError("target, blind scores, folds, membership and groups must be of one length")
    if direction not in (1, -1):
        raise ValueError(f"direction must be 1 or -1, got {direction}")
    per_fold = fold_aucs(blind, labels, fold)
    if not per_fold:
        raise ValueError("no fold holds both a member and a non-member")
    area, area_blind = auc(scores[labels], scores[~labels]), max(float(np.mean(per_fold)), 0.5)
    rng_seed = np.random.default_rng([seed, 2]).integers(2**31)
    weights = fold_weights(labels, groups, fold, n_bootstrap, np.random.default_rng(rng_seed))
    blind_replicates = weighted_fold_aucs(blind, labels, fold, weights)
    replicates = bootstrap_auc(scores[labels], scores[~labels], weights[:, labels], weights[:, ~labels])
    gap = direction * (replicates - 0.5) - np.maximum(blind_replicates - 0.5, 0.0)
    result = from_replicates(0.5 + direction * (area - 0.5), area_blind, gap, level)
    return Paired(area, area_blind, result.difference, result.interval, result.p_value)
