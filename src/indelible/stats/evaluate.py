"""From a table of records and a table of scores to metrics and a verdict. Statistics never see models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from indelible.errors import DataError

from .blind import BLIND_ATTACK, BlindResult, bag_of_words, departure_minus_blind
from .cohort import Cohort, Column, ColumnKey, column_auc, compare, missing_note, read_cohort, read_columns, unusable
from .combined import COMBINED, N_PERMUTATIONS, CombinedResult, combine
from .metrics import Metric
from .paired import Paired, holm, smallest_effect
from .rows import blind_rows, combined_rows, describe, evidence_rows, given_rows, pair_rows
from .verdict import Control, Evidence, Verdict, judge

SIGNIFICANCE = 0.05
"""Of the verdict's tests, after Holm. Fixed, so that the words mean the same in every report."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Evaluation:
    """Rows of metrics.json, the verdict, the blind control and the fitted combination (None where not asked for).

    `blind_scores` and `combined_scores` map record_id to the out-of-fold score of either, empty where it did not run;
    NaN where no attack has a score to combine.
    """

    metrics: tuple[Metric, ...]
    verdict: Verdict
    blind: BlindResult | None
    blind_scores: Mapping[str, float] = field(default_factory=dict)
    combined: CombinedResult | None = None
    combined_scores: Mapping[str, float] = field(default_factory=dict)


def evaluate(
    records: pd.DataFrame,
    scores: pd.DataFrame,
    *,
    texts: Mapping[str, str] | None,
    seed: int = 0,
    level: float = 0.95,
    fprs: Sequence[float] = (0.1, 0.01, 0.001),
    n_bootstrap: int = 2000,
    controls_not_run: Mapping[str, str] = _NOTHING,
    blind_permutations: int = 99,
    combined: bool = False,
    combined_permutations: int = N_PERMUTATIONS,
) -> Evaluation:
    """Everything the audit and `indelible score` report about scores.

    records: record_id, member, group (optional), n_target_tokens (unused here).
    scores: record_id, attack, model ("target", "base", or "none"), score (NaN = missing), reason (optional).
    texts: record_id -> text for the blind control; without it, rows of the attack "bag-of-words" in `scores` serve as
        its out-of-fold scores (as one fold), and without those `controls_not_run` says why it did not run.
    level: of every interval, those of the controls included; the verdict's tests are at 5% whatever it is.
    controls_not_run: reasons under the names "base" and "bag-of-words".
    combined: fit the combination of all scores (`stats.combined`). Without it, rows of the attack "combined" in
        `scores` serve as its out-of-fold scores, pooled. Either way it is only described: it never enters the verdict.
    Attacks are compared in all pairs (`auc_minus:<other>`), their p-values Holm-adjusted over the pairs.
    The result does not depend on the order of rows. Raises DataError for tables that do not fit together.
    """
    cohort = read_cohort(records, level=level, n_bootstrap=n_bootstrap, seed=seed)
    columns = read_columns(scores, cohort)
    alpha = SIGNIFICANCE
    blind, blind_column, folds = _blind(cohort, columns, texts, blind_permutations)
    given = next((column for (attack, _), column in columns.items() if attack == COMBINED), None)
    columns = {key: column for key, column in columns.items() if key[0] not in (BLIND_ATTACK, COMBINED)}
    targets = {attack: column for (attack, model), column in columns.items() if model == "target"}

    rows: list[Metric] = []
    evidence: list[Evidence] = []
    for (attack, model), column in columns.items():
        described = describe(attack, model, column, cohort, fprs)
        rows.extend(described)
        if model == "target":
            base = columns.get((attack, "base"))
            found = _evidence(attack, column, described, base, blind, blind_column, folds, cohort, controls_not_run)
            evidence.append(found)
    evidence = _with_holm(evidence, targets, cohort, alpha)
    for e in evidence:
        rows.extend(evidence_rows(e, targets[e.attack], cohort))
    rows.extend(pair_rows(targets, cohort))
    if blind is not None:
        rows.extend(blind_rows(blind, cohort))
    fitted = None
    if combined:
        n_rows = Counter(zip(scores["attack"].astype(str), scores["model"].astype(str), strict=True))
        fitted = combine(columns, cohort, n_rows=n_rows, fprs=fprs, n_permutations=combined_permutations)
        rows.extend(combined_rows(fitted, cohort, fprs))
    elif given is not None:
        rows.extend(given_rows(COMBINED, given, cohort, fprs))
    controls = _controls(columns, blind, controls_not_run)
    known = {} if blind_column is None else dict(zip(cohort.ids, blind_column.values.tolist(), strict=True))
    mixed = {} if fitted is None or not fitted.scores else dict(zip(cohort.ids, fitted.scores, strict=True))
    return Evaluation(tuple(rows), judge(evidence, controls, alpha), blind, known, fitted, mixed)


