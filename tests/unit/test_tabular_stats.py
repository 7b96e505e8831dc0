"""From scores of tuned tabular models to metrics, verdicts and what a grid shows: one planted situation a test."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tabular_fakes import Lookup, knows_nothing, make_world

from indelible.attacks.tabular import PROBES
from indelible.attacks.tabular_scores import score_rows, tabular_scores
from indelible.errors import DataError
from indelible.stats import tabular_strata
from indelible.stats.intervals import delong
from indelible.stats.paired import holm
from indelible.stats.roc import auc, operating_point
from indelible.stats.tabular import PRIMARY, evaluate_tabular
from indelible.stats.tabular_grid import grid_summary, largest_by_chance, over_seeds, over_seeds_p
from indelible.stats.tabular_rows import as_row
from indelible.stats.tabular_strata import by_chance, permuted, strata_of, stratified_p
from indelible.stats.tabular_within import aucs_of, class_ranks, within_auc, within_replicates
from indelible.stats.verdict import Verdict
from indelible.tabular.evaluate import Evaluated, judged

FAST = {"n_bootstrap": 200, "n_permutations": 200}


class Grid:
    """Members, non-members and context rows with score columns; `shift` is the members' mean, in deviations."""

    def __init__(self, m=60, n=200, c=20, seed=0, n_classes=2, matched=True, group_size=1):
        self.rng = np.random.default_rng(seed)
        self.part = np.repeat(["member", "nonmember", "context"], [m, n, c])
        rows = np.arange(m + n + c) * 3 + 7
        label = np.concatenate([np.arange(k) % n_classes for k in (m, n, c)])
        if not matched:
            label[:m] = self.rng.random(m) < 0.85
            label[m : m + n] = self.rng.random(n) < 0.15
        self.records = pd.DataFrame({"row": rows, "part": self.part, "label": label})
        if group_size > 1:
            self.records["group"] = [f"{p}{i // group_size // n_classes}" for i, p in enumerate(self.part)]
        self.parts: list[pd.DataFrame] = []

    def add(self, attack, model="target", shift=0.0, values=None, reason=None, of=("member",)):
        if values is None:
            values = self.rng.normal(size=len(self.part)) + shift * np.isin(self.part, of)
        frame = {"row": self.records["row"], "attack": attack, "model": model, "score": values, "reason": reason}
        self.parts.append(pd.DataFrame(frame))
        return self

    def run(self, **more):
        settings = {"n_choices": 2, "randomised": True, **FAST, **more}
        return evaluate_tabular(self.records, pd.concat(self.parts, ignore_index=True), **settings)


def rows_of(result, attack, model="target", part="members"):
    return {r["metric"]: r for r in result.metrics if (r["attack"], r["model"], r["part"]) == (attack, model, part)}


def audited(world, model, base=None):
    """Scores of a fake model under every probe, and the records they belong to."""
    split = world.split
    rows = np.concatenate([split.members, split.nonmembers, split.context])
    part = np.repeat(
        ["member", "nonmember", "context"], [len(split.members), len(split.nonmembers), len(split.context)]
    )
    tuned, before = (score_rows(one, world, rows, list(PROBES)) for one in (model, base or knows_nothing()))
    records = pd.DataFrame({"row": rows, "part": part, "label": world.target[rows]})
    return records, tabular_scores(tuned, before)


# Permutation within classes


def test_with_one_class_the_test_is_mann_whitneys():
    rng = np.random.default_rng(0)
    for m, n in ((12, 40), (50, 300)):
        member = np.arange(m + n) < m
        for scores in (rng.normal(size=m + n), rng.integers(6, size=m + n).astype(float)):
            found, method = stratified_p(scores, strata_of(member, np.zeros(m + n, int)))
            expected = stats.mannwhitneyu(scores[member], scores[~member], method="asymptotic").pvalue
            assert found == pytest.approx(expected, rel=1e-9)
            assert "within classes" in method


