"""The fitted combination: nothing leaks from held-out records, what is planted is found, and it is never evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from indelible.config import AuditConfig, ScoreConfig, resolve
from indelible.stats.bootstrap import cluster_weights
from indelible.stats.cohort import Cohort, Column
from indelible.stats.combined import CombinedResult, best_in_training, combine, directed, out_of_fold, standardise
from indelible.stats.crossfit import fold_aucs, fold_weights, group_codes, permutation_p, split_folds
from indelible.stats.evaluate import Evaluation, evaluate
from indelible.stats.metrics import Metric
from indelible.stats.paired import Paired
from indelible.stats.roc import auc

QUICK = {"n_permutations": 0, "n_repeats": 1}


def make_cohort(member: np.ndarray, groups: list[str] | None = None, seed: int = 0, n_bootstrap: int = 200) -> Cohort:
    names = groups or [str(i) for i in range(member.size)]
    weights = None
    if groups is not None:
        weights = cluster_weights(names, member.astype(int).tolist(), n_bootstrap, np.random.default_rng(seed))
    ids = tuple(f"r{i:05d}" for i in range(member.size))
    return Cohort(ids, member, tuple(names), weights, 0.95, n_bootstrap, seed)


def as_columns(table: np.ndarray, model: str = "target") -> dict[tuple[str, str], Column]:
    return {(f"a{k:02d}", model): Column(table[:, k], {}) for k in range(table.shape[1])}


def planted(n: int, shift: float, seed: int = 0) -> tuple[np.ndarray, dict[tuple[str, str], Column]]:
    """Two independent weak scores."""
    member = np.arange(n) % 2 == 0
    return member, as_columns(np.random.default_rng(seed).normal(size=(n, 2)) + shift * member[:, None])


def mean_and_error(areas: list[float]) -> tuple[float, float]:
    return float(np.mean(areas)), float(np.std(areas, ddof=1) / np.sqrt(len(areas)))


def cross_fitted(table: np.ndarray, member: np.ndarray, groups: list[str] | None, seed: int, n_folds: int = 5) -> float:
    units = group_codes(groups or [str(i) for i in range(member.size)])
    folds = split_folds(member, units, n_folds, seed)
    return float(np.mean(fold_aucs(out_of_fold(table, member, folds), member, folds)))


# --- no leakage: with scores that know nothing the AUC is one half ---------------------------------------------------


def test_two_random_scores_reach_one_half_on_average_over_200_seeds():
    areas = []
    for seed in range(200):
        rng = np.random.default_rng([7, seed])
        member = rng.permutation(np.arange(80) < 40)
        areas.append(cross_fitted(rng.normal(size=(80, 2)), member, None, seed))
    mean, error = mean_and_error(areas)
    assert error < 0.01
    assert abs(mean - 0.5) < 3 * error


def thirty(rng: np.random.Generator, n: int) -> np.ndarray:
    """30 scores that know nothing, of very different scales; five stand there twice, a tenth is missing by chance."""
    table = rng.normal(size=(n, 30)) * np.logspace(-3, 3, 30) + np.linspace(-50, 50, 30)
    table[:, 25:] = table[:, :5]
    table[rng.random(table.shape) < 0.1] = np.nan
    return table


def test_thirty_scores_with_copies_and_gaps_reach_one_half_on_average_over_200_seeds():
    held_out, seen = [], []
    member = np.arange(80) < 40
    for seed in range(200):
        table = thirty(np.random.default_rng([11, seed]), 80)
        held_out.append(cross_fitted(table, member, None, seed))
        if seed < 5:
            from sklearn.linear_model import LogisticRegression

            x, _ = standardise(table, table)
            fitted = LogisticRegression().fit(x, member).decision_function(x)
            seen.append(auc(fitted[member], fitted[~member]))
    mean, error = mean_and_error(held_out)
    assert min(seen) > 0.7  # on the records it was fitted on it separates noise: a leak would show
    assert error < 0.01
    assert abs(mean - 0.5) < 3 * error


def test_groups_that_resemble_themselves_do_not_leak():
    """Records of a group share most of their scores; whole groups are held out, so knowing the others is no help."""
    grouped, alone = [], []
    for seed in range(60):
        rng = np.random.default_rng([13, seed])
        group = np.arange(96) // 4
        member = rng.permutation(np.arange(24) < 12)[group]
        table = rng.normal(size=(24, 12))[group] + 0.2 * rng.normal(size=(96, 12))
        grouped.append(cross_fitted(table, member, [f"g{g}" for g in group], seed))
        if seed < 10:
            alone.append(cross_fitted(table, member, None, seed))
    mean, error = mean_and_error(grouped)
    assert abs(mean - 0.5) < 3 * error
    assert np.mean(alone) > 0.75  # the same records split one by one: that is the leak


def test_held_out_records_change_nothing_about_their_own_model():
    """Moving one held-out score moves that record alone: scaling, medians and weights come from training folds."""
    rng = np.random.default_rng(3)
    member = np.arange(60) < 30
    table = rng.normal(size=(60, 4)) + 0.5 * member[:, None]
    table[rng.random(table.shape) < 0.1] = np.nan
    folds = split_folds(member, np.arange(60), 5, 0)
    before = out_of_fold(table, member, folds)
    victim, others = 17, (folds == folds[17]) & (np.arange(60) != 17)
    table[victim] = 1e6
    after = out_of_fold(table, member, folds)
    assert (after[others] == before[others]).all()
    assert after[victim] != before[victim]
    assert (after[folds != folds[17]] != before[folds != folds[17]]).all()  # in their training it counts


# --- oracle -----------------------------------------------------------------------------------------------------------


def test_out_of_fold_scores_agree_with_a_slow_fit_of_the_same_formula():
    """Minimum of sum log(1 + exp(-y f)) + |w|^2 / 2, found by a general optimiser on hand-made features."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(5)
    member = np.arange(40) < 20
    table = rng.normal(size=(40, 3)) * [1, 10, 0.1] + member[:, None]
    table[rng.random(40) < 0.2, 1] = np.nan
    folds = split_folds(member, np.arange(40), 5, 1)
    found = out_of_fold(table, member, folds)
    for k in range(5):
        train, test = np.flatnonzero(folds != k), np.flatnonzero(folds == k)
        rows: dict[int, list[float]] = {int(i): [] for i in range(40)}
        for j in range(3):
            known = [table[i, j] for i in train if not np.isnan(table[i, j])]
            mean = sum(known) / len(known)
            spread = (sum((v - mean) ** 2 for v in known) / len(known)) ** 0.5
            for i in range(40):
                value = np.median(known) if np.isnan(table[i, j]) else table[i, j]
                rows[i].append((value - mean) / spread)
        for i in range(40):
            rows[i].append(float(np.isnan(table[i, 1])))
        x = np.array([rows[int(i)] for i in train])
        y = np.where(member[train], 1.0, -1.0)

        def loss(w: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> float:
            return float(np.logaddexp(0, -y * (x @ w[:-1] + w[-1])).sum() + 0.5 * (w[:-1] ** 2).sum())

        w = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-7}).x
        expected = [np.dot(rows[int(i)], w[:-1]) + w[-1] for i in test]
        assert found[test] == pytest.approx(expected, abs=1e-4)


