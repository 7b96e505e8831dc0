"""Exposure against formulas written out, brute-force enumeration, and the known numbers of sampled banks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from indelible.stats.exposure import (
    ceiling_bits,
    exposure_bits,
    exposure_interval,
    null_median_interval,
    summarise,
    uniformity_p,
)


def test_ceilings_of_the_two_candidate_sets():
    assert ceiling_bits(10_000) == pytest.approx(13.29, abs=0.005)
    assert ceiling_bits(20_000) == pytest.approx(14.29, abs=0.005)
    assert exposure_bits(1, 20_000) == ceiling_bits(20_000)
    assert exposure_bits(10_000, 10_000) == 0.0


@given(n=st.integers(2, 30_000), data=st.data())
def test_halving_the_rank_is_one_bit_and_a_sampled_share_gives_the_same(n, data):
    rank = data.draw(st.integers(1, n))
    bits = exposure_bits(rank, n)
    assert 0.0 <= bits <= ceiling_bits(n)
    above, decoys = rank - 1, n - 1
    assert bits == pytest.approx(-math.log2((above + 1) / (decoys + 1)), abs=1e-9)
    if 2 * rank <= n:
        assert bits - exposure_bits(2 * rank, n) == pytest.approx(1.0)


@pytest.mark.parametrize("rank", [0, 11, math.nan, -1])
def test_a_rank_that_does_not_exist_has_no_exposure(rank):
    with pytest.raises(ValueError, match="rank from 1 to 10"):
        exposure_bits(rank, 10)
    with pytest.raises(ValueError, match="rank"):
        exposure_interval(rank, 10)


def test_null_exposure_has_median_one_and_mean_1_44_bits():
    n = 10_000
    bits = np.array([exposure_bits(r, n) for r in range(1, n + 1)])
    assert np.median(bits) == pytest.approx(1.0, abs=0.001)
    assert bits.mean() == pytest.approx(1.44, abs=0.005)
    for k in range(1, 8):
        assert (bits >= k).mean() == pytest.approx(2.0**-k, abs=1 / n)


def test_summary_counts_the_ceiling_and_keeps_quartiles():
    top = ceiling_bits(10_000)
    s = summarise([top, top, exposure_bits(1, 10_000), 3.0, 1.0], top)
    assert (s.n, s.median, s.q1, s.q3, s.share_at_ceiling) == (5, top, 3.0, top, 0.6)
    with pytest.raises(ValueError, match="ceiling"):
        summarise([top + 0.5], top)
    with pytest.raises(ValueError):
        summarise([], top)
    with pytest.raises(ValueError):
        summarise([1.0, math.nan], top)


@pytest.mark.parametrize(("decoys", "bits"), [(999, 8.38), (9_999, 11.70), (19_999, 12.70)])
def test_first_place_in_a_bank_bounds_exposure_on_one_side(decoys, bits):
    ends = exposure_interval(1, decoys + 1, 0.95)
    assert ends.low == pytest.approx(bits, abs=0.006)
    assert ends.high == math.inf
    # The bound is where a bank without a single better decoy has become a 5% event.
    assert (1 - 2.0**-ends.low) ** decoys == pytest.approx(0.05)


@given(rank=st.integers(2, 400), level=st.sampled_from([0.8, 0.95, 0.99]))
def test_exposure_interval_is_the_binomial_interval_in_bits(rank, level):
    n = 400
    ends = exposure_interval(rank, n, level)
    expected = stats.binomtest(rank - 1, n - 1).proportion_ci(level, method="exact")
    assert ends.low == pytest.approx(-math.log2(expected.high), abs=1e-9)
    assert ends.high == pytest.approx(-math.log2(expected.low))
    assert ends.low <= exposure_bits(rank, n) <= ends.high
    assert math.copysign(1.0, ends.low) == 1.0


def test_exposure_interval_wants_whole_ranks():
    with pytest.raises(ValueError, match="whole"):
        exposure_interval(2.5, 100)


def test_coverage_of_the_exposure_interval_over_all_shares():
    """Exact, not simulated: the probability of the ranks whose interval holds the true share."""
    decoys = 999
    ends = [exposure_interval(rank, decoys + 1, 0.95) for rank in range(1, 60)]
    low, high = np.array([e.low for e in ends]), np.array([e.high for e in ends])
    worst = 1.0
    for true_bits in np.linspace(6.0, 14.0, 2001):
        holds = (low <= true_bits) & (true_bits <= high)
        covered = stats.binom.pmf(np.arange(59), decoys, 2.0**-true_bits)[holds].sum()
        worst = min(worst, float(covered))
    assert 0.935 < worst < 0.945  # 93.8% as the docstring says: two-sided 95% but for the one-sided end


def brute_median_law(n_canaries: int, n_candidates: int) -> dict[float, float]:
    """Probability of every value of the median exposure, by enumerating all tuples of ranks."""
    law: dict[float, float] = {}
    for ranks in itertools.product(range(1, n_candidates + 1), repeat=n_canaries):
        median = round(float(np.median(np.log2(n_candidates) - np.log2(ranks))), 9)
        law[median] = law.get(median, 0.0) + n_candidates**-n_canaries
    return law


@pytest.mark.parametrize(("n_canaries", "n_candidates"), [(1, 40), (2, 40), (3, 12), (4, 8), (5, 6), (6, 4)])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_null_median_interval_against_enumeration(n_canaries, n_candidates, level):
    law = brute_median_law(n_canaries, n_candidates)
    ends = null_median_interval(n_canaries, n_candidates, level)
    tail = (1 - level) / 2 + 1e-12
    values = sorted(law)
    # The ends are the tightest attainable medians that leave at most `tail` outside on each side.
    low = max(v for v in values if sum(law[w] for w in values if w < v) <= tail)
    high = min(v for v in values if sum(law[w] for w in values if w > v) <= tail)
    assert (ends.low, ends.high) == pytest.approx((low, high), abs=1e-8)


def test_null_median_of_64_canaries_is_the_known_one():
    for n_candidates in (10_000, 20_000):
        ends = null_median_interval(64, n_candidates, 0.95)
        assert ends.low == pytest.approx(0.69, abs=0.006)
        assert ends.high == pytest.approx(1.39, abs=0.006)


@pytest.mark.parametrize("n_canaries", [15, 16, 64])
def test_null_median_interval_holds_in_simulation(n_canaries):
    rng = np.random.default_rng(5)
    ranks = rng.integers(1, 10_001, size=(20_000, n_canaries))
    medians = np.median(np.log2(10_000) - np.log2(ranks), axis=1)
    ends = null_median_interval(n_canaries, 10_000, 0.95)
    inside = int(((medians >= ends.low - 1e-9) & (medians <= ends.high + 1e-9)).sum())
    assert 0.944 < inside / 20_000 < 0.956


@settings(max_examples=25)
@given(n=st.integers(1, 300), n_candidates=st.sampled_from([100, 10_000, 20_000]))
def test_null_median_interval_narrows_with_confidence_and_holds_one_bit(n, n_candidates):
    wide, narrow = (null_median_interval(n, n_candidates, level) for level in (0.99, 0.8))
    assert 0.0 <= wide.low <= narrow.low <= 1.0 <= narrow.high <= wide.high <= ceiling_bits(n_candidates)


def test_null_median_interval_refuses_nothing_to_take_a_median_of():
    with pytest.raises(ValueError):
        null_median_interval(0, 100)
    with pytest.raises(ValueError):
        null_median_interval(4, 1)


def test_uniformity_p_is_the_chi_squared_test_of_the_sum():
    rng = np.random.default_rng(3)
    for shift in (1.0, 0.6):
        ranks = np.maximum(1, (rng.integers(1, 20_001, size=40) * shift).astype(int))
        total = sum(exposure_bits(r, 20_000) for r in ranks)
        expected = stats.chi2.sf(2 * math.log(2) * total, 2 * 40)
        p = uniformity_p(ranks, 20_000, 0, n_draws=40_000)
        assert p == pytest.approx(expected, abs=5 * math.sqrt(expected / 40_000) + 2e-4)


def test_uniformity_p_is_even_under_the_null_and_never_zero():
    rng = np.random.default_rng(8)
    p = [uniformity_p(rng.integers(1, 1001, size=12), 1000, seed, n_draws=199) for seed in range(1000)]
    rejected = int((np.array(p) <= 0.05).sum())
    assert stats.binom.ppf(1e-4, 1000, 0.05) <= rejected <= stats.binom.ppf(1 - 1e-4, 1000, 0.05)
    assert uniformity_p([1] * 16, 10_000, 0) == 1e-4
    assert uniformity_p([10_000] * 16, 10_000, 0) == 1.0


def test_uniformity_p_counts_equal_sums_against_a_finding():
    """One canary of two candidates in first place: chance gives the same sum half of the time."""
    assert uniformity_p([1], 2, 0, n_draws=9999) == pytest.approx(0.5, abs=0.02)
    assert uniformity_p([1, 4], 4, 1, n_draws=9999) == pytest.approx(8 / 16, abs=0.02)  # products of at most 4


def test_uniformity_p_depends_on_the_seed_alone():
    ranks = [3, 500, 9_000, 77]
    assert uniformity_p(ranks, 10_000, 7) == uniformity_p(list(reversed(ranks)), 10_000, 7)
    assert len({uniformity_p(ranks, 10_000, seed) for seed in range(4)}) > 1
    with pytest.raises(ValueError):
        uniformity_p([0, 3], 10_000, 7)
    with pytest.raises(ValueError):
        uniformity_p([], 10_000, 7)
