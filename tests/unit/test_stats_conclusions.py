"""The protocol-sensitivity verdict on synthetic readings whose truth is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from canary_frames import BINARY, NEW_CODES, PROBES, REDACTED, VISIBLE, Condition, readings, utility

from indelible.errors import DataError
from indelible.stats.answers import Answer, Call, SeedAnswer, flips
from indelible.stats.canary_controls import control_checks
from indelible.stats.cells import AXIS_WORDS, Setting
from indelible.stats.conclusions import conclude, verdict
from indelible.stats.protocol import canary_metrics
from indelible.stats.questions import Question

HIDDEN = ("redacted",)
WORDS = {"protocol-sensitive", "stable", "not settled", "one protocol only", "not evaluable"}


def judged(
    frame: pd.DataFrame, *, use: list[dict[str, Any]] | None = None, metrics: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    beside = utility(frame) if use is None else use
    made = verdict(frame, beside, metrics or canary_metrics(frame, beside), alpha=0.05)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["overall"]["word"] in WORDS
    assert {line["word"] for line in made["conclusions"]} <= {"holds", "flips", "unclear"}
    for line in made["conclusions"]:
        assert line["statement"].endswith(".")
        assert line["reasons"], line["id"]
    return made


def lines(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {line["id"]: line for line in made["conclusions"]}
    assert len(found) == len(made["conclusions"])
    return found


def untested(made: dict[str, Any], axis: str) -> list[str]:
    return [entry["reason"] for entry in made["not_tested"] if entry["axis"] == axis]


def placed(schedule: str, early: float, late: float, **more: Any) -> list[Condition]:
    """Both rotations of a run with early and late canaries."""
    bits = {(8, "early"): early, (8, "late"): late}
    first = Condition(f"{schedule}-0", schedule=schedule, placement=("early", "late"), bits=bits, **more)
    return [first, replace(first, name=f"{schedule}-1", rotation=1)]


@pytest.fixture(scope="module")
def three_cues() -> pd.DataFrame:
    return readings((VISIBLE, REDACTED, BINARY), probes=(*PROBES, *NEW_CODES))


@pytest.fixture(scope="module")
def cue_metrics(three_cues: pd.DataFrame) -> list[dict[str, Any]]:
    return canary_metrics(three_cues, utility(three_cues))


@pytest.fixture(scope="module")
def cue_verdict(three_cues: pd.DataFrame, cue_metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return judged(three_cues, metrics=cue_metrics)


def test_recall_that_depends_on_the_cue_makes_a_run_protocol_sensitive(cue_verdict: dict[str, Any]) -> None:
    assert cue_verdict["overall"]["word"] == "protocol-sensitive"
    found = lines(cue_verdict)
    recall = found["recall-by-cue"]
    assert (recall["axis"], recall["word"]) == ("cue", "flips")
    assert "depends on the cue" in recall["statement"]
    assert "above chance (redacted; binary)" in recall["statement"]
    assert "as chance would have it (visible)" in recall["statement"]
    signs = {(s["where"], s["seed"]): s["sign"] for s in recall["by_seed"]}
    assert {signs["visible", seed] for seed in (0, 1, 2)} == {0}
    assert {signs["redacted", seed] for seed in (0, 1, 2)} == {1}
    assert any(reason.startswith("recall-by-cue: ") for reason in cue_verdict["overall"]["reasons"])


def test_directions_hold_when_every_seed_agrees(cue_verdict: dict[str, Any]) -> None:
    found = lines(cue_verdict)
    for name in ("redacted-above-visible", "between-binary"):
        assert found[name]["word"] == "holds"
        assert {s["sign"] for s in found[name]["by_seed"]} == {1}
    assert len(found["between-binary"]["by_seed"]) == 6  # two sides, three seeds
    assert "lay above that of visible and below that of redacted" in found["between-binary"]["statement"]


def test_copying_is_told_from_recall(cue_verdict: dict[str, Any]) -> None:
    found = lines(cue_verdict)
    assert found["follows-substituted-cue"]["word"] == "holds"
    assert found["recovery-needs-the-cue"]["word"] == "holds"
    new = found["trained-codes-above-new-ones"]
    assert new["word"] == "flips"  # visible cues give new codes as readily, binary ones none of them
    assert "depends on the cue" in new["statement"]


def test_every_number_of_a_line_stands_in_the_metrics(
    cue_metrics: list[dict[str, Any]], cue_verdict: dict[str, Any]
) -> None:
    values = {row["value"] for row in cue_metrics}
    for line in cue_verdict["conclusions"]:
        if line["axis"] == "controls":
            continue
        for said in line["by_seed"]:
            assert said["value"] in values, line["id"]
            assert said["p"] is None or said["p"] in values, line["id"]


def test_metrics_read_back_give_the_same_verdict(
    three_cues: pd.DataFrame, cue_metrics: list[dict[str, Any]], cue_verdict: dict[str, Any]
) -> None:
    again = json.loads(json.dumps(cue_metrics))
    assert verdict(three_cues, utility(three_cues), again, alpha=0.05) == cue_verdict


def test_what_was_not_varied_is_named(cue_verdict: dict[str, Any]) -> None:
    assert untested(cue_verdict, "dose") == ["one dose only: 8"]
    assert untested(cue_verdict, "schedule") == ["one schedule only: constant"]
    assert untested(cue_verdict, "spacing") == ["no spacing was prescribed"]
    assert not untested(cue_verdict, "cue")
    assert not untested(cue_verdict, "seed")
    assert len(untested(cue_verdict, "records")) == 1


def test_one_condition_is_one_protocol_only() -> None:
    made = judged(readings((REDACTED,), (4,), base=False, clean=False))
    assert made["overall"]["word"] == "one protocol only"
    assert "no conclusion was replicated" in " ".join(made["overall"]["reasons"])
    recall = lines(made)["recall"]
    assert recall["word"] == "holds"
    assert "above chance" in recall["statement"]
    assert any("nothing is said about another training" in reason for reason in recall["reasons"])
    assert untested(made, "cue") == ["one cue only: redacted"]
    assert "the base model was not asked" in untested(made, "controls")
    assert made["controls"]["base"]["ran"] is False
    assert made["controls"]["never_inserted"]["word"] == "at baseline"


def test_answers_that_agree_across_doses_are_stable() -> None:
    doses = [Condition(f"dose-{d}", dose=(d,), bits=b) for d, b in ((4, 4.0), (16, 8.0))]
    made = judged(readings(doses, probes=HIDDEN, clean=False))
    found = lines(made)
    assert found["recall-by-dose"]["word"] == "holds"
    response = found["dose-response"]
    assert (response["word"], {s["sign"] for s in response["by_seed"]}) == ("holds", {1})
    assert "dose 16 minus dose 4" in response["statement"]
    assert "medians: dose 4 " in response["reasons"][0]


def test_a_dose_response_at_the_ceiling_is_left_open() -> None:
    doses = [Condition(f"dose-{d}", dose=(d,), bits=30.0) for d in (16, 64)]
    made = judged(readings(doses, probes=HIDDEN))
    assert "dose-response" not in lines(made)
    assert any("ceiling on both sides" in reason for reason in untested(made, "dose"))
    assert lines(made)["recall-by-dose"]["word"] == "holds"
    assert made["overall"]["word"] == "stable"


def test_a_dose_that_matters_only_when_the_cue_is_hidden_flips() -> None:
    made = [
        Condition(f"{arm}-{dose}", arm=arm, dose=(dose,), bits=9.0 if (arm, dose) == ("redacted", 32) else 0.0)
        for arm in ("visible", "redacted")
        for dose in (2, 32)
    ]
    found = lines(judged(readings(made, canaries=24, probes=HIDDEN, base=False, clean=False)))
    assert found["dose-response"]["word"] == "flips"
    assert "depends on the cue" in found["dose-response"]["statement"]
    assert found["recall-by-dose"]["word"] == "flips"


def test_the_schedule_can_turn_late_against_early() -> None:
    frame = readings(placed("constant", 0.0, 8.0) + placed("cosine", 8.0, 0.0), probes=HIDDEN, base=False, clean=False)
    made = judged(frame)
    found = lines(made)
    assert found["late-above-early-constant"]["word"] == "holds"
    assert "higher exposure" in found["late-above-early-constant"]["statement"]
    assert {s["sign"] for s in found["late-above-early-cosine"]["by_seed"]} == {-1}
    assert "lower exposure" in found["late-above-early-cosine"]["statement"]
    turned = found["late-above-early-by-schedule"]
    assert (turned["axis"], turned["word"]) == ("schedule", "flips")
    assert "depends on the schedule" in turned["statement"]
    assert made["overall"]["word"] == "protocol-sensitive"
    assert "late-above-early-constant-matched-delay" not in found


def test_late_against_early_is_also_judged_at_a_matched_delay() -> None:
    frame = readings(placed("constant", 0.0, 6.0), probes=HIDDEN, base=False, clean=False, steps=(20,), n_steps=100)
    late = lines(judged(frame))["late-above-early-constant-matched-delay"]
    assert late["word"] == "holds"
    assert "at update 100 against 20" in late["statement"]


def test_seeds_of_opposite_sign_leave_a_question_unclear() -> None:
    up = readings(placed("constant", 0.0, 7.0), (0, 1), probes=HIDDEN, base=False, clean=False)
    down = readings(placed("constant", 7.0, 0.0), (2,), probes=HIDDEN, base=False, clean=False)
    line = lines(judged(pd.concat([up, down], ignore_index=True)))["late-above-early-constant"]
    assert line["word"] == "unclear"
    assert [s["sign"] for s in line["by_seed"]] == [1, 1, -1]
    assert "seeds disagree" in line["reasons"][0]
    assert line["statement"].startswith("Not settled")


def test_a_conclusion_that_holds_beside_an_unclear_one_is_not_stable() -> None:
    doses = [Condition(f"dose-{d}", dose=(d,), bits=bits) for d, bits in ((2, 0.0), (8, 30.0))]
    made = judged(readings(doses, seeds=(0,), canaries=6, probes=HIDDEN))
    words = {name: line["word"] for name, line in lines(made).items()}
    assert (words["dose-response"], words["recall-by-dose"]) == ("holds", "unclear")  # 6 are too few for "at chance"
    assert made["overall"]["word"] == "not settled"


def test_low_doses_among_high_ones_flip_on_the_population() -> None:
    alone = Condition("alone", dose=(4,), bits=0.0)
    mixed = Condition("mixed-0", dose=(4, 64), population="mixed doses 4, 64", bits=9.0)
    frame = readings((alone, mixed, replace(mixed, name="mixed-1", rotation=1)), probes=HIDDEN, base=False, clean=False)
    found = lines(judged(frame))
    assert found["recall-by-population"]["word"] == "flips"
    against = found["population-mixed-doses-4-64-against-alone"]
    assert (against["word"], {s["sign"] for s in against["by_seed"]}) == ("holds", {1})


def test_nothing_is_concluded_from_fewer_than_five_canaries() -> None:
    made = judged(readings((VISIBLE, REDACTED), canaries=4, controls=0, base=False, clean=False))
    assert made["overall"]["word"] == "not evaluable"
    assert made["conclusions"] == []
    assert any("4 canaries" in reason and "5 are needed" in reason for reason in untested(made, "cue"))


def test_few_canaries_alone_never_make_codes_rank_as_chance_would_have_it() -> None:
    words = {}
    for canaries in (6, 48):
        said = lines(judged(readings((VISIBLE,), seeds=(0,), canaries=canaries, controls=48)))
        words[canaries] = (said["recall"]["word"], "as chance would have it" in said["recall"]["statement"])
    assert words == {6: ("unclear", False), 48: ("holds", True)}


def test_a_small_group_is_left_out_and_the_others_are_judged() -> None:
    small = readings((Condition("dose-2", dose=(2,)),), canaries=4, probes=HIDDEN)
    rest = readings([Condition(f"dose-{d}", dose=(d,), bits=b) for d, b in ((8, 3.0), (32, 9.0))], probes=HIDDEN)
    made = judged(pd.concat([small, rest], ignore_index=True))
    recall = lines(made)["recall-by-dose"]
    assert recall["word"] == "holds"
    assert any(reason.startswith("left out: dose 2: 4 canaries") for reason in recall["reasons"])
    assert any("dose 2: 4 canaries" in reason for reason in untested(made, "dose"))


def test_readings_without_a_rank_are_counted_and_those_without_any_cannot_be_judged() -> None:
    made = judged(readings((VISIBLE, REDACTED), (0,), missing=3))
    assert any("6 of 96 readings" in r and "truncation" in r for r in made["overall"]["reasons"])
    none = judged(readings((VISIBLE, REDACTED), (0,), probes=HIDDEN, missing=16))
    assert none["overall"]["word"] == "not evaluable"
    assert any("truncation" in reason for reason in untested(none, "cue"))


def test_a_run_without_focal_canaries_or_without_rows_is_not_evaluable() -> None:
    frame = readings((REDACTED,), (0,), canaries=0)
    assert judged(frame)["overall"]["word"] == "not evaluable"
    empty = judged(frame.iloc[:0])
    assert empty["overall"]["word"] == "not evaluable"
    assert len(untested(empty, "controls")) == 3


def test_a_control_off_baseline_takes_the_verdict_away() -> None:
    frame = readings((VISIBLE, REDACTED), probes=HIDDEN, clean=False)
    known = (frame["role"] == "control") & (frame["model"] == "target") & (frame["condition"] == "visible")
    frame.loc[known, ["rank", "exposure_bits"]] = [1.0, math.log2(10_000)]
    made = judged(frame)
    assert made["overall"]["word"] == "not evaluable"
    assert made["controls"]["never_inserted"]["word"] == "off baseline"
    assert made["controls"]["never_inserted"]["condition"] == "visible"
    assert made["controls"]["base"]["word"] == "at baseline"
    assert lines(made)["control-never-inserted"]["word"] == "unclear"


def test_a_base_model_that_is_asked_the_same_under_every_seed_counts_once() -> None:
    once = readings((REDACTED,), (0,), probes=HIDDEN, clean=False)
    same = pd.concat([once.assign(seed=seed) for seed in (0, 1, 2)], ignore_index=True)
    assert control_checks(same)["base"]["n"] == 32
    assert control_checks(readings((REDACTED,), probes=HIDDEN, clean=False))["base"]["n"] == 96


@pytest.mark.parametrize("model", ["base", "clean"])
def test_a_model_that_several_conditions_share_is_one_control(model: str) -> None:
    """Four conditions of one base (or clean) model are judged at the level of one, not at that of four."""
    one = readings((REDACTED,), controls=0, probes=HIDDEN, base=model == "base", clean=model == "clean")
    shared = one[one["model"] == model]
    arms = [one, *(shared.assign(condition=name, arm=name) for name in ("visible", "binary", "fruit"))]
    alone, many = (control_checks(frame)[model] for frame in (one, pd.concat(arms, ignore_index=True)))
    assert many["level"] == alone["level"] == pytest.approx(0.99)
    assert len(many["by_condition"]) == 1
    assert many["by_condition"][0]["conditions"] == ["redacted", "visible", "binary", "fruit"]
    assert (many["n"], many["median"]) == (alone["n"], alone["median"])
    apart = readings((REDACTED, VISIBLE), controls=0, probes=HIDDEN, base=model == "base", clean=model == "clean")
    assert len(control_checks(apart)[model]["by_condition"]) == 2  # other readings: another model
    assert control_checks(apart)[model]["level"] == pytest.approx(0.995)


def test_training_beside_no_useful_task_is_said(three_cues: pd.DataFrame) -> None:
    beside = utility(three_cues)
    for entry in beside:
        if entry["model"] == "target" and entry["condition"] == "binary":
            entry["heldout_loss"] = 2.5
    part = three_cues[three_cues["probe"] == "redacted"]
    said = [r for r in judged(part, use=beside)["overall"]["reasons"] if "held-out loss" in r]
    assert len(said) == 3  # one a seed
    assert all(reason.startswith("binary, seed ") for reason in said)


def test_exposure_without_recovery_in_every_setting_is_a_finding_that_holds() -> None:
    weak = [Condition(f"dose-{d}", dose=(d,), bits=4.0) for d in (4, 8)]
    made = judged(readings(weak, probes=HIDDEN, clean=False))
    line = lines(made)["recovery-beside-exposure"]
    assert (line["word"], line["depends_on"]) == ("holds", [])
    assert "Exposure finds what exact recovery does not" in line["statement"]
    assert "in each of 2 settings" in line["statement"]
    assert made["overall"]["word"] == "stable"  # no protocol changed an answer


def test_exposure_without_recovery_flips_where_settings_differ_in_it() -> None:
    doses = [Condition(f"dose-{d}", dose=(d,), bits=b) for d, b in ((4, 4.0), (64, 30.0))]
    made = judged(readings(doses, probes=HIDDEN, clean=False))
    line = lines(made)["recovery-beside-exposure"]
    assert (line["word"], line["depends_on"]) == ("flips", ["dose"])
    assert "most came out word for word, else none (dose 64)" in line["statement"]
    assert "Exposure finds what exact recovery does not" in line["statement"]
    assert made["overall"]["word"] == "protocol-sensitive"


def test_only_a_flip_on_an_axis_of_the_protocol_makes_a_run_sensitive(cue_verdict: dict[str, Any]) -> None:
    for line in cue_verdict["conclusions"]:
        assert bool(line["depends_on"]) == (line["word"] == "flips"), line["id"]
        assert set(line["depends_on"]) <= set(AXIS_WORDS.values())


def test_conditions_that_differ_in_more_than_axes_are_not_compared() -> None:
    faster = replace(VISIBLE, protocol="another learning rate")
    made = judged(readings((REDACTED, faster), probes=HIDDEN))
    assert made["overall"]["word"] == "one protocol only"
    assert "redacted-above-visible" not in lines(made)
    assert "conditions redacted and visible also differ in settings that are not axes: not compared" in untested(
        made, "cue"
    )
    twins = judged(readings((REDACTED, replace(REDACTED, name="again", protocol="p1")), probes=HIDDEN))
    assert "conditions redacted and again differ only in settings that are not axes: not compared" in untested(
        twins, "other"
    )
    assert {s["where"] for s in lines(twins)["recall"]["by_seed"]} == {
        "the one setting tried (redacted)",
        "the one setting tried (again)",
    }


def test_answers_of_different_protocol_do_not_flip_each_other() -> None:
    yes, no = _answer("redacted", "yes", [9.0] * 20), _answer("visible", "opposite", [0.0] * 20)
    assert len(flips([yes, no], alpha=0.05)) == 1
    assert flips([yes, replace(no, setting=replace(no.setting, protocol="another"))], alpha=0.05) == []


def test_a_run_without_any_control_says_so_first() -> None:
    bare = judged(readings((VISIBLE, REDACTED), controls=0, base=False, clean=False, probes=HIDDEN))
    assert bare["overall"]["word"] == "protocol-sensitive"
    assert bare["overall"]["reasons"][0].startswith("no control ran")
    some = judged(readings((VISIBLE, REDACTED), controls=16, base=False, clean=False, probes=HIDDEN))
    assert not any("no control ran" in reason for reason in some["overall"]["reasons"])


def test_placements_without_a_matched_delay_are_named() -> None:
    frame = readings(placed("constant", 0.0, 6.0), probes=HIDDEN, base=False, clean=False, steps=(60,), n_steps=100)
    assert any(
        reason.startswith("late against early: compared at the end") for reason in untested(judged(frame), "placement")
    )
    matched = readings(placed("constant", 0.0, 6.0), probes=HIDDEN, base=False, clean=False, steps=(20,), n_steps=100)
    assert not any("at the end of training only" in reason for reason in untested(judged(matched), "placement"))


def test_the_order_of_the_readings_does_not_change_a_word(three_cues: pd.DataFrame) -> None:
    part = three_cues[(three_cues["model"] != "clean") & three_cues["probe"].isin(["redacted", "substituted"])]
    one, other = (lines(judged(frame)) for frame in (part, part.sample(frac=1.0, random_state=1)))
    assert {k: v["word"] for k, v in one.items()} == {k: v["word"] for k, v in other.items()}


def test_codes_at_chance_are_hardly_ever_called_learnt() -> None:
    """Twelve runs of two doses and three seeds in which nothing was learnt."""
    doses = [Condition(f"dose-{d}", dose=(d,)) for d in (2, 8)]
    claims = 0
    for i in range(12):
        seeds = (3 * i, 3 * i + 1, 3 * i + 2)
        made = judged(readings(doses, seeds, controls=0, probes=HIDDEN, base=False, clean=False), use=[])
        claims += sum(
            "above chance (" in c["statement"] or "higher exposure (" in c["statement"] for c in made["conclusions"]
        )
        assert made["overall"]["word"] != "protocol-sensitive"
    assert claims <= 1


def test_a_missing_column_is_named(three_cues: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="without dose"):
        verdict(three_cues.drop(columns="dose"), [], [], alpha=0.05)


def _answer(arm: str, call: Call, bits: list[float], *, dose: int = 8) -> Answer:
    keys = [(seed, f"c{i}") for seed in (0, 1) for i in range(len(bits) // 2)]
    values = pd.Series(bits, index=pd.MultiIndex.from_tuples(keys, names=["seed", "canary_id"]))
    setting = Setting(arm, dose, "uniform", None, "alone", "constant")
    by_seed = tuple(SeedAnswer(arm, seed, 1.0, 1, 0.01) for seed in (0, 1))
    return Answer(arm, setting, (), by_seed, call, f"{arm}: numbers", values)


def test_one_significant_answer_and_one_that_is_not_are_no_flip_by_themselves() -> None:
    noise = list(np.random.default_rng(0).normal(2.0, 1.0, 40))
    near = [value - 0.1 * (-1) ** i for i, value in enumerate(noise)]
    far = [value - 4.0 for value in noise]
    assert flips([_answer("redacted", "yes", noise), _answer("visible", "flat", near)], alpha=0.05) == []
    (axis, first, second), *rest = flips(
        [_answer("visible", "flat", far), _answer("redacted", "yes", noise)], alpha=0.05
    )
    assert (axis, first.where, second.where, rest) == ("arm", "redacted", "visible", [])


def test_a_flip_needs_the_sign_of_every_seed_and_the_test_over_all_of_them() -> None:
    steps = [0.01 * i for i in range(20)]

    def found(first: list[float], second: list[float]) -> int:
        """Flips between settings whose canaries differ by these numbers in the two seeds."""
        visible = _answer("visible", "flat", [0.0] * 40)
        return len(flips([_answer("redacted", "yes", [*first, *second]), visible], alpha=0.05))

    clear = [3.0 + step for step in steps]
    weak = [(1.0 + step) * (1 if i % 2 == 0 or i == 19 else -1) for i, step in enumerate(steps)]
    against = [-0.5 - step for step in steps]
    assert found(clear, clear) == 1
    assert found(weak, weak) == 0  # above 0 in both seeds, but within chance
    assert found(clear, against) == 0  # far from chance over both, but the seeds disagree


def test_settings_that_differ_on_two_axes_do_not_flip_each_other() -> None:
    yes, no = _answer("redacted", "yes", [9.0] * 20), _answer("visible", "opposite", [0.0] * 20, dose=2)
    assert flips([yes, no], alpha=0.05) == []
    assert len(flips([yes, replace(no, setting=replace(no.setting, dose=8))], alpha=0.05)) == 1


def test_a_question_is_unclear_when_a_setting_is_and_gone_when_none_was_judged() -> None:
    def word(*answers: Answer) -> str | None:
        made = conclude(Question("q", "cue", "whether it is so", "It is so", "It is not so", "Neither", answers), 0.05)
        return None if made is None else str(made["word"])

    yes, unclear, open_one = (_answer("redacted", call, [1.0] * 20) for call in ("yes", "unclear", "untested"))
    assert word(yes) == "holds"
    assert word(yes, open_one) == "holds"
    assert word(yes, unclear) == "unclear"
    assert word(open_one) is None
