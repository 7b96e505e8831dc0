"""ROC, AUC and operating points, against scikit-learn, brute force, and the defects other tools have shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc

from indelible.stats.roc import (
    auc,
    bounded_operating_point,
    group_maxima,
    nonmembers_needed,
    operating_point,
    placements,
    population_fpr_upper,
    roc_curve,
)

# Few distinct values, so that ties are the rule.
TIED = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)
ANY = st.lists(st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)), min_size=1, max_size=40)


def brute_auc(members: list[float], nonmembers: list[float]) -> float:
    return float(np.mean([(m > n) + 0.5 * (m == n) for m in members for n in nonmembers]))


@settings(max_examples=100, deadline=None)
@given(st.one_of(TIED, ANY), st.one_of(TIED, ANY), st.randoms())
def test_auc_and_curve_agree_with_brute_force_and_sklearn(members, nonmembers, random):
    area = auc(members, nonmembers)
    assert area == pytest.approx(brute_auc(members, nonmembers), abs=1e-12)
    labels = [1] * len(members) + [0] * len(nonmembers)
    assert area == pytest.approx(roc_auc_score(labels, members + nonmembers), abs=1e-12)
    assert placements(members, nonmembers)[1].mean() == pytest.approx(area, abs=1e-12)

    curve = roc_curve(members, nonmembers)
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(area, abs=1e-12)
    fpr, tpr, _ = sklearn_roc(labels, members + nonmembers, drop_intermediate=False)
    assert curve.fpr == pytest.approx(fpr, abs=1e-12)
    assert curve.tpr == pytest.approx(tpr, abs=1e-12)

    random.shuffle(members)
    assert auc(members, nonmembers) == pytest.approx(area, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(TIED, st.lists(st.integers(-3, 3).map(float), min_size=10, max_size=60), st.sampled_from([0.1, 0.2, 0.35]))
def test_operating_point_is_the_best_admissible_one(members, nonmembers, fpr):
    point = operating_point(members, nonmembers, fpr)
    assert point.reason is None
    assert point.realised_fpr <= fpr + 1e-12
    assert point.threshold in nonmembers
    m, n = np.array(members), np.array(nonmembers)
    candidates = np.unique(np.concatenate([m, n]))
    admissible = [np.mean(m > t) for t in candidates if np.mean(n > t) <= fpr + 1e-12]
    assert point.tpr == pytest.approx(max(admissible))
    assert (point.tp, point.fp) == ((m > point.threshold).sum(), (n > point.threshold).sum())


def test_constant_scores_reach_no_tpr_and_auc_one_half():
    members, nonmembers = np.ones(50), np.ones(100)
    assert auc(members, nonmembers) == 0.5
    assert operating_point(members, nonmembers, 0.01).tpr == 0.0


def test_a_tied_block_of_nonmembers_is_not_admitted():
    nonmembers = np.r_[np.zeros(80), np.ones(20)]
    point = operating_point(np.ones(50), nonmembers, 0.01)
    assert (point.threshold, point.tpr, point.realised_fpr) == (1.0, 0.0, 0.0)
    # At 20% the block may go in whole, and then every member does.
    assert operating_point(np.ones(50), nonmembers, 0.2).tpr == 1.0


def test_a_tied_block_is_kept_whole_on_the_curve():
    nonmembers = np.r_[np.zeros(80), np.ones(20)]
    assert auc(np.ones(50), nonmembers) == pytest.approx(0.9)
    curve = roc_curve(np.ones(50), nonmembers)
    assert curve.fpr.max() == 1.0
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(0.9)
    rng = np.random.default_rng(0)
    m, n = np.round(rng.normal(1, 1, 300) * 4) / 4, np.round(rng.normal(0, 1, 300) * 4) / 4
    curve = roc_curve(m, n)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(roc_auc_score([1] * 300 + [0] * 300, np.r_[m, n]))


def test_separated_scores_reach_full_tpr_at_low_fpr():
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(10, 1, 100), rng.normal(0, 1, 100)
    assert operating_point(members, nonmembers, 0.01).tpr == 1.0
    # A tied block of 1.5% cannot go in at 1%, even though 1.5% is the nearest rate on the curve.
    nonmembers = np.r_[np.full(3, 5.0), np.zeros(197)]
    members = np.r_[np.full(60, 5.0), np.full(40, -1.0)]
    point = operating_point(members, nonmembers, 0.01)
    assert (point.tpr, point.realised_fpr) == (0.0, 0.0)


@pytest.mark.parametrize(("fpr", "enough"), [(0.1, 10), (0.01, 100), (0.001, 1000)])
def test_operating_point_needs_one_over_fpr_nonmembers(fpr, enough):
    scores = np.arange(enough, dtype=float)
    assert operating_point([5.0], scores, fpr).reason is None
    point = operating_point([5.0], scores[1:], fpr)
    assert point.tpr is None
    assert point.threshold is None
    assert str(enough) in point.reason


@pytest.mark.parametrize(("fpr", "needed"), [(0.1, 29), (0.05, 59), (0.01, 299), (0.001, 2995)])
def test_bounded_point_needs_enough_nonmembers(fpr, needed):
    assert nonmembers_needed(fpr) == needed
    scores = np.arange(needed, dtype=float)
    point = bounded_operating_point([1e9], scores, fpr)
    assert point.fpr_upper <= fpr
    assert point.threshold == scores[-1]
    short = bounded_operating_point([1e9], scores[1:], fpr)
    assert short.tpr is None
    assert str(needed) in short.reason


def test_bounded_point_uses_the_lowest_threshold_its_bound_allows():
    rng = np.random.default_rng(1)
    nonmembers = rng.normal(size=1000)
    point = bounded_operating_point(rng.normal(2, 1, 50), nonmembers, 0.01)
    rank = point.fp + 1
    assert population_fpr_upper(rank, 1000) == point.fpr_upper <= 0.01 < population_fpr_upper(rank + 1, 1000)


def test_population_fpr_bound_is_the_beta_quantile_and_holds():
    assert population_fpr_upper(1, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert population_fpr_upper(3, 100) == pytest.approx(stats.beta.ppf(0.95, 3, 98))
    rng, n_runs = np.random.default_rng(2), 2000
    held = 0
    for _ in range(n_runs):
        # Rounded scores: with ties the bound must hold all the same.
        nonmembers = np.round(rng.normal(size=100), 1)
        point = operating_point([0.0], nonmembers, 0.05)
        true_fpr = stats.norm.sf(point.threshold + 0.05)
        held += true_fpr <= point.fpr_upper
    assert held >= stats.binom.ppf(1e-4, n_runs, 0.95)


def test_false_support_at_one_percent_is_rarer_than_the_nominal_error():
    """Without any signal: how often does the lower end of the bounded TPR exceed 1%? Exact, by the Beta law."""
    rng = np.random.default_rng(3)
    for m, n in ((50, 299), (100, 300), (300, 400), (1000, 1000)):
        ranks = [j for j in range(1, n) if population_fpr_upper(j, n) <= 0.01]
        true_fpr = rng.beta(max(ranks), n + 1 - max(ranks), size=20000)
        tp = rng.binomial(m, true_fpr)
        low = stats.beta.ppf(0.025, tp, m - tp + 1)
        assert np.mean(low > 0.01) <= 0.025


def test_groups_count_once_for_the_bound():
    rng = np.random.default_rng(4)
    nonmembers = rng.normal(size=300)
    groups = [f"g{i // 3}" for i in range(300)]
    assert group_maxima(nonmembers, groups).size == 100
    assert bounded_operating_point([3.0], nonmembers, 0.01, groups).tpr is None
    assert bounded_operating_point([3.0], nonmembers, 0.1, groups).fpr_upper <= 0.1
    loose = operating_point([3.0], nonmembers, 0.05)
    assert operating_point([3.0], nonmembers, 0.05, groups).fpr_upper > loose.fpr_upper
    alone = [str(i) for i in range(300)]
    assert operating_point([3.0], nonmembers, 0.05, alone).fpr_upper == pytest.approx(loose.fpr_upper)


@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [float("inf"), 1.0], [], [[1.0]]])
def test_scores_that_cannot_be_ranked_are_refused(bad):
    for call in (
        auc,
        roc_curve,
        lambda a, b: operating_point(a, b, 0.1),
        lambda a, b: bounded_operating_point(a, b, 0.1),
    ):
        with pytest.raises(ValueError):
            call(bad, [0.0, 1.0])
        with pytest.raises(ValueError):
            call([0.0, 1.0], bad)


def test_rates_outside_the_unit_interval_are_refused():
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError):
            operating_point([1.0], [0.0], rate)