def slow_p(scores, member, labels, n, seed, unit=None):
    """Permute membership of whole units within classes, one permutation at a time; ranks are within classes."""
    rng = np.random.default_rng(seed)
    unit = np.arange(len(scores)) if unit is None else unit
    ranks = np.array([(labels[scores < s] == c).sum() + ((labels[scores == s] == c).sum() + 1) / 2
                      for s, c in zip(scores, labels, strict=True)])  # fmt: skip
    key = [tuple(sorted(labels[unit == u])) for u in np.unique(unit)]
    drawn = []
    for _ in range(n):
        side = np.array([member[unit == u][0] for u in np.unique(unit)])
        for k in set(key):
            here = [i for i, other in enumerate(key) if other == k]
            side[here] = rng.permutation(side[here])
        drawn.append(ranks[side[np.searchsorted(np.unique(unit), unit)]].sum())
    drawn = np.array(drawn)
    away = np.abs(drawn - drawn.mean())
    return float((away >= abs(ranks[member].sum() - drawn.mean()) - 1e-9).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_test_within_classes_agrees_with_permutations(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=120)
    member = rng.random(120) < 0.2 + 0.2 * (labels == 1)
    scores = 2.0 * labels + rng.normal(size=120) + 0.35 * member
    found, _ = stratified_p(scores, strata_of(member, labels))
    assert found == pytest.approx(slow_p(scores, member, labels, 800, seed), abs=0.05)


def test_few_members_are_tested_by_drawing():
    rng = np.random.default_rng(4)
    labels = np.arange(45) % 3
    member = np.arange(45) < 6
    scores = labels + rng.normal(size=45) + 0.9 * member
    found, method = stratified_p(scores, strata_of(member, labels))
    assert "9999 draws" in method
    assert found == pytest.approx(slow_p(scores, member, labels, 800, 0), abs=0.05)
    assert stratified_p(scores, strata_of(member, labels))[0] == found


def test_unequal_classes_alone_are_no_evidence():
    rng = np.random.default_rng(5)
    rejected = plain = 0
    for _ in range(300):
        labels = np.r_[rng.random(40) < 0.6, rng.random(200) < 0.4].astype(int)
        member = np.arange(240) < 40
        scores = 1.5 * labels + rng.normal(size=240)
        rejected += stratified_p(scores, strata_of(member, labels))[0] <= 0.05
        plain += stats.mannwhitneyu(scores[member], scores[~member]).pvalue <= 0.05
    assert 4 <= rejected <= 28  # 15 expected
    assert plain > 60
    constant = np.array([0.3, 0.9])[labels]
    assert stratified_p(constant, strata_of(member, labels)) == (
        1.0,
        "permutation within classes: no score differs within a class",
    )


def test_groups_move_whole_among_groups_of_the_same_classes():
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(60), 2)
    labels = np.where(np.arange(120) % 2 == 0, 0, (group % 2))  # every other group holds (0, 1), the others (0, 0)
    member = group < 20
    scores = rng.normal(size=60)[group] + 0.2 * rng.normal(size=120) + 0.5 * member
    strata = strata_of(member, labels, [f"g{g}" for g in group])
    drawn = permuted(strata, 200, rng)
    assert drawn.shape == (200, 120)
    assert (drawn[:, ::2] == drawn[:, 1::2]).all(), "a group is on one side"
    assert (drawn[:, labels == 1].sum(axis=1) == member[labels == 1].sum()).all(), "classes keep their members"
    found, method = stratified_p(scores, strata, [f"g{g}" for g in group])
    assert method.startswith("groups permuted within classes")
    assert found == pytest.approx(slow_p(scores, member, labels, 800, 0, group), abs=0.05)
    alone = stratified_p(scores, strata_of(member, labels))[0]
    assert found > 3 * alone, "repeats of a group are no new evidence"


def test_groups_that_hold_no_same_classes_are_permuted_whatever_they_hold():
    rng = np.random.default_rng(7)
    sizes = np.arange(2, 32)
    group = np.repeat(np.arange(30), sizes)
    member = group % 3 == 0
    names = [f"g{g}" for g in group]
    strata = strata_of(member, np.zeros(len(group), int), names)
    assert not strata.by_class
    p_value, method = stratified_p(rng.normal(size=len(group)), strata, names)
    assert 0.01 < p_value <= 1
    assert "no two groups" in method
    with pytest.raises(ValueError, match="groups are needed"):
        stratified_p(rng.normal(size=len(group)), strata)


