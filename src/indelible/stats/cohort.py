"""The audited records and their score columns as arrays, and what one column or a pair of columns says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.errors import DataError, did_you_mean

from .bootstrap import Weights, bootstrap_auc, cluster_weights
from .intervals import Interval, auc_from_replicates, auc_p_value, delong
from .paired import Paired, from_replicates, paired_delong
from .roc import Floats, auc

Mask = NDArray[np.bool_]
ColumnKey = tuple[str, str]
"""(attack, model)."""


@dataclass(frozen=True)
class Cohort:
    """Records sorted by id, so that no result depends on the order of a file.

    `weights` (n_bootstrap, n_records) resamples groups within each side; None where every group is one record.
    """

    ids: tuple[str, ...]
    member: Mask
    groups: tuple[str, ...]
    weights: Weights | None
    level: float
    n_bootstrap: int
    seed: int

    def sides(self, mask: Mask) -> tuple[Mask, Mask]:
        """Masks of the members and the non-members among `mask`."""
        return mask & self.member, mask & ~self.member

    def groups_of(self, mask: Mask) -> list[str] | None:
        """Groups of the masked records, None where records are independent."""
        return None if self.weights is None else [g for g, keep in zip(self.groups, mask, strict=True) if keep]

    def units(self, mask: Mask) -> int:
        """Independent units among the masked records: groups, or records."""
        groups = self.groups_of(mask)
        return int(mask.sum()) if groups is None else len(set(groups))


@dataclass(frozen=True)
class Column:
    """Scores of one attack on one model, (n_records,), NaN where missing, and how often each reason was given."""

    values: Floats
    missing: Mapping[str, int]

    @property
    def finite(self) -> Mask:
        return np.isfinite(self.values)


def _require(frame: pd.DataFrame, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if name not in frame.columns:
            raise DataError(f"{what}: {did_you_mean(name, [str(c) for c in frame.columns], 'column')}")


def read_cohort(records: pd.DataFrame, *, level: float, n_bootstrap: int, seed: int) -> Cohort:
    """Columns used: record_id (unique), member (true/false or 1/0), group (optional; missing = the record alone).

    Raises DataError for a missing column, a repeated id, or membership that is not known.
    """
    _require(records, ("record_id", "member"), "records")
    ids = records["record_id"].astype(str)
    if ids.duplicated().any():
        raise DataError(f"records: record_id '{ids[ids.duplicated()].iloc[0]}' occurs more than once")
    unknown = ~records["member"].isin([True, False])
    if unknown.any():
        raise DataError(f"records: {int(unknown.sum())} rows have a member value that is neither true nor false")
    own = "record:" + ids
    groups = own if "group" not in records.columns else records["group"].astype("string").fillna(own).astype(str)
    order = np.argsort(ids.to_numpy(dtype=str), kind="stable")
    member = records["member"].to_numpy()[order].astype(bool)
    names = groups.to_numpy(dtype=str)[order]
    weights = None
    if len(set(names)) < names.size:
        weights = cluster_weights(names.tolist(), member.astype(int).tolist(), n_bootstrap, np.random.default_rng(seed))
    return Cohort(
        tuple(ids.to_numpy(dtype=str)[order].tolist()), member, tuple(names.tolist()), weights, level, n_bootstrap, seed
    )


def read_columns(scores: pd.DataFrame, cohort: Cohort) -> dict[ColumnKey, Column]:
    """Every (attack, model) of the score table, sorted by name. Infinite scores count as missing.

    Raises DataError for a missing column, a score that is no number, an unknown id, or two scores for one
    record.
    """
    _require(scores, ("record_id", "attack", "model", "score"), "scores")
    position = {record_id: i for i, record_id in enumerate(cohort.ids)}
    frame = scores.assign(record_id=scores["record_id"].astype(str))
    stranger = ~frame["record_id"].isin(list(position))
    if stranger.any():
        raise DataError(f"scores: record_id '{frame.loc[stranger, 'record_id'].iloc[0]}' is not among the records")
    twice = frame.duplicated(["record_id", "attack", "model"])
    if twice.any():
        record_id, attack, model = frame.loc[twice, ["record_id", "attack", "model"]].iloc[0]
        raise DataError(f"scores: record '{record_id}' has more than one score for attack '{attack}', model '{model}'")
    try:
        frame["score"] = frame["score"].astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"scores: column 'score' must hold numbers, empty where missing ({error})") from error
    columns: dict[ColumnKey, Column] = {}
    for (attack, model), part in frame.groupby(["attack", "model"], sort=True):
        values = np.full(len(cohort.ids), np.nan)
        given = part["score"].to_numpy()
        values[[position[record_id] for record_id in part["record_id"]]] = np.where(np.isfinite(given), given, np.nan)
        lost = ~np.isfinite(given)
        stated = part["reason"] if "reason" in part.columns else pd.Series([None] * len(part), index=part.index)
        why = Counter(str(r) if pd.notna(r) else "no reason given" for r in stated[lost])
        absent = len(cohort.ids) - len(part)
        if absent:
            why["no row in the score table"] += absent
        columns[str(attack), str(model)] = Column(values, dict(why.most_common()))
    return columns


def unusable(column: Column, cohort: Cohort, mask: Mask | None = None) -> str | None:
    """Why nothing can be said from this column, or None."""
    finite = column.finite if mask is None else column.finite & mask
    members, nonmembers = cohort.sides(finite)
    if not finite.any():
        why = next(iter(column.missing), "no reason given")
        return f"no record has a score (most common reason: {why})"
    for side, what in ((members, "members"), (nonmembers, "non-members")):
        if cohort.units(side) < 2:
            unit = "records" if cohort.weights is None else "groups"
            return f"too few scores: {cohort.units(side)} {unit} of {what} have one, at least 2 are needed"
    values = column.values[finite]
    if values.min() == values.max():
        return "every score is the same, so it ranks nobody"
    return None


def missing_note(column: Column, cohort: Cohort) -> tuple[str, ...]:
    """A sentence on missing scores, by side: if one side loses more, the rest may be a biased sample."""
    lost = ~column.finite
    if not lost.any():
        return ()
    members, nonmembers = cohort.sides(lost)
    why = next(iter(column.missing), "no reason given")
    of_members = f"{int(members.sum())} of {int(cohort.member.sum())} members"
    of_others = f"{int(nonmembers.sum())} of {int((~cohort.member).sum())} non-members"
    return (f"no score for {of_members} and {of_others} (most common reason: {why})",)


def _replicates(cohort: Cohort, values: Floats, mask: Mask) -> Floats:
    if cohort.weights is None:
        raise ValueError("replicates are kept for grouped cohorts only")
    one, two = cohort.sides(mask)
    areas = bootstrap_auc(values[one], values[two], cohort.weights[:, one], cohort.weights[:, two])
    # A replicate may draw none of the few groups that have a score; it says nothing about the AUC.
    return areas[np.isfinite(areas)]


def column_auc(column: Column, cohort: Cohort) -> tuple[float, Interval, float, str]:
    """AUC, interval, two-sided p-value and the test's name, for a usable column."""
    one, two = cohort.sides(column.finite)
    members, nonmembers = column.values[one], column.values[two]
    p_value, test = auc_p_value(members, nonmembers, cohort.groups_of(one), cohort.groups_of(two), seed=cohort.seed)
    if cohort.weights is None:
        area, interval = delong(members, nonmembers, cohort.level)
    else:
        area = auc(members, nonmembers)
        units = min(cohort.units(one), cohort.units(two))
        interval = auc_from_replicates(area, _replicates(cohort, column.values, column.finite), units, cohort.level)
    return area, interval, p_value, test


def compare(a: Column, b: Column, cohort: Cohort) -> Paired | str:
    """AUC of a minus AUC of b on the records both score, or the reason why that cannot be had.

    A constant b (a score that is zero by construction on the base model) is an AUC of one half.
    """
    mask = a.finite & b.finite
    one, two = cohort.sides(mask)
    for side, what in ((one, "members"), (two, "non-members")):
        if cohort.units(side) < 2:
            return f"fewer than 2 {what} have both scores"
    x, y = a.values, b.values
    if cohort.weights is None:
        return paired_delong(x[one], x[two], y[one], y[two], cohort.level)
    both = [bootstrap_auc(v[one], v[two], cohort.weights[:, one], cohort.weights[:, two]) for v in (x, y)]
    difference = both[0] - both[1]
    difference = difference[np.isfinite(difference)]
    result = from_replicates(auc(x[one], x[two]), auc(y[one], y[two]), difference, cohort.level)
    if np.ptp(difference) > 1e-12:
        return result
    # No replicate differs: fall back on the wide interval for separated scores, which never has zero width.
    return paired_delong(x[one], x[two], y[one], y[two], cohort.level)
