"""The scoring engine: many queries in, one answer each out.

Equal queries once, cached answers from disk, the rest through the model, every answer stored as soon as it exists. In
a launch of several processes each asks its own copy of the model a share of the questions, and all get all answers.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from indelible import distributed
from indelible.data.chat import Encoded, TokenSpan
from indelible.data.records import Query
from indelible.errors import Unscorable
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.progress import Progress
from indelible.scoring.cache import AnswerCache

ENGINE_VERSION = 2
"""Part of every cached answer's key; raise it when a change could move an answer."""

WRITE_EVERY_SECONDS = 5.0
"""How much work a killed process may lose; an interruption by the user loses none."""

MEET_EVERY_SECONDS = 30.0
"""The same for several processes: how often they hand their answers to the one that writes. A meeting costs the wait
for the slowest batch."""


@dataclass(frozen=True)
class Answers:
    """What the models said, by query. A query that could not be asked has a reason instead.

    `spans` tells where the tokens of an answer stand in the record's text, `tokens` their ids, `decode` the texts of
    single tokens, each by the tokenizer of the model that the query is for; `texts` holds the replies to questions that
    asked for text.
    """

    found: Mapping[Query, TokenLogprobs]
    failed: Mapping[Query, str] = field(default_factory=dict)
    spans: Callable[[Query], Sequence[TokenSpan | None]] | None = None
    texts: Mapping[Query, str] = field(default_factory=dict)
    tokens: Callable[[Query], Sequence[int]] | None = None
    decode: Callable[[Query, Sequence[int]], list[str]] | None = None

    def __getitem__(self, query: Query) -> TokenLogprobs:
        """The answer.

        Raises:
            Unscorable: the query has none; the message is the reason.
        """
        if query in self.failed:
            raise Unscorable(self.failed[query])
        return self.found[query]

    def text(self, query: Query) -> str:
        """The reply to a question that asked for text.

        Raises:
            Unscorable: there is none; the message is the reason.
        """
        if query in self.failed:
            raise Unscorable(self.failed[query])
        return self.texts[query]

    def __contains__(self, query: object) -> bool:
        return query in self.found or query in self.failed or query in self.texts