def test_the_papers_rule_by_chance_is_that_of_each_permutation(monkeypatch):
    rng = np.random.default_rng(8)
    labels = np.arange(160) % 2
    member = np.arange(160) < 40
    scores = np.round(rng.normal(size=160) + labels, 1)  # with ties
    strata = strata_of(member, labels)
    drawn = permuted(strata, 300, np.random.default_rng(1))
    monkeypatch.setattr(tabular_strata, "permuted", lambda *_: drawn)
    met, areas = [], []
    for side in drawn:
        one, two = scores[side], scores[~side]
        areas.append(auc(one, two))
        met.append(areas[-1] > 0.5 and any((operating_point(one, two, fpr).tpr) > 0.1 for fpr in (0.01, 0.1)))
    found = by_chance(scores, strata, 300)
    assert found.rule_rate == pytest.approx(np.mean(met))
    own = [slow_within(scores, side, labels) for side in drawn]
    assert found.auc_sd == pytest.approx(np.std(own))
    assert found.auc_mean == pytest.approx(0.5, abs=0.02)
    assert 0.2 < found.rule_rate < 0.55, "noise meets the paper's rule again and again"


# The AUC within classes


def slow_within(scores, member, labels):
    """Every pair of a member and a non-member of one class, one at a time."""
    wins = [
        (a > b) + 0.5 * (a == b)
        for a, c in zip(scores[member], labels[member], strict=True)
        for b, d in zip(scores[~member], labels[~member], strict=True)
        if c == d
    ]
    return float(np.mean(wins))


def test_classes_that_score_apart_do_not_hide_what_members_show():
    grid = Grid(m=80, n=240, seed=3, n_classes=3)
    member, labels = grid.part == "member", grid.records["label"].to_numpy()
    values = np.round(grid.rng.normal(size=len(labels)) + 0.5 * member, 1)  # with ties
    shifted = values + 3.0 * labels
    row = rows_of(grid.add("copy", values=shifted).run(), "copy")
    kept = grid.part != "context"
    slow = slow_within(shifted[kept], member[kept], labels[kept])
    assert row["auc"]["value"] == pytest.approx(slow)
    assert row["auc"]["low"] < slow < row["auc"]["high"]
    assert "within classes" in row["auc"]["method"]
    assert "over all classes together" in row["tpr@0.1"]["method"]
    assert auc(shifted[member], shifted[grid.part == "nonmember"]) < slow - 0.05, "over all classes it reads less"
    by_rank = aucs_of(class_ranks(shifted[kept], labels[kept]), labels[kept], member[kept][None])[0]
    assert by_rank == pytest.approx(slow), "the statistic that is tested is the one that is shown"


def test_the_interval_within_classes_is_delongs_by_class_and_holds():
    rng = np.random.default_rng(9)
    member, scores = np.arange(90) < 30, rng.normal(size=90)
    one, ends = within_auc(scores, member, np.zeros(90, int), 0.95)
    area, same = delong(scores[member], scores[~member], 0.95)
    assert (one, ends.low, ends.high) == pytest.approx((area, same.low, same.high))
    labels, held = np.arange(240) % 4, 0
    member = np.arange(240) % 5 == 0
    for _ in range(300):
        drawn = rng.normal(size=240) + 2.0 * labels + 0.8 * member
        _, ends = within_auc(drawn, member, labels, 0.9)
        held += ends.low <= stats.norm.cdf(0.8 / math.sqrt(2)) <= ends.high
    assert 253 <= held <= 287  # 270 expected
    weights = np.ones((2, 240), np.int32)
    weights[1] = rng.integers(3, size=240)
    found = within_replicates(drawn, member, labels, weights)
    assert found[0] == pytest.approx(slow_within(drawn, member, labels))
    again = np.repeat(np.arange(240), weights[1])
    assert found[1] == pytest.approx(slow_within(drawn[again], member[again], labels[again]))


# One model


