"""What a fitted combination of all scores of a run would reach: an upper view, never evidence in the verdict.

A logistic regression is fitted on the scores of every attack, on the audited model and on its base, to tell members
from non-members. Fitting needs records whose membership is known, which an attacker seldom has in such numbers. Source:
none of the papers; the base's values as features carry their difficulty calibration over, weights being learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .cohort import Cohort, Column, ColumnKey, unusable
from .crossfit import (
    Folds,
    Labels,
    Rate,
    Splits,
    fold_aucs,
    fold_weights,
    group_codes,
    permutation_p,
    split_folds,
    too_few_for_folds,
)
from .intervals import Interval
from .paired import Paired, holm
from .roc import Floats, auc

COMBINED = "combined"
PENALTY_C = 1.0
"""Inverse strength of the L2 penalty, in scikit-learn's sense. Fixed, so that nothing is tuned on the labels."""

N_FOLDS = 5
N_REPEATS = 5
"""Splits whose results are averaged: one split moves the AUC by 0.01 on 200 records, and 25 fits cost 0.1 s."""

N_PERMUTATIONS = 199
MIN_ATTACKS = 2


@dataclass(frozen=True)
class CombinedResult:
    """What the combination reached. Where `reason` is set it could not run, and every number is None or empty.

    Attributes:
        auc: mean of the AUCs of the held-out folds, over all splits; `interval`: see `crossfit.Splits`.
        p_value: one-sided permutation p-value of `auc` above one half; None where no permutations were asked for.
        fold_aucs: one per fold and split.
        scores: out-of-fold log-odds of membership by record, (n_records,), mean over splits, NaN where no attack has a
            score. Folds have models of their own, so across folds they are comparable roughly, not exactly.
        folds: fold in which each scored record was held out, first split.
        rates: one per false-positive rate asked for.
        features: the columns that entered. left_out: the other ones, with the reason.
        versus: by attack, the AUC of the combination minus that of this attack alone, or why there is none;
            `versus_p` after Holm over the attacks.
        versus_best: the same for the attack that separates the training folds best, chosen anew for each fold.
        base_auc, base_interval: what the same combination of the base model's values alone reaches; `versus_base`: how
            much more the whole reaches, or why there is none.
    """

    auc: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    fold_aucs: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    folds: tuple[int, ...] = ()
    rates: tuple[Rate, ...] = ()
    features: tuple[ColumnKey, ...] = ()
    left_out: Mapping[ColumnKey, str] = field(default_factory=dict)
    versus: Mapping[str, Paired | str] = field(default_factory=dict)
    versus_p: Mapping[str, float] = field(default_factory=dict)
    versus_best: Paired | str = "not run"
    base_auc: float | None = None
    base_interval: Interval | None = None
    versus_base: Paired | str = "not run"
    method: str = "not run"
    n_permutations: int = 0
    reason: str | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """Records that have a combined score, (n_records,)."""
        return np.isfinite(np.asarray(self.scores, np.float64))

    @property
    def unused(self) -> tuple[str, ...]:
        """What was left out, one sentence for each model and reason."""
        by_reason: dict[tuple[str, str], list[str]] = {}
        for (attack, model), why in self.left_out.items():
            by_reason.setdefault((model, why), []).append(attack)
        return tuple(f"{', '.join(names)} on the {model} ({why})" for (model, why), names in by_reason.items())


