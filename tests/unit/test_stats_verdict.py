"""From score tables to verdicts: one planted situation a test."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from indelible.errors import DataError
from indelible.stats.evaluate import Evaluation, evaluate
from indelible.stats.metrics import Metric
from indelible.stats.verdict import WORDS

FAST = {"n_bootstrap": 300, "blind_permutations": 9}


class Audit:
    """A cohort to which score columns are added; `shift` is the members' mean, in standard deviations."""

    def __init__(self, members: int = 150, nonmembers: int = 200, seed: int = 0, group_size: int = 1):
        self.rng = np.random.default_rng(seed)
        n = members + nonmembers
        self.member = np.arange(n) < members
        self.ids = [f"r{i:04d}" for i in range(n)]
        side = np.where(self.member, "m", "n")
        groups = [f"{s}{i // group_size}" for i, s in enumerate(side)]
        self.records = pd.DataFrame(
            {"record_id": self.ids, "member": self.member, "group": groups, "n_target_tokens": 9}
        )
        self.parts: list[pd.DataFrame] = []

    def add(self, attack: str, model: str = "target", shift: float = 0.0, values=None, reason=None) -> Audit:
        if values is None:
            values = self.rng.normal(size=len(self.ids)) + shift * self.member
        frame = {"record_id": self.ids, "attack": attack, "model": model, "score": values, "reason": reason}
        self.parts.append(pd.DataFrame(frame))
        return self

    def scores(self) -> pd.DataFrame:
        return pd.concat(self.parts, ignore_index=True)

    def run(self, texts=None, **more) -> Evaluation:
        return evaluate(self.records, self.scores(), texts=texts, **{**FAST, **more})


def rows_of(result: Evaluation, attack: str, model: str = "target") -> dict[str, Metric]:
    return {m.metric: m for m in result.metrics if (m.attack, m.model) == (attack, model)}


def word(result: Evaluation, attack: str) -> str:
    return result.verdict.attacks[attack].word


def test_planted_signal_is_detected_against_both_controls():
    audit = Audit(members=300, nonmembers=400).add("loss", shift=1.0).add("loss", "base").add("bag-of-words", "none")
    result = audit.run()
    assert result.verdict.word == word(result, "loss") == "detected"
    assert "bag-of-words" not in result.verdict.attacks
    assert result.verdict.controls["base"].ran
    assert result.verdict.controls["bag-of-words"].ran
    judged = result.verdict.attacks["loss"]
    assert judged.direction == "above"
    assert judged.minus_base_low > 0
    assert judged.minus_blind_low > 0
    assert any(r.startswith("support: TPR") and "tpr_bounded@0.01" in r for r in judged.reasons)


def test_the_same_signal_on_the_base_model_is_not_attributable():
    audit = Audit().add("loss", shift=1.0)
    audit.add("loss", "base", values=audit.parts[0]["score"] + 0.1 * audit.rng.normal(size=len(audit.ids)))
    result = audit.run()
    assert result.verdict.word == "not attributable"
    assert any("does not exceed the base model" in r for r in result.verdict.attacks["loss"].reasons)


def test_texts_that_tell_members_apart_make_it_not_attributable():
    audit = Audit(60, 60).add("loss", shift=1.0).add("loss", "base")
    texts = {
        i: f"patient said hello number{k % 3} {'yesterday' if k < 60 else 'today'}" for k, i in enumerate(audit.ids)
    }
    result = audit.run(texts)
    assert result.blind.auc == 1.0
    assert set(result.blind_scores) == set(audit.ids)
    assert result.verdict.word == "not attributable"
    assert any("does not exceed the blind baseline" in r for r in result.verdict.attacks["loss"].reasons)
    row = rows_of(result, "bag-of-words", "none")["auc"]
    assert (row.value, row.n_members, row.n_nonmembers) == (1.0, 60, 60)


def test_auc_far_below_one_half_is_leakage_too():
    audit = Audit().add("loss", shift=-1.0).add("loss", "base").add("bag-of-words", "none")
    result = audit.run()
    assert word(result, "loss") == "detected"
    assert result.verdict.attacks["loss"].direction == "below"
    assert any("below one half" in r for r in result.verdict.attacks["loss"].reasons)
    assert rows_of(result, "loss")["auc_minus_base"].high < 0  # as it is; the verdict turns it round


def test_noise_is_not_detected_and_says_what_would_have_been():
    result = Audit(seed=1).add("loss").add("zlib").add("loss", "base").run()
    assert result.verdict.word == "not detected"
    smallest = result.verdict.attacks["loss"].smallest_auc
    assert 0.5 < smallest < 0.65
    assert any(f"{smallest:.3f}" in r for r in result.verdict.reasons)
    assert rows_of(result, "loss")["smallest_auc"].value == smallest


