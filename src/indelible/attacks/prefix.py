"""Attacks with one prefix of demonstrations for all records: ReCaLL, and its contrast of two prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from indelible.attacks.base import Attack, Resources, log_likelihood, plain, probed
from indelible.data.pools import constant_prefix
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.scoring.engine import Answers


@dataclass(frozen=True)
class Recall(Attack):
    """Ratio of the log-likelihood after a fixed prefix of non-members to the one without it."""

    shots: int = 7

    name: ClassVar[str] = "recall"
    formula: ClassVar[str] = "LL(y|P,x) / LL(y|x), P seven demonstrations from the pool, the same for all records"
    paper: ClassVar[str] = "Xie et al. 2024 (ReCaLL); ICP-MIA App. A"
    deviation: ClassVar[str] = (
        "the prefix is drawn from a pool that is never scored, in the chat format; the authors use scored non-members"
    )

    def __post_init__(self) -> None:
        if self.shots < 1:
            raise ConfigError(f"recall: shots={self.shots}: expected at least 1")

    @property
    def n_pool(self) -> int:
        return self.shots

    @property
    def _variant(self) -> str:
        return f"prefix:{self.shots}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        prefix = constant_prefix(resources.pool, self.shots, resources.seed)
        return [r.with_variant(self._variant, [prefix]) for r in records]

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), probed(record, record.variants[self._variant][0])]

    def score(self, record: Record, answers: Answers) -> float:
        first = answers[plain(record)]
        alone = log_likelihood(first)
        prefixed = answers[probed(record, record.variants[self._variant][0])]
        if alone == 0.0:
            raise Unscorable("log-likelihood without prefix is 0: the ratio does not exist")
        return log_likelihood(prefixed, n_last=len(first.logprobs)) / alone


@dataclass(frozen=True)
class ConRecall(Attack):
    """How much more a prefix of non-members helps than one of known members, over the log-likelihood alone.

    Settings: `shots` demonstrations in each prefix; `gamma` weighs the members' prefix.
    """

    shots: int = 7
    gamma: float = 0.5

    name: ClassVar[str] = "con-recall"
    formula: ClassVar[str] = (
        "[LL(y|P_non,x) - gamma LL(y|P_mem,x)] / LL(y|x), P_non from the pool, P_mem of members set aside"
    )
    paper: ClassVar[str] = "Wang et al. 2024 (Con-ReCall)"
    deviation: ClassVar[str] = (
        "both prefixes are set aside and never scored, in the chat format; gamma is fixed at 0.5 (authors: the best of "
        "0.1 to 1 on the scored records); the attacker knows a few members for certain"
    )

    def __post_init__(self) -> None:
        if self.shots < 1:
            raise ConfigError(f"con-recall: shots={self.shots}: expected at least 1")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"con-recall: gamma={self.gamma}: expected a number in [0, 1]")

    @property
    def n_pool(self) -> int:
        return self.shots

    @property
    def n_known(self) -> int:
        return self.shots

    @property
    def _variant(self) -> str:
        return f"contrast:{self.shots}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        prefixes = [constant_prefix(p, self.shots, resources.seed) for p in (resources.pool, resources.known)]
        return [r.with_variant(self._variant, prefixes) for r in records]

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), *(probed(record, prefix) for prefix in record.variants[self._variant])]

    def score(self, record: Record, answers: Answers) -> float:
        first = answers[plain(record)]
        alone, n = log_likelihood(first), len(first.logprobs)
        without, within = (
            log_likelihood(answers[probed(record, prefix)], n_last=n) for prefix in record.variants[self._variant]
        )
        if alone == 0.0:
            raise Unscorable("log-likelihood without prefix is 0: the ratio does not exist")
        return (without - self.gamma * within) / alone
