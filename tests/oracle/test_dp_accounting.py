"""Which rows DP-SGD draws, against the distribution it promises; what that spends, against formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from indelible.config import TrainConfig
from indelible.errors import ConfigError
from indelible.training.budget import poisson_plan, privacy_budget


def settings(**changes: object) -> TrainConfig:
    return TrainConfig(**{"model": "", "train": "", "out": "", "dp_epsilon": 8.0, **changes})


# The draws.


def test_every_row_comes_with_its_own_toss_of_a_coin() -> None:
    plan = poisson_plan(50, settings(epochs=400, batch_size=5, seed=4))
    assert len(plan) == 4000
    drawn = np.zeros((4000, 50), dtype=int)
    for step, (_, rows) in enumerate(plan):
        assert rows == sorted(set(rows))
        drawn[step, rows] = 1
    assert np.abs(drawn.mean(axis=0) - 0.1).max() < 4.5 * math.sqrt(0.1 * 0.9 / 4000)
    sizes = drawn.sum(axis=1)
    assert sizes.mean() == pytest.approx(5, abs=0.15)
    assert sizes.var() == pytest.approx(50 * 0.1 * 0.9, rel=0.1)  # fixed batches have none
    assert (sizes == 0).mean() == pytest.approx(0.9**50, abs=0.004)
    together = np.corrcoef(drawn.T)[np.triu_indices(50, 1)]
    assert np.abs(together).max() < 5 / math.sqrt(4000)
    assert [epoch for epoch, _ in plan] == [1 + i // 10 for i in range(4000)]
    assert plan == poisson_plan(50, settings(epochs=400, batch_size=5, seed=4))
    assert plan != poisson_plan(50, settings(epochs=400, batch_size=5, seed=5))


def test_a_batch_of_all_rows_has_all_rows() -> None:
    assert poisson_plan(6, settings(epochs=3, batch_size=16)) == [(e, list(range(6))) for e in (1, 2, 3)]
    assert privacy_budget(6, settings(batch_size=16)).sampling_rate == 1


# The accounting.


def renyi_epsilon(sigma: float, rate: float, n_steps: int, delta: float) -> float:
    """Abadi et al.'s log moments (their equation 3), integrated over a grid of outcomes, at Opacus's orders, and the
    conversion of Balle et al. 2020, theorem 21."""
    z = np.arange(-12 * sigma, 63 + 12 * sigma, sigma / 100)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))
    best = math.inf
    for order in [1 + x / 10 for x in range(1, 100)] + list(range(12, 64)):
        moment = logsumexp(stats.norm.logpdf(z, scale=sigma) + order * ratio) + math.log(sigma / 100)
        epsilon = n_steps * moment / (order - 1)
        epsilon += math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        best = min(best, epsilon)
    return best


def gaussian_epsilon(sigma: float, n_steps: int, delta: float) -> float:
    """Exact for steps over all rows: Balle and Wang 2018, theorem 8, for one release at sigma / sqrt(steps)."""
    mu = math.sqrt(n_steps) / sigma

    def excess(epsilon: float) -> float:
        first = stats.norm.cdf(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)) - delta

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@pytest.mark.parametrize(
    ("epsilon", "n_rows", "batch_size", "epochs"),
    [(1.0, 640, 16, 2), (10.0, 2000, 64, 3), (100.0, 640, 16, 2)],
)
def test_steps_spend_no_more_than_was_asked_for(epsilon: float, n_rows: int, batch_size: int, epochs: int) -> None:
    from opacus.accountants import RDPAccountant

    config = settings(dp_epsilon=epsilon, batch_size=batch_size, epochs=epochs)
    budget = privacy_budget(n_rows, config)
    n_steps = len(poisson_plan(n_rows, config))
    assert n_steps == round(epochs * n_rows / batch_size)
    assert 0.99 * epsilon < budget.spent(n_steps) <= epsilon
    slow = renyi_epsilon(budget.noise_multiplier, batch_size / n_rows, n_steps, 0.1 / n_rows)
    assert slow == pytest.approx(budget.spent(n_steps), rel=1e-4)
    accountant = RDPAccountant()
    for _ in range(n_steps):
        accountant.step(noise_multiplier=budget.noise_multiplier, sample_rate=batch_size / n_rows)
    assert budget.spent(n_steps) == pytest.approx(accountant.get_epsilon(delta=budget.delta), rel=1e-9)
    assert budget.spent(n_steps // 2) < budget.spent(n_steps)
    assert budget.spent(0) == 0


def test_spent_is_above_what_is_exact_for_steps_over_all_rows() -> None:
    budget = privacy_budget(100, settings(dp_epsilon=5.0, batch_size=100, epochs=20))
    exact = gaussian_epsilon(budget.noise_multiplier, 20, budget.delta)
    assert exact < budget.spent(20) < 1.25 * exact


def test_delta_must_be_below_one_row() -> None:
    assert privacy_budget(200, settings(batch_size=200)).delta == pytest.approx(1 / 2000)
    assert privacy_budget(200, settings(dp_delta=1e-6, batch_size=200)).delta == 1e-6
    with pytest.raises(ConfigError, match=r"--dp-delta 0\.005: with 200 rows it must be below 0\.005"):
        privacy_budget(200, settings(dp_delta=1 / 200))
    with pytest.raises(ConfigError, match="no noise is enough"):
        privacy_budget(200, settings(dp_epsilon=1e-4, batch_size=200))
