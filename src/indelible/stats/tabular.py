"""From scores of one tuned tabular model to metrics and a verdict. Statistics never see models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from indelible.errors import DataError

from .cohort import Column, ColumnKey, missing_note
from .evaluate import SIGNIFICANCE
from .metrics import Metric
from .paired import Paired, holm, smallest_effect
from .tabular_rows import (
    SAME_ANSWER,
    Row,
    Side,
    against_base,
    as_row,
    columns_of,
    line_row,
    rate_rows,
    read_scores,
    read_side,
    separation_rows,
)
from .verdict import Control, Evidence, Verdict, judge

CHOSEN = "copy"
"""The score that a grid of configurations is judged by, chosen before any was run: the paper's probe as we read it."""

PRIMARY = (
    CHOSEN, "neutral", "foreign", "noised", "permuted", "copies", "suite:mean", "suite:min",
)  # fmt: skip
"""Scores that may decide a verdict: calibrated log-probabilities under contexts without information, and the suite."""

POSITIVE, DEPLOYMENT, ERASED, ORDER = "train-context", "fresh-context", "erased", "row-order"

REPEATED = "copies"
"""The probe that repeats the context of `CHOSEN`: a model may answer as it does there, which is then no second test."""


@dataclass(frozen=True)
class TabularEvaluation:
    """Rows for metrics.json (see `tabular_rows.Row`) and the verdict."""

    metrics: tuple[Row, ...]
    verdict: Verdict


def evaluate_tabular(
    records: pd.DataFrame,
    scores: pd.DataFrame,
    *,
    n_choices: int,
    randomised: bool,
    primary: Sequence[str] = PRIMARY,
    chosen: str = CHOSEN,
    blind_reason: str = "membership was drawn at random from one table",
    seed: int = 0,
    level: float = 0.95,
    n_bootstrap: int = 400,
    n_permutations: int = 400,
) -> TabularEvaluation:
    """Everything a tabular audit reports about one tuned model.

    Args:
        records: row (number in the table), part ("member", "nonmember", "context"), label (class code the row carries),
            group (optional).
        scores: what `attacks.tabular_scores` gave: row, attack, model ("target", "base"), score, reason. Rows beside
            the records are left out.
        n_choices: candidate labels K of a row. randomised: labels were randomised.
        primary: names that may decide the verdict. chosen: the one whose chance of meeting the paper's rule is drawn.
        blind_reason: why no classifier of features alone was set against the scores.
        level: of every interval; the verdict's tests are at 5%. n_bootstrap: for groups and for the base control;
            with groups most of the time goes there.
        n_permutations: for the paper's rule by chance.

    Metrics under model "target": auc (pairs of one class), p_value (membership permuted within classes), auc_over_line,
    tpr@0.01, tpr@0.1, paper_rule; under "base": auc, p_value; of primary names p_holm, auc_minus_base, smallest_auc;
    `row-order`: largest_difference (nats) from `copy`. Rates and the paper's rule are over all classes together. Rows
    of the training context come apart (part "context"), against the same non-members: auc, p_value of primary names and
    of the two informative controls. With groups only these names have intervals of rates.

    The verdict has the membership audit's words and rule, over the primary names alone. A detection must exceed the
    base model's own score on the same contexts. Controls, never evidence: train-context (were labels fitted?),
    fresh-context (deployment), erased (at chance unless classes differ).

    Raises DataError for tables that do not fit together, or one without members and non-members.
    Source: IclMem (arXiv 2606.31208), 3 to 5. Differs from the paper: intervals, permutation test and verdict are ours.
    """
    side = read_side(records, "members", level=level, n_bootstrap=n_bootstrap, seed=seed)
    if side is None:
        raise DataError("records: expected members and non-members, got one of them alone")
    apart = read_side(records, "context", level=level, n_bootstrap=n_bootstrap, seed=seed)
    wide, lost = read_scores(scores)
    named = (*primary, POSITIVE, DEPLOYMENT)
    columns = columns_of(side, wide, lost)
    rows: list[Row] = []
    found: dict[ColumnKey, Row] = {}  # AUC and p-value of each column, for the verdict
    tests: dict[ColumnKey, Row] = {}
    for (attack, model), column in columns.items():
        probe = attack.split(":")[0]
        if probe == ORDER:
            continue
        area, p_row = separation_rows(attack, model, column, side, within_classes=probe != ERASED)
        found[attack, model], tests[attack, model] = area, p_row
        rows += [area, p_row]
        if model == "target":
            rows.append(line_row(area, n_choices, randomised))
            # A bootstrap of groups takes its time: rates of grouped rows get an interval where they matter.
            intervals = side.cohort.weights is None or attack in named
            n_drawn = n_permutations if attack == chosen else 0
            rows += rate_rows(attack, model, column, side, intervals=intervals, n_permutations=n_drawn)
    again = f"{REPEATED} answers as {chosen} does: it is no second test, nor part of the suite"
    repeated = [_largest_difference(REPEATED, chosen, columns, side, model) for model in ("target", "base")]
    found_apart = [row["value"] for row in repeated if row is not None and row["value"] is not None]
    same = bool(found_apart) and max(found_apart) <= SAME_ANSWER
    evidence = [
        _evidence(
            name,
            columns[name, "target"],
            found[name, "target"],
            tests[name, "target"],
            columns,
            side,
            blind_reason,
            always=name == chosen,
        )
        for name in primary
        if (name, "target") in columns and not (same and name == REPEATED)
    ]
    evidence = _with_holm(evidence, columns, side)
    for e in evidence:
        rows += _evidence_rows(e, columns[e.attack, "target"], side)
    if apart is not None:
        for (attack, model), column in columns_of(apart, wide, lost).items():
            if model == "target" and attack in named:
                rows += separation_rows(attack, model, column, apart)
    difference = _largest_difference(ORDER, chosen, columns, side)
    rows += [] if difference is None else [difference]
    if same and (REPEATED, "target") in columns:
        rows.append(as_row(Metric(REPEATED, "target", "p_holm", None, reason=again), side.part))
    verdict = judge(evidence, _controls(found, tests, columns), SIGNIFICANCE)
    said = (*verdict.reasons, *_remarks(verdict.controls, difference), *([again] if same else []))
    return TabularEvaluation(tuple(rows), replace(verdict, reasons=said))


