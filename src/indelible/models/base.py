"""What a language model is to this package: something that answers queries with log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from indelible.data.chat import Encoded
from indelible.data.records import Query
from indelible.errors import Unscorable

if TYPE_CHECKING:
    from indelible.scoring.candidates import Ranking


Access = Literal["weights", "logprobs", "top-k", "text"]
"""What a model gives: everything about its next-token distributions, as its weights do; the log-probability of a given
text; the most probable next tokens with theirs; text alone."""

EVERYTHING: frozenset[Access] = frozenset({"weights", "logprobs", "top-k", "text"})


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The answer to a query: one entry a target token, natural logarithms, float32. Where a model tells less than its
    weights would, what it does not tell is NaN, and an unknown `argmax` -1.

    Attributes:
        logprobs: (n,) log p(y_t | everything before).
        mean: (n,) sum over the vocabulary of p log p, the mean next-token log-probability under the model.
        std: (n,) standard deviation of log p under p.
        argmax: (n,) int32, the most probable token id.
    """

    logprobs: NDArray[np.float32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    argmax: NDArray[np.int32]


@runtime_checkable
class LanguageModel(Protocol):
    """A model that can be asked. `fingerprint` changes whenever an answer could."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def access(self) -> frozenset[Access]:
        """What it gives."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens a query may have."""
        ...

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query, as this model's trainer would have written them."""
        ...

    def stream(self, encoded: Sequence[Encoded]) -> Iterator[tuple[int, TokenLogprobs | Unscorable]]:
        """Answers in the order in which they get ready, with the index of each; or the reason why there is none."""
        ...

    def costs(self, encoded: Sequence[Encoded]) -> Sequence[int]:
        """How many tokens `stream` will compute for each of these; a shared beginning counts once."""
        ...

    def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str | Unscorable]]:
        """Texts for queries with a `reply`, in the order in which they get ready, with the index of each; or the reason
        why there is none."""
        ...

    def prompt_length(self, query: Query) -> int:
        """How many tokens stand before the reply to a query."""
        ...

    def generate(
        self, queries: Sequence[Query], max_new_tokens: int, *, begun: Sequence[str] | None = None
    ) -> list[str]:
        """Greedy replies to the queries' prompts; `begun` says how each reply begins, and is not repeated."""
        ...

    def rank(
        self, query: Query, candidates: Sequence[str], suffix: str = "", *, prefix: str = "", everything: bool = False
    ) -> Ranking:
        """The rank of the query's target among candidates that could stand in its place."""
        ...