def standardise(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    """Features (n, p) with NaN to finite ones, by the training rows alone: (n_train, p + q) and (n_test, p + q).

    Each column has its mean subtracted and is divided by its standard deviation, a missing value becomes the training
    rows' median, and each of the q columns that miss a value in training gains an indicator of missing, 0 or 1. A
    column that is constant in training becomes zero: it can teach nothing.
    """
    missing = np.isnan(train)
    known = ~missing.all(axis=0)
    largest = np.abs(np.where(missing, 0.0, train)).max(axis=0, initial=0.0)
    largest[largest == 0.0] = 1.0  # in units of the largest value no sum overflows
    scaled = train / largest
    mean, scale, middle = np.zeros(known.size), np.full(known.size, np.inf), np.zeros(known.size)
    mean[known] = np.nanmean(scaled[:, known], axis=0)
    middle[known] = np.nanmedian(scaled[:, known], axis=0)
    spread = np.nanstd(scaled[:, known], axis=0)
    scale[known] = np.where(spread > 1e-12, spread, np.inf)  # rounding of equal values is no spread
    gaps = missing.any(axis=0)

    def apply(rows: Floats) -> Floats:
        absent = np.isnan(rows)
        values = (np.where(absent, middle, rows / largest) - mean) / scale
        return np.hstack([values, absent[:, gaps].astype(np.float64)])

    return apply(train), apply(test)


def out_of_fold(features: Floats, member: Labels, folds: Folds) -> Floats:
    """Log-odds of membership by a logistic regression that has not seen the record's fold. features (n, p), NaN = none.

    Where the other folds hold one class alone there is nothing to learn: zero for all, which ranks nobody.
    """
    from sklearn.linear_model import LogisticRegression

    scores = np.zeros(member.size)
    for k in np.unique(folds):
        train, test = folds != k, folds == k
        if member[train].all() or not member[train].any():
            continue
        x, held_out = standardise(features[train], features[test])
        model = LogisticRegression(C=PENALTY_C, solver="newton-cholesky", tol=1e-8).fit(x, member[train])
        scores[test] = model.decision_function(held_out)
    return scores


def directed(values: Floats, member: Labels, folds: Folds) -> tuple[Floats, dict[int, float]]:
    """One attack with the direction its training folds show, and its AUC there, by fold: at least one half.

    The combination may turn a score round, so a score alone may too. values (n,), NaN = none.
    """
    turned, areas = values.copy(), {}
    for k in np.unique(folds):
        train = (folds != k) & np.isfinite(values)
        one, two = train & member, train & ~member
        area = auc(values[one], values[two]) if one.any() and two.any() else 0.5
        turned[folds == k] *= 1.0 if area >= 0.5 else -1.0
        areas[int(k)] = max(area, 1.0 - area)
    return turned, areas


def best_in_training(singles: Mapping[str, Floats], member: Labels, folds: Folds) -> Floats:
    """In each fold the score of the attack that separates the other folds best, in their direction, (n,)."""
    found = {name: directed(values, member, folds) for name, values in singles.items()}
    best = np.full(member.size, np.nan)
    for k in np.unique(folds):
        name = max(found, key=lambda one: found[one][1][int(k)])
        best[folds == k] = found[name][0][folds == k]
    return best


def choose_features(
    columns: Mapping[ColumnKey, Column], cohort: Cohort, n_rows: Mapping[ColumnKey, int]
) -> tuple[list[ColumnKey], dict[ColumnKey, str]]:
    """The columns that may enter, and why the others may not.

    A column for which some records were never asked is left out: who was asked may depend on membership (a control on
    as many members as non-members does), and a missing value is something the regression can learn from.
    """
    kept, left_out = [], {}
    for key, column in columns.items():
        absent = len(cohort.ids) - n_rows.get(key, len(cohort.ids))
        why = f"{absent} records were not asked, and which ones may tell members apart" if absent else None
        why = why or unusable(column, cohort)
        if why is None:
            kept.append(key)
        else:
            left_out[key] = why
    return kept, left_out


def combine(
    columns: Mapping[ColumnKey, Column],
    cohort: Cohort,
    *,
    n_rows: Mapping[ColumnKey, int] | None = None,
    fprs: Sequence[float] = (),
    n_permutations: int = N_PERMUTATIONS,
    n_repeats: int = N_REPEATS,
) -> CombinedResult:
    """Cross-fitted L2 logistic regression (C = 1) on the attacks' scores on the target and the base, and what it beats.

    columns: by (attack, model); models other than "target" and "base" are left aside. n_rows: rows of each in the score
    table, all records where not given. fprs: rates at which the TPR is wanted.
    Five folds keep groups whole and the share of members even; standardising, imputing and fitting see training folds
    alone. The headline is the mean of the held-out folds' AUCs over `n_repeats` splits. Each attack alone gets the same
    help: in every fold it is read in the direction its training folds show. The permutation test permutes labels over
    groups, splits again once and refits.
    Could not run (reason set): fewer than two attacks to combine, fewer than five groups on a side, a group with half
    of the records. Raises ValueError for less than one repeat or a negative number of permutations.
    """
    if n_repeats < 1 or n_permutations < 0:
        raise ValueError("at least 1 repeat and 0 permutations are needed")
    parts = {key: column for key, column in columns.items() if key[1] in ("target", "base")}
    kept, left_out = choose_features(parts, cohort, n_rows or {})
    attacks = [attack for attack, model in kept if model == "target"]
    empty = CombinedResult(left_out=left_out)
    if len(attacks) < MIN_ATTACKS:
        why = "; ".join(f"{attack} cannot be used: {said}" for (attack, m), said in left_out.items() if m == "target")
        have = f"{attacks[0]} alone" if attacks else "no attack"
        reason = f"needs scores of at least {MIN_ATTACKS} attacks, and this run has {have}" + (
            f" ({why})" if why else ""
        )
        return replace(empty, reason=reason)
    table = np.column_stack([parts[key].values for key in kept])
    of_target = np.array([model == "target" for _, model in kept])
    known = np.asarray(np.isfinite(table[:, of_target]).any(axis=1))
    features, member = table[known], cohort.member[known]
    groups = [g for g, keep in zip(cohort.groups, known, strict=True) if keep]
    units = group_codes(groups)
    why_not = too_few_for_folds(member, units, N_FOLDS)
    if why_not is not None:
        return replace(empty, reason=why_not)
    folds = tuple(split_folds(member, units, N_FOLDS, cohort.seed + 1000 * r) for r in range(n_repeats))
    if any(len(fold_aucs(np.zeros(member.size), member, one)) < N_FOLDS for one in folds):
        return replace(empty, reason="a fold holds no member or no non-member: the groups are too uneven")
    rng = np.random.default_rng([cohort.seed, 3])
    weights = fold_weights(member, groups, folds[0], cohort.n_bootstrap, rng)
    splits = Splits(member, units, folds, weights, cohort.level)

    runs = [out_of_fold(features, member, one) for one in folds]
    area, ends = splits.interval(runs)
    scores = np.full(known.size, np.nan)
    scores[known] = np.mean(runs, axis=0)
    p_value = None
    if n_permutations:

        def statistic(labels: Labels, run_seed: int) -> float:
            split = split_folds(labels, units, N_FOLDS, run_seed)
            areas = fold_aucs(out_of_fold(features, labels, split), labels, split)
            return float(np.mean(areas)) if areas else float("nan")

        p_value = permutation_p(statistic, member, groups, n_permutations, cohort.seed, purpose=4)
    singles = {attack: parts[attack, "target"].values[known] for attack in attacks}
    versus = {
        attack: splits.compare(runs, [directed(values, member, one)[0] for one in folds])
        for attack, values in singles.items()
    }
    tested = {
        a: found.p_value for a, found in versus.items() if isinstance(found, Paired) and found.p_value is not None
    }
    found = CombinedResult(
        area, ends, p_value, tuple(a for split in splits.areas(runs) for a in split), tuple(scores.tolist()),
        tuple(folds[0].tolist()), tuple(splits.rate(runs, fpr) for fpr in fprs), tuple(kept), left_out, versus,
        dict(zip(tested, holm(list(tested.values())), strict=True)),
        splits.compare(runs, [best_in_training(singles, member, one) for one in folds]),
        method=_method(of_target, n_repeats), n_permutations=n_permutations,
    )  # fmt: skip
    return _with_base(found, features[:, ~of_target], runs, splits)


def _with_base(found: CombinedResult, base: Floats, runs: Sequence[Floats], splits: Splits) -> CombinedResult:
    """The control: the same folds, fitted on the base model's values alone."""
    known = np.isfinite(base).any(axis=1) if base.size else np.zeros(splits.member.size, bool)
    if not known.any():
        return replace(found, versus_base="no score on the base model can be combined")
    alone = [np.where(known, out_of_fold(base, splits.member, folds), np.nan) for folds in splits.folds]
    versus = splits.compare(runs, alone)
    if isinstance(versus, str):
        return replace(found, versus_base=versus)
    area, ends = splits.interval(alone)
    return replace(found, base_auc=area, base_interval=ends, versus_base=versus)


def _method(of_target: NDArray[np.bool_], n_repeats: int) -> str:
    n_target, n_base = int(of_target.sum()), int((~of_target).sum())
    repeats = f", mean of {n_repeats} splits" if n_repeats > 1 else ""
    return (
        f"{N_FOLDS}-fold logistic regression (L2, C = {PENALTY_C:g}) on {n_target} scores of the target and {n_base} "
        f"of the base{repeats}"
    )
