"""What a private training promises, what that costs in noise, and which rows its steps draw.

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016. Accounting is Opacus's.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from indelible import distributed
from indelible.config import TrainConfig
from indelible.errors import ConfigError, MissingExtra
from indelible.progress import say

ACCOUNTANT = "rdp"
USUAL_EPSILON = 20.0
"""Renyi DP: an upper bound at every setting, in a second. Opacus's tighter PRV accountant asks for about 7% less noise
at an epsilon of 10, and takes minutes where rows are many."""


@dataclass(frozen=True)
class Budget:
    """What a training promises: (epsilon, delta)-differential privacy for adding or removing one row.

    Attributes:
        epsilon: the target. What the steps spend of it, at most all, is `spent`.
        delta: probability with which the promise may fail; below 1 / n_rows.
        clip: L2 norm C that a row's gradient is clipped to.
        noise_multiplier: sigma; the noise on the sum of clipped gradients has standard deviation sigma * C.
        n_rows: rows of the training file that fit.
        expected_rows: rows in a step on average, the divisor of every step's sum.
    """

    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float
    n_rows: int
    expected_rows: int

    @property
    def sampling_rate(self) -> float:
        """Probability that a row is in a step."""
        return self.expected_rows / self.n_rows

    def __str__(self) -> str:
        """One line, for who watches."""
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:.2g}: rows clipped to {self.clip:g}, noise "
            f"{self.noise_multiplier:.3f} of that, {self.expected_rows} of {self.n_rows} rows a step on average"
        )

    def spent(self, n_steps: int) -> float:
        """Epsilon after so many steps, by Opacus's accountant."""
        from opacus.accountants import create_accountant

        accountant = create_accountant(ACCOUNTANT)
        accountant.history = [(self.noise_multiplier, self.sampling_rate, n_steps)] if n_steps else []
        with _quiet_search():
            return float(accountant.get_epsilon(delta=self.delta))

    def facts(self, sizes: Sequence[int]) -> dict[str, Any]:
        """For `training.json`, after a training whose steps had this many rows."""
        return {
            "mechanism": "DP-SGD (Abadi et al. 2016)",
            "target_epsilon": self.epsilon,
            "epsilon": self.spent(len(sizes)),
            "delta": self.delta,
            "adjacency": "add or remove one row",
            "accountant": f"{ACCOUNTANT} (opacus {importlib.metadata.version('opacus')})",
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip,
            "clipped": "the gradient of a row's mean loss over its supervised tokens",
            "sampling": "Poisson",
            "sampling_rate": self.sampling_rate,
            "rows": self.n_rows,
            "expected_rows_a_step": self.expected_rows,
            "steps": len(sizes),
            "empty_steps": sum(not n for n in sizes),
            "secure_generator": False,
            "randomness": "seeded, so that the training can be repeated: for study. Whoever knows the seed and the "
            "other rows can take the noise off again",
            "covers": "the weights at every step; not training.json and training_log.parquet, which are exact",
        }


def check_private(config: TrainConfig) -> None:
    """Refuse, before anything is read, what does not go together.

    Raises:
        ConfigError: a setting of DP-SGD without an epsilon, an order that is prescribed, a clip of the whole step, or
            several processes. MissingExtra: Opacus is not installed.
    """
    fields = TrainConfig.model_fields
    if config.dp_epsilon is None:
        for name in ("dp_delta", "dp_clip"):
            if getattr(config, name) != fields[name].default:
                raise ConfigError(f"--{name.replace('_', '-')} is a setting of DP-SGD: give --dp-epsilon with it")
        return
    if not config.shuffle:
        raise ConfigError("--no-shuffle cannot keep its order under --dp-epsilon: DP-SGD draws the rows of every step")
    if config.max_grad_norm != fields["max_grad_norm"].default:
        raise ConfigError("max_grad_norm clips a step's gradient; under --dp-epsilon rows are clipped: give --dp-clip")
    if distributed.n_processes() > 1:
        raise ConfigError("--dp-epsilon trains in one process: start it without accelerate or torchrun")
    if importlib.util.find_spec("opacus") is None:
        raise MissingExtra("--dp-epsilon needs opacus: pip install 'indelible[dp]'")


def privacy_budget(n_rows: int, config: TrainConfig) -> Budget:
    """The noise that keeps a training within its epsilon.

    delta is 1 / (10 n_rows) unless given: publishing one row at random has epsilon 0 and delta 1 / n_rows, so that a
    delta must be well below that to promise anything.

    Raises:
        ConfigError: delta is not below 1 / n_rows, or no noise of reasonable size is enough.
    """
    epsilon = float(config.dp_epsilon or 0)
    delta = config.dp_delta if config.dp_delta is not None else 0.1 / n_rows
    if delta >= 1 / n_rows:
        raise ConfigError(
            f"--dp-delta {delta:g}: with {n_rows} rows it must be below {1 / n_rows:.3g}, or publishing a row whole "
            "would be allowed"
        )
    expected, n_steps = _sizes(n_rows, config)
    try:
        sigma = _noise_multiplier(epsilon, delta, expected / n_rows, n_steps)
    except ValueError as error:  # Opacus stops at a million
        raise ConfigError(
            f"--dp-epsilon {epsilon:g}: no noise is enough for it in {n_steps} steps; expected a larger one, or fewer "
            "epochs"
        ) from error
    if epsilon > USUAL_EPSILON:
        say(f"--dp-epsilon {epsilon:g} promises next to nothing: budgets in use are at most {USUAL_EPSILON:g}")
    return Budget(epsilon, delta, config.dp_clip, sigma, n_rows, expected)


def _sizes(n_rows: int, config: TrainConfig) -> tuple[int, int]:
    """Rows in a step on average, and steps."""
    expected = min(config.batch_size, n_rows)
    return expected, max(1, round(config.epochs * n_rows / expected))


@cache
def _noise_multiplier(epsilon: float, delta: float, sampling_rate: float, n_steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    with _quiet_search():
        sigma = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sampling_rate, steps=n_steps,
            accountant=ACCOUNTANT, epsilon_tolerance=1e-3 * epsilon,
        )  # fmt: skip
    return float(sigma)


@contextmanager
def _quiet_search() -> Iterator[None]:
    """Opacus advises more orders of Renyi DP where the best one is the last it tried; the bound holds all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order is", category=UserWarning)
        yield


def poisson_plan(n_rows: int, config: TrainConfig) -> list[tuple[int, list[int]]]:
    """Epoch, from 1, and rows of every step: each row is in each step with probability batch_size / n_rows, whatever
    the others do. Steps differ in size, some may be empty; rows come `epochs` times on average.
    """
    expected, n_steps = _sizes(n_rows, config)
    rate = expected / n_rows
    rng = np.random.default_rng(stream(config.seed, "dp sampling"))
    return [
        (min(config.epochs, 1 + int(step * rate)), np.flatnonzero(rng.random(n_rows) < rate).tolist())
        for step in range(n_steps)
    ]


def stream(seed: int, purpose: str) -> int:
    """The seed of one purpose's randomness."""
    return random.Random(f"{seed}:{purpose}").getrandbits(63)
