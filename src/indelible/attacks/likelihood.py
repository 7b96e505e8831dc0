"""Attacks on the likelihood of the record itself, and its difference from another model's."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from indelible.attacks.base import Attack, Reduce, log_likelihood, plain
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.models.base import Access
from indelible.scoring.engine import Answers


@dataclass(frozen=True)
class Loss(Attack):
    """Mean log-likelihood of the answer given the prompt."""

    name: ClassVar[str] = "loss"
    formula: ClassVar[str] = "LL(y|x) = mean_t log p(y_t | x, y_<t)"
    paper: ClassVar[str] = "Yeom et al. 2018, as in ICP-MIA Sec. VI-A"
    deviation: ClassVar[str] = (
        "the trained rendering with its end marker is scored; the released baselines score bare text"
    )

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record)]

    def score(self, record: Record, answers: Answers) -> float:
        return log_likelihood(answers[plain(record)])


@dataclass(frozen=True)
class Zlib(Attack):
    """Log-likelihood over the compressed length of the answer: calibrates for how repetitive the text is."""

    name: ClassVar[str] = "zlib"
    formula: ClassVar[str] = "LL(y|x) / bytes(zlib(y))"
    paper: ClassVar[str] = "Carlini et al. 2021"
    deviation: ClassVar[str] = (
        "divides by compressed bytes as its authors do; the released ICP-MIA baseline divides by the compression ratio"
    )

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record)]

    def score(self, record: Record, answers: Answers) -> float:
        n_bytes = len(zlib.compress("\n".join(record.responses).encode("utf-8")))
        return log_likelihood(answers[plain(record)]) / n_bytes


def lowest_mean(values: np.ndarray, fraction: float) -> float:
    """Mean of the lowest max(1, floor(fraction * n)) values.

    Raises:
        Unscorable: no values, or one that is not finite.
    """
    if len(values) == 0:
        raise Unscorable("no scored token")
    if not np.isfinite(values).all():
        raise Unscorable("the model gave a log-probability that is not finite")
    n = max(1, int(fraction * len(values)))
    return float(np.mean(np.partition(values.astype(np.float64), n - 1)[:n]))


@dataclass(frozen=True)
class MinK(Attack):
    """Mean log-probability of the least likely tokens."""

    fraction: float = 0.2

    name: ClassVar[str] = "min-k"
    formula: ClassVar[str] = "mean of the lowest max(1, floor(k n)) token log-probabilities, k = 20%"
    paper: ClassVar[str] = "Shi et al. 2024 (Min-K%)"
    deviation: ClassVar[str] = (
        "answers of fewer than 1/k tokens use their lowest token; the authors' code has no score for them"
    )

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record)]

    def score(self, record: Record, answers: Answers) -> float:
        return lowest_mean(answers[plain(record)].logprobs, self.fraction)


@dataclass(frozen=True)
class MinKPlusPlus(Attack):
    """Min-K% on log-probabilities standardised by the model's own next-token distribution."""

    fraction: float = 0.2

    name: ClassVar[str] = "min-k++"
    formula: ClassVar[str] = (
        "mean of the lowest max(1, floor(k n)) of z_t = (log p_t - mu_t) / sigma_t, moments weighted by p, k = 20%"
    )
    paper: ClassVar[str] = "Zhang et al. 2024 (Min-K%++)"
    deviation: ClassVar[str] = (
        "where sigma_t underflows z_t is 0, its limit for a distribution closing on one token; the released ICP-MIA "
        "baseline uses unweighted moments, another statistic"
    )
    access: ClassVar[Access] = "weights"

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record)]

    def score(self, record: Record, answers: Answers) -> float:
        a = answers[plain(record)]
        if not (np.isfinite(a.logprobs).all() and np.isfinite(a.mean).all() and np.isfinite(a.std).all()):
            raise Unscorable("the model gave a log-probability that is not finite")
        with np.errstate(divide="ignore", invalid="ignore"):
            # For p = (1-q, q): log p - mu ~ -q log q and sigma ~ sqrt(q) |log q|, so z ~ sqrt(q) -> 0.
            z = np.where(a.std > 1e-6, (a.logprobs - a.mean) / a.std, 0.0)
        return lowest_mean(z, self.fraction)


@dataclass(frozen=True)
class Reference(Attack):
    """Log-likelihood minus another model's: calibrates for how hard the answer is."""

    reduce: Reduce = "mean"

    name: ClassVar[str] = "reference"
    formula: ClassVar[str] = "LL_target(y|x) - LL_reference(y|x)"
    paper: ClassVar[str] = "Carlini et al. 2021; ICP-MIA App. A (Reference Attack (Ref))"
    deviation: ClassVar[str] = (
        "both sums are divided by the audited model's token count, whatever the reference's tokenizer"
    )
    roles: ClassVar[tuple[str, ...]] = ("target", "reference")

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record, role) for role in self.roles]

    def score(self, record: Record, answers: Answers) -> float:
        ours, theirs = (answers[plain(record, role)] for role in self.roles)
        difference = log_likelihood(ours, "sum") - log_likelihood(theirs, "sum")
        return difference if self.reduce == "sum" else difference / len(ours.logprobs)


@dataclass(frozen=True)
class ReferenceBase(Reference):
    """Log-likelihood minus the pretrained model's."""

    name: ClassVar[str] = "reference-base"
    formula: ClassVar[str] = "LL_target(y|x) - LL_base(y|x)"
    paper: ClassVar[str] = "ICP-MIA App. A (Reference Attack (Base))"
    deviation: ClassVar[str] = ""
    roles: ClassVar[tuple[str, ...]] = ("target", "base")


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction={fraction}: expected a number in (0, 1]")