# --- what is planted is found -----------------------------------------------------------------------------------------


def test_a_planted_sum_of_two_weak_scores_beats_each():
    member, columns = planted(600, 0.7)
    result = combine(columns, make_cohort(member, n_bootstrap=500), n_permutations=19)
    for attack in ("a00", "a01"):
        gain = result.versus[attack]
        assert gain.interval.low > 0
        assert result.versus_p[attack] < 0.05
        assert gain.auc_a == pytest.approx(result.auc)
    assert result.versus_best.interval.low > 0
    assert result.auc == pytest.approx(0.76, abs=0.05)  # Phi(0.7)
    assert result.interval.low < result.auc < result.interval.high
    assert result.p_value == pytest.approx(0.05)  # the smallest of 19 permutations
    assert result.auc == pytest.approx(np.mean(result.fold_aucs))
    assert len(result.fold_aucs) == 25


def test_one_strong_score_among_noise_is_not_beaten():
    member = np.arange(300) % 2 == 0
    table = np.random.default_rng(1).normal(size=(300, 6))
    table[:, 3] += 1.5 * member
    result = combine(as_columns(table), make_cohort(member), n_permutations=0)
    assert result.versus["a03"].interval.low < 0
    assert abs(result.versus_best.difference) < 0.03
    assert result.versus_best.auc_b == pytest.approx(result.versus["a03"].auc_b)


