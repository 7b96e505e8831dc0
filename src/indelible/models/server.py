"""Models behind an OpenAI-compatible server: `server:URL?model=NAME&tokenizer=FOLDER`.

With the model's own tokenizer a question has the tokens that it has on this machine, and log-probabilities are asked
for where the server was seen to give them. Without it the server renders messages itself and gives text alone.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from indelible.data.chat import ChatFormat, Encoded, TokenSpan
from indelible.data.records import Message, Query, Reply
from indelible.errors import ModelError, Unscorable
from indelible.models.base import Access, TokenLogprobs
from indelible.servers.capabilities import Capabilities
from indelible.servers.given import Endpoint, score
from indelible.servers.http import Rejected, in_parallel
from indelible.servers.wire import TokenNames
from indelible.servers.written import converse, write

if TYPE_CHECKING:
    from indelible.scoring.candidates import Ranking


T = TypeVar("T")


@dataclass(frozen=True)
class ServerModel:
    """A model that is asked over HTTP.

    `fingerprint` knows the server's address, the model's name, what the server says of it, the tokenizer and how
    questions are put. It does not know the weights: a server that changes them without saying so answers differently
    under one fingerprint, and answers at hand are then those of the earlier weights.

    Attributes:
        told: what the server says of the model.
        chat: the format by the model's own tokenizer; None where none was given.
        system: system turn before messages that have none, where the server renders them.
        concurrency: questions in flight.
    """

    name: str
    endpoint: Endpoint = field(repr=False, compare=False)
    capabilities: Capabilities
    told: Mapping[str, Any]
    chat: ChatFormat | None = field(repr=False)
    names: TokenNames | None = field(repr=False)
    context_length: int
    system: str | None = None
    concurrency: int = 8

    device = "server"
    dtype = "not known"
    adapter = None  # whether the server applies one is its own affair: a model of its list has no base here

    @property
    def access(self) -> frozenset[Access]:
        """What the server was seen to give."""
        given: set[Access] = {"text"}
        scoring = self.capabilities.scoring
        if scoring is not None and scoring.form != "top":
            given.add("logprobs")
        if scoring is not None and self.capabilities.top:
            given.add("top-k")
        return frozenset(given)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Changes with everything but the weights: see the class."""
        tokenizer = self.chat.tokenizer.backend_tokenizer.to_str() if self.chat is not None else ""
        parts = (
            self.endpoint.client.url,
            self.endpoint.model,
            sorted((k, repr(v)) for k, v in self.told.items()),
            hashlib.sha256(tokenizer.encode()).hexdigest(),
            self.chat.fingerprint if self.chat is not None else None,
            self.system,
            str(self.capabilities.scoring),
            str(self.capabilities.writing),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query as a model on this machine would have them; without a tokenizer, its words.

        Words are enough to count by and to cut texts at. No tokenizer puts two of them into one token, so that nothing
        is called too long for its number of words that would have fitted.
        """
        return self.chat.encode(query) if self.chat is not None else _words(query)

    def stream(self, encoded: Sequence[Encoded]) -> Iterator[tuple[int, TokenLogprobs | Unscorable]]:
        """Answers as they come; where the server refused a question or its answer cannot be believed, the reason.

        Raises:
            ModelError: it gives no log-probabilities of given text, or it still fails after all tries.
        """
        scoring, names = self.capabilities.scoring, self.names
        if scoring is None or names is None:
            raise ModelError(f"{self.name} gives no log-probabilities of given text")

        def ask(i: int) -> TokenLogprobs | Unscorable:
            return _or_reason(lambda: score(self.endpoint, scoring, encoded[i], names))

        return in_parallel(ask, len(encoded), self.concurrency)

    def costs(self, encoded: Sequence[Encoded]) -> Sequence[int]:
        """All tokens of each: whether the server keeps beginnings is not known."""
        return [len(e) for e in encoded]

    def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str | Unscorable]]:
        """Texts as they come, or the reason why there is none. A draw is seeded by its question, as far as the server
        heeds seeds.

        Raises:
            ModelError: the server still fails after all tries.
        """

        asks = [self._asked(query) for query in queries]  # here, since tokenizers are not made for threads
        return in_parallel(lambda i: _or_reason(asks[i]), len(asks), self.concurrency)

    def _asked(self, query: Query) -> Callable[[], str]:
        """What asks for the reply to a query."""
        how, reply, names = self.capabilities.writing, query.reply or Reply(1), self.names
        if reply.temperature > 0 and not self.capabilities.draws:
            return _refuses("the server does not draw: it writes the same text at every temperature")
        seed = int.from_bytes(query.digest()[:4], "big") >> 1
        if how.route != "chat" and names is not None:
            ids, stop = self._prompt_ids(query), self._end_marker()
            return lambda: write(self.endpoint, how, ids, names, reply, seed, stop)
        if any(m.role == "text" for m in query.messages):
            return _refuses("the server only chats: it cannot go on with a plain text")
        messages = [{"role": m.role, "content": m.content} for m in query.messages]
        if self.system is not None and (not messages or messages[0]["role"] != "system"):
            messages.insert(0, {"role": "system", "content": self.system})
        return lambda: converse(self.endpoint, how, messages, reply, seed)

    def _prompt_ids(self, query: Query) -> list[int]:
        from indelible.models.generation import prompt_ids  # needs torch

        ids: list[int] = prompt_ids(self, query).tolist()  # type: ignore[arg-type]  # it looks at the format alone
        return ids

    def _end_marker(self) -> str:
        """What ends a reply under this template, where the server's own end of text is another."""
        from indelible.models.generation import end_marker  # needs torch

        return end_marker(self.chat).strip() if self.chat is not None else ""

    def prompt_length(self, query: Query) -> int:
        """Tokens before a reply; without a tokenizer, words."""
        if self.chat is not None:
            return len(self._prompt_ids(query))
        return sum(len(m.content.split()) for m in query.messages) or bool(query.messages)

    def generate(
        self, queries: Sequence[Query], max_new_tokens: int, *, begun: Sequence[str] | None = None
    ) -> list[str]:
        """Greedy replies in order; `begun` says how each begins, and is not repeated.

        Raises:
            ModelError: one has none; the message is the reason.
        """
        asked = [
            replace(q, reply=Reply(max_new_tokens, begun=start))
            for q, start in zip(queries, begun or [""] * len(queries), strict=True)
        ]
        found = dict(self.replies(asked))
        for text in found.values():
            if isinstance(text, Unscorable):
                raise ModelError(f"{self.name}: {text}")
        return [str(found[i]) for i in range(len(asked))]

    def rank(
        self, query: Query, candidates: Sequence[str], suffix: str = "", *, prefix: str = "", everything: bool = False
    ) -> Ranking:
        """Not over HTTP.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            f"{self.name} cannot rank {len(candidates)} candidates: that takes a model on this machine, give its folder"
        )


def _or_reason(ask: Callable[[], T]) -> T | Unscorable:
    try:
        return ask()
    except Rejected as error:
        return Unscorable(error.reason)
    except Unscorable as error:
        return Unscorable(str(error))


def _refuses(reason: str) -> Callable[[], str]:
    def ask() -> str:
        raise Unscorable(reason)

    return ask


def _words(query: Query) -> Encoded:
    is_target: list[bool] = []
    spans: list[TokenSpan | None] = []
    turn = 0
    for message in (*query.messages, Message("assistant", query.target, scored=True)):
        for found in re.finditer(r"\S+", message.content):
            scored = message.scored and bool(is_target)  # nothing to predict the first one from
            is_target.append(scored)
            spans += [TokenSpan(turn, found.start(), found.end())] if scored else []
        turn += message.scored
    return Encoded(np.zeros(len(is_target), dtype=np.int64), np.array(is_target, dtype=np.bool_), tuple(spans))
