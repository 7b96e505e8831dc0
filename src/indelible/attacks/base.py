"""What an attack is: it asks questions about a record, and turns the answers into one number."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from indelible.data.chat import TokenSpan
from indelible.data.pools import DEFAULT_EMBEDDER
from indelible.data.records import Context, Query, Record, with_context
from indelible.errors import Unscorable
from indelible.models.base import Access, LanguageModel, TokenLogprobs
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import Answers


@dataclass(frozen=True)
class Resources:
    """What attacks may use to prepare a run, beside the records: never the membership of a scored one.

    Attributes:
        pool: reference records, disjoint from the audited ones.
        seed: of the run.
        known: members set aside that the attacker knows for certain; never scored.
        spans: where the target tokens of a query stand in its answers, by the audited model's tokenizer.
        tokens: the ids of the target tokens of a query, by the same.
        embedder: the sentence embedder for retrieval.
        base: the model before fine-tuning, where one is given: some attacks let it write.
        cache: where what it writes is kept for the next run; None keeps nothing.
    """

    pool: Sequence[Record] = ()
    known: Sequence[Record] = ()
    seed: int = 0
    spans: Callable[[Query], Sequence[TokenSpan | None]] | None = None
    tokens: Callable[[Query], Sequence[int]] | None = None
    embedder: str = DEFAULT_EMBEDDER
    base: LanguageModel | None = None
    cache: AnswerCache | None = None


@dataclass(frozen=True)
class Attack(ABC):
    """Base of all attacks: a frozen dataclass whose fields are its settings.

    Class attributes say what reports and `docs/methods.md` print: `name`, `formula` (of the score), `paper`,
    `deviation` (how it differs from the paper or its code, '' where it doesn't), `access` (what of the model it
    needs), `roles` (which models it asks), `writer` (the setting that names a model to write in the base's place).
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    deviation: ClassVar[str] = ""
    access: ClassVar[Access] = "logprobs"
    roles: ClassVar[tuple[str, ...]] = ("target",)
    writer: ClassVar[str] = ""

    @property
    def n_pool(self) -> int:
        """The fewest pool records this attack can do with."""
        return 0

    @property
    def n_pool_wanted(self) -> int:
        """The most pool records it uses for one record."""
        return self.n_pool

    def access_to(self, role: str) -> Access:
        """What it needs of the model of this role."""
        return self.access

    @property
    def needs_base(self) -> bool:
        """Whether `prepare` lets the base model write."""
        return False

    @property
    def n_known(self) -> int:
        """Known members it needs; they are set aside and not scored."""
        return 0

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        """Records with the variants this attack will ask about, seeded per record."""
        return list(records)

    @abstractmethod
    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        """What to ask about a record, given the answers so far. Called in rounds until it asks nothing new."""

    @abstractmethod
    def score(self, record: Record, answers: Answers) -> float:
        """The membership score; higher means member.

        Raises:
            Unscorable: there is none for this record, with the reason.
        """


def plain(record: Record, model: str = "target") -> Query:
    """The record itself: its answer after its prompt."""
    return Query(record.messages, record.target, record.images, model)


def probed(record: Record, context: Context, model: str = "target") -> Query:
    """The record's answer after a context and its prompt."""
    return Query(with_context(record.messages, context), record.target, record.images, model)


Reduce = Literal["mean", "sum"]


def log_likelihood(answer: TokenLogprobs, reduce: Reduce = "mean", *, n_last: int | None = None) -> float:
    """Mean (nats a token) or sum (nats) of the target's log-probabilities.

    `n_last` takes the last tokens only: plain text has no score for its first token alone, but has one after a context,
    and two answers are compared on the same tokens.

    Raises:
        Unscorable: the target has no token, or a log-probability is not finite.
    """
    if len(answer.logprobs) == 0:
        raise Unscorable("no scored token")
    logprobs = answer.logprobs if n_last is None else answer.logprobs[-n_last:]
    total = float(np.sum(logprobs, dtype=np.float64))
    if not math.isfinite(total):
        raise Unscorable("the model gave a log-probability that is not finite")
    return total if reduce == "sum" else total / len(logprobs)


def score_all(
    attack: Attack, records: Sequence[Record], answers: Answers
) -> tuple[dict[str, float], Mapping[str, str]]:
    """Scores by record id, NaN where there is none, and the reasons for those."""
    scores: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for record in records:
        try:
            value = attack.score(record, answers)
            if not math.isfinite(value):
                raise Unscorable("the score is not finite")
            scores[record.id] = value
        except Unscorable as error:
            scores[record.id] = math.nan
            reasons[record.id] = str(error)
    return scores, reasons
