"""Rows of metrics.json: one attack on one model, pairs of attacks, the blind control, the fitted combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from .blind import BLIND_ATTACK, BlindResult
from .cohort import Cohort, Column, column_auc, compare, unusable
from .combined import COMBINED, CombinedResult
from .intervals import Interval, tpr_interval
from .metrics import Metric
from .paired import Paired, holm
from .roc import bounded_operating_point, operating_point
from .verdict import Evidence


def _row(cohort: Cohort, column: Column, attack: str, model: str, metric: str, value: float | None) -> Metric:
    one, two = cohort.sides(column.finite)
    return Metric(attack, model, metric, value, n_members=int(one.sum()), n_nonmembers=int(two.sum()))


def describe(attack: str, model: str, column: Column, cohort: Cohort, fprs: Sequence[float]) -> list[Metric]:
    """AUC, its p-value and the operating points of one column; all null with the reason for an unusable one."""
    names = ["auc", "p_value"] + [f"{kind}@{fpr:g}" for kind in ("tpr", "tpr_bounded") for fpr in fprs]
    why = unusable(column, cohort)
    if why is not None:
        return [replace(_row(cohort, column, attack, model, name, None), reason=why) for name in names]
    area, interval, p_value, test = column_auc(column, cohort)
    base = _row(cohort, column, attack, model, "auc", area)
    rows = [
        replace(base, low=interval.low, high=interval.high, level=interval.level, method=interval.method),
        replace(base, metric="p_value", value=p_value, method=test),
    ]
    one, two = cohort.sides(column.finite)
    members, nonmembers = column.values[one], column.values[two]
    groups_m, groups_n = cohort.groups_of(one), cohort.groups_of(two)
    w = cohort.weights
    weights = None if w is None else (w[:, one], w[:, two])
    for kind in ("tpr", "tpr_bounded"):
        for fpr in fprs:
            pick = operating_point if kind == "tpr" else bounded_operating_point
            point = pick(members, nonmembers, fpr, groups_n)
            ends = tpr_interval(
                point, members, nonmembers, groups_m, groups_n,
                level=cohort.level, n_bootstrap=cohort.n_bootstrap, seed=cohort.seed, repick=kind == "tpr",
                weights=weights,
            )  # fmt: skip
            row = replace(
                base, metric=f"{kind}@{fpr:g}", value=point.tpr, realised_fpr=point.realised_fpr,
                fpr_upper=point.fpr_upper, threshold=point.threshold, reason=point.reason,
            )  # fmt: skip
            if ends is not None:
                row = replace(row, low=ends.low, high=ends.high, level=ends.level, method=ends.method)
            rows.append(row)
    return rows


def evidence_rows(e: Evidence, column: Column, cohort: Cohort) -> list[Metric]:
    base = _row(cohort, column, e.attack, "target", "p_holm", e.p_holm)
    too_few = None if e.smallest_auc is not None else "too few records for any AUC to be significant"
    rows = [
        replace(base, method="Holm over the attacks", reason=e.unusable),
        replace(
            base, metric="smallest_auc", value=e.smallest_auc, method="80% power, Holm's worst case",
            reason=e.unusable or too_few,
        ),
    ]  # fmt: skip
    for name, found, why, how in (
        ("auc_minus_base", e.minus_base, e.base_reason, ""),
        ("auc_minus_blind", e.minus_blind, e.blind_reason, "; distances from 0.5"),
    ):
        row = replace(base, metric=name, value=None, reason=e.unusable or why)
        rows.append(row if found is None else _paired_row(row, found, how))
    return rows


def _paired_row(row: Metric, found: Paired, how: str = "") -> Metric:
    ends = found.interval
    return replace(
        row,
        value=found.difference,
        low=ends.low,
        high=ends.high,
        level=ends.level,
        method=ends.method + how,
        reason=None,
    )


def pair_rows(targets: Mapping[str, Column], cohort: Cohort) -> list[Metric]:
    """Every pair of attacks that can be ranked: the difference of AUCs, and its p-value after Holm over the pairs."""
    usable = {attack: column for attack, column in targets.items() if unusable(column, cohort) is None}
    found = {(a, b): compare(usable[a], usable[b], cohort) for a, b in combinations(usable, 2)}
    tested = {pair: c.p_value for pair, c in found.items() if isinstance(c, Paired) and c.p_value is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    rows = []
    for (a, b), result in found.items():
        both = Column(np.where(usable[b].finite, usable[a].values, np.nan), {})
        row = _row(cohort, both, a, "target", f"auc_minus:{b}", None)
        rows.append(replace(row, reason=result) if isinstance(result, str) else _paired_row(row, result))
        why = None if (a, b) in adjusted else "the difference has no variance to test against"
        p_row = replace(
            row, metric=f"p_minus:{b}", value=adjusted.get((a, b)), method="Holm over the pairs", reason=why
        )
        rows.append(p_row)
    return rows


def blind_rows(blind: BlindResult, cohort: Cohort) -> list[Metric]:
    base = Metric(
        BLIND_ATTACK, "none", "auc", blind.auc, blind.low, blind.high, blind.level, blind.method,
        n_members=int(cohort.member.sum()), n_nonmembers=int((~cohort.member).sum()), reason=blind.reason,
    )  # fmt: skip
    why = blind.reason or (None if blind.p_value is not None else "no permutations were asked for")
    return [base, replace(base, metric="p_value", value=blind.p_value, low=None, high=None, level=None, reason=why)]


def given_rows(attack: str, column: Column, cohort: Cohort, fprs: Sequence[float]) -> list[Metric]:
    """Out-of-fold scores of a fitted attack read from a score table, where folds are not known: pooled."""
    rows = describe(attack, "none", column, cohort, fprs)
    return [replace(row, method=f"scores as given, pooled; {row.method}") if row.method else row for row in rows]


def combined_rows(found: CombinedResult, cohort: Cohort, fprs: Sequence[float]) -> list[Metric]:
    """The fitted combination: AUC, permutation p, rates, and what it gains over each attack and over the base alone."""
    known = found.known if found.scores else np.zeros(cohort.member.size, dtype=bool)
    one, two = cohort.sides(known)
    why = found.reason
    method = found.method + (f"; left out: {'; '.join(found.unused)}" if found.unused else "")
    base = Metric(COMBINED, "none", "auc", found.auc, n_members=int(one.sum()), n_nonmembers=int(two.sum()), reason=why)
    p_why = why or (None if found.p_value is not None else "no permutations were asked for")
    p_method = f"labels permuted over groups and refitted on one split, {found.n_permutations}"
    rows = [
        _with_interval(replace(base, method=method), found.interval),
        replace(base, metric="p_value", value=found.p_value, method=p_method, reason=p_why),
    ]
    rates = {rate.fpr: rate for rate in found.rates}
    for fpr in fprs:
        rate = rates.get(fpr)
        row = replace(base, metric=f"tpr@{fpr:g}", value=None)
        if rate is not None:
            row = replace(row, value=rate.tpr, realised_fpr=rate.realised_fpr, reason=rate.reason)
            row = _with_interval(replace(row, method="a threshold in each held-out fold"), rate.interval)
        rows.append(row)
    unbounded = why or "each held-out fold has a threshold of its own, so no one bound on the false-positive rate holds"
    rows += [replace(base, metric=f"tpr_bounded@{fpr:g}", value=None, reason=unbounded) for fpr in fprs]
    for attack, gain in found.versus.items():
        rows += _gain_rows(base, f":{attack}", gain, found.versus_p.get(attack), "Holm over the attacks")
    best = found.versus_best
    alone = best.p_value if isinstance(best, Paired) else None
    rows += _gain_rows(base, "_best", why or best, alone, "the attack that separates the training folds best")
    rows += _gain_rows(base, "_base", why or found.versus_base, None, "")[:1]
    missing = None if found.base_auc is not None else why or str(found.versus_base)
    control = replace(base, model="base", value=found.base_auc, method="the same on the base's scores alone")
    control = replace(control, reason=missing)
    return [*rows, _with_interval(control, found.base_interval)]


def _gain_rows(base: Metric, over: str, gain: Paired | str, p_value: float | None, how: str) -> list[Metric]:
    """`auc_minus<over>` and `p_minus<over>` of the combination."""
    row = replace(base, metric=f"auc_minus{over}", value=None)
    if isinstance(gain, str):
        row = replace(row, reason=gain)
        return [row, replace(row, metric=f"p_minus{over}", method=how)]
    why = None if p_value is not None else "the difference has no variance to test against"
    p_row = replace(row, metric=f"p_minus{over}", value=p_value, method=how, reason=why)
    return [_paired_row(row, gain), p_row]


def _with_interval(row: Metric, ends: Interval | None) -> Metric:
    """The row with its interval, whose method is added to the row's."""
    if ends is None:
        return row
    method = "; ".join(text for text in (row.method, ends.method) if text)
    return replace(row, low=ends.low, high=ends.high, level=ends.level, method=method)