@dataclass(slots=True)
class Counts:
    """How much was asked: `asked` questions, `unique` among them, `cached` found on disk, tokens computed and asked."""

    asked: int = 0
    unique: int = 0
    cached: int = 0
    failed: int = 0
    tokens_computed: int = 0
    tokens_asked: int = 0

    def add(self, other: Counts) -> None:
        """Sum in place."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def answer(
    model: LanguageModel,
    queries: Iterable[Query],
    *,
    cache: AnswerCache | None = None,
    stage: str = "scoring",
) -> tuple[Answers, Counts]:
    """Ask a model, each distinct question once.

    Args:
        queries: in any order, with repetitions.
        cache: where answers are looked up first and written at once; None asks everything. Of several processes only
            the main one reads and writes.
        stage: what the progress line says.

    Returns:
        the answers, and what they cost, in all processes the same. A query longer than the model's context, or without
        a single scored token, is failed with that reason: it is never cut.
    """
    asked = list(queries)
    unique = list(dict.fromkeys(asked))
    cache = cache if distributed.is_main() else None
    found = _cached(model, unique, cache)
    failed: dict[Query, str] = {}
    n_cached = len(found)
    todo: list[Query] = []
    encoded: list[Encoded] = []
    for query in unique:
        if query in found:
            continue
        tokens = model.encode(query)
        if len(tokens) > model.context_length:
            failed[query] = f"longer than the context ({len(tokens)} > {model.context_length} tokens)"
        elif not tokens.is_target.any():
            failed[query] = "no scored token"
        else:
            todo.append(query)
            encoded.append(tokens)
    mine = _own_share(model, encoded)
    share = [encoded[i] for i in mine]
    costs = model.costs(share)
    counts = Counts(len(asked), len(unique), n_cached, len(failed))
    counts.tokens_asked = sum(len(e) for e in encoded)
    counts.tokens_computed = sum(distributed.gather(sum(costs)))
    n = distributed.n_processes()
    stage, every = (stage, WRITE_EVERY_SECONDS) if n == 1 else (f"{stage} (one of {n} shares)", MEET_EVERY_SECONDS)

    def store(answers: Iterable[tuple[int, TokenLogprobs | Unscorable]]) -> None:
        rows = []
        for i, reply in answers:
            if isinstance(reply, Unscorable):  # not cached: it may be answered another time
                failed[todo[i]] = str(reply)
            else:
                rows.append((todo[i], reply))
        counts.failed = len(failed)
        found.update(rows)
        if cache is not None and rows:
            cache.write(model.fingerprint, rows)

    with Progress(stage, total=sum(costs), unit="tokens") as progress:
        replies = iter(model.stream(share))
        working = True
        while working:
            ready: list[tuple[int, TokenLogprobs | Unscorable]] = []
            error: BaseException | None = None
            more = False
            until = time.monotonic() + every
            try:
                for i, reply in replies:
                    ready.append((mine[i], reply))
                    progress.advance(costs[i])
                    if time.monotonic() > until:
                        more = True
                        break
            except BaseException as caught:  # noqa: BLE001 - raised below, once what was computed is safe
                error = caught
            with distributed.undisturbed():
                store(ready)  # before the meeting, to which others may not come
                parts, error = distributed.meet((ready, more), error)
                others = [part for k, part in enumerate(parts) if part and k != distributed.process_index()]
                store(answer for answers, _ in others for answer in answers)
            if error is not None:
                raise error
            working = more or any(others_more for _, others_more in others)
    return Answers(found, failed), counts


def _cached(model: LanguageModel, unique: Sequence[Query], cache: AnswerCache | None) -> dict[Query, TokenLogprobs]:
    """What the cache knows, as the main process reads it: those of other machines may know more or less."""
    if distributed.n_processes() == 1:
        return cache.read(model.fingerprint, unique) if cache is not None else {}
    questions = hashlib.sha256(b"".join(query.digest() for query in unique)).digest()
    distributed.agree((model.fingerprint, questions), "models, floating-point types or questions")

    def read() -> list[tuple[int, TokenLogprobs]]:
        known = cache.read(model.fingerprint, unique) if cache is not None else {}
        return [(i, known[query]) for i, query in enumerate(unique) if query in known]

    return {unique[i]: reply for i, reply in distributed.from_main(read)}


def _own_share(model: LanguageModel, encoded: Sequence[Encoded]) -> Sequence[int]:
    """Indices of what this process asks. The main one splits: costs may be planned otherwise on other hardware."""
    if distributed.n_processes() == 1:
        return range(len(encoded))
    distributed.agree(hashlib.sha256(b"".join(e.input_ids.tobytes() for e in encoded)).digest(), "tokens")
    split = distributed.from_main(lambda: shares(encoded, model.costs(encoded), distributed.n_processes()))
    return split[distributed.process_index()]


def shares(encoded: Sequence[Encoded], costs: Sequence[int], n: int) -> list[list[int]]:
    """Split questions so that those which begin alike stay together, and each share costs about the same.

    Args:
        costs: tokens that each of `encoded` takes.

    Returns:
        n lists of indices. One after the other they are all questions in the order of their token ids; each share's
        cost differs from the mean by no more than the most expensive question.
    """
    keys = [e.input_ids.astype(">u4").tobytes() for e in encoded]  # bytes in this order compare as the ids do
    total = max(sum(costs), 1)
    out: list[list[int]] = [[] for _ in range(n)]
    before = 0
    for i in sorted(range(len(keys)), key=keys.__getitem__):
        middle = 2 * before + costs[i]  # twice, to stay with whole numbers
        out[min(n * middle // (2 * total), n - 1)].append(i)
        before += costs[i]
    return out
