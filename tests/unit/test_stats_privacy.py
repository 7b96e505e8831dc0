"""The one-run bound against its closed form, published numbers, and simulated private and leaking mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from indelible.stats.privacy import OneRunBound, one_run_bound, one_run_epsilon, one_run_p_value


def p_by_hand(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The theorem's bound with every probability summed separately."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, w) * q**w * (1 - q) ** (r - w) for w in range(r + 1)]
    alpha = max((sum(mass[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, sum(mass[v:]) + 2 * m * delta * alpha)


@given(
    r=st.integers(1, 40),
    share=st.floats(0, 1),
    extra=st.integers(0, 100),
    epsilon=st.floats(0, 6),
    delta=st.sampled_from([0.0, 1e-5, 1e-3, 0.1]),
)
def test_p_value_is_the_formula(r, share, extra, epsilon, delta):
    v = round(share * r)
    assert one_run_p_value(r + extra, r, v, epsilon, delta) == pytest.approx(p_by_hand(r + extra, r, v, epsilon, delta))


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-3, 0.594), (1e-5, 2.165), (0.0, 2.172)])
def test_published_code_on_1000_coins_100_guesses_95_right(delta, epsilon):
    """A public tool gave 2.162 at delta 1e-3, because it left the delta term too small by orders of magnitude."""
    assert one_run_epsilon(1000, 100, 95, delta, 0.05) == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize(("r", "epsilon"), [(20, 1.82), (50, 2.78), (100, 3.49), (500, 5.11), (1000, 5.81)])
def test_ceiling_of_right_guesses_only(r, epsilon):
    assert one_run_epsilon(r, r, r, 0.0, 0.05) == pytest.approx(epsilon, abs=0.006)
    q = 0.05 ** (1 / r)
    assert one_run_epsilon(2 * r, r, r, 0.0, 0.05) == pytest.approx(math.log(q / (1 - q)))


@settings(max_examples=60)
@given(r=st.integers(5, 300), share=st.floats(0.5, 1), significance=st.sampled_from([0.01, 0.05, 0.2]))
def test_without_delta_the_bound_solves_the_binomial_tail(r, share, significance):
    v = max(1, round(share * r))
    epsilon = one_run_epsilon(r, r, v, 0.0, significance)
    if stats.binom.sf(v - 1, r, 0.5) > significance:
        assert epsilon == 0.0
    else:
        root = optimize.brentq(lambda e: stats.binom.sf(v - 1, r, 1 / (1 + math.exp(-e))) - significance, 0, 40)
        assert epsilon == pytest.approx(root, abs=1e-6)


@settings(max_examples=60)
@given(r=st.integers(5, 120), share=st.floats(0.5, 1), delta=st.sampled_from([1e-6, 1e-4, 1e-2]))
def test_delta_only_lowers_the_bound_and_the_bound_is_rejected_at_its_level(r, share, delta):
    v = max(1, round(share * r))
    epsilon = one_run_epsilon(3 * r, r, v, delta)
    assert epsilon <= one_run_epsilon(3 * r, r, v, 0.0) + 1e-9
    if epsilon > 0:
        assert one_run_p_value(3 * r, r, v, epsilon, delta) <= 0.05
        assert one_run_p_value(3 * r, r, v, epsilon + 1e-6, delta) > 0.05
    if v < r:
        assert one_run_epsilon(3 * r, r, v + 1, delta) >= epsilon


@pytest.mark.parametrize(
    "arguments",
    [(10, 11, 5, 0.0), (10, 5, 6, 0.0), (10, 0, 0, 0.0), (10, 5, -1, 0.0), (10, 5, 5, 1.0), (10, 5, 5, -0.1)],
)
def test_impossible_counts(arguments):
    with pytest.raises(ValueError):
        one_run_epsilon(*arguments)
    m, r, v, delta = arguments
    with pytest.raises(ValueError):
        one_run_p_value(m, r, v, 1.0, delta)


def test_rates_out_of_range():
    for significance in (0.0, 1.0):
        with pytest.raises(ValueError):
            one_run_epsilon(10, 5, 5, 0.0, significance)
    with pytest.raises(ValueError):
        one_run_p_value(10, 5, 5, -0.5, 0.0)


def coins(m: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(m) < 0.5


def test_leaking_scores_reach_the_ceiling_and_turned_ones_show_nothing():
    included = coins(100)
    bound = one_run_bound(included * 1.0 + np.linspace(0, 0.5, 100), list(included), dose=1, n_guesses=50)
    assert (bound.m, bound.r, bound.v, bound.refused) == (100, 50, 50, None)
    assert bound.epsilon == bound.ceiling == pytest.approx(2.785, abs=1e-3)
    assert "replace one row" in bound.adjacency
    turned = one_run_bound(-(included * 1.0), included, dose=1, n_guesses=50)
    assert (turned.v, turned.epsilon) == (0, 0.0)


def test_low_scores_are_guessed_out_and_high_ones_in():
    #         out   out   (abstained)        in    in
    scores = [0.0, 0.1] + [0.5] * 16 + [0.8, 0.9]
    included = [False, True] + [True, False] * 8 + [True, True]
    with pytest.raises(ValueError, match="even"):
        one_run_bound(scores, included, dose=1, n_guesses=3)
    bound = one_run_bound(scores, included, dose=1, n_guesses=4, significance=0.2)
    assert (bound.r, bound.v) == (4, 3)


def test_constant_scores_show_nothing():
    included = coins(200)
    bound = one_run_bound(np.zeros(200), included, dose=1, n_guesses=100)
    assert (bound.v, bound.epsilon) == (0, 0.0)


@settings(max_examples=60)
@given(
    scores=st.lists(st.integers(0, 3), min_size=16, max_size=16),
    included=st.lists(st.booleans(), min_size=16, max_size=16).filter(lambda x: 3 <= sum(x) <= 13),
    seed=st.integers(0, 10),
)
def test_ties_are_broken_against_us(scores, included, seed):
    """No other order among equal scores has fewer right guesses."""
    bound = one_run_bound(scores, included, dose=1, n_guesses=8)
    order = np.lexsort((np.random.default_rng(seed).random(16), scores))
    inside = np.array(included)
    right = int((~inside[order[:4]]).sum() + inside[order[-4:]].sum())
    assert bound.v is not None
    assert bound.v <= right


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dose": 2}, "2 times"),
        ({"dose": 0}, "0 times"),
        ({"included": [True] * 40}, "40 of 40"),
        ({"inclusion_probability": 0.25}, "0.25"),
        ({"scores": [math.nan] + [0.0] * 39}, "1 of 40 coin canaries have no score"),
        ({"scores": [math.inf] + [0.0] * 39}, "no score"),
        ({"n_guesses": 42}, "42 guesses for 40 coins"),
        ({"n_guesses": 4}, "plan more"),
        ({"delta": 0.01}, "delta 0.01"),
        ({"scores": [], "included": []}, "guesses for 0 coins"),
    ],
)
def test_broken_assumptions_are_refused_with_the_reason(change, reason):
    fine = {"scores": np.arange(40.0), "included": list(coins(40)), "dose": 1, "n_guesses": 20}
    assert one_run_bound(**fine).refused is None
    bound = one_run_bound(**(fine | change))
    assert isinstance(bound, OneRunBound)
    assert bound.refused is not None
    assert reason in bound.refused
    assert (bound.epsilon, bound.v) == (None, None)


def test_every_broken_assumption_is_named():
    bound = one_run_bound([0.0, math.nan], [True, False], dose=3, n_guesses=4)
    assert bound.refused is not None
    assert bound.refused.count(";") == 2


def test_scores_and_coins_must_match():
    for scores, included in (([1.0], [True, False]), ([[1.0]], [[True]]), ([1.0, 2.0], [0.3, 1.0])):
        with pytest.raises(ValueError):
            one_run_bound(scores, included, dose=1, n_guesses=2)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_null_calibration(tied, delta):
    """Scores that know nothing of the coins give a positive bound in at most 5% of 2000 audits."""
    rng = np.random.default_rng(11)
    alarms = 0
    for _ in range(2000):
        included = rng.random(64) < 0.5
        scores = rng.normal(size=64)
        bound = one_run_bound(np.round(scores) if tied else scores, included, dose=1, n_guesses=32, delta=delta)
        alarms += bound.epsilon is not None and bound.epsilon > 0
    assert alarms <= stats.binom.ppf(0.9999, 2000, 0.05)
    if not tied and delta == 0.0:
        assert alarms >= 0.02 * 2000  # not empty either: 32 guesses allow a rate of 2.5%


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bound_stays_below_the_true_epsilon_of_randomised_response(epsilon):
    """Each coin is reported right with probability q: exactly epsilon-private, and the hardest case for the bound."""
    rng = np.random.default_rng(12)
    q = 1 / (1 + math.exp(-epsilon))
    exceeded, bounds = 0, []
    for _ in range(1000):
        included = rng.random(200) < 0.5
        reported = np.where(rng.random(200) < q, included, ~included)
        bound = one_run_bound(reported + rng.uniform(0, 0.5, 200), included, dose=1, n_guesses=120)
        if bound.epsilon is not None:
            bounds.append(bound.epsilon)
            exceeded += bound.epsilon > epsilon
    assert exceeded <= stats.binom.ppf(0.9999, 1000, 0.05)
    assert exceeded >= 10
    assert np.median(bounds) > 0.3 * epsilon