@pytest.mark.parametrize("n_classes", [2, 5])
def test_a_model_that_knows_its_members_by_heart_reaches_the_line(n_classes):
    world = make_world(sizes=(100, 400, 20, 40), n_classes=n_classes, seed=1)
    records, scores = audited(world, Lookup.of(world, world.split.members))
    result = evaluate_tabular(records, scores, n_choices=n_classes, randomised=True, **FAST)
    line = 1 - 1 / (2 * n_classes)
    for attack in ("copy", "copy:raw", "suite:mean", "train-context"):
        row = rows_of(result, attack)
        assert row["auc"]["low"] <= line <= row["auc"]["high"], attack
        assert row["auc_over_line"]["value"] == pytest.approx((row["auc"]["value"] - 0.5) / (line - 0.5))
        assert row["auc_over_line"]["low"] == pytest.approx((row["auc"]["low"] - 0.5) / (line - 0.5))
        assert row["auc_over_line"]["low"] <= 1 <= row["auc_over_line"]["high"]
        assert row["p_value"]["value"] < 1e-8
        assert row["paper_rule"]["value"] == 1.0
    chance = rows_of(result, "copy")["paper_rule"]
    assert 0.15 < chance["null_rate"] < 0.55
    assert "chance line" in chance["method"]
    assert result.verdict.word == "detected"
    assert set(result.verdict.attacks) == set(PRIMARY) - {"copies"}, "which this model answers as copy"
    assert result.verdict.controls["train-context"].auc == rows_of(result, "train-context")["auc"]["value"]
    assert any("labels were fitted" in reason for reason in result.verdict.reasons)
    assert rows_of(result, "row-order") == {"largest_difference": rows_of(result, "row-order")["largest_difference"]}
    assert rows_of(result, "row-order")["largest_difference"]["value"] == 0.0
    erased = rows_of(result, "erased")
    assert erased["auc"]["value"] == pytest.approx(0.5, abs=1e-12), "classes are matched exactly"
    assert erased["p_value"]["value"] > 0.9
    assert any("erased" in reason and "at chance" in reason for reason in result.verdict.reasons)


def test_a_model_that_knows_nobody_is_not_detected():
    world = make_world(sizes=(100, 400, 20, 40), seed=3)
    records, scores = audited(world, Lookup({}), base=Lookup({}, salt="other"))
    result = evaluate_tabular(records, scores, n_choices=2, randomised=True, **FAST)
    assert result.verdict.word == "not detected"
    assert any("not fitted" in reason for reason in result.verdict.reasons)
    for attack in result.verdict.attacks:
        assert rows_of(result, attack)["p_holm"]["value"] > 0.05
        assert rows_of(result, attack)["smallest_auc"]["value"] > 0.55
        reason = rows_of(result, attack)["auc_minus_base"]["reason"]
        assert (reason is None) == (attack == "copy"), "the chosen one is compared whatever its p, for a cell's seeds"


def test_holm_runs_over_the_primary_names_alone():
    grid = Grid().add("copy", shift=0.6).add("neutral", shift=0.3).add("suite:mean")
    grid.add("train-context", shift=3.0).add("copy:raw", shift=3.0)
    result = grid.run()
    names = ("copy", "neutral", "suite:mean")
    assert set(result.verdict.attacks) == set(names)
    expected = holm([rows_of(result, name)["p_value"]["value"] for name in names])
    assert [rows_of(result, name)["p_holm"]["value"] for name in names] == pytest.approx(expected)
    assert "p_holm" not in rows_of(result, "train-context")


