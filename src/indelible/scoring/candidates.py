"""The rank of one string among many that could stand in its place, scored as a token trie.

Candidates share their prompt and much of their own beginnings, so every shared token is computed once, level by
level; the last token of a candidate is never computed at all, since its log-probability is read from the state before
it. A level's branches whose log-probability is already below the true candidate's total are dropped:
log-probabilities only fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from indelible.errors import Unscorable
from indelible.scoring.batching import Pack, plan
from indelible.scoring.layout import KeysValues
from indelible.scoring.logprobs import chosen_logprobs
from indelible.scoring.network import Network, hidden_states, passes
from indelible.scoring.prefix import MIN_SAVED_TOKENS, Stretch, TokenTree, token_tree

TIE_NATS = 1e-4
"""Candidates this close to the true one are not told apart: the two ranks count them above and below it."""

SLACK_NATS = {torch.float32: 1e-4}
SLACK_NATS_ROUNDED = 0.05
"""How far below the true total, for each of its tokens, a branch must be to be dropped: more than rounding moves it
between two passes. The second is for lower precisions."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Where the true candidate stands.

    Attributes:
        rank: 1 + candidates at least as probable (less `TIE_NATS`): the pessimistic rank, as published exposures use.
        rank_optimistic: 1 + candidates more probable by over `TIE_NATS`.
        n_candidates: the true one included.
        logprob: of the true candidate with its suffix, nats.
        logprobs: (n_candidates,) of all, where they were asked for; None otherwise.
        tokens_computed: tokens that went through the model.
    """

    rank: int
    rank_optimistic: int
    n_candidates: int
    logprob: float
    logprobs: NDArray[np.float64] | None
    tokens_computed: int


def standing(logprobs: NDArray[np.float64], index: int) -> tuple[int, int]:
    """Pessimistic and optimistic rank of one candidate among all, given all their log-probabilities (n,)."""
    own, others = float(logprobs[index]), np.delete(logprobs, index)
    return 1 + int((others >= own - TIE_NATS).sum()), 1 + int((others > own + TIE_NATS).sum())


@dataclass
class _Walk:
    """The trie as far as it has been scored. Totals are log-probabilities from the prompt's end, nats."""

    network: Network
    prompt: NDArray[np.int64]
    candidates: Sequence[NDArray[np.int64]]
    tree: TokenTree
    batch_tokens: int
    kv_tokens: int
    have: dict[int, KeysValues] = field(default_factory=dict)
    tokens_computed: int = 0
    total: dict[int, float] = field(default_factory=dict)  # by stretch: with all its tokens

    def tokens(self, stretch: int) -> NDArray[np.int64]:
        """What the stretch adds to the stretches before it."""
        s = self.tree.stretches[stretch]
        return self.candidates[s.source][s.start : s.stop]


def rank_candidates(
    network: Network,
    prompt: NDArray[np.int64],
    candidates: Sequence[NDArray[np.int64]],
    true: int,
    *,
    batch_tokens: int,
    kv_tokens: int,
    everything: bool = False,
) -> Ranking:
    """Rank candidate `true` by log p(candidate | prompt).

    Args:
        prompt: token ids before every candidate, at least one.
        candidates: token ids of each, any lengths, none empty; one may begin another.
        everything: no pruning; all candidates' values are in the answer.

    Raises:
        Unscorable: a value is not a number.
    """
    tree = token_tree(candidates, [len(c) for c in candidates], min_saved=1)
    children: list[list[int]] = [[] for _ in tree.stretches]
    roots: list[int] = []
    for s, stretch in enumerate(tree.stretches):
        (children[stretch.parent] if stretch.parent >= 0 else roots).append(s)
    walk = _Walk(network, prompt, candidates, tree, batch_tokens, kv_tokens)
    with torch.inference_mode(), network.context():
        first = _prompt_pass(walk, [int(walk.tokens(s)[0]) for s in roots])
        floor = -np.inf
        if not everything:  # the true candidate's own path goes first, to know what can be dropped
            path = set(tree.chain(true))
            _walk_down(walk, roots, first, children, only=path)
            slack = SLACK_NATS.get(network.dtype, SLACK_NATS_ROUNDED) * len(candidates[true])
            floor = walk.total[tree.last[true]] - TIE_NATS - slack
        _walk_down(walk, roots, first, children, floor=floor)
        if walk.total[tree.last[true]] < floor + TIE_NATS:  # rounding moved it by more than was allowed for
            _walk_down(walk, roots, first, children)
    totals = np.array([walk.total.get(s, -np.inf) for s in tree.last])
    if np.isnan(totals).any():
        raise Unscorable("a candidate's log-probability is not a number: its logits overflowed; use --dtype float32")
    rank, rank_optimistic = standing(totals, true)
    return Ranking(
        rank=rank,
        rank_optimistic=rank_optimistic,
        n_candidates=len(candidates),
        logprob=float(totals[true]),
        logprobs=totals if everything else None,
        tokens_computed=walk.tokens_computed,
    )


