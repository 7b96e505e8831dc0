"""Intervals, tests and paired comparisons against formulas written out, scipy, and small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from indelible.stats.bootstrap import bootstrap_auc, bootstrap_tpr, cluster_weights
from indelible.stats.intervals import (
    auc_p_value,
    clopper_pearson,
    cluster_bootstrap_auc,
    delong,
    tpr_interval,
)
from indelible.stats.paired import holm, paired_cluster_bootstrap, paired_delong, smallest_effect
from indelible.stats.roc import auc, operating_point


def kernel(members: np.ndarray, nonmembers: np.ndarray) -> np.ndarray:
    return (members[:, None] > nonmembers) + 0.5 * (members[:, None] == nonmembers)


def brute_covariance(a: np.ndarray, b: np.ndarray) -> float:
    """DeLong's covariance of two AUCs from their m x n comparison tables."""
    m, n = a.shape
    s10 = np.cov(a.mean(axis=1), b.mean(axis=1))[0, 1]
    s01 = np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1]
    return s10 / m + s01 / n


def plausible(hits: int, n: int, rate: float) -> bool:
    """Hits are within the range that a true rate gives in all but 1 of 5000 runs."""
    low, high = stats.binom.interval(1 - 2e-4, n, rate)
    return low <= hits <= high


def test_clopper_pearson_is_scipys():
    for k, n in ((0, 10), (3, 10), (10, 10), (1, 300)):
        ends = clopper_pearson(k, n, 0.95)
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert (ends.low, ends.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError):
        clopper_pearson(3, 2)


def test_delong_is_the_formula_written_out():
    rng = np.random.default_rng(0)
    members, nonmembers = np.round(rng.normal(0.7, 1, 23), 1), np.round(rng.normal(0, 1, 31), 1)
    area, ends = delong(members, nonmembers, 0.9)
    table = kernel(members, nonmembers)
    error = np.sqrt(brute_covariance(table, table)) / (area * (1 - area))
    centre, z = np.log(area / (1 - area)), stats.norm.ppf(0.95)
    expected = [1 / (1 + np.exp(-(centre + s * z * error))) for s in (-1, 1)]
    assert area == pytest.approx(table.mean())
    assert (ends.low, ends.high) == pytest.approx(expected)


