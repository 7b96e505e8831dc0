"""Which queries begin alike, and when computing that beginning once pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indelible.data.chat import Encoded

MIN_SAVED_TOKENS = 192
"""A group is worth its own pass over the shared beginning when at least this many token computations are saved: the
pass has batch size one and the group cannot be batched with others, which costs about a small batch's inefficiency."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Queries `members` (indices) that share their first `n_shared` tokens; 0 means nothing is shared."""

    n_shared: int
    members: tuple[int, ...]


@dataclass(slots=True)
class _Node:
    """An interval of the sorted queries with a common beginning: `depth` tokens, first member `start`."""

    depth: int
    start: int
    saved: int = 0  # best saving among the closed sub-intervals
    groups: tuple[tuple[int, int, int], ...] = ()  # (start, stop, depth) that attain it


def shareable(encoded: Encoded) -> int:
    """How many leading tokens may come from a cache: all before the state that predicts the first target."""
    positions = encoded.target_positions
    return int(positions[0]) - 1 if len(positions) else 0


def group_by_prefix(encoded: Sequence[Encoded], *, min_saved: int = MIN_SAVED_TOKENS) -> list[PrefixGroup]:
    """Partition queries into groups that share a beginning, saving the most tokens with one level of sharing.

    Queries are sorted by their shareable tokens; common beginnings then form a tree of nested intervals (as in an
    enhanced suffix array). An interval of n queries with L common tokens saves (n - 1) L as one group, or what its
    sub-intervals save together; the better is taken from the leaves up. Groups that save less than `min_saved` are
    dissolved into one group without a shared beginning.
    """
    keys = [e.input_ids[: max(shareable(e), 0)].astype(">u4").tobytes() for e in encoded]
    order = sorted(range(len(encoded)), key=keys.__getitem__)
    heads = [np.frombuffer(keys[i], dtype=">u4") for i in order]

    def close(node: _Node, stop: int) -> tuple[int, tuple[tuple[int, int, int], ...]]:
        whole = (stop - node.start - 1) * node.depth
        if whole >= min_saved and whole >= node.saved:
            return whole, ((node.start, stop, node.depth),)
        return node.saved, node.groups

    root = _Node(0, 0)
    stack = [root]
    for i in range(1, len(heads) + 1):
        common = _common(heads[i - 1], heads[i]) if i < len(heads) else 0
        start = i - 1
        while stack[-1].depth > common:
            node = stack.pop()
            saved, groups = close(node, i)
            start = node.start
            if stack[-1].depth < common:
                stack.append(_Node(common, start))
            stack[-1].saved += saved
            stack[-1].groups += groups
        if stack[-1].depth < common:
            stack.append(_Node(common, start))
    chosen = root.groups
    grouped = [PrefixGroup(depth, tuple(order[start:stop])) for start, stop, depth in chosen]
    taken = {i for g in grouped for i in g.members}
    rest = tuple(i for i in range(len(encoded)) if i not in taken)
    return grouped + ([PrefixGroup(0, rest)] if rest else [])


def _common(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