def _blind(
    cohort: Cohort, columns: Mapping[ColumnKey, Column], texts: Mapping[str, str] | None, n_permutations: int
) -> tuple[BlindResult | None, Column | None, tuple[int, ...]]:
    """The blind control, its out-of-fold scores, and their folds: fitted from texts, or taken from the score table."""
    if texts is not None:
        absent = [i for i in cohort.ids if i not in texts]
        if absent:
            raise DataError(f"texts: {len(absent)} records have no text, first '{absent[0]}'")
        blind = bag_of_words(
            [texts[i] for i in cohort.ids], cohort.member, cohort.groups, seed=cohort.seed,
            n_permutations=n_permutations, level=cohort.level, n_bootstrap=cohort.n_bootstrap,
        )  # fmt: skip
        if blind.reason is not None:
            return blind, None, ()
        return blind, Column(np.asarray(blind.scores), {}), blind.folds
    given = next((column for (attack, _), column in columns.items() if attack == BLIND_ATTACK), None)
    if given is None:
        return None, None, ()
    folds = (0,) * len(cohort.ids)
    why = unusable(given, cohort)
    if why is not None:
        return BlindResult(None, None, None, cohort.level, None, (), (), (), "scores as given", why), None, ()
    area, interval, p_value, _ = column_auc(given, cohort)
    pooled = BlindResult(
        area, interval.low, interval.high, cohort.level, p_value, (area,), tuple(given.values.tolist()), folds,
        f"scores as given, pooled; {interval.method}", None,
    )  # fmt: skip
    return pooled, given, folds


def _evidence(
    attack: str,
    column: Column,
    described: Sequence[Metric],
    base: Column | None,
    blind: BlindResult | None,
    blind_column: Column | None,
    folds: Sequence[int],
    cohort: Cohort,
    controls_not_run: Mapping[str, str],
) -> Evidence:
    area_row, p_row = described[0], described[1]
    if area_row.value is None:
        return Evidence(attack, unusable=area_row.reason)
    against_base: Paired | str
    if base is None:
        against_base = controls_not_run.get("base", "no score of this attack on the base model")
    elif np.ptp(base.values[base.finite]) == 0 if base.finite.any() else False:
        # reference-base subtracts the base from itself: it would pass whatever the data are.
        against_base = "its score on the base model is the same for every record, which controls for nothing"
    else:
        against_base = compare(column, base, cohort)
    against_blind: Paired | str
    if blind_column is None:
        stated = blind.reason if blind is not None else controls_not_run.get(BLIND_ATTACK)
        against_blind = stated or "no texts were given"
    else:
        against_blind = _against_blind(column, blind_column, folds, 1 if area_row.value >= 0.5 else -1, cohort)
    support = tuple(
        f"support: TPR {row.value:.3f} at an FPR of at most {row.fpr_upper:.4f} (95% bound; {row.metric})"
        for row in described
        if row.metric.startswith("tpr_bounded@") and row.low is not None and row.value is not None
        and row.fpr_upper is not None and row.low > float(row.metric.split("@")[1])
    )  # fmt: skip
    return Evidence(
        attack, None, area_row.value, area_row.low, area_row.high, p_row.value,
        minus_base=None if isinstance(against_base, str) else against_base,
        base_reason=against_base if isinstance(against_base, str) else None,
        minus_blind=None if isinstance(against_blind, str) else against_blind,
        blind_reason=against_blind if isinstance(against_blind, str) else None,
        support=support, notes=missing_note(column, cohort),
    )  # fmt: skip


def _against_blind(column: Column, blind: Column, folds: Sequence[int], direction: int, cohort: Cohort) -> Paired | str:
    mask = column.finite & blind.finite
    fold = np.asarray(folds)[mask]
    member = cohort.member[mask]
    if not any(member[fold == k].any() and (~member[fold == k]).any() for k in np.unique(fold)):
        return "no fold of the blind baseline holds a scored member and a scored non-member"
    groups = [g for g, keep in zip(cohort.groups, mask, strict=True) if keep]
    return departure_minus_blind(
        column.values[mask], blind.values[mask], fold.tolist(), member, groups, direction=direction,
        level=cohort.level, n_bootstrap=cohort.n_bootstrap, seed=cohort.seed,
    )  # fmt: skip


def _with_holm(
    evidence: Sequence[Evidence], targets: Mapping[str, Column], cohort: Cohort, alpha: float
) -> list[Evidence]:
    """Adds the adjusted p-values and the smallest visible AUC, both over the attacks that could be tested."""
    tested = [e for e in evidence if e.p_value is not None]
    adjusted = dict(
        zip([e.attack for e in tested], holm([e.p_value for e in tested if e.p_value is not None]), strict=True)
    )
    judged = []
    for e in evidence:
        if e.attack not in adjusted:
            judged.append(e)
            continue
        one, two = cohort.sides(targets[e.attack].finite)
        smallest = smallest_effect(cohort.units(one), cohort.units(two), alpha, n_tests=len(tested))
        judged.append(replace(e, p_holm=adjusted[e.attack], smallest_auc=smallest))
    return judged


def _controls(
    columns: Mapping[ColumnKey, Column], blind: BlindResult | None, not_run: Mapping[str, str]
) -> dict[str, Control]:
    has_base = any(model == "base" and column.finite.any() for (_, model), column in columns.items())
    base = Control(True) if has_base else Control(False, not_run.get("base", "no scores on the base model were given"))
    if blind is None:
        words = Control(False, not_run.get(BLIND_ATTACK, "no texts were given"))
    else:
        words = Control(blind.reason is None, blind.reason, blind.auc, blind.low, blind.high, blind.p_value)
    others = {name: Control(False, why) for name, why in not_run.items() if name not in ("base", BLIND_ATTACK)}
    return {"base": base, BLIND_ATTACK: words, **others}
