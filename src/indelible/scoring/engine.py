"""The scoring engine: many queries in, one answer each out.

`answer` is what audits call: equal queries once, cached answers from disk, the rest through the model, every answer
stored as soon as it exists. `run_batches` is what a local causal model does with the rest.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from indelible.data.chat import Encoded, TokenSpan
from indelible.data.records import Query
from indelible.errors import Unscorable
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.progress import Progress
from indelible.scoring.batching import plan
from indelible.scoring.cache import AnswerCache
from indelible.scoring.logprobs import target_logprobs

ENGINE_VERSION = 1
"""Part of every cached answer's key; raise it when a change could move an answer."""

WRITE_EVERY_SECONDS = 5.0
"""How much work a killed process may lose; an interruption by the user loses none."""


@dataclass(frozen=True)
class Answers:
    """What the models said, by query. A query that could not be asked has a reason instead.

    `spans` tells where the tokens of an answer stand in the record's text.
    """

    found: Mapping[Query, TokenLogprobs]
    failed: Mapping[Query, str] = field(default_factory=dict)
    spans: Callable[[Query], Sequence[TokenSpan | None]] | None = None

    def __getitem__(self, query: Query) -> TokenLogprobs:
        """The answer.

        Raises:
            Unscorable: the query has none; the message is the reason.
        """
        if query in self.failed:
            raise Unscorable(self.failed[query])
        return self.found[query]

    def __contains__(self, query: object) -> bool:
        return query in self.found or query in self.failed


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
        cache: where answers are looked up first and written at once; None asks everything.
        stage: what the progress line says.

    Returns:
        the answers, and what they cost. A query longer than the model's context, or without a single scored token, is
        failed with that reason: it is never cut.
    """
    asked = list(queries)
    unique = list(dict.fromkeys(asked))
    found: dict[Query, TokenLogprobs] = {}
    failed: dict[Query, str] = {}
    if cache is not None:
        found = cache.read(model.fingerprint, unique)
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
    counts = Counts(len(asked), len(unique), n_cached, len(failed))
    counts.tokens_asked = sum(len(e) for e in encoded)
    costs = model.costs(encoded)
    counts.tokens_computed = sum(costs)
    with Progress(stage, total=counts.tokens_computed, unit="tokens") as progress:
        pending: list[tuple[Query, TokenLogprobs]] = []
        written = time.monotonic()
        try:
            for i, reply in model.stream(encoded):
                found[todo[i]] = reply
                pending.append((todo[i], reply))
                progress.advance(costs[i])
                if cache is not None and time.monotonic() - written > WRITE_EVERY_SECONDS:
                    cache.write(model.fingerprint, pending)
                    pending, written = [], time.monotonic()
        finally:  # an interruption loses nothing that was computed
            if cache is not None and pending:
                cache.write(model.fingerprint, pending)
    return Answers(found, failed), counts


@dataclass(frozen=True)
class Network:
    """The parts of a causal language model that scoring needs.

    Attributes:
        backbone: maps input ids to hidden states (B, T, D); called as transformers decoders are.
        head: hidden states to logits.
        device: where both live.
        can_share: its key-value cache may be filled once and reused for several continuations.
        context: entered around every forward pass (disables an adapter, for the base of an adapted model).
    """

    backbone: Callable[..., Any]
    head: Callable[[Tensor], Tensor]
    device: torch.device
    can_share: bool
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def run_batches(
    network: Network, encoded: Sequence[Encoded], *, batch_tokens: int, kv_tokens: int
) -> Iterator[tuple[int, TokenLogprobs]]:
    """Answers of a local model, batch by batch, in the plan's order."""
    batches = list(plan(encoded, batch_tokens=batch_tokens, share=network.can_share, kv_tokens=kv_tokens).batches)
    prefix: tuple[bytes, Any] = (b"", None)
    batches.reverse()
    while batches:
        batch = batches.pop()
        replies: list[TokenLogprobs] | None = None
        try:
            with torch.inference_mode(), network.context():
                if batch.n_shared:
                    ids = encoded[batch.members[0]].input_ids[: batch.n_shared]
                    if prefix[0] != ids.tobytes():
                        prefix = (ids.tobytes(), _prefix_cache(network, ids))
                replies = _forward(network, [encoded[i] for i in batch.members], batch.n_shared, prefix[1])
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if len(batch.members) == 1 or not _out_of_memory(error):
                raise
        if replies is None:  # out of memory; here the failed pass's tensors are no longer held by the exception
            if network.device.type == "cuda":
                torch.cuda.empty_cache()
            batches += reversed(batch.split())
            continue
        yield from zip(batch.members, replies, strict=True)


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def _prefix_cache(network: Network, ids: np.ndarray) -> Any:
    tokens = torch.from_numpy(ids)[None].to(network.device)  # (1, L)
    return network.backbone(input_ids=tokens, use_cache=True).cache


def _expand(cache: Any, n: int) -> Any:
    """A cache for n continuations that reads one shared beginning; nothing is copied until a layer appends to it."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    layers: list[Any] = []
    for layer in cache.layers:
        copy = DynamicLayer()
        copy.lazy_initialization(layer.keys, layer.values)
        copy.keys = layer.keys.expand(n, -1, -1, -1)
        copy.values = layer.values.expand(n, -1, -1, -1)
        layers.append(copy)
    shared = DynamicCache()
    shared.layers = layers
    return shared


def _forward(network: Network, rows: list[Encoded], n_shared: int, prefix: Any) -> list[TokenLogprobs]:
    """One padded batch. Padding is on the right: under a causal mask no real token sees it, so no mask is needed."""
    width = max(len(e) for e in rows) - n_shared
    ids = np.zeros((len(rows), width), dtype=np.int64)  # (B, T)
    for row, e in zip(ids, rows, strict=True):
        row[: len(e) - n_shared] = e.input_ids[n_shared:]
    tokens = torch.from_numpy(ids).to(network.device)
    if n_shared:
        hidden = network.backbone(input_ids=tokens, cache=_expand(prefix, len(rows)), use_cache=True).last_hidden_state
    else:
        hidden = network.backbone(input_ids=tokens, use_cache=False).last_hidden_state  # (B, T, D)
    positions = [e.target_positions for e in rows]
    row_of = np.repeat(np.arange(len(rows)), [len(p) for p in positions])
    at = np.concatenate(positions) - n_shared
    states = hidden[torch.from_numpy(row_of).to(hidden.device), torch.from_numpy(at - 1).to(hidden.device)]  # (N, D)
    targets = tokens[torch.from_numpy(row_of).to(hidden.device), torch.from_numpy(at).to(hidden.device)]
    all_ = target_logprobs(network.head, states, targets)
    bounds = np.cumsum([0, *(len(p) for p in positions)])
    return [
        TokenLogprobs(all_.logprobs[a:b], all_.mean[a:b], all_.std[a:b], all_.argmax[a:b])
        for a, b in itertools.pairwise(bounds)
    ]