def test_what_the_base_model_tells_as_well_is_not_attributable():
    grid = Grid(m=150, n=400).add("copy", shift=1.0)
    grid.add("copy:raw", "base", values=grid.parts[0]["score"] + 0.1 * grid.rng.normal(size=len(grid.part)))
    result = grid.run()
    assert result.verdict.word == "not attributable"
    assert rows_of(result, "copy")["auc_minus_base"]["low"] < 0


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_the_base_models_separation_turned_around_is_not_attributable(shift):
    """A tuned model that answers the same to everyone leaves minus the base's score."""
    grid = Grid(m=150, n=400, seed=1).add("copy:raw", "base", shift=shift)
    grid.add("copy", values=-grid.parts[0]["score"] + 0.01 * grid.rng.normal(size=len(grid.part)))
    result = grid.run()
    row = rows_of(result, "copy")
    assert (row["auc"]["value"] < 0.4) if shift > 0 else (row["auc"]["value"] > 0.6)
    assert row["auc_minus_base"]["low"] < 0 < row["auc_minus_base"]["high"]
    assert result.verdict.word == "not attributable"


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_what_goes_beyond_the_base_model_is_detected_on_either_side(shift):
    grid = Grid(m=150, n=400).add("copy", shift=shift).add("copy:raw", "base")
    result = grid.run()
    judged = result.verdict.attacks["copy"]
    assert judged.word == "detected"
    assert judged.direction == ("above" if shift > 0 else "below")
    assert judged.minus_base_low > 0
    row = rows_of(result, "copy")["auc_minus_base"]
    assert math.copysign(1, row["value"]) == math.copysign(1, shift)
    assert row["low"] <= row["value"] <= row["high"]


def test_classes_that_differ_put_the_erased_control_off_chance():
    grid = Grid(matched=False)
    label = grid.records["label"].to_numpy()
    result = (
        grid.add("erased", values=np.array([0.2, 0.7])[label])
        .add("copy", values=label + 1e-3 * grid.rng.normal(size=280))
        .run()
    )
    erased = rows_of(result, "erased")
    assert erased["p_value"]["value"] < 1e-6
    assert "classes not held fixed" in erased["p_value"]["method"]
    assert any("off chance" in reason for reason in result.verdict.reasons)
    assert rows_of(result, "copy")["auc"]["value"] < 0.65, "pairs of one class alone"
    assert result.verdict.word == "not detected", "the test holds classes fixed"


def test_context_rows_are_reported_apart():
    plain = Grid().add("copy", shift=0.5).run()
    grid = (
        Grid(c=40, seed=2)
        .add("copy", shift=2.0, of=("context",))
        .add("train-context", values=[math.nan] * 300, reason="inside")
    )
    result = grid.run()
    apart = rows_of(result, "copy", part="context")
    assert apart["auc"]["value"] > 0.85
    assert apart["p_value"]["value"] < 1e-6
    assert apart["auc"]["n_members"] == 40
    assert rows_of(result, "copy")["auc"]["value"] < 0.65, "members are not mixed with context rows"
    assert rows_of(result, "copy")["auc"]["n_members"] == 60
    assert rows_of(result, "train-context", part="context")["auc"]["reason"].endswith("inside)")
    assert rows_of(plain, "copy", part="context")["auc"]["n_members"] == 20
    assert not rows_of(Grid(c=0).add("copy").run(), "copy", part="context")


def test_the_line_holds_for_randomised_labels_only():
    row = rows_of(Grid().add("copy", shift=0.5).run(randomised=False), "copy")["auc_over_line"]
    assert row["value"] is row["low"] is None
    assert "randomised labels" in row["reason"]


def test_rates_that_the_sample_cannot_resolve_are_null_with_a_reason():
    few = rows_of(Grid(n=60).add("copy", shift=3.0).run(), "copy")
    assert few["tpr@0.01"]["value"] is None
    assert "at least 100" in few["tpr@0.01"]["reason"]
    assert few["tpr@0.1"]["value"] > 0.8
    assert few["tpr@0.1"]["realised_fpr"] == pytest.approx(0.1)
    assert few["paper_rule"]["value"] == 1.0
    fewer = rows_of(Grid(n=8).add("copy", shift=3.0).run(), "copy")
    assert fewer["paper_rule"]["value"] is None
    assert "no rate exists" in fewer["paper_rule"]["reason"]
    below = rows_of(Grid().add("copy", shift=-1.0).run(), "copy")
    assert below["paper_rule"]["value"] == 0.0