def test_base_values_calibrate_and_the_base_alone_is_the_control():
    """The target's score is difficulty plus memory; the base knows the difficulty. Their difference is what counts."""
    rng = np.random.default_rng(2)
    member = np.arange(400) % 2 == 0
    difficulty = 3 * rng.normal(size=(400, 2))
    target = as_columns(difficulty + rng.normal(size=(400, 2)) + member[:, None])
    base = as_columns(difficulty + 0.3 * rng.normal(size=(400, 2)), "base")
    without = combine(target, make_cohort(member), **QUICK)
    result = combine({**target, **base}, make_cohort(member), **QUICK)
    assert without.auc < 0.65
    assert result.auc > 0.75
    assert 0.4 < result.base_auc < 0.6
    assert result.versus_base.interval.low > 0
    assert "no score on the base" in without.versus_base
    # Records that differ by themselves are seen by the base too, and then nothing is gained over it.
    same = {key: Column(col.values + 4 * member, {}) for key, col in {**target, **base}.items()}
    shifted = combine(same, make_cohort(member), **QUICK)
    assert shifted.base_auc > 0.7
    assert shifted.versus_base.difference < result.versus_base.difference


def test_an_attack_is_read_in_the_direction_of_its_training_folds():
    rng = np.random.default_rng(4)
    member = np.arange(100) < 50
    folds = split_folds(member, np.arange(100), 5, 0)
    backwards, noise = rng.normal(size=100) - 2 * member, rng.normal(size=100)
    turned, areas = directed(backwards, member, folds)
    assert (turned == -backwards).all()
    for k in range(5):
        rest = folds != k
        assert areas[k] == pytest.approx(1 - auc(backwards[rest & member], backwards[rest & ~member]))
    assert (best_in_training({"noise": noise, "backwards": backwards}, member, folds) == -backwards).all()


def test_rates_come_from_a_threshold_in_each_fold():
    member, columns = planted(300, 1.0)
    result = combine(columns, make_cohort(member), fprs=(0.1, 0.01), **QUICK)
    scores, folds = np.array(result.scores), np.array(result.folds)
    caught, wrong = [], 0
    for k in range(5):
        others = np.sort(scores[(folds == k) & ~member])[::-1]
        threshold = others[3]  # 30 non-members a fold: three may be flagged
        caught.append((scores[(folds == k) & member] > threshold).mean())
        wrong += int((others > threshold).sum())
    first, second = result.rates
    assert first.tpr == pytest.approx(np.mean(caught))
    assert first.realised_fpr == pytest.approx(wrong / 150) == 0.1
    assert first.interval.low < first.tpr < first.interval.high
    assert second.tpr is None
    assert "at least 100 in each" in second.reason


# --- tests and determinism --------------------------------------------------------------------------------------------


def test_permutation_p_values_are_spread_evenly_when_nothing_is_there():
    p_values = []
    for seed in range(20):
        rng = np.random.default_rng([17, seed])
        member = rng.permutation(np.arange(20) < 10)
        table = rng.normal(size=(20, 2))
        groups = [f"g{i // 2}" for i in range(40)]
        doubled = np.repeat(table, 2, axis=0) + 0.3 * rng.normal(size=(40, 2))
        labels = np.repeat(member, 2)

        def statistic(lab: np.ndarray, run_seed: int, x: np.ndarray = doubled, g: list[str] = groups) -> float:
            return cross_fitted(x, lab, g, run_seed, n_folds=2)

        p_values.append(permutation_p(statistic, labels, groups, 9, seed, purpose=4))
    assert min(p_values) >= 0.1
    assert 0.36 < np.mean(p_values) < 0.74  # uniform on 0.1 to 1: 0.55 +- 0.064
    assert np.mean(np.array(p_values) <= 0.2) <= 0.45


