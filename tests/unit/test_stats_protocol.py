"""canary_metrics: every number of a canary run against what its synthetic readings were made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from canary_frames import BINARY, NEW_CODES, PROBES, REDACTED, VISIBLE, Condition, readings, utility
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from indelible.errors import DataError
from indelible.stats.cells import cells, delay_open, matched_delay, pairs, unlike
from indelible.stats.contrasts import contrast, median_interval
from indelible.stats.intervals import clopper_pearson
from indelible.stats.paired import holm
from indelible.stats.protocol import canary_metrics

Rows = list[dict[str, Any]]


def pick(rows: Rows, metric: str, **keys: Any) -> Rows:
    keys = {"model": "target", "role": "focal", "probe": "redacted"} | keys
    return [row for row in rows if row["metric"] == metric and all(row[k] == v for k, v in keys.items())]


def one(rows: Rows, metric: str, **keys: Any) -> dict[str, Any]:
    found = pick(rows, metric, **keys)
    assert len(found) == 1, f"{len(found)} rows for {metric} {keys}"
    return found[0]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return readings((VISIBLE, REDACTED, BINARY), probes=(*PROBES, *NEW_CODES))


@pytest.fixture(scope="module")
def rows(frame: pd.DataFrame) -> Rows:
    return canary_metrics(frame, utility(frame), level=0.95)


def test_every_group_has_a_row_for_each_seed_and_one_for_all(frame: pd.DataFrame, rows: Rows) -> None:
    groups: dict[tuple[Any, ...], set[int | None]] = {}
    for row in rows:
        key = tuple(row[k] for k in ("condition", "model", "role", "probe", "metric", "axis", "against"))
        groups.setdefault(key, set()).add(row["seed"])
    assert {frozenset(seeds) for seeds in groups.values()} == {frozenset({0, 1, 2, None})}
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert len({tuple(row) for row in rows}) == 1  # the same fields everywhere


def test_medians_quartiles_and_shares_are_those_of_the_readings(frame: pd.DataFrame, rows: Rows) -> None:
    part = frame.query("condition == 'binary' and model == 'target' and role == 'focal' and probe == 'redacted'")
    for seed in (1, None):
        own = part if seed is None else part[part["seed"] == seed]
        got = {
            name: one(rows, name, condition="binary", seed=seed)
            for name in ("exposure_median", "exposure_q1", "exposure_q3", "share_at_ceiling", "recovery")
        }
        bits = own["exposure_bits"]
        assert got["exposure_median"]["value"] == pytest.approx(bits.median())
        assert got["exposure_q1"]["value"] == pytest.approx(bits.quantile(0.25))
        assert got["exposure_q3"]["value"] == pytest.approx(bits.quantile(0.75))
        assert got["share_at_ceiling"]["value"] == pytest.approx((own["rank"] == 1).mean())
        assert got["exposure_median"]["n"] == len(own) == (16 if seed is not None else 48)
        ends = clopper_pearson(int(own["recovered"].sum()), len(own), 0.95)
        assert (got["recovery"]["low"], got["recovery"]["high"]) == pytest.approx((ends.low, ends.high))


def test_known_codes_stand_out_and_unknown_ones_do_not(rows: Rows) -> None:
    assert one(rows, "uniformity_p", condition="redacted", seed=None)["value"] == pytest.approx(1e-4)
    assert one(rows, "share_at_ceiling", condition="redacted", seed=2)["value"] == 1.0
    assert one(rows, "uniformity_p", condition="visible", seed=None)["value"] > 0.01
    assert one(rows, "copy", condition="visible", seed=None, probe="substituted")["value"] == 1.0
    assert one(rows, "recovery", condition="visible", seed=None, probe="substituted")["value"] == 0.0
    supplied = one(rows, "supplied_exposure_median", condition="visible", seed=0, probe="substituted")
    assert supplied["value"] == pytest.approx(math.log2(10_000))
    assert not pick(rows, "copy", condition="visible", seed=None, probe="redacted")  # nothing is shown there


def test_new_codes_of_one_canary_do_not_count_as_canaries(rows: Rows) -> None:
    copied = one(rows, "copy", condition="binary", seed=None, probe="unseen")
    assert (copied["value"], copied["n"]) == (0.0, 48)
    assert copied["high"] == pytest.approx(clopper_pearson(0, 48, 0.95).high)
    median = one(rows, "exposure_median", condition="binary", seed=None, probe="unseen")
    assert median["n"] == 48
    assert median["low"] is None
    assert "192 codes of 48 canaries" in median["method"]
    assert 0.6 < median["value"] < 1.5  # over all codes: the mean of four would not have its median at 1 bit


def test_a_contrast_takes_the_difference_of_the_same_canary(frame: pd.DataFrame) -> None:
    ours = frame.query("condition == 'visible' and probe == 'redacted'")
    shifted = ours.assign(condition="redacted", arm="redacted")
    shuffled = shifted.sample(frac=1.0, random_state=3)  # rows are matched by canary, not by their place
    hidden = shuffled.assign(exposure_bits=shuffled["exposure_bits"] / 2.0 + 3.0)
    rows = canary_metrics(pd.concat([ours, hidden]), [])
    target = ours.query("model == 'target' and role == 'focal'")
    for seed in (0, 1, 2, None):
        own = target if seed is None else target[target["seed"] == seed]
        gaps = (3.0 - own["exposure_bits"] / 2.0).to_numpy()
        got = one(rows, "contrast_median", condition="redacted", seed=seed)
        averages = [(a + b) / 2 for i, a in enumerate(gaps) for b in gaps[i:]]
        assert got["value"] == pytest.approx(np.median(averages))
        assert (got["axis"], got["against"], got["against_condition"]) == ("cue", "visible", "visible")
        assert got["n"] == len(gaps)
        assert got["low"] <= got["value"] <= got["high"]


def test_recovery_is_compared_by_discordant_pairs(rows: Rows) -> None:
    gap = one(rows, "contrast_recovery", condition="redacted", seed=0, against="visible")
    assert gap["value"] == 1.0
    p = one(rows, "recovery_p", condition="redacted", seed=0, against="visible")
    assert p["value"] == pytest.approx(2.0 * 0.5**16)


def test_holm_runs_over_all_comparisons_of_one_seed_and_probe(rows: Rows) -> None:
    for seed in (0, None):
        raw, adjusted = (pick(rows, name, seed=seed) for name in ("contrast_p", "contrast_p_holm"))
        assert len(raw) == len(adjusted) == 3  # three cues give three pairs
        expected = holm([row["value"] for row in raw])
        assert [row["value"] for row in adjusted] == pytest.approx(expected)


def test_probes_are_compared_within_a_group(rows: Rows) -> None:
    followed = one(rows, "supplied_minus_assigned", condition="visible", seed=1, probe="substituted")
    assert followed["value"] > 9.0
    assert not pick(rows, "supplied_minus_assigned", condition="redacted", probe="substituted")
    assert one(rows, "recovered_minus_hidden", condition="visible", seed=1, probe="as-trained")["value"] == 1.0
    gap = one(rows, "trained_minus_unseen", condition="binary", seed=None, probe="as-trained")
    assert gap["value"] == 1.0
    assert one(rows, "trained_minus_unseen", condition="visible", seed=None, probe="as-trained")["value"] == 0.0


def test_rotations_make_matched_comparisons_of_doses_within_runs() -> None:
    mixed = Condition(
        "mixed-0", dose=(2, 16), population="mixed doses 2, 16", bits={(2, "uniform"): 0.0, (16, "uniform"): 9.0}
    )
    both = readings((mixed, replace(mixed, name="mixed-1", rotation=1)), (0, 1), probes=("redacted",), clean=False)
    rows = canary_metrics(both, [])
    got = one(rows, "contrast_median", seed=0, dose=16)
    assert got["condition"] == "mixed-0 + mixed-1"
    assert (got["n"], got["axis"], got["against"]) == (16, "dose", "2")
    assert got["value"] == pytest.approx(9.0, abs=1.5)
    assert one(rows, "exposure_median", condition="mixed-0 + mixed-1", seed=None, dose=2)["n"] == 32
    assert one(rows, "exposure_median", condition="mixed-1", seed=0, dose=2)["n"] == 8

    alone = canary_metrics(both[both["condition"] == "mixed-0"], [])
    unmatched = one(alone, "contrast_median", seed=0, dose=16)
    assert "different canaries" in unmatched["method"]
    assert unmatched["n"] == 8
    assert unmatched["low"] is None
    high, low = (
        both.query(f"condition == 'mixed-0' and seed == 0 and dose == {d} and model == 'target'") for d in (16, 2)
    )
    expected = stats.mannwhitneyu(high["exposure_bits"], low["exposure_bits"]).pvalue
    assert one(alone, "contrast_p", seed=0, dose=16)["value"] == pytest.approx(expected)


def test_conditions_that_differ_in_nothing_recorded_stay_apart() -> None:
    twins = readings((REDACTED, replace(REDACTED, name="redacted-slow"), VISIBLE), (0,), probes=("redacted",))
    found, notes = cells(twins)
    assert [cell.name for cell in found] == ["redacted", "redacted-slow", "visible"]
    assert len(notes) == 1
    assert "redacted, redacted-slow" in notes[0]
    assert [(axis, a.name, b.name) for axis, a, b in pairs(found)] == [
        ("arm", "redacted", "visible"),
        ("arm", "redacted-slow", "visible"),
    ]


def test_pairs_differ_on_one_axis_alone() -> None:
    made = (
        Condition("a", dose=(2,), schedule="constant"),
        Condition("b", dose=(8,), schedule="constant"),
        Condition("c", dose=(8,), schedule="cosine"),
    )
    found, _ = cells(readings(made, (0,), probes=("redacted",)))
    assert [(axis, x.name, y.name) for axis, x, y in pairs(found)] == [("dose", "b", "a"), ("schedule", "c", "b")]


def test_placements_are_compared_once_more_equally_long_after_the_last_appearance() -> None:
    placed = Condition("run", placement=("early", "late"), bits={(8, "early"): 0.0, (8, "late"): 6.0})
    both = readings(
        (placed, replace(placed, name="run-1", rotation=1)), (0,), probes=("redacted",), steps=(20,), n_steps=100
    )
    rows = canary_metrics(both, [])
    steps = {(row["step"], row["against_step"]) for row in pick(rows, "contrast_median", seed=0)}
    assert steps == {(100, 100), (100, 20)}  # last appearances at 98 and 18
    assert {row["step"] for row in pick(rows, "exposure_median", seed=0)} == {20, 100}


def test_a_checkpoint_saved_for_another_purpose_hides_no_matched_delay() -> None:
    """Appearances end at updates 18 and 98; update 18 + 82 is the last, and neither 30 nor 60 matches 2 updates."""
    placed = Condition("run", placement=("early", "late"), bits={(8, "early"): 0.0, (8, "late"): 6.0})
    both = (placed, replace(placed, name="run-1", rotation=1))
    found, _ = cells(readings(both, (0,), probes=("redacted",), steps=(18, 20, 30, 60), n_steps=100))
    late, early = sorted(found, key=lambda cell: -cell.centre)
    assert matched_delay(late, early) == (100, 20)
    assert matched_delay(early, late) == (20, 100)
    assert not delay_open(late, early)
    found, _ = cells(readings(both, (0,), probes=("redacted",), steps=(30, 60), n_steps=100))
    late, early = sorted(found, key=lambda cell: -cell.centre)
    assert matched_delay(late, early) is None
    assert delay_open(late, early)


def test_conditions_of_different_protocol_are_no_pair() -> None:
    slower = replace(VISIBLE, name="slower", protocol="p1")
    found, notes = cells(readings((REDACTED, VISIBLE, slower), (0,), probes=("redacted",)))
    assert [(axis, a.name, b.name) for axis, a, b in pairs(found)] == [("arm", "redacted", "visible")]
    assert {(axis, a.name, b.name) for axis, a, b in unlike(found)} == {
        ("arm", "redacted", "slower"),
        (None, "visible", "slower"),
    }
    assert notes == []  # they do differ in something that is recorded


def test_canaries_are_matched_by_what_they_are_and_not_by_their_id() -> None:
    """The same ids with other codes: no pairs, so no test of pairs, and no recovery of pairs."""
    other = readings((REDACTED, replace(VISIBLE, draw="other ")), (0, 1), probes=("redacted",), controls=0)
    rows = canary_metrics(other, [])
    gap = one(rows, "contrast_median", seed=0)
    assert gap["method"] == "median of all differences, different canaries"
    assert (gap["n"], gap["low"]) == (16, None)
    assert one(rows, "contrast_p", seed=0)["method"] == "Mann-Whitney, different canaries"
    shares = one(rows, "contrast_recovery", seed=0)
    assert (shares["value"], shares["reason"]) == (None, "different canaries on the two sides: no pairs")

    same = readings((REDACTED, VISIBLE), (0, 1), probes=("redacted",), controls=0)
    renamed = same.assign(canary_id=same["condition"] + same["canary_id"])
    assert one(canary_metrics(renamed, []), "contrast_median", seed=None)["method"].startswith("Hodges-Lehmann")


def test_a_plus_in_a_name_makes_no_rotations() -> None:
    plus = canary_metrics(readings((replace(REDACTED, name="low + high"),), (0, 1), probes=("redacted",)), [])
    median = one(plus, "exposure_median", seed=None)
    assert (median["n"], median["parts"]) == (32, None)
    assert median["method"] == "median, order statistics, canaries of 2 seeds"

    mixed = Condition("low", dose=(2, 16), population="mixed doses 2, 16")
    turned = canary_metrics(readings((mixed, replace(mixed, name="high", rotation=1)), (0,), probes=("redacted",)), [])
    assert one(turned, "exposure_median", seed=0, dose=2, condition="low + high")["parts"] == ["low", "high"]
    assert one(turned, "exposure_median", seed=0, dose=2, condition="low")["parts"] is None
    assert one(turned, "contrast_median", seed=0)["parts"] == ["low", "high"]


def test_a_reading_that_is_there_twice_is_refused(frame: pd.DataFrame) -> None:
    twice = pd.concat([frame, frame[frame["seed"] == 1]], ignore_index=True)
    with pytest.raises(DataError, match=r"readings twice, the first of them condition visible, seed 1, step 50"):
        canary_metrics(twice, [])


def test_intervals_on_parts_of_a_canary_are_called_approximate(rows: Rows) -> None:
    whole = one(rows, "recovery", condition="binary", seed=0)["method"]
    assert "approximate" not in whole
    assert whole.startswith("Clopper-Pearson")
    positions = one(rows, "position_accuracy", condition="binary", seed=0)
    assert positions["method"] == "approximate: Clopper-Pearson on the mean over positions of a code"
    codes = one(rows, "share_at_ceiling", condition="binary", seed=0, probe="unseen")
    assert codes["method"].startswith("approximate: Clopper-Pearson on the mean over codes of a canary; ceiling 13.29")
    assert one(rows, "share_at_ceiling", condition="binary", seed=0)["method"].startswith("Clopper-Pearson; ceiling")
    half = readings((replace(BINARY, unseen=0.5),), (0,), probes=("unseen",), controls=0, base=False, clean=False)
    copied = one(canary_metrics(half, []), "copy", seed=0, probe="unseen")
    assert copied["method"].startswith("approximate: Clopper-Pearson on the mean over codes of a canary")


def test_missing_ranks_are_counted_and_explained() -> None:
    few = readings((REDACTED, VISIBLE), (0,), missing=3)
    rows = canary_metrics(few, [])
    got = one(rows, "exposure_median", condition="redacted", seed=0)
    assert got["n"] == 13
    assert got["reason"] == "3 of 16 readings have no rank: the code did not survive truncation"
    assert one(rows, "contrast_median", condition="redacted", seed=0)["n"] == 13

    none = canary_metrics(readings((REDACTED, VISIBLE), (0,), missing=16), [])
    got = one(none, "exposure_median", condition="redacted", seed=None)
    assert (got["value"], got["n"]) == (None, 0)
    assert "truncation" in got["reason"]
    gap = one(none, "contrast_p", condition="redacted", seed=None)
    assert gap["value"] is None
    assert gap["reason"]


def test_one_condition_one_seed_and_no_other_model() -> None:
    small = readings((REDACTED,), (7,), canaries=3, controls=0, base=False, clean=False)
    rows = canary_metrics(small, utility(small))
    assert {row["seed"] for row in rows} == {7, None}
    assert one(rows, "exposure_median", seed=7)["n"] == 3
    assert not pick(rows, "contrast_median")
    left = {row["metric"]: row for row in rows if "_minus_" in row["metric"]}
    assert {row["value"] for row in left.values()} == {None}
    assert left["accuracy_minus_base"]["reason"] == "the base model was not asked for this condition"
    assert left["accuracy_minus_clean"]["reason"] == "no training without canaries for this condition"


def test_no_readings_give_no_rows(frame: pd.DataFrame) -> None:
    assert canary_metrics(frame.iloc[:0], []) == []


def test_a_missing_column_is_named(frame: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="without probe, rank; expected"):
        canary_metrics(frame.drop(columns=["rank", "probe"]), [])


def test_a_frame_read_back_from_a_file_gives_the_same(frame: pd.DataFrame, tmp_path: Any) -> None:
    part = frame[(frame["seed"] == 0) & (frame["model"] == "target")]
    for written in (part, part.assign(copied=part["copied"].astype(object).where(part["copied"].notna(), None))):
        written.to_parquet(tmp_path / "canaries.parquet")
        assert canary_metrics(pd.read_parquet(tmp_path / "canaries.parquet"), []) == canary_metrics(part, [])


@settings(max_examples=5, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_readings_does_not_matter(random: Any) -> None:
    small = readings((REDACTED, BINARY), (0, 1), canaries=6, controls=0, base=False, clean=False, probes=("redacted",))
    order = list(range(len(small)))
    random.shuffle(order)

    def numbers(frame: pd.DataFrame) -> dict[tuple[Any, ...], Any]:
        made = canary_metrics(frame, [])
        return {tuple(v for k, v in row.items() if k not in ("value", "low", "high")): row["value"] for row in made}

    expected, got = numbers(small), numbers(small.iloc[order])
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert got[key] == pytest.approx(value), key


def test_utility_is_set_beside_the_controls(rows: Rows) -> None:
    def value(metric: str, seed: int | None) -> float:
        return float(one(rows, metric, condition="visible", seed=seed, role="all", probe=None)["value"])

    assert value("accuracy", None) == pytest.approx(0.75)
    assert value("accuracy_minus_base", 0) == pytest.approx(0.5)
    assert value("heldout_loss_minus_clean", None) == pytest.approx(0.02)


def test_a_condition_is_set_beside_the_clean_training_of_its_own_schedule() -> None:
    two = readings((REDACTED, replace(REDACTED, name="cosine", schedule="cosine")), (0, 1), probes=("redacted",))
    beside = utility(two)
    for entry in beside:
        if (entry["model"], entry["condition"]) == ("clean", "cosine"):
            entry["heldout_loss"] = 0.30
    rows = canary_metrics(two, beside)

    def gap(condition: str, rows: Rows) -> dict[str, Any]:
        return one(rows, "heldout_loss_minus_clean", condition=condition, seed=0, role="all", probe=None)

    assert gap("redacted", rows)["value"] == pytest.approx(0.02)
    assert gap("cosine", rows)["value"] == pytest.approx(0.10)
    left = [e for e in beside if (e["model"], e["condition"]) != ("clean", "cosine")]
    rows = canary_metrics(two, left)
    assert gap("redacted", rows)["value"] == pytest.approx(0.02)
    assert gap("cosine", rows)["reason"] == "no training without canaries for this condition"


def test_a_task_without_accuracy_keeps_its_reason(frame: pd.DataFrame) -> None:
    part = frame[(frame["seed"] == 0) & (frame["probe"] == "redacted")]
    rows = canary_metrics(part, utility(part, accuracy={"target": None, "base": None, "clean": None}))
    got = one(rows, "accuracy", condition="visible", seed=None, role="all", probe=None)
    assert (got["value"], got["reason"]) == (None, "the task has no accuracy")
    assert one(rows, "heldout_loss", condition="visible", seed=0, role="all", probe=None)["value"] == 0.4


@given(st.lists(st.floats(0, 13), min_size=1, max_size=60), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_median_holds_it_and_keeps_its_level(values: list[float], level: float) -> None:
    ends = median_interval(np.array(values), level)
    n = len(values)
    if ends is None:
        assert 2.0 * 0.5**n > 1.0 - level  # not even the extremes reach the level
        return
    assert ends.low <= np.median(values) <= ends.high
    k = sorted(values).index(ends.low) + 1  # at least the k-th smallest
    assert 2.0 * stats.binom.cdf(k - 1, n, 0.5) <= 1.0 - level + 1e-12 or len(set(values)) < n


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 13), st.floats(0, 13)), min_size=5, max_size=30))
def test_a_contrast_turns_its_sign_with_its_sides(values: list[tuple[float, float]]) -> None:
    index = pd.MultiIndex.from_tuples([(0, f"c{i}") for i in range(len(values))], names=["seed", "canary_id"])
    a, b = (pd.Series(list(side), index=index, dtype=float) for side in zip(*values, strict=True))
    one_way, other = contrast(a, b, 0.95), contrast(b, a, 0.95)
    assert one_way.value is not None
    assert other.value is not None
    assert one_way.value == pytest.approx(-other.value, abs=1e-8)
    assert one_way.p == pytest.approx(other.p)
