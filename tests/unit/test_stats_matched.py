"""Paired tests against scipy, against all sign patterns, and in simulation under ceilings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from indelible.stats.intervals import clopper_pearson
from indelible.stats.matched import TestResult, hodges_lehmann, mcnemar, sign_test, wilcoxon
from indelible.stats.paired import holm

SMALL = st.lists(st.integers(-4, 4), min_size=1, max_size=9)


def brute_wilcoxon(differences: list[int]) -> float:
    """Share of all sign patterns with a signed-rank sum at least as far from zero; zeros ranked, without effect."""
    d = np.array(differences, dtype=float)
    ranks = stats.rankdata(np.abs(d))
    signs = np.array(list(itertools.product([-1, 1], repeat=d.size)))
    sums = signs @ np.where(d == 0, 0, ranks)
    return float((np.abs(sums) >= abs(np.sign(d) @ ranks) - 1e-9).mean())


@given(SMALL)
def test_wilcoxon_is_the_share_of_sign_patterns(differences):
    result = wilcoxon(differences)
    assert result.p == pytest.approx(brute_wilcoxon(differences))
    assert (result.n, result.n_zero) == (len(differences), differences.count(0))
    assert wilcoxon([-x for x in differences]).p == pytest.approx(result.p)


def test_wilcoxon_without_ties_is_scipys():
    rng = np.random.default_rng(1)
    for n in (7, 32, 50):
        d = rng.normal(0.3, 1, n)
        assert wilcoxon(d).p == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)
        assert wilcoxon(d).method.endswith("Pratt, exact")
    d = rng.normal(0.1, 1, 200)
    assert wilcoxon(d).p == pytest.approx(stats.wilcoxon(d, correction=True, method="asymptotic").pvalue)


def test_wilcoxon_with_ties_and_zeros_agrees_with_scipys_large_sample_form():
    rng = np.random.default_rng(2)
    d = np.round(rng.normal(0.3, 1.2, 192))
    exact, rough = wilcoxon(d), stats.wilcoxon(d, zero_method="pratt", correction=True, method="asymptotic").pvalue
    assert exact.method.endswith("exact given ties")
    assert exact.n_zero > 20
    assert exact.p == pytest.approx(rough, rel=0.1)
    many = np.round(rng.normal(0.05, 1.2, 1500))
    assert "normal approximation" in wilcoxon(many).method
    assert 0.0 < wilcoxon(many).p < 1.0


def test_zeros_stay_in_the_ranking():
    """Ranked above 50 zeros, four small gains weigh nearly as much as three larger losses."""
    assert wilcoxon([1, 2, 3, 4, 5, 6]).p == pytest.approx(2 / 64)
    d = [0] * 50 + [1, 1, 1, 1, -2, -2, -2]
    dropped = stats.wilcoxon([x for x in d if x], zero_method="wilcox", correction=True, method="asymptotic").pvalue
    assert wilcoxon(d).p == pytest.approx(brute_wilcoxon_with_zeros([1, 1, 1, 1, -2, -2, -2], 50))
    assert abs(wilcoxon(d).p - dropped) > 0.05


def brute_wilcoxon_with_zeros(differences: list[int], n_zero: int) -> float:
    d = np.array(differences, dtype=float)
    ranks = stats.rankdata(np.abs(np.r_[np.zeros(n_zero), d]))[n_zero:]
    sums = np.array(list(itertools.product([-1, 1], repeat=d.size))) @ ranks
    return float((np.abs(sums) >= abs(np.sign(d) @ ranks) - 1e-9).mean())


def test_differences_of_logarithms_tie_although_their_last_bits_differ():
    n = 10_000
    gains = [math.log2(n) - math.log2(a) - (math.log2(n) - math.log2(3 * a)) for a in (1, 3, 7, 11, 2077, 3333)]
    assert len(set(gains)) > 1  # all are log2 3 bits on paper
    assert wilcoxon(gains).p == wilcoxon([1.0] * 6).p == pytest.approx(2 / 64)
    assert sign_test([gains[0] - gains[i] for i in range(6)]).n_zero == 6


def test_equal_conditions_have_p_one_and_missing_differences_none():
    for test in (wilcoxon, sign_test):
        assert test([0.0, 0.0, 0.0]).p == 1.0
        assert test([0.0, 0.0, 0.0]).n_zero == 3
        for bad in ([], [1.0, math.nan], [math.inf]):
            with pytest.raises(ValueError):
                test(bad)
    with pytest.raises(ValueError):
        hodges_lehmann([])


def test_wilcoxon_keeps_its_level_under_a_ceiling():
    """The same canaries measured twice, alike, most of them at the ceiling: at most 5% false alarms."""
    rng = np.random.default_rng(4)
    ability = rng.normal(12, 3, size=(1500, 24))
    first, second = (np.clip(np.round(ability + rng.normal(0, 2, ability.shape)), 0, 13) for _ in range(2))
    alarms = sum(wilcoxon(d).p <= 0.05 for d in first - second)
    assert ((first - second) == 0).mean() > 0.2
    assert 0.02 * 1500 < alarms <= stats.binom.ppf(0.9999, 1500, 0.05)


def test_hodges_lehmann_by_hand():
    centre, ends = hodges_lehmann([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 0.95)
    averages = sorted(
        (a + b) / 2 for a, b in itertools.combinations_with_replacement([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 2)
    )
    assert centre == averages[10]
    # T <= 0 has probability 1/64 = 0.016, T <= 1 has 2/64: only the outermost averages leave 2.5% on a side.
    assert (ends.low, ends.high) == (1.0, 32.0)
    _, ends = hodges_lehmann([1.0, 2.0, 4.0, 8.0, 16.0], 0.95)
    assert (ends.low, ends.high) == (-math.inf, math.inf)


@settings(max_examples=50)
@given(d=st.lists(st.integers(-60, 60), min_size=8, max_size=30), shift=st.integers(-50, 50))
def test_hodges_lehmann_moves_and_turns_with_the_data(d, shift):
    centre, ends = hodges_lehmann(d)
    assert ends.low <= centre <= ends.high
    moved, moved_ends = hodges_lehmann([x + shift for x in d])
    assert (moved, moved_ends.low, moved_ends.high) == (centre + shift, ends.low + shift, ends.high + shift)
    turned, turned_ends = hodges_lehmann([-x for x in d])
    assert (turned, turned_ends.low, turned_ends.high) == (-centre, -ends.high, -ends.low)


def test_hodges_lehmann_interval_inverts_the_test_without_ties():
    d = np.random.default_rng(6).normal(1.0, 2.0, 25)
    _, ends = hodges_lehmann(d, 0.95)
    for edge, inward in ((ends.low, 1e-6), (ends.high, -1e-6)):
        assert wilcoxon(d - edge - inward).p > 0.05
        assert wilcoxon(d - edge + inward).p <= 0.05


@pytest.mark.parametrize("grid", [0.0, 1.0])
def test_hodges_lehmann_interval_covers(grid):
    rng = np.random.default_rng(7)
    draws = rng.normal(0, 1.5, size=(1500, 16))
    draws = 3.0 + (np.round(draws / grid) * grid if grid else draws)
    held = sum(ends.low <= 3.0 <= ends.high for _, ends in map(hodges_lehmann, draws))
    assert held >= stats.binom.ppf(1e-4, 1500, 0.95)
    assert held < 1500


def test_hodges_lehmann_of_many_differences_uses_the_normal_law():
    d = np.random.default_rng(9).normal(0.5, 1, 1200)
    centre, ends = hodges_lehmann(d)
    exact = hodges_lehmann(d[:1000])[1]
    assert "normal" in ends.method
    assert ends.low < centre < ends.high
    assert (ends.high - ends.low) / (exact.high - exact.low) == pytest.approx(math.sqrt(1000 / 1200), rel=0.1)


def test_three_seeds_of_one_sign_are_no_proof():
    assert sign_test([2.0, 5.0, 0.1]) == TestResult(0.25, 3, 0, "sign test, exact, zeros left out")
    assert holm([sign_test([1.0] * 3).p, sign_test([1.0] * 10).p]) == [0.25, pytest.approx(2 * 2 / 1024)]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_sign_test_and_mcnemar_are_one_test(up, down, same):
    if up + down + same:
        signs = sign_test([1.0] * up + [-3.0] * down + [0.0] * same)
        assert signs.p == mcnemar(up, down).p == mcnemar(down, up).p
        assert (signs.n, signs.n_zero) == (up + down + same, same)


def test_mcnemar_by_hand():
    assert mcnemar(5, 0).p == pytest.approx(2 / 32)
    assert mcnemar(6, 1).p == pytest.approx(2 * 8 / 128)
    assert mcnemar(0, 0) == TestResult(1.0, 0, 0, "McNemar, exact")
    assert mcnemar(6, 1).n == 7
    for b, c in ((-1, 2), (1, 2.5)):
        with pytest.raises(ValueError):
            mcnemar(b, c)


def test_no_recovery_of_many_still_leaves_some_percent():
    """One-sided 95% upper limit for 0 of m, 1 - 0.05^(1/m): the upper end of a two-sided 90% interval."""
    for m, upper in ((100, 0.0295), (300, 0.0099)):
        assert clopper_pearson(0, m, 0.90).high == pytest.approx(1 - 0.05 ** (1 / m))
        assert clopper_pearson(0, m, 0.90).high == pytest.approx(upper, abs=6e-5)