def test_controls_that_did_not_run_are_named_and_do_not_block():
    missing = {"base": "no base model was given", "bag-of-words": "texts were withheld"}
    result = Audit().add("loss", shift=1.0).run(controls_not_run=missing)
    assert result.verdict.word == "detected"
    said = " ".join([*result.verdict.reasons, *result.verdict.attacks["loss"].reasons])
    assert "no base model was given" in said
    assert "texts were withheld" in said
    assert not result.verdict.controls["base"].ran
    assert rows_of(result, "loss")["auc_minus_base"].reason == "no base model was given"


def test_all_missing_and_constant_attacks_are_not_evaluable_and_stay_out_of_holm():
    audit = (
        Audit().add("loss", shift=0.45).add("gone", values=np.nan, reason="answer too short").add("flat", values=1.0)
    )
    result = audit.run()
    assert word(result, "gone") == word(result, "flat") == "not evaluable"
    assert "answer too short" in result.verdict.attacks["gone"].reasons[0]
    assert "the same" in result.verdict.attacks["flat"].reasons[0]
    assert word(result, "loss") == "detected"
    loss = rows_of(result, "loss")
    assert loss["p_holm"].value == loss["p_value"].value
    assert rows_of(result, "flat")["auc"].value is None
    only = Audit().add("gone", values=np.nan, reason="answer too short").run()
    assert only.verdict.word == "not evaluable"
    assert "answer too short" in " ".join(only.verdict.reasons)


def test_too_few_records_are_not_evaluable():
    result = Audit(2, 2).add("loss").run()
    assert result.verdict.word == "not evaluable"
    assert "too few" in " ".join(result.verdict.attacks["loss"].reasons)
    result = Audit(1, 50).add("loss").run()
    assert "too few scores: 1 records of members" in result.verdict.attacks["loss"].reasons[0]
    assert Audit(0, 50).add("loss").run().verdict.word == "not evaluable"


def test_a_base_control_that_is_constant_is_no_control():
    """reference-base is 0 on the base by construction; a control that cannot fail must not be said to have passed."""
    result = Audit().add("reference-base", shift=1.0).add("reference-base", "base", values=0.0).run()
    assert result.verdict.word == "detected"
    gap = rows_of(result, "reference-base")["auc_minus_base"]
    assert gap.value is None
    assert "controls for nothing" in gap.reason
    assert any("controls for nothing" in reason for reason in result.verdict.attacks["reference-base"].reasons)
    assert rows_of(result, "reference-base", "base")["auc"].reason is not None


def test_the_blind_control_never_detects_nor_enters_holm():
    audit = Audit().add("bag-of-words", "none", shift=3.0).add("bag-of-words", "target", shift=3.0).add("loss")
    result = audit.run()
    assert set(result.verdict.attacks) == {"loss"}
    assert result.verdict.word == "not detected"
    loss = rows_of(result, "loss")
    assert loss["p_holm"].value == loss["p_value"].value


def test_holm_runs_over_the_attacks():
    audit = Audit(seed=3)
    for k in range(5):
        audit.add(f"a{k}", shift=0.22 if k == 0 else 0.0)
    result = audit.run()
    p = {k: rows_of(result, f"a{k}")["p_value"].value for k in range(5)}
    smallest = min(p, key=p.get)
    assert rows_of(result, f"a{smallest}")["p_holm"].value == pytest.approx(min(1.0, 5 * p[smallest]))


def test_operating_points_carry_what_is_needed_to_read_them():
    rows = rows_of(Audit(100, 298).add("loss", shift=1.0).run(), "loss")
    one = rows["tpr@0.01"]
    assert one.realised_fpr <= 0.01 < one.fpr_upper
    assert one.low <= one.value <= one.high
    assert (one.n_members, one.n_nonmembers) == (100, 298)
    assert rows["tpr_bounded@0.01"].value is None
    assert "299" in rows["tpr_bounded@0.01"].reason
    assert rows["tpr@0.001"].value is None
    assert "1000" in rows["tpr@0.001"].reason
    enough = rows_of(Audit(100, 299).add("loss", shift=1.0).run(), "loss")
    assert enough["tpr_bounded@0.01"].fpr_upper <= 0.01


