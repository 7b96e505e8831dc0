"""Scores calibrated by something that is no member: the base model on the same probes, a corpus's token frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from indelible.attacks.base import Attack, Resources, plain
from indelible.attacks.context import IcpReference, IcpSelfPerturbation
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.scoring.engine import Answers


@dataclass(frozen=True)
class IcpSpCalibrated(IcpSelfPerturbation):
    """ICP-SP minus the base model's on the same probes: what a hint still teaches, beyond how hard the answer is."""

    name: ClassVar[str] = "icp-sp-cal"
    formula: ClassVar[str] = "icp-sp on the target - icp-sp on the base, the same probes"
    paper: ClassVar[str] = "ours: the tabular paper's difficulty calibration (IclMem) on ICP-MIA-SP"
    roles: ClassVar[tuple[str, ...]] = ("target", "base")

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return _both(super().queries(record, answers))

    def score(self, record: Record, answers: Answers) -> float:
        return self.score_of(record, answers, "target") - self.score_of(record, answers, "base")


@dataclass(frozen=True)
class IcpRefCalibrated(IcpReference):
    """ICP-Ref minus the base model's on the same probes."""

    name: ClassVar[str] = "icp-ref-cal"
    formula: ClassVar[str] = "icp-ref on the target - icp-ref on the base, the same probes"
    paper: ClassVar[str] = "ours: the tabular paper's difficulty calibration (IclMem) on ICP-MIA-Ref"
    roles: ClassVar[tuple[str, ...]] = ("target", "base")

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return _both(super().queries(record, answers))

    def score(self, record: Record, answers: Answers) -> float:
        return self.score_of(record, answers, "target") - self.score_of(record, answers, "base")


def _both(asked: Sequence[Query]) -> list[Query]:
    return [*asked, *(replace(query, model="base") for query in asked)]


@dataclass(frozen=True)
class DcPdd(Attack):
    """Token probabilities against the tokens' frequency in a reference corpus: the pool's answers.

    Settings: `limit` a on one token's part, so that no rare token decides alone.
    """

    limit: float = 0.01

    name: ClassVar[str] = "dc-pdd"
    formula: ClassVar[str] = (
        "mean over first occurrences t of min(a, -p_t log f(y_t)), p_t = p(y_t|x,y_<t), f(v) = (count(v) + 1) / (N + V)"
    )
    paper: ClassVar[str] = "Zhang et al. 2024 (DC-PDD)"
    deviation: ClassVar[str] = (
        "frequencies come from the pool's answers (authors: a large web corpus); the answer alone is scored, given its "
        "prompt; V counts the tokens of the pool and one for all others"
    )

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ConfigError(f"dc-pdd: limit={self.limit}: expected a number above 0")

    @property
    def n_pool(self) -> int:
        return 1

    @property
    def n_pool_wanted(self) -> int:
        return 100

    @property
    def _numbers(self) -> str:
        return "log-frequency of first occurrences"

    @property
    def _ids(self) -> str:
        return "token ids by the audited model"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        if resources.tokens is None:
            raise ConfigError("dc-pdd needs a local model's tokenizer: leave it out")
        counts = Counter(token for r in resources.pool for token in resources.tokens(plain(r)))
        total = sum(counts.values()) + len(counts) + 1
        out = []
        for record in records:
            seen: set[int] = set()
            numbers = []
            ids = resources.tokens(plain(record))
            for token in ids:
                numbers.append(math.nan if token in seen else math.log((counts[token] + 1) / total))
                seen.add(token)
            out.append(record.with_numbers(self._numbers, numbers).with_numbers(self._ids, [float(i) for i in ids]))
        return out

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record)]

    def score(self, record: Record, answers: Answers) -> float:
        logprobs = answers[plain(record)].logprobs.astype(np.float64)
        frequencies = np.asarray(record.numbers[self._numbers])
        if answers.tokens is not None and [float(i) for i in answers.tokens(plain(record))] != [
            *record.numbers[self._ids]
        ]:
            raise Unscorable(
                "this model has other tokens for the answer than the audited one, whose frequencies are at hand"
            )
        if len(logprobs) == 0:
            raise Unscorable("no scored token")
        if not np.isfinite(logprobs).all():
            raise Unscorable("the model gave a log-probability that is not finite")
        first = ~np.isnan(frequencies)
        return float(np.minimum(self.limit, -np.exp(logprobs[first]) * frequencies[first]).mean())
