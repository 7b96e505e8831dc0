"""Numbers of studies: means, correlations, over seeds, by part; weighted sums of them, paired and pooled."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from indelible.runs import Run
from indelible.stats.paired import paired_delong
from indelible.stats.roc import auc
from indelible.sweep.collect import log_likelihoods, losses, over_seeds, part_by_time
from indelible.sweep.contrasts import Contrast, Measured, contrast, difference, pooled
from indelible.sweep.fidelity import fidelity_metrics
from indelible.sweep.numbers import mean_row, spearman_rows
from indelible.sweep.pulls import auc_pulls, mean_pulls


def test_mean_and_its_interval() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    row = mean_row("a", "target", "m", values, list("wxyz"), level=0.95, member=True)
    error = np.std(values, ddof=1) / 2
    assert row.value == 3.75
    assert row.low == pytest.approx(3.75 - 3.182446 * error, abs=1e-4)
    twice = mean_row("a", "target", "m", values * 2, list("wxyz") * 2, level=0.95, member=True)
    assert (twice.value, twice.low) == (row.value, pytest.approx(row.low))  # a group counts once
    assert mean_row("a", "target", "m", [math.nan], ["w"], level=0.95, member=True).reason


def test_spearman_is_pearson_of_ranks_with_a_wider_fisher_interval() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=160)
    y = x + rng.normal(size=160)
    row, p_row = spearman_rows("a", x, y, level=0.95)
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    rho = np.corrcoef(*ranks)[0, 1]
    half = 1.959964 * math.sqrt((1 + rho**2 / 2) / 157)
    assert row.value == pytest.approx(rho, abs=1e-6)
    assert row.high == pytest.approx(math.tanh(math.atanh(rho) + half), abs=1e-6)
    assert p_row.value is not None
    assert p_row.value < 1e-10
    assert spearman_rows("a", x, np.ones(160), level=0.95)[0].reason
    assert spearman_rows("a", x[:3], y[:3], level=0.95)[0].value is None


def test_numbers_over_seeds_keep_the_two_spreads_apart() -> None:
    common = {
        "axes": {"rate": "0.3"},
        "attack": "loss",
        "model": "target",
        "metric": "auc",
        "part": None,
        "block": None,
    }
    rows = [
        {**common, "seed": 0, "value": 0.7, "low": 0.6, "high": 0.8, "reason": None},
        {**common, "seed": 1, "value": 0.9, "low": 0.8, "high": 1.0, "reason": None},
        {**common, "seed": 2, "value": None, "low": None, "high": None, "reason": "too few"},
    ]
    (row,) = over_seeds(rows)
    assert row["seed"] is None
    assert (row["value"], row["low"], row["high"]) == pytest.approx((0.8, 0.7, 0.9))
    assert (row["seed_low"], row["seed_high"], row["n_seeds"]) == (0.7, 0.9, 2)
    assert row["seed_sd"] == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert row["note"] == "1 of 3 seeds have no value (too few)"


def test_losses_are_those_of_either_side() -> None:
    records = pd.DataFrame({"record_id": list("abc"), "member": [True, False, False], "group": list("abc")})
    scores = pd.DataFrame(
        {"record_id": list("abc"), "attack": "loss", "model": "target", "score": [-1.0, -2.0, -4.0], "reason": None}
    )
    found = {row["metric"]: row["value"] for row in losses(records, scores, 0.95)}
    assert found == {"loss_members": 1.0, "loss_nonmembers": 3.0}


def test_the_bases_losses_follow_from_the_difference_of_log_likelihoods() -> None:
    records = pd.DataFrame({"record_id": list("abcd"), "member": [True, True, False, False], "group": list("abcd")})
    own = {"loss": [-1.0, -2.0, -4.0, -5.0], "reference-base": [0.5, 1.0, -1.0, 0.25]}
    scores = pd.concat(
        pd.DataFrame({"record_id": list("abcd"), "attack": name, "model": "target", "score": values, "reason": None})
        for name, values in own.items()
    )

    def found(scores: pd.DataFrame, reduce: str = "mean") -> dict[tuple[str, str], float]:
        manifest = {
            "attacks": [{"name": "loss", "settings": {}}, {"name": "reference-base", "settings": {"reduce": reduce}}]
        }
        told = log_likelihoods(Run(Path(), manifest, records, scores, [], {}))
        return {(row["model"], row["metric"]): row["value"] for row in losses(records, told, 0.95)}

    assert found(scores)["base", "loss_members"] == pytest.approx((1.5 + 3.0) / 2)
    assert found(scores)["base", "loss_nonmembers"] == pytest.approx((3.0 + 5.25) / 2)
    assert found(scores)["target", "loss_nonmembers"] == 4.5
    assert {model for model, _ in found(scores, "sum")} == {"target"}
    asked = pd.DataFrame({"record_id": ["d"], "attack": "loss", "model": "base", "score": [-9.0], "reason": None})
    assert found(pd.concat([scores, asked]))["base", "loss_nonmembers"] == 9.0  # asked of the base itself


def test_parts_go_by_when_a_record_was_seen_last() -> None:
    log = pd.DataFrame({"step": [1, 1, 2, 2, 3, 3, 4, 4], "epoch": [1] * 4 + [2] * 4, "record_id": list("abcddbca")})
    assert part_by_time(log, 2) == {"d": 0, "b": 0, "c": 1, "a": 1}


def test_of_p_values_over_seeds_the_largest_is_shown_and_small_ones_are_counted() -> None:
    common = {"axes": {}, "attack": "loss", "model": "target", "metric": "p_holm", "part": None, "block": None}
    rows = [{**common, "seed": i, "value": p, "reason": None} for i, p in enumerate((0.001, 0.05, 0.4))]
    (row,) = over_seeds(rows)
    assert (row["value"], row["n_small"], row["n_seeds"]) == (0.4, 2, 3)


def test_the_correlation_within_batches_has_an_interval_over_them() -> None:
    rng = np.random.default_rng(1)
    step = rng.normal(size=64)
    frame = pd.DataFrame(
        {
            "run": np.repeat(range(4), 16),
            "step_drop": step,
            "icp_drop": step + rng.normal(size=64),
            "n_target_tokens": 9,
        }
    )
    (row,) = (m for m in fidelity_metrics(frame, 0.95) if m.metric == "spearman_run")
    single = [part["step_drop"].corr(part["icp_drop"], method="spearman") for _, part in frame.groupby("run")]
    half = 3.182446 * np.std(single, ddof=1) / 2
    assert row.value == pytest.approx(np.mean(single))
    assert (row.low, row.high) == pytest.approx((np.mean(single) - half, np.mean(single) + half), abs=1e-4)


# ------------------------------------------------------------------------------------------------ weighted sums


def world(n: int = 60, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Records, and two score columns that go together."""
    rng = np.random.default_rng(seed)
    ids = [f"r{i}" for i in range(2 * n)]
    member = np.arange(2 * n) < n
    a = rng.normal(size=2 * n) + member
    b = a + rng.normal(scale=0.5, size=2 * n)
    records = pd.DataFrame({"record_id": ids, "member": member, "group": ids})
    return records, pd.DataFrame({"record_id": ids, "score": a}), pd.DataFrame({"record_id": ids, "score": b})