def test_missing_scores_are_counted_by_side_and_infinite_ones_are_missing():
    audit = Audit().add("loss", shift=1.0)
    values = audit.parts[0]["score"].to_numpy().copy()
    values[:10], values[-5:], values[10] = np.nan, np.nan, np.inf
    audit.parts[0]["score"] = values
    audit.parts[0]["reason"] = [None if math.isfinite(v) else "no tokens" for v in values]
    result = audit.run()
    row = rows_of(result, "loss")["auc"]
    assert (row.n_members, row.n_nonmembers) == (139, 195)
    note = result.verdict.attacks["loss"].reasons[-1]
    assert "11 of 150 members and 5 of 200 non-members" in note
    assert "no tokens" in note


def test_results_do_not_depend_on_the_order_of_rows():
    audit = (
        Audit(group_size=2)
        .add("loss", shift=0.5)
        .add("zlib", shift=0.3)
        .add("loss", "base")
        .add("bag-of-words", "none")
    )
    straight = audit.run()
    records, scores = audit.records.sample(frac=1, random_state=1), audit.scores().sample(frac=1, random_state=2)
    shuffled = evaluate(records, scores, texts=None, **FAST)
    assert shuffled.metrics == straight.metrics
    assert shuffled.verdict == straight.verdict


def test_groups_switch_every_method():
    result = Audit(group_size=4).add("loss", shift=1.0).add("loss", "base").add("zlib").run()
    rows = rows_of(result, "loss")
    assert "bootstrap" in rows["auc"].method
    assert "permutation" in rows["p_value"].method
    assert "bootstrap" in rows["auc_minus_base"].method
    assert "bootstrap" in rows["auc_minus:zlib"].method
    assert "bootstrap" in rows["tpr@0.1"].method
    assert result.verdict.word == "detected"
    alone = rows_of(Audit().add("loss", shift=1.0).run(), "loss")
    assert rows["smallest_auc"].value > alone["smallest_auc"].value


def test_only_the_order_of_scores_matters():
    audit = Audit(60, 80).add("loss", shift=0.8).add("loss", "base").add("bag-of-words", "none")
    straight = audit.run()
    for part in audit.parts:
        part["score"] = np.exp(part["score"])
    assert audit.run().verdict == straight.verdict


def test_a_few_missing_scores_on_the_base_model_leave_the_comparison_to_the_rest():
    audit = Audit().add("loss", shift=1.0).add("loss", "base")
    audit.parts[1].loc[:20, "score"] = np.nan
    result = audit.run()
    assert result.verdict.attacks["loss"].minus_base_low > 0
    audit.parts[1]["score"] = np.nan
    result = audit.run()
    assert not result.verdict.controls["base"].ran
    assert any("have both scores" in r for r in result.verdict.attacks["loss"].reasons)


def test_attacks_are_compared_in_pairs_with_holm():
    result = Audit().add("a", shift=1.5).add("b").add("c").run()
    rows = rows_of(result, "a")
    assert rows["auc_minus:b"].low > 0
    assert rows["p_minus:b"].value < 0.001
    assert rows_of(result, "b")["p_minus:c"].value > 0.01


def test_everything_is_json_without_nan():
    audit = Audit(5, 6).add("loss").add("gone", values=np.nan).add("flat", values=0.0).add("loss", "base")
    result = audit.run()
    back = json.loads(json.dumps(result.verdict.to_dict(), allow_nan=False))
    assert set(back) == {"overall", "attacks", "controls"}
    assert back["overall"]["word"] in WORDS
    assert {"word", "rule", "reasons", "auc", "p_holm", "direction"} <= set(back["attacks"]["loss"])
    rows = json.loads(json.dumps([m.to_dict() for m in result.metrics], allow_nan=False))
    assert all(row["value"] is not None or row["reason"] for row in rows)
    assert Metric("a", "target", "auc", float("nan"), threshold=-np.inf).to_dict()["threshold"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, s: (r.drop(columns="member"), s), "member"),
        (lambda r, s: (r, s.rename(columns={"score": "scores"})), "score"),
        (lambda r, s: (r, s.assign(record_id="stranger")), "stranger"),
        (lambda r, s: (r, s.assign(score="high")), "must hold numbers"),
        (lambda r, s: (r, pd.concat([s, s])), "more than one score"),
        (lambda r, s: (pd.concat([r, r]), s), "more than once"),
        (lambda r, s: (r.assign(member=None), s), "neither"),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_one_line(change, message):
    audit = Audit(10, 10).add("loss")
    records, scores = change(audit.records, audit.scores())
    with pytest.raises(DataError, match=message) as caught:
        evaluate(records, scores, texts=None)
    assert "\n" not in str(caught.value)


def test_texts_must_cover_the_records():
    with pytest.raises(DataError, match="20 records have no text"):
        Audit(10, 10).add("loss").run(texts={})
