"""Rows of metrics.json of a tabular audit: one score of one model on one cohort."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.errors import DataError, did_you_mean

from .bootstrap import bootstrap_auc, cluster_weights
from .cohort import Cohort, Column, ColumnKey, Mask, read_cohort, unusable
from .intervals import Interval, auc_from_replicates, auc_p_value, delong, tpr_interval
from .metrics import Metric
from .paired import Paired, from_replicates
from .roc import auc, operating_point
from .tabular_strata import PAPER_FPRS, ByChance, Strata, by_chance, meets_rule, strata_of, stratified_p
from .tabular_within import POOLED, WITHIN, n_pairs, within_auc, within_replicates

Row = dict[str, Any]
"""A `Metric` as JSON, and: `part`, whose rows stand as members ("members" or "context"); `null_rate`, share of
permutations of membership that meet the paper's rule; `null_sd`, standard deviation of the AUC over them."""

SAME_ANSWER = 1e-3
"""Nats by which two contexts' answers may differ and still be one: rounding is far below that."""

PARTS = ("member", "nonmember", "context")
RULE = (
    "AUC > 0.5 and TPR > 0.1 at 1% or at 10% FPR, over all classes together (the paper's own rule); at 10% FPR a TPR "
    "of 0.1 is the chance line, so that scores that know nothing meet the rule again and again"
)


@dataclass(frozen=True)
class Side:
    """One cohort of a tabular audit: who stands as member, labels (n_records,) in the cohort's order, row numbers."""

    part: str
    cohort: Cohort
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    _strata: dict[bytes, Strata] = field(default_factory=dict, repr=False)

    def strata(self, mask: Mask) -> Strata:
        """Of the masked records; the same mask is worked out once."""
        key = mask.tobytes()
        if key not in self._strata:
            groups = self.cohort.groups_of(mask)
            self._strata[key] = strata_of(self.cohort.member[mask], self.labels[mask], groups)
        return self._strata[key]


def read_side(records: pd.DataFrame, part: str, *, level: float, n_bootstrap: int, seed: int) -> Side | None:
    """Members ("members") or rows of the training context ("context") against non-members; None without either.

    Raises DataError for a missing column, an unknown part, a row there twice, or a label that is no class code.
    """
    for name in ("row", "part", "label"):
        if name not in records.columns:
            raise DataError(f"records: {did_you_mean(name, [str(c) for c in records.columns], 'column')}")
    strange = sorted(set(records["part"].astype(str)) - set(PARTS))
    if strange:
        raise DataError(f"records: part '{strange[0]}'; expected {', '.join(PARTS)}")
    if not np.issubdtype(records["label"].to_numpy().dtype, np.integer):
        raise DataError(f"records: labels are {records['label'].dtype}, expected class codes")
    own = "member" if part == "members" else part
    frame = records[records["part"].isin([own, "nonmember"])]
    is_member = frame["part"] == own
    if is_member.all() or not is_member.any():
        return None
    read = frame.assign(record_id=frame["row"].astype(str), member=is_member)
    cohort = read_cohort(read, level=level, n_bootstrap=n_bootstrap, seed=seed)
    lined = read.set_index("record_id").loc[list(cohort.ids)]
    return Side(part, cohort, lined["label"].to_numpy(np.int64), lined["row"].to_numpy(np.int64))