def test_same_seed_same_result_and_another_seed_another_split():
    member, columns = planted(120, 0.5)
    runs = [combine(columns, make_cohort(member, seed=s), n_permutations=3, fprs=(0.1,)) for s in (5, 5, 6)]
    assert runs[0] == runs[1]
    assert runs[0].folds != runs[2].folds


def frames(n: int = 120, groups: int = 1, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    ids = [f"r{i:03d}" for i in range(n)]
    member = np.arange(n) < n // 2
    records = pd.DataFrame({"record_id": ids, "member": member, "group": [f"g{i // groups}" for i in range(n)]})
    parts = []
    for attack in ("loss", "zlib", "icp-sp"):
        for model, shift in (("target", 0.9), ("base", 0.0)):
            values = rng.normal(size=n) + shift * member
            values[rng.random(n) < 0.1] = np.nan
            parts.append(pd.DataFrame({"record_id": ids, "attack": attack, "model": model, "score": values}))
    return records, pd.concat(parts, ignore_index=True)


def run(records: pd.DataFrame, scores: pd.DataFrame, **more) -> Evaluation:
    settings = {"texts": None, "n_bootstrap": 200, "combined": True, "combined_permutations": 3, "fprs": (0.1, 0.01)}
    return evaluate(records, scores, **{**settings, **more})


def rows_of(result: Evaluation, model: str = "none") -> dict[str, Metric]:
    return {m.metric: m for m in result.metrics if (m.attack, m.model) == ("combined", model)}


def test_the_order_of_rows_does_not_matter():
    records, scores = frames(groups=2)
    straight = run(records, scores)
    shuffled = run(records.sample(frac=1, random_state=1), scores.sample(frac=1, random_state=2))
    assert shuffled.metrics == straight.metrics
    assert shuffled.combined_scores == straight.combined_scores


def test_rows_of_an_evaluation_and_a_verdict_that_knows_nothing_of_it():
    records, scores = frames()
    result, without = run(records, scores), run(records, scores, combined=False)
    assert result.verdict == without.verdict
    assert rows_of(without) == {}
    rows = rows_of(result)
    attacks = ("icp-sp", "loss", "zlib")
    expected = {"auc", "p_value", "auc_minus_best", "p_minus_best", "auc_minus_base"}
    expected |= {f"{kind}:{a}" for a in attacks for kind in ("auc_minus", "p_minus")}
    expected |= {f"{kind}@{f:g}" for f in (0.1, 0.01) for kind in ("tpr", "tpr_bounded")}
    assert set(rows) == expected
    assert rows["auc"].value == result.combined.auc
    assert (rows["auc"].n_members, rows["auc"].n_nonmembers) == (60, 60)
    assert "3 scores of the target and 3 of the base" in rows["auc"].method
    best = result.combined.versus_best
    assert rows["auc_minus_best"].value == best.difference == best.auc_a - best.auc_b
    assert rows["tpr@0.1"].value is not None
    assert "no one bound" in rows["tpr_bounded@0.1"].reason
    assert 0.3 < rows_of(result, "base")["auc"].value < 0.7
    assert all(m.value is not None or m.reason for m in result.metrics)
    json.dumps([m.to_dict() for m in result.metrics], allow_nan=False)


def test_scores_read_back_are_described_and_never_judged():
    records, scores = frames()
    first = run(records, scores)
    known = pd.DataFrame(
        [(i, "combined", "none", value) for i, value in first.combined_scores.items()],
        columns=["record_id", "attack", "model", "score"],
    )
    again = run(records, pd.concat([scores, known]), combined=False)
    rows = rows_of(again)
    assert rows["auc"].value == pytest.approx(first.combined.auc, abs=0.03)
    assert rows["auc"].method.startswith("scores as given, pooled")
    assert again.verdict == first.verdict
    named = run(records, pd.concat([scores, known.assign(model="target")]), combined=False)
    assert set(named.verdict.attacks) == {"loss", "zlib", "icp-sp"}
    refitted = run(records, pd.concat([scores, known]))
    assert refitted.combined == first.combined  # its own old scores are no feature


# --- what cannot be used says why -------------------------------------------------------------------------------------


def reason_of(result: CombinedResult) -> str:
    assert result.reason is not None
    assert result.auc is None
    assert result.scores == ()
    return result.reason


def test_unusable_columns_are_left_out_with_their_reason():
    member, columns = planted(100, 1.0)
    more = {
        **columns,
        ("gone", "target"): Column(np.full(100, np.nan), {"answer too short": 100}),
        ("flat", "target"): Column(np.full(100, 0.1), {}),
        ("flat", "base"): Column(np.zeros(100), {}),
        ("bag-of-words", "none"): Column(10.0 * member, {}),
    }
    result = combine(more, make_cohort(member), **QUICK)
    assert replace(result, left_out={}) == combine(columns, make_cohort(member), **QUICK)
    assert set(result.left_out) == {("gone", "target"), ("flat", "target"), ("flat", "base")}
    assert "answer too short" in result.left_out["gone", "target"]
    assert "the same" in result.left_out["flat", "base"]
    few = {key: more[key] for key in (("a00", "target"), ("gone", "target"), ("flat", "base"))}
    reason = reason_of(combine(few, make_cohort(member), **QUICK))
    assert "this run has a00 alone" in reason
    assert "answer too short" in reason
    assert "no attack" in reason_of(combine({}, make_cohort(member), **QUICK))


def test_a_control_on_part_of_the_records_is_no_feature():
    """As many members as non-members were asked on the base: of unequal sides, being asked betrays the larger one."""
    rng = np.random.default_rng(6)
    ids = [f"r{i:03d}" for i in range(200)]
    member = np.arange(200) < 150
    records = pd.DataFrame({"record_id": ids, "member": member})
    parts = [
        pd.DataFrame({"record_id": ids, "attack": a, "model": "target", "score": rng.normal(size=200)})
        for a in ("loss", "zlib")
    ]
    asked = [*range(40), *range(150, 190)]
    part = pd.DataFrame({"record_id": [ids[i] for i in asked], "attack": "loss", "model": "base"})
    scores = pd.concat([*parts, part.assign(score=rng.normal(size=80))])
    result = run(records, scores)
    assert "120 records were not asked" in result.combined.left_out["loss", "base"]
    assert result.combined.auc < 0.65
    assert "left out: loss on the base" in rows_of(result)["auc"].method


@pytest.mark.parametrize(
    ("member", "groups", "reason"),
    [
        (np.arange(60) < 4, None, "4 groups of members"),
        (np.arange(60) >= 4, None, "4 groups of non-members"),
        (np.arange(60) < 30, ["one"] * 20 + [f"g{i % 4}" for i in range(40)], "groups of non-members"),
        (np.arange(60) < 40, ["one"] * 30 + [str(i) for i in range(30)], "half of the records"),
    ],
)
def test_too_few_records_say_why(member, groups, reason):
    table = np.random.default_rng(0).normal(size=(60, 2))
    assert reason in reason_of(combine(as_columns(table), make_cohort(member, groups), **QUICK))


def test_one_attack_is_a_row_without_a_value():
    records, scores = frames()
    result = run(records, scores[scores["attack"] == "loss"])
    rows = rows_of(result)
    assert rows["auc"].value is None
    assert "loss alone" in rows["auc"].reason
    assert all(row.value is None and row.reason for row in rows.values())
    assert result.combined_scores == {}


def test_a_record_without_any_score_has_no_combined_one():
    member, columns = planted(100, 0.5)
    for column in columns.values():
        column.values[[0, 51]] = np.nan
    columns["a00", "target"].values[7] = np.nan
    result = combine(columns, make_cohort(member), fprs=(0.1,), **QUICK)
    assert np.flatnonzero(~result.known).tolist() == [0, 51]
    assert len(result.folds) == 98


def test_complete_separation_and_extreme_values_stay_finite():
    member = np.arange(60) < 30
    table = np.column_stack([member * 1e300, np.random.default_rng(0).normal(size=60) + 20 * member])
    table[5, 0] = np.nan
    result = combine(as_columns(table), make_cohort(member), n_permutations=3, fprs=(0.2,))
    assert result.auc == 1.0
    assert 0.5 < result.interval.low < result.interval.high == 1.0  # never of zero width
    assert isinstance(result.versus["a01"], Paired)
    assert result.versus["a01"].interval.low < 0 < result.versus["a01"].interval.high
    assert result.rates[0].interval.low < 1


def test_constant_in_training_teaches_nothing_and_rounding_is_no_spread():
    train = np.array([[0.1, 1.0, np.nan], [0.1, 2.0, np.nan], [0.1, np.nan, np.nan]])
    x, y = standardise(train, np.array([[5.0, np.nan, 3.0]]))
    assert x[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert y[0, 0] == 0.0
    assert x[:, 1].tolist() == pytest.approx([-1.0, 1.0, 0.0])
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    assert x[:, 3:].tolist() == [[0, 1], [0, 1], [1, 1]]  # an indicator for each column with a gap


def test_wrong_settings_are_refused():
    member, columns = planted(40, 0.5)
    with pytest.raises(ValueError, match="repeat"):
        combine(columns, make_cohort(member), n_repeats=0)


def test_intervals_are_wider_than_the_bootstrap_of_the_held_out_records():
    from indelible.stats.crossfit import Splits, weighted_fold_aucs

    member = np.arange(100) < 50
    scores = np.random.default_rng(8).normal(size=100) + 0.8 * member
    folds = split_folds(member, np.arange(100), 5, 0)
    weights = fold_weights(member, [str(i) for i in range(100)], folds, 2000, np.random.default_rng(0))
    area, ends = Splits(member, np.arange(100), (folds,), weights, 0.95).interval([scores])
    low, high = np.quantile(weighted_fold_aucs(scores, member, folds, weights), [0.025, 0.975])
    assert area - ends.low == pytest.approx(1.5 * (area - low), rel=1e-6)  # sqrt(1 + 5 / 4) for one split
    assert ends.high == pytest.approx(min(1.0, area + 1.5 * (high - area)), rel=1e-6)


# --- through an audit -------------------------------------------------------------------------------------------------


def test_an_audit_writes_it_reports_it_and_score_reads_it_back(rows, tmp_path: Path):
    from indelible.audit import run_audit
    from indelible.scores import run_score

    config, given = resolve(
        AuditConfig,
        {
            "model": "builtin:toy", "members": str(rows.train), "drift_records": 0, "n_bootstrap": 200,
            "attacks": ("loss", "min-k", "combined"), "fail_if": ("combined:auc>=0",), "out": str(tmp_path / "run"),
            **{name: str(rows.train.with_name(f"{name}.jsonl")) for name in ("nonmembers", "pool")},
        },
    )  # fmt: skip
    outcome = run_audit(config, given, command=["indelible", "audit"])
    assert outcome.tripped
    assert set(outcome.evaluation.verdict.attacks) == {"loss", "min-k"}
    scores = pd.read_parquet(tmp_path / "run" / "scores.parquet")
    mine = scores[scores["attack"] == "combined"]
    assert set(mine["model"]) == {"none"}
    assert mine["score"].notna().all()
    assert len(mine) == 80
    for name in ("report.html", "report.md"):
        text = (tmp_path / "run" / name).read_text()
        assert "no part of the verdict" in text
        assert "on 2 scores of the target and 0 of the base" in text
    table = scores.merge(pd.read_parquet(tmp_path / "run" / "records.parquet"), on="record_id")
    table.to_parquet(tmp_path / "scores.parquet")
    flags = {"file": str(tmp_path / "scores.parquet"), "out": str(tmp_path / "again"), "n_bootstrap": 200}
    again = run_score(*resolve(ScoreConfig, flags), command=["indelible", "score"])
    assert again.evaluation.verdict.attacks.keys() == outcome.evaluation.verdict.attacks.keys()
    pooled = auc(*(mine["score"][mine["record_id"].isin(ids)] for ids in sides(tmp_path / "run")))
    assert rows_of(again.evaluation)["auc"].value == pytest.approx(pooled)


def sides(run: Path) -> tuple[set[str], set[str]]:
    """Ids of the members and of the non-members."""
    records = pd.read_parquet(run / "records.parquet")
    return set(records["record_id"][records["member"]]), set(records["record_id"][~records["member"]])