def _walk_down(
    walk: _Walk,
    roots: Sequence[int],
    first: dict[int, float],
    children: Sequence[Sequence[int]],
    *,
    only: set[int] | None = None,
    floor: float = -np.inf,
) -> None:
    """Score level after level: the stretches in `only`, if given, whose total up to their first token is not below
    `floor`. What cannot be compared (NaN) goes on, to be found at the end."""
    level, upto = [s for s in roots if only is None or s in only], first
    while level := [s for s in level if not upto[s] < floor]:
        level, upto = _level(walk, level, upto, children, only=only)


def _prompt_pass(walk: _Walk, first_tokens: Sequence[int]) -> dict[int, float]:
    """Run the prompt, keep its keys and values, and read the log-probability of each first token, by root stretch."""
    tree = TokenTree((Stretch(-1, 0, len(walk.prompt), 0),), (0,))
    keep = len(walk.prompt) <= walk.kv_tokens
    pack = Pack((0,), (0,), frozenset([0] if keep else []))
    ((_begin, hidden),) = hidden_states(walk.network, [walk.prompt], tree, pack, walk.have)
    walk.tokens_computed += len(walk.prompt)
    row = np.zeros(len(first_tokens), dtype=np.int64)
    logp = chosen_logprobs(walk.network.head, hidden[-1:], row, np.array(first_tokens))
    roots = [s for s, stretch in enumerate(walk.tree.stretches) if stretch.parent < 0]
    return dict(zip(roots, logp.tolist(), strict=True))


def _level(
    walk: _Walk,
    level: Sequence[int],
    upto: dict[int, float],
    children: Sequence[Sequence[int]],
    *,
    only: set[int] | None = None,
) -> tuple[list[int], dict[int, float]]:
    """Score stretches of one depth, given totals up to their first tokens; the next depth, and the same of it."""
    below = {s: [c for c in children[s] if only is None or c in only] for s in level}
    to_run = []
    for s in level:
        walk.total[s] = upto[s]
        if len(walk.tree.stretches[s]) > 1 or below[s]:
            to_run.append(s)
    following: dict[int, float] = {}
    for part, states in _run(walk, to_run, below):
        rows, ids, owner = [], [], []  # which state predicts which token, and whose it is: -1 for the stretch's own
        cursor = 0
        for s, n in zip(part, map(len, states), strict=True):
            own = walk.tokens(s)[1:]
            first_of = [int(walk.tokens(c)[0]) for c in below[s]]
            rows += [*range(cursor, cursor + len(own)), *[cursor + n - 1] * len(first_of)]
            ids += [*own.tolist(), *first_of]
            owner += [(s, -1)] * len(own) + [(s, c) for c in below[s]]
            cursor += n
        logp = chosen_logprobs(walk.network.head, torch.cat(states), np.array(rows), np.array(ids))
        for (s, child), value in zip(owner, logp.tolist(), strict=True):
            if child < 0:
                walk.total[s] += value
            else:  # own tokens come first, so the total is whole here
                following[child] = walk.total[s] + value
    return list(following), following


def _run(
    walk: _Walk, stretches: Sequence[int], below: dict[int, list[int]]
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Hidden states of the stretches' own tokens, pass by pass; the last token only where something follows it."""
    if not stretches:
        return
    start = len(walk.prompt)
    paths = []
    for s in stretches:
        stretch = walk.tree.stretches[s]
        stop = stretch.stop if below[s] else stretch.stop - 1
        paths.append(walk.candidates[stretch.source][:stop])
    shareable = [walk.tree.stretches[s].start for s in stretches]
    packs = walk.network.packs
    tree = token_tree(paths, shareable, min_saved=MIN_SAVED_TOKENS if packs else 1 << 62)
    moved = [Stretch(s.parent + 1, s.start + start, s.stop + start, s.source) for s in tree.stretches]
    rooted = TokenTree((Stretch(-1, 0, start, 0), *moved), tuple(s + 1 for s in tree.last))
    if not packs:
        rooted = TokenTree(tuple(Stretch(-1, 0, s.stop, s.source) for s in moved), tree.last)
    sequences = [np.concatenate([walk.prompt, path]) for path in paths]
    made = plan(
        rooted,
        batch_tokens=walk.batch_tokens,
        kv_tokens=walk.kv_tokens,
        carried=frozenset(walk.have) if packs else frozenset(),
    )
    walk.tokens_computed += sum(made.costs)
    # the prompt stays for the next level, whatever this one's passes keep for each other
    always = frozenset(walk.have) & {0}
    kept = [replace(pack, keep=pack.keep | always) for pack in made.packs]
    for members, states in passes(walk.network, sequences, rooted, kept, walk.have):
        own = [
            hidden[len(hidden) - len(paths[i]) + shareable[i] :] for i, (_, hidden) in zip(members, states, strict=True)
        ]
        yield [stretches[i] for i in members], own
    for stretch_index in set(walk.have) - {0}:
        del walk.have[stretch_index]
