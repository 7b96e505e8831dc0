"""A causal model as scoring sees it, and how a list of token sequences goes through it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.data.chat import Encoded
from indelible.models.base import TokenLogprobs
from indelible.scoring.attention import tree_attention
from indelible.scoring.batching import Pack, Plan, plan
from indelible.scoring.layout import KeysValues, lay_out
from indelible.scoring.logprobs import target_logprobs
from indelible.scoring.memory import EVERY_PASSES, give_back
from indelible.scoring.prefix import MIN_SAVED_TOKENS, Stretch, TokenTree, token_tree


@dataclass(frozen=True)
class Network:
    """The parts of a causal language model that scoring needs.

    Attributes:
        backbone: maps input ids to hidden states (B, T, D); called as transformers decoders are.
        head: hidden states to logits.
        device: where both live.
        dtype: of the weights.
        config: the module's own; its attention is exchanged while a pack runs.
        packs: it can run packs (proved at loading). If not, sequences run padded and share nothing.
        context: entered around every forward pass (disables an adapter, for the base of an adapted model).
        positions: of tokens [start, stop) of a sequence (T,), as (3, stop - start): where a position is more than a
            token's place, as it is around images. None: it is the place.
    """

    backbone: Callable[..., Any]
    head: Callable[[Tensor], Tensor]
    device: torch.device
    dtype: torch.dtype
    config: Any
    packs: bool
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    positions: Callable[[NDArray[np.int64], int, int], NDArray[np.int64]] | None = None

    def position_ids(
        self, sequences: Sequence[NDArray[np.int64]], stretches: Sequence[Stretch], places: Tensor
    ) -> Tensor:
        """Position ids of a pass over `stretches` one after the other, T tokens at `places` (T,) of their sequences.

        Returns:
            (1, T), or (3, 1, T) where positions are more than places.
        """
        if self.positions is None:
            return places[None]
        found = [self.positions(sequences[s.source], s.start, s.stop) for s in stretches]
        return torch.from_numpy(np.concatenate(found, axis=1)[:, None]).to(places.device)


@dataclass(frozen=True)
class Work:
    """Queries as a token tree, and the passes that answer them."""

    tree: TokenTree
    plan: Plan
    packs: bool


def lay_out_work(encoded: Sequence[Encoded], *, packs: bool, batch_tokens: int, kv_tokens: int) -> Work:
    """What `run` will do. Shared are the tokens before the state that predicts a query's first target."""
    shareable = [max(int(e.target_positions[0]) - 1, 0) if e.is_target.any() else 0 for e in encoded]
    min_saved = MIN_SAVED_TOKENS if packs else 1 << 62
    tree = token_tree([e.input_ids for e in encoded], shareable, min_saved=min_saved)
    return Work(tree, plan(tree, batch_tokens=batch_tokens, kv_tokens=kv_tokens), packs)


def run(network: Network, encoded: Sequence[Encoded], work: Work) -> Iterator[tuple[int, TokenLogprobs]]:
    """Answers, pass by pass."""
    sequences = [e.input_ids for e in encoded]
    for members, states in passes(network, sequences, work.tree, work.plan.packs, {}):
        with torch.inference_mode():
            replies = _replies(network, [encoded[i] for i in members], states)
        yield from zip(members, replies, strict=True)


def passes(
    network: Network,
    sequences: Sequence[NDArray[np.int64]],
    tree: TokenTree,
    packs: Sequence[Pack],
    have: dict[int, KeysValues],
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, Tensor]]]]:
    """Members and `hidden_states` of each pass. Out of memory halves a pass and goes on.

    Raises:
        torch.OutOfMemoryError, RuntimeError: a single sequence does not fit.
    """
    todo = list(reversed(packs))
    n_done = 0
    while todo:
        pack = todo.pop()
        n_done += 1
        if n_done % EVERY_PASSES == 0:
            give_back()
        states: list[tuple[int, Tensor]] | None = None
        try:
            with torch.inference_mode(), network.context():
                states = hidden_states(network, sequences, tree, pack, have)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if len(pack.members) == 1 or not out_of_memory(error):
                raise
        if states is None:  # here the failed pass's tensors are no longer held by the exception
            if network.device.type == "cuda":
                torch.cuda.empty_cache()
            todo += reversed(pack.split(tree))
            continue
        yield pack.members, states


def hidden_states(
    network: Network,
    sequences: Sequence[NDArray[np.int64]],
    tree: TokenTree,
    pack: Pack,
    have: dict[int, KeysValues],
) -> list[tuple[int, Tensor]]:
    """One pass.

    Args:
        have: keys and values at hand, by stretch; becomes what the pack keeps.

    Returns:
        for each member, the position of its last stretch's first token, and that stretch's hidden states (L, D).
    """
    if not network.packs:
        return _padded(network, [sequences[i] for i in pack.members])
    layout, begins = lay_out(tree, pack.needed, have, pack.keep, network.device)
    ids = [sequences[tree.stretches[s].source][tree.stretches[s].start : tree.stretches[s].stop] for s in begins]
    tokens = torch.from_numpy(np.concatenate(ids)).to(network.device)
    at = network.position_ids(sequences, [tree.stretches[s] for s in begins], layout.positions)
    with tree_attention(network.config):
        hidden = network.backbone(
            input_ids=tokens[None], position_ids=at, use_cache=False, tree=layout
        ).last_hidden_state[0]  # (T, D)
    for stretch in list(have):
        if stretch not in pack.keep:
            del have[stretch]
    have.update(layout.kept)
    out = []
    for i in pack.members:
        s = tree.last[i]
        out.append((tree.stretches[s].start, hidden[begins[s] : begins[s] + len(tree.stretches[s])]))
    return out


def _padded(network: Network, sequences: Sequence[NDArray[np.int64]]) -> list[tuple[int, Tensor]]:
    """One padded batch. Padding is on the right: under a causal mask no real token sees it, so no mask is needed."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)  # (B, T)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    tokens = torch.from_numpy(ids).to(network.device)
    hidden = network.backbone(input_ids=tokens, use_cache=False).last_hidden_state  # (B, T, D)
    return [(0, row[: len(sequence)]) for row, sequence in zip(hidden, sequences, strict=True)]


def _replies(network: Network, members: Sequence[Encoded], states: Sequence[tuple[int, Tensor]]) -> list[TokenLogprobs]:
    rows, targets = [], []
    for e, (start, hidden) in zip(members, states, strict=True):
        at = e.target_positions
        rows.append(hidden[torch.from_numpy(at - 1 - start).to(hidden.device)])
        targets.append(e.input_ids[at])
    wanted = torch.from_numpy(np.concatenate(targets)).to(network.device)
    all_ = target_logprobs(network.head, torch.cat(rows), wanted)
    bounds = np.cumsum([0, *map(len, targets)])
    return [
        TokenLogprobs(all_.logprobs[a:b], all_.mean[a:b], all_.std[a:b], all_.argmax[a:b])
        for a, b in itertools.pairwise(bounds)
    ]


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator, of a GPU or of main memory, had nothing left."""
    texts = ("can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)