def test_complete_separation_and_constants_have_no_zero_width_interval():
    members, nonmembers = np.arange(40) + 100.0, np.arange(50.0)
    area, ends = delong(members, nonmembers)
    assert area == 1.0
    assert ends.low == pytest.approx(0.025 ** (1 / 40))
    assert ends.high == 1.0
    assert delong(nonmembers, members)[1].high == pytest.approx(1 - 0.025 ** (1 / 40))
    area, ends = delong(np.zeros(30), np.zeros(30))
    assert ends.low < 0.4 < area < 0.6 < ends.high
    assert delong([1.0], [0.0])[1].low < 0.5
    groups = [str(i // 2) for i in range(40)], [str(i // 2) for i in range(50)]
    assert cluster_bootstrap_auc(members, nonmembers, *groups).low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize("shift", [0.0, 2.5])
def test_delong_covers_the_true_auc(shift):
    rng, n_runs, hits = np.random.default_rng(1), 1000, 0
    truth = stats.norm.cdf(shift / np.sqrt(2))
    for _ in range(n_runs):
        _, ends = delong(rng.normal(shift, 1, 100), rng.normal(0, 1, 120))
        hits += ends.low <= truth <= ends.high
    assert plausible(hits, n_runs, 0.95)


def test_tpr_interval_covers_the_tpr_at_its_threshold():
    rng, n_runs, hits = np.random.default_rng(2), 1000, 0
    for _ in range(n_runs):
        members, nonmembers = rng.normal(1, 1, 80), rng.normal(0, 1, 100)
        point = operating_point(members, nonmembers, 0.1)
        ends = tpr_interval(point, members, nonmembers)
        hits += ends.low <= stats.norm.sf(point.threshold - 1) <= ends.high
    assert hits >= stats.binom.ppf(1e-4, n_runs, 0.95)  # exact means at least, being conservative is allowed


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 15), st.integers(12, 25), st.integers(0, 1000))
def test_weighted_statistics_equal_those_of_the_repeated_records(n_members, n_nonmembers, seed):
    rng = np.random.default_rng(seed)
    members, nonmembers = rng.integers(0, 5, n_members) * 1.0, rng.integers(0, 5, n_nonmembers) * 1.0
    w_m = cluster_weights([str(i // 2) for i in range(n_members)], None, 5, rng)
    w_n = cluster_weights([str(i) for i in range(n_nonmembers)], None, 5, rng)
    areas = bootstrap_auc(members, nonmembers, w_m, w_n)
    rates = bootstrap_tpr(members, nonmembers, w_m, w_n, 0.2)
    for b in range(5):
        again_m, again_n = np.repeat(members, w_m[b]), np.repeat(nonmembers, w_n[b])
        assert areas[b] == pytest.approx(auc(again_m, again_n))
        assert rates[b] == pytest.approx(operating_point(again_m, again_n, 0.2).tpr)


def test_cluster_weights_draw_whole_groups_within_strata():
    rng = np.random.default_rng(3)
    groups, strata = ["a", "a", "b", "c", "c", "d"], [0, 0, 0, 1, 1, 1]
    w = cluster_weights(groups, strata, 200, rng)
    assert (w[:, 0] == w[:, 1]).all()
    assert (w[:, 3] == w[:, 4]).all()
    assert (w[:, 0] + w[:, 2] == 2).all()
    assert (w[:, 3] + w[:, 5] == 2).all()


def test_bootstrap_and_delong_agree_without_groups_and_differ_with_them():
    rng = np.random.default_rng(4)
    members, nonmembers = rng.normal(0.5, 1, 200), rng.normal(0, 1, 200)
    alone = [str(i) for i in range(200)]
    _, exact = delong(members, nonmembers)
    ends = cluster_bootstrap_auc(members, nonmembers, alone, alone, seed=1)
    assert (ends.low, ends.high) == pytest.approx((exact.low, exact.high), abs=0.012)
    # Every record four times: the bootstrap over groups sees through it.
    fours = [str(i // 4) for i in range(800)]
    m4, n4 = np.repeat(members, 4), np.repeat(nonmembers, 4)
    ends4 = cluster_bootstrap_auc(m4, n4, fours, fours, seed=1)
    assert (ends4.low, ends4.high) == pytest.approx((ends.low, ends.high), abs=0.012)
    _, naive = delong(m4, n4)
    assert naive.high - naive.low < 0.6 * (ends4.high - ends4.low)


def test_p_value_is_mann_whitney_for_single_records_and_a_permutation_for_groups():
    rng = np.random.default_rng(5)
    members, nonmembers = np.round(rng.normal(0.3, 1, 60), 1), np.round(rng.normal(0, 1, 70), 1)
    p, test = auc_p_value(members, nonmembers)
    assert test == "Mann-Whitney"
    assert p == pytest.approx(stats.mannwhitneyu(members, nonmembers).pvalue)
    assert auc_p_value(members, nonmembers, [f"m{i}" for i in range(60)], [f"n{i}" for i in range(70)])[0] == p
    pairs = [f"m{i // 2}" for i in range(60)], [f"n{i // 2}" for i in range(70)]
    p_grouped, test = auc_p_value(members, nonmembers, *pairs, seed=1)
    assert "permutation" in test
    assert p_grouped == pytest.approx(p, abs=0.06)  # these groups hold independent records
    assert auc_p_value(np.zeros(9), np.zeros(9))[0] == 1.0
    far, _ = auc_p_value(members - 9, nonmembers, *pairs, n_permutations=99)
    assert far == pytest.approx(0.01)  # add-one: never zero, and far below one half counts as far


def test_group_permutation_keeps_its_level_where_mann_whitney_does_not():
    rng, n_runs = np.random.default_rng(6), 400
    groups_m, groups_n = [f"m{i // 5}" for i in range(100)], [f"n{i // 5}" for i in range(100)]
    grouped = naive = 0
    for i in range(n_runs):
        members, nonmembers = (np.repeat(rng.normal(size=20), 5) + 0.5 * rng.normal(size=100) for _ in range(2))
        grouped += auc_p_value(members, nonmembers, groups_m, groups_n, n_permutations=199, seed=i)[0] <= 0.05
        naive += auc_p_value(members, nonmembers)[0] <= 0.05
    assert plausible(grouped, n_runs, 0.05)
    assert naive > 0.2 * n_runs


def test_paired_delong_is_the_covariance_form():
    rng = np.random.default_rng(7)
    shared = rng.normal(size=60)
    a, b = shared + rng.normal(size=60), shared + rng.normal(size=60)
    a[:25] += 0.8
    result = paired_delong(a[:25], a[25:], b[:25], b[25:])
    ta, tb = kernel(a[:25], a[25:]), kernel(b[:25], b[25:])
    variance = brute_covariance(ta, ta) + brute_covariance(tb, tb) - 2 * brute_covariance(ta, tb)
    half = stats.norm.ppf(0.975) * np.sqrt(variance)
    assert result.difference == pytest.approx(ta.mean() - tb.mean())
    assert (result.interval.low, result.interval.high) == pytest.approx(
        (result.difference - half, result.difference + half)
    )
    assert result.p_value == pytest.approx(2 * stats.norm.sf(abs(result.difference) / np.sqrt(variance)))
    swapped = paired_delong(b[:25], b[25:], a[:25], a[25:])
    assert swapped.interval.low == pytest.approx(-result.interval.high)
    groups = [str(i) for i in range(25)], [str(i) for i in range(35)]
    boot = paired_cluster_bootstrap(a[:25], a[25:], b[:25], b[25:], *groups)
    assert (boot.interval.low, boot.interval.high) == pytest.approx(
        (result.interval.low, result.interval.high), abs=0.04
    )


def test_paired_comparison_with_no_variance():
    members, nonmembers = np.arange(30) + 50.0, np.arange(30.0)
    same = paired_delong(members, nonmembers, members, nonmembers)
    assert (same.difference, same.p_value) == (0.0, 1.0)
    assert same.interval.low < 0 < same.interval.high
    gap = paired_delong(members, nonmembers, np.zeros(30), np.zeros(30))
    assert gap.difference == 0.5
    assert 0 < gap.interval.low < 0.5
    assert gap.p_value is None
    # A control that is constant by construction (a ratio to itself) is an AUC of one half.
    noisy = paired_delong(np.r_[members, 3.5], nonmembers, np.zeros(31), np.zeros(30))
    assert noisy.auc_b == 0.5
    assert noisy.interval.low > 0


def test_paired_interval_covers_zero_when_nothing_differs():
    rng, n_runs, hits = np.random.default_rng(8), 1000, 0
    for _ in range(n_runs):
        shared = rng.normal(size=150)
        a, b = (shared + 0.5 * rng.normal(size=150) for _ in range(2))
        ends = paired_delong(a[:70], a[70:], b[:70], b[70:]).interval
        hits += ends.low <= 0 <= ends.high
    assert plausible(hits, n_runs, 0.95)


def test_holm_by_hand_and_by_definition():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    for bad in ([float("nan")], [1.5]):
        with pytest.raises(ValueError):
            holm(bad)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, alpha):
    rejected = set()
    for step, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] * (len(p_values) - step) > alpha:
            break
        rejected.add(int(i))
    assert {i for i, p in enumerate(holm(p_values)) if p <= alpha} == rejected


def test_smallest_effect_is_found_with_the_stated_power():
    area = smallest_effect(100, 150, 0.05, 0.8)
    shift = np.sqrt(2) * stats.norm.ppf(area)
    rng, n_runs = np.random.default_rng(9), 1000
    found = sum(auc_p_value(rng.normal(shift, 1, 100), rng.normal(0, 1, 150))[0] <= 0.05 for _ in range(n_runs))
    # The variance is that of exponential scores, so for normal ones the power is only near 0.8.
    assert 0.74 <= found / n_runs <= 0.86


def test_smallest_effect_moves_the_right_way():
    assert smallest_effect(300, 400) < smallest_effect(100, 100) < smallest_effect(20, 20)
    assert smallest_effect(100, 100, n_tests=10) > smallest_effect(100, 100)
    assert smallest_effect(100, 100, n_tests=5) == pytest.approx(smallest_effect(100, 100, alpha=0.01))
    assert smallest_effect(2, 2) is None
    with pytest.raises(ValueError):
        smallest_effect(0, 5)