def measured(records: pd.DataFrame, scores: pd.DataFrame) -> Measured:
    both = records.merge(scores, on="record_id")
    area = auc(both.loc[both["member"], "score"], both.loc[~both["member"], "score"])
    return Measured(float(area), 0.5, auc_pulls(records, scores))


def test_the_error_of_a_difference_on_the_same_records_is_delongs() -> None:
    records, a, b = world()
    side = records["member"].to_numpy()
    found = difference({0: measured(records, a)}, {0: measured(records, b)})
    oracle = paired_delong(a["score"][side], a["score"][~side], b["score"][side], b["score"][~side])
    assert found is not None
    assert found.value == pytest.approx(oracle.difference, abs=1e-12)
    assert found.interval(0.95) == pytest.approx((oracle.interval.low, oracle.interval.high), abs=1e-6)
    assert found.error < 0.25  # far below that of two numbers that know nothing of each other


def test_the_error_of_a_difference_on_some_common_records_is_the_jackknifes() -> None:
    records, a, b = world(40)
    first = records.iloc[:65]  # members 0 to 39, non-members 40 to 64
    second = pd.concat([records.iloc[10:40], records.iloc[50:]])  # 30 of those members, 15 of those non-members

    def value(without: int | None) -> float:
        out = []
        for part, scores in ((first, a), (second, b)):
            kept = part[part["record_id"] != f"r{without}"].merge(scores, on="record_id")
            out.append(auc(kept.loc[kept["member"], "score"], kept.loc[~kept["member"], "score"]))
        return float(out[0] - out[1])

    found = difference({0: measured(first, a)}, {0: measured(second, b)})
    variance = 0.0
    for ids in (range(40), range(40, 80)):
        drawn = np.array([value(i) for i in ids])
        variance += (len(drawn) - 1) / len(drawn) * float(((drawn - drawn.mean()) ** 2).sum())
    assert found is not None
    assert found.error == pytest.approx(math.sqrt(variance), rel=0.05)
    apart = math.hypot(*(math.sqrt(sum(p * p for p in measured(r, s).pulls.values()))
                         for r, s in ((first, a), (second, b))))  # fmt: skip
    assert found.error < 0.9 * apart