def read_scores(scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores as a table of rows by (attack, model), and the lines that have none.

    Raises DataError for a missing column or a score given twice.
    """
    for name in ("row", "attack", "model", "score", "reason"):
        if name not in scores.columns:
            raise DataError(f"scores: {did_you_mean(name, [str(c) for c in scores.columns], 'column')}")
    try:
        wide = scores.pivot(index="row", columns=["attack", "model"], values="score")
    except ValueError as error:
        raise DataError(f"scores: a row has two scores of one attack and model ({error})") from error
    return wide.sort_index(axis=1), scores[~np.isfinite(scores["score"].to_numpy(np.float64))]


def columns_of(side: Side, wide: pd.DataFrame, lost: pd.DataFrame) -> dict[ColumnKey, Column]:
    """Every (attack, model) on the records of one side; a record without a line counts as missing."""
    values = wide.reindex(side.rows).to_numpy(np.float64)
    here = lost[lost["row"].isin(side.rows)]
    reasons: dict[Any, Counter[str]] = {
        key: Counter(part["reason"].fillna("no reason given").astype(str))
        for key, part in here.groupby(["attack", "model"], sort=False)
    }
    found = {}
    for place, key in enumerate(wide.columns):
        column = values[:, place]
        known = np.isfinite(column)
        why = reasons.get(key, Counter())
        absent = int((~known).sum()) - why.total()
        if absent:
            why["no row in the score table"] += absent
        found[str(key[0]), str(key[1])] = Column(np.where(known, column, np.nan), dict(why.most_common()))
    return found


def as_row(metric: Metric, part: str, chance: ByChance | None = None) -> Row:
    """The metric with the keys that tabular audits add."""
    rate, sd = (None, None) if chance is None else (chance.rule_rate, chance.auc_sd)
    return {**metric.to_dict(), "part": part, "null_rate": rate, "null_sd": sd}


def _blank(attack: str, model: str, column: Column, side: Side) -> Metric:
    one, two = side.cohort.sides(column.finite)
    return Metric(attack, model, "auc", None, n_members=int(one.sum()), n_nonmembers=int(two.sum()))


def auc_within(column: Column, side: Side) -> tuple[float, Interval]:
    """The AUC within classes and its interval: DeLong by class, or by bootstrap of groups; for a usable column."""
    mask, cohort = column.finite, side.cohort
    own = (column.values[mask], cohort.member[mask], side.labels[mask])
    area, ends = within_auc(*own, cohort.level)
    if cohort.weights is None:
        return area, ends
    drawn = within_replicates(*own, cohort.weights[:, mask])
    one, two = cohort.sides(mask)
    made = auc_from_replicates(area, drawn[np.isfinite(drawn)], min(cohort.units(one), cohort.units(two)), cohort.level)
    return area, replace(made, method=f"{made.method}, {WITHIN}")


def auc_pooled(column: Column, cohort: Cohort) -> tuple[float, Interval]:
    """AUC over all classes together and its interval: DeLong, or by bootstrap of groups; for a usable column."""
    one, two = cohort.sides(column.finite)
    members, others = column.values[one], column.values[two]
    if cohort.weights is None:
        return delong(members, others, cohort.level)
    drawn = bootstrap_auc(members, others, cohort.weights[:, one], cohort.weights[:, two])
    area, units = auc(members, others), min(cohort.units(one), cohort.units(two))
    return area, auc_from_replicates(area, drawn[np.isfinite(drawn)], units, cohort.level)


def separation_rows(attack: str, model: str, column: Column, side: Side, *, within_classes: bool = True) -> list[Row]:
    """AUC within classes with its interval, and the p-value of the permutation test within classes (`stratified_p`).

    within_classes: False for the erased control, whose scores differ between classes alone: its AUC is over all
    classes together, and its test permutes over all records (`auc_p_value`).
    """
    base = _blank(attack, model, column, side)
    cohort, mask = side.cohort, column.finite
    why = unusable(column, cohort)
    if why is None and within_classes and not n_pairs(cohort.member[mask], side.labels[mask]):
        why = "no class has a member and a non-member with a score"
    if why is not None:
        return [as_row(replace(base, metric=name, reason=why), side.part) for name in ("auc", "p_value")]
    area, ends = auc_within(column, side) if within_classes else auc_pooled(column, cohort)
    row = replace(base, value=area, low=ends.low, high=ends.high, level=ends.level, method=ends.method)
    if within_classes:
        p_value, test = stratified_p(column.values[mask], side.strata(mask), cohort.groups_of(mask), seed=cohort.seed)
    else:
        one, two = cohort.sides(mask)
        members, others = column.values[one], column.values[two]
        p_value, test = auc_p_value(members, others, cohort.groups_of(one), cohort.groups_of(two), seed=cohort.seed)
        test = f"{test}, classes not held fixed"
    p_row = replace(base, metric="p_value", value=p_value, method=test)
    return [as_row(row, side.part), as_row(p_row, side.part)]


def line_row(row: Row, n_choices: int, randomised: bool) -> Row:
    """(AUC - 1/2) / (line - 1/2) from an AUC's row, the interval alike; line = 1 - 1 / (2 K), K candidate labels.

    A score that only ranks rows answered right above rows answered wrong reaches the line when every member is right
    and non-members are right by chance, 1 in K. Under label randomisation alone, and with labels equally frequent. A
    line, not a bound: a score that does more than tell right from wrong, as confidence does, may pass it.
    """
    line = 1.0 - 1.0 / (2.0 * n_choices)
    out = {**row, "metric": "auc_over_line"}
    if not randomised:
        reason = row["reason"] or "labels are the table's own; the line holds for randomised labels"
        return {**out, "value": None, "low": None, "high": None, "level": None, "method": None, "reason": reason}
    for name in ("value", "low", "high"):
        out[name] = None if row[name] is None else (row[name] - 0.5) / (line - 0.5)
    if row["value"] is not None:
        out["method"] = f"{row['method']}; share of the way from 0.5 to the line {line:.4g}, which is no bound"
    return out


def rate_rows(
    attack: str, model: str, column: Column, side: Side, *, intervals: bool = True, n_permutations: int = 0
) -> list[Row]:
    """TPR at 1% and at 10% FPR with the realised FPR, and the paper's rule (1 met, 0 not), over all classes together.

    intervals: with those of the rates. n_permutations: how many to find out how often scores that know nothing meet the
    rule; 0 for none.
    """
    base = _blank(attack, model, column, side)
    cohort, w = side.cohort, side.cohort.weights
    why = unusable(column, cohort)
    names = [f"tpr@{fpr:g}" for fpr in PAPER_FPRS]
    if why is not None:
        return [as_row(replace(base, metric=name, reason=why), side.part) for name in (*names, "paper_rule")]
    one, two = cohort.sides(column.finite)
    members, others = column.values[one], column.values[two]
    groups_m, groups_n = cohort.groups_of(one), cohort.groups_of(two)
    weights = None if w is None else (w[:, one], w[:, two])
    rows, rates = [], []
    for name, fpr in zip(names, PAPER_FPRS, strict=True):
        point = operating_point(members, others, fpr, groups_n)
        row = replace(
            base, metric=name, value=point.tpr, realised_fpr=point.realised_fpr, fpr_upper=point.fpr_upper,
            threshold=point.threshold, reason=point.reason, method=POOLED,
        )  # fmt: skip
        if intervals:
            ends = tpr_interval(point, members, others, groups_m, groups_n, level=cohort.level, weights=weights)
        else:
            ends = None
        if ends is not None:
            row = replace(row, low=ends.low, high=ends.high, level=ends.level, method=f"{ends.method}, {POOLED}")
        rows.append(as_row(row, side.part))
        rates += [] if point.tpr is None else [np.asarray(point.tpr)]
    rule = replace(base, metric="paper_rule", method=RULE)
    if not rates:
        return [*rows, as_row(replace(rule, reason=f"no rate exists: {rows[-1]['reason']}"), side.part)]
    met = bool(meets_rule(np.asarray(auc(members, others)), rates))
    chance = None
    if n_permutations:
        mask = column.finite
        chance = by_chance(column.values[mask], side.strata(mask), n_permutations, seed=cohort.seed)
        how = f"{RULE}; {chance.rule_rate:.0%} of {n_permutations} permutations of membership meet it"
        rule = replace(rule, method=how)
    return [*rows, as_row(replace(rule, value=float(met)), side.part, chance)]


def against_base(column: Column, base: Column | None, side: Side) -> Paired | str:
    """How much further the AUC within classes lies from one half than the base model's on the same context, or why it
    is not known.

    The base's own score has seen no member, whichever side of one half it falls on: it is counted on the audited
    model's side (`auc_b`), and the difference is AUC minus that.
    """
    if base is None:
        return "no base model was given"
    mask, cohort = column.finite & base.finite, side.cohort
    one, two = cohort.sides(mask)
    if min(cohort.units(one), cohort.units(two)) < 2 or not n_pairs(cohort.member[mask], side.labels[mask]):
        return "fewer than 2 members or non-members have both scores"
    if np.ptp(base.values[mask]) == 0:
        return "its score on the base model is the same for every record, which controls for nothing"
    found = departure_minus(column, base, side, either_side=True)
    up = 1 if found.auc_a >= 0.5 else -1
    low, high = sorted((up * found.interval.low, up * found.interval.high))
    ends = Interval(low, high, found.interval.level, f"{found.interval.method}, the base on the same side of 0.5")
    return Paired(found.auc_a, 0.5 + up * (found.auc_b - 0.5), up * found.difference, ends, found.p_value)


def departure_minus(column: Column, control: Column, side: Side, *, either_side: bool) -> Paired:
    """How much further the AUC within classes lies from one half than a control's, on the records that have both.

    |A - 1/2| - max(B - 1/2, 0), A and B within classes. Records (or groups) are drawn with replacement within side and
    class (groups: within side), the same for both, `n_bootstrap` times; percentiles. The direction is A's own.

    Args:
        either_side: a control below one half counts as much as one above; else it counts as chance.
    """
    mask, cohort = column.finite & control.finite, side.cohort
    member, labels = cohort.member[mask], side.labels[mask]
    weights = cohort.weights
    if weights is None:
        ids = [name for name, keep in zip(cohort.ids, mask, strict=True) if keep]
        rng = np.random.default_rng([cohort.seed, 2])
        drawn = cluster_weights(ids, (2 * labels + member).tolist(), cohort.n_bootstrap, rng)
    else:
        drawn = weights[:, mask]
    area, of_control = (within_auc(c.values[mask], member, labels, cohort.level)[0] for c in (column, control))
    up, turned = (1 if area >= 0.5 else -1), (-1 if either_side and of_control < 0.5 else 1)
    a, b = (within_replicates(c.values[mask], member, labels, drawn) for c in (column, control))
    gap = up * (a - 0.5) - np.maximum(turned * (b - 0.5), 0.0)
    beside = 0.5 + max(turned * (of_control - 0.5), 0.0)
    made = from_replicates(0.5 + up * (area - 0.5), beside, gap[np.isfinite(gap)], cohort.level)
    ends = replace(made.interval, method=f"bootstrap {WITHIN}, paired")
    return Paired(area, beside, made.difference, ends, made.p_value)