def raw_name(attack: str) -> str:
    """The name under which a calibrated score stands alone: copy -> copy:raw, suite:mean -> suite:mean-raw."""
    return f"{attack}-raw" if ":" in attack else f"{attack}:raw"


def _evidence(
    attack: str,
    column: Column,
    area: Row,
    p_row: Row,
    columns: Mapping[ColumnKey, Column],
    side: Side,
    blind: str,
    *,
    always: bool,
) -> Evidence:
    """`always`: compare with the base model although the score is not significant here; over seeds it may be."""
    if area["value"] is None:
        return Evidence(attack, unusable=area["reason"])
    minus_base: Paired | str = f"not needed: p is above {SIGNIFICANCE:g}"
    if p_row["value"] <= SIGNIFICANCE or always:
        minus_base = against_base(column, columns.get((raw_name(attack), "base")), side)
    return Evidence(
        attack, None, area["value"], area["low"], area["high"], p_row["value"],
        minus_base=None if isinstance(minus_base, str) else minus_base,
        base_reason=minus_base if isinstance(minus_base, str) else None,
        blind_reason=blind, notes=missing_note(column, side.cohort),
    )  # fmt: skip


def _with_holm(evidence: Sequence[Evidence], columns: Mapping[ColumnKey, Column], side: Side) -> list[Evidence]:
    tested = {e.attack: e.p_value for e in evidence if e.p_value is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    out = []
    for e in evidence:
        if e.attack in adjusted:
            one, two = (side.cohort.units(s) for s in side.cohort.sides(columns[e.attack, "target"].finite))
            smallest = smallest_effect(one, two, SIGNIFICANCE, n_tests=len(tested))
            e = replace(e, p_holm=adjusted[e.attack], smallest_auc=smallest)
        out.append(e)
    return out


def _evidence_rows(e: Evidence, column: Column, side: Side) -> list[Row]:
    one, two = side.cohort.sides(column.finite)
    base = Metric(e.attack, "target", "p_holm", e.p_holm, n_members=int(one.sum()), n_nonmembers=int(two.sum()))
    few = None if e.smallest_auc is not None else "too few records for any AUC to be significant"
    minus = replace(base, metric="auc_minus_base", value=None, reason=e.unusable or e.base_reason)
    if e.minus_base is not None:
        ends = e.minus_base.interval
        minus = replace(
            minus, value=e.minus_base.difference, low=ends.low, high=ends.high, level=ends.level, method=ends.method
        )
    rows = [
        replace(base, method="Holm over the primary names", reason=e.unusable),
        minus,
        replace(
            base, metric="smallest_auc", value=e.smallest_auc, method="80% power, Holm's worst case",
            reason=e.unusable or few,
        ),
    ]  # fmt: skip
    return [as_row(row, side.part) for row in rows]


def _largest_difference(
    name: str, chosen: str, columns: Mapping[ColumnKey, Column], side: Side, model: str = "target"
) -> Row | None:
    """Largest difference of log-probabilities between a probe and the chosen one, over members and non-members."""
    pair = [columns.get((f"{one}:raw", model)) for one in (name, chosen)]
    if pair[0] is None or pair[1] is None:
        return None
    both = pair[0].finite & pair[1].finite
    one, two = side.cohort.sides(both)
    row = Metric(name, model, "largest_difference", None, n_members=int(one.sum()), n_nonmembers=int(two.sum()))
    if not both.any():
        return as_row(replace(row, reason="no record has both scores"), side.part)
    most = float(np.abs(pair[0].values[both] - pair[1].values[both]).max())
    return as_row(replace(row, value=most, method="nats, over all records"), side.part)


def _controls(
    found: Mapping[ColumnKey, Row], tests: Mapping[ColumnKey, Row], columns: Mapping[ColumnKey, Column]
) -> dict[str, Control]:
    has_base = any(model == "base" and column.finite.any() for (_, model), column in columns.items())
    controls = {"base": Control(True) if has_base else Control(False, "no base model was given")}
    for name in (POSITIVE, DEPLOYMENT, ERASED):
        key = next(
            (k for k in ((name, "target"), (f"{name}:raw", "target")) if k in found and found[k]["value"] is not None),
            None,
        )
        if key is None:
            absent = found.get((name, "target"), {}).get("reason")
            controls[name] = Control(False, absent or "the probe was not asked")
            continue
        area = found[key]
        controls[name] = Control(True, None, area["value"], area["low"], area["high"], tests[key]["value"])
    return controls


def _remarks(controls: Mapping[str, Control], difference: Row | None) -> list[str]:
    """What the controls say, in a sentence each."""
    said = []
    positive, erased = controls[POSITIVE], controls[ERASED]
    if positive.ran and positive.auc is not None and positive.p_value is not None:
        fitted = positive.p_value <= SIGNIFICANCE and positive.auc > 0.5
        end = (
            "members' labels were fitted"
            if fitted
            else "members' labels were not fitted, so that finding nothing under the other contexts says little"
        )
        said.append(f"positive control {POSITIVE}: AUC {positive.auc:.3f}, p = {positive.p_value:.2g}: {end}")
    if erased.ran and erased.auc is not None and erased.p_value is not None:
        chance = erased.p_value > SIGNIFICANCE
        end = "at chance" if chance else "off chance: classes differ between members and non-members, which moves rates"
        said.append(f"null control {ERASED}: AUC {erased.auc:.3f}, p = {erased.p_value:.2g}: {end}")
    if difference is not None and difference["value"] is not None and difference["value"] > SAME_ANSWER:
        said.append(f"the order of label rows moves log-probabilities by up to {difference['value']:.3g} nats")
    return said