def test_records_of_one_group_count_once() -> None:
    records, a, b = world()
    twice = pd.concat([records, records.assign(record_id=records["record_id"] + "x")])
    doubled = [pd.concat([s, s.assign(record_id=s["record_id"] + "x")]) for s in (a, b)]
    one = difference({0: measured(records, a)}, {0: measured(records, b)})
    two = difference(*({0: measured(twice, s)} for s in doubled))
    assert one is not None
    assert two is not None
    assert two.error == pytest.approx(one.error, rel=1e-9)


def test_pulls_of_a_mean_are_its_standard_error() -> None:
    values, groups = [1.0, 2.0, 4.0, 8.0, math.nan, 3.0], list("wxyzqw")
    row = mean_row("a", "target", "m", values, groups, level=0.95, member=True)
    pulls = mean_pulls(values, groups)
    error = math.sqrt(sum(p * p for p in pulls.values()))
    assert row.high - row.value == pytest.approx(3.182446 * error, abs=1e-5)  # four groups
    assert mean_pulls([1.0], ["w"]) is None


def test_numbers_without_pulls_are_taken_as_independent() -> None:
    found = contrast([{0: Measured(0.8, 0.03)}, {0: Measured(0.6, 0.04)}], [1, -1])
    assert found == Contrast(pytest.approx(0.2), pytest.approx(0.05))
    assert (found.sign(0.9999), found.sign(0.99999)) == (1, 0)  # 3.89 and 4.42 standard errors
    # a separation without any variance falls back on the numbers' own intervals
    flat = {"a": 0.0, "b": 0.0}
    found = contrast([{0: Measured(1.0, 0.03, flat)}, {0: Measured(0.5, 0.04, flat)}], [1, -1])
    assert found == Contrast(0.5, pytest.approx(0.05))
    assert contrast([{0: Measured(0.8, None)}, {0: Measured(0.6, 0.1)}], [1, -1]) == Contrast(pytest.approx(0.2), None)
    assert Contrast(9.0, None).sign(0.95) == 0


def test_more_seeds_make_the_error_smaller_unless_they_differ() -> None:
    alike = [Contrast(0.10 + 0.001 * i, 0.05) for i in range(4)]
    assert pooled(alike) == Contrast(pytest.approx(0.1015), pytest.approx(0.05 / 2))
    apart = [Contrast(value, 0.05) for value in (-0.2, 0.4)]
    error = np.std([-0.2, 0.4], ddof=1) / math.sqrt(2)
    found = pooled(apart)
    assert found == Contrast(pytest.approx(0.1), pytest.approx(error), freedom=1)
    # Student's interval: two seeds that differ by more than records explain tell their scatter poorly
    assert found.interval(0.95) == pytest.approx((0.1 - 12.7062 * error, 0.1 + 12.7062 * error), rel=1e-5)
    assert pooled([]) is None
    # only seeds that have both numbers count
    a, b = {0: Measured(0.8, 0.03), 1: Measured(0.2, 0.03)}, {0: Measured(0.6, 0.04)}
    assert difference(a, b) == Contrast(pytest.approx(0.2), pytest.approx(0.05))
    assert difference(a, {}) is None