def test_scores_that_do_not_exist_leave_the_rest_standing():
    grid = Grid().add("copy", shift=1.5).add("permuted", values=[math.nan] * 280, reason="a single column")
    values = grid.rng.normal(size=280) + 1.5 * (grid.part == "member")
    grid.add("foreign", values=np.where(np.arange(280) == 5, np.nan, values), reason="the unrelated row is this one")
    result = grid.run()
    assert result.verdict.word == "detected"
    assert result.verdict.attacks["permuted"].word == "not evaluable"
    assert "a single column" in rows_of(result, "permuted")["auc"]["reason"]
    assert rows_of(result, "foreign")["auc"]["n_members"] == 59
    assert any("no score for 1 of 60 members" in reason for reason in result.verdict.attacks["foreign"].reasons)
    nothing = Grid().add("copy", values=[math.nan] * 280, reason="no base model was given").run()
    assert nothing.verdict.word == "not evaluable"
    assert not nothing.verdict.controls["train-context"].ran


def test_grouped_rows_count_as_groups():
    def one(size):
        grid = Grid(m=120, n=240, group_size=size)
        base = grid.rng.normal(size=len(grid.part))
        shared = base[np.arange(len(base)) // 8 * 8] + 0.1 * base
        return rows_of(grid.add("copy", values=shared + 0.3 * (grid.part == "member")).run(), "copy")

    apart, together = one(1), one(4)
    assert together["auc"]["value"] == apart["auc"]["value"]
    assert together["auc"]["method"] == "cluster bootstrap, percentile, within classes"
    wide, narrow = ((r["auc"]["high"] - r["auc"]["low"]) for r in (together, apart))
    assert wide > 1.5 * narrow
    assert together["p_value"]["value"] > 5 * apart["p_value"]["value"]


def test_the_result_does_not_depend_on_the_order_of_rows_and_is_json():
    grid = Grid(group_size=2).add("copy", shift=0.5).add("copy:raw", "base").add("erased").add("suite:min", shift=0.8)
    grid.add("row-order:raw").add("copy:raw")
    result = grid.run()
    text = json.dumps([result.metrics, result.verdict.to_dict()], allow_nan=False)
    grid.records = grid.records.sample(frac=1.0, random_state=1)
    grid.parts = [part.sample(frac=1.0, random_state=2) for part in reversed(grid.parts)]
    assert json.dumps([grid.run().metrics, grid.run().verdict.to_dict()]) == text
    assert any("order of label rows moves" in reason for reason in result.verdict.reasons)


def test_tables_that_do_not_fit_are_refused():
    grid = Grid().add("copy")
    for changed, words in (
        (grid.records.rename(columns={"label": "lable"}), "Did you mean 'lable'"),
        (grid.records.assign(part="members"), "part 'members'; expected member"),
        (grid.records[grid.records["part"] != "member"], "expected members and non-members"),
        (grid.records.assign(label=0.5), "expected class codes"),
        (pd.concat([grid.records, grid.records[:1]]), "occurs more than once"),
    ):
        with pytest.raises(DataError, match=words):
            evaluate_tabular(changed, grid.parts[0], n_choices=2, randomised=True)
    with pytest.raises(DataError, match="two scores of one attack"):
        grid.add("copy").run()
    with pytest.raises(DataError, match="'score'"):
        evaluate_tabular(grid.records, grid.parts[0].drop(columns="score"), n_choices=2, randomised=True)


# Many models


def result_row(metric, value, attack="copy", **more):
    from indelible.stats.metrics import Metric

    row = as_row(Metric(attack, "target", metric, value, n_members=50, n_nonmembers=100), "members")
    return {**row, **more}


def test_seeds_are_replicates():
    by_seed = {
        0: [result_row("auc", 0.6, low=0.5, high=0.7), result_row("tpr@0.1", 0.2)],
        1: [result_row("auc", 0.55, low=0.45, high=0.65), result_row("tpr@0.1", None, reason="too few")],
        2: [result_row("auc", 0.7, low=0.6, high=0.8), result_row("tpr@0.1", 0.4)],
    }
    area, rate = over_seeds(by_seed)
    assert area["value"] == pytest.approx(0.6166667)
    assert (area["seed_low"], area["seed_high"], area["n_seeds"]) == (0.55, 0.7, 3)
    assert area["seed_sd"] == pytest.approx(np.std([0.6, 0.55, 0.7], ddof=1))
    assert (area["low"], area["high"]) == pytest.approx((0.5166667, 0.7166667))
    assert area["same_sign"] is True
    assert rate["n_seeds"] == 2
    assert rate["same_sign"] is None
    assert rate["reason"] == "1 of 3 seeds have no value (too few)"
    by_seed[1][0]["value"] = 0.45
    assert over_seeds(by_seed)[0]["same_sign"] is False
    by_seed[1][0]["value"] = 0.5
    assert over_seeds(by_seed)[0]["same_sign"] is False
    assert over_seeds({k: [result_row("auc", 0.5)] for k in range(3)})[0]["same_sign"] is False
    lost = over_seeds({0: [result_row("auc", None, reason="diverged")]})[0]
    assert lost["value"] is lost["same_sign"] is lost["seed_sd"] is None
    assert "diverged" in lost["reason"]
    with pytest.raises(DataError, match="no seed"):
        over_seeds({})


def test_a_grid_of_models_that_know_nothing_shows_what_chance_shows():
    rows, met = [], 0
    for config in range(60):
        result = Grid(m=50, n=150, c=0, seed=config).add("copy").run(n_permutations=100)
        rows += [{**row, "config_id": config} for row in result.metrics]
        met += rows_of(result, "copy")["paper_rule"]["value"]
    found = grid_summary(rows)
    assert len(found.configurations) == found.n_tested == found.n_ruled == 60
    assert found.n_above == found.n_below == 0
    assert found.n_rule == met
    assert abs(found.n_rule - found.n_rule_by_chance) < 4 * math.sqrt(60 * 0.25)
    assert 15 < found.n_rule_by_chance < 30
    assert found.max_auc == max(line["auc"] for line in found.configurations)
    assert found.max_auc_by_chance == pytest.approx(found.max_auc, abs=0.05)
    expected = holm([line["p_value"] for line in found.cells])
    assert [line["p_holm"] for line in found.cells] == pytest.approx(expected)
    assert [one["p_value"] for one in found.cells] == pytest.approx([one["p_value"] for one in found.configurations])
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_grid_finds_the_model_that_remembers_and_keeps_what_could_not_be_tested():
    rows = []
    for config, shift in (("a", 0.0), ("b", 1.5), ("c", -1.5)):
        grid = Grid(seed=len(rows)).add("copy", shift=shift).add("neutral")
        rows += [{**row, "config_id": config, "epoch": 500} for row in grid.run().metrics]
    lost = Grid().add("copy", values=[math.nan] * 280, reason="diverged").run()
    rows += [{**row, "config_id": "d", "epoch": 500} for row in lost.metrics]
    found = grid_summary(rows, by=("config_id", "epoch"))
    assert (found.n_tested, found.n_above, found.n_below) == (3, 1, 1)
    assert [line["config_id"] for line in found.configurations] == ["a", "b", "c", "d"]
    assert "diverged" in found.configurations[3]["reason"]
    assert found.configurations[1]["paper_rule"] is True
    with pytest.raises(DataError, match="twice"):
        grid_summary(rows, by=("epoch",))
    with pytest.raises(DataError, match="no 'seed'"):
        grid_summary(rows, by=("seed",))
    with pytest.raises(DataError, match="no row of the score 'copies'"):
        grid_summary(rows, attack="copies")


def test_the_largest_of_many_aucs_by_chance():
    assert largest_by_chance([0.04]) == pytest.approx(0.5, abs=1e-6)
    assert largest_by_chance([0.04, 0.04]) == pytest.approx(0.5 + 0.04 / math.sqrt(math.pi), abs=1e-6)
    rng = np.random.default_rng(0)
    deviations = np.linspace(0.01, 0.05, 40)
    drawn = 0.5 + (rng.normal(size=(40000, 40)) * deviations).max(axis=1).mean()
    assert largest_by_chance(deviations) == pytest.approx(drawn, abs=5e-4)
    assert largest_by_chance([0.0, 0.0]) == 0.5


def cell(*seeds, low=0.02):
    """Rows of one cell: (AUC, p) a seed."""
    rows = []
    for seed, (area, p_value) in enumerate(seeds):
        gap = {"low": area - 0.5 - low, "high": area - 0.5 + low, "level": 0.95}
        made = [
            result_row("auc", area),
            result_row("p_value", p_value),
            result_row("auc_minus_base", area - 0.5, **gap),
        ]
        rows += [{**row, "config_id": f"c-seed{seed}", "rate": 0.1} for row in made]
    return grid_summary(rows, cell=("rate",)).cells[0]


def test_seeds_that_agree_add_up_and_a_lucky_one_does_not():
    agreeing = cell((0.6, 0.02), (0.58, 0.02), (0.59, 0.02))
    assert agreeing["p_value"] == pytest.approx(2 * stats.norm.sf(math.sqrt(3) * stats.norm.isf(0.01)))
    assert agreeing["p_value"] < 1e-4
    assert agreeing["same_sign"]
    assert agreeing["minus_base"] == pytest.approx(0.09)
    assert agreeing["minus_base_low"] == pytest.approx(0.09 - 0.02 / math.sqrt(3))
    lucky = cell((0.66, 0.002), (0.5, 0.9), (0.48, 0.7))
    assert lucky["p_value"] > 0.05
    assert lucky["same_sign"] is False
    assert over_seeds_p([0.7], [0.03]) == pytest.approx(0.03)
    assert over_seeds_p([0.7, 0.3], [0.01, 0.01]) == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    drawn = [
        over_seeds_p(list(np.where(z > 0, 0.6, 0.4)), 2 * stats.norm.sf(np.abs(z))) for z in rng.normal(size=(2000, 3))
    ]
    assert 70 <= sum(p <= 0.05 for p in drawn) <= 130  # 100 expected


@pytest.mark.parametrize(
    ("seeds", "word"),
    [
        ([(0.8, 1e-9), (0.75, 1e-7), (0.7, 1e-5)], "detected"),
        ([(0.8, 1e-9), (0.8, 1e-9), (0.49, 0.8)], "not attributable"),  # significant together, on both sides
        ([(0.6, 0.02), (0.5, 1.0), (0.51, 0.9)], "not detected"),
        ([(None, None)], "not evaluable"),
    ],
)
def test_a_cell_is_judged_by_all_its_seeds(seeds, word):
    place = {"table": "t", "profile": "controlled", "defence": None, "n_queries": 50, "learning_rate": 0.1}
    made = []
    for seed, (area, p_value) in enumerate(seeds):
        gap = {} if area is None else {"low": area - 0.52, "high": area - 0.48, "level": 0.95}
        rows = [result_row("auc", area, reason=None if area else "diverged"), result_row("p_value", p_value)]
        rows.append(result_row("auc_minus_base", None if area is None else area - 0.5, **gap))
        here = {**place, "config_id": f"c{seed}"}
        made.append(Evaluated(f"c{seed}", here, tuple({**here, **r} for r in rows), Verdict("x", "", ()), (50, 200)))
    verdict, summary = judged(made)
    assert verdict.word == word
    assert list(verdict.attacks) == ["t, Q 50, rate 0.1"]
    assert "Holm over the" in verdict.rule
    assert len(summary.cells) == 1
    said = " ".join(verdict.attacks["t, Q 50, rate 0.1"].reasons)
    assert ("both sides of one half" in said) == (word == "not attributable" or seeds[-1][0] == 0.51)


def test_copies_that_answer_as_copy_does_are_no_second_test():
    grid = Grid().add("copy:raw").add("copy", shift=0.5)
    twin = grid.parts[0]["score"] + 1e-5
    apart = Grid().add("copy:raw").add("copy", shift=0.5).add("copies", shift=0.5).add("copies:raw").run()
    result = grid.add("copies", values=grid.parts[1]["score"] + 1e-5).add("copies:raw", values=twin).run()
    assert set(result.verdict.attacks) == {"copy"}
    assert rows_of(result, "copies")["p_holm"]["value"] is None
    assert any("copies answers as copy does" in reason for reason in result.verdict.reasons)
    assert set(apart.verdict.attacks) == {"copy", "copies"}
