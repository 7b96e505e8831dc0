"""Which queries begin alike, and when computing that beginning once pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """An interval of the sorted queries whose members share `depth` leading tokens and no more."""

    depth: int
    leaves: list[int] = field(default_factory=list)  # queries in no deeper interval
    children: list[_Node] = field(default_factory=list)
    above: tuple[int, ...] = ()  # depths of the intervals around it, and 0
    value: dict[int, int] = field(default_factory=dict)  # most tokens saved, by what the leaves else share
    opens: dict[int, bool] = field(default_factory=dict)  # whether it is then a group of its own


def shareable(encoded: Encoded) -> int:
    """How many leading tokens may come from a cache: all before the state that predicts the first target."""
    positions = encoded.target_positions
    return int(positions[0]) - 1 if len(positions) else 0


def group_by_prefix(encoded: Sequence[Encoded], *, min_saved: int = MIN_SAVED_TOKENS) -> list[PrefixGroup]:
    """Partition queries into groups that share a beginning, saving the most tokens with one level of sharing.

    Queries are sorted by their shareable tokens; common beginnings then form a tree of nested intervals (as in an
    enhanced suffix array). With F(node, s) the most that the node's queries can save if those that join no deeper group
    share s tokens with a group further up:

        F(node, s) = max( leaves * s + sum F(child, s),                                 no group here
                          leaves * depth + sum F(child, depth) - depth - (min_saved - 1) )   a group here

    so that a group is opened only where it saves at least `min_saved` more than its members save without it.
    """
    keys = [e.input_ids[: max(shareable(e), 0)].astype(">u4").tobytes() for e in encoded]
    order = sorted(range(len(encoded)), key=keys.__getitem__)
    root, closed = _tree([np.frombuffer(keys[i], dtype=">u4") for i in order])
    for node in closed:  # children before parents
        here = len(node.leaves) * node.depth + sum(c.value[node.depth] for c in node.children)
        here -= node.depth + min_saved - 1
        for shared in node.above:
            without = len(node.leaves) * shared + sum(c.value[shared] for c in node.children)
            node.opens[shared] = here > without
            node.value[shared] = max(here, without)
    groups: list[tuple[int, list[int]]] = [(0, [])]
    todo: list[tuple[_Node, int, list[int]]] = [(root, *groups[0])]
    while todo:
        node, shared, members = todo.pop()
        if node.opens.get(shared, False):
            shared, members = node.depth, []
            groups.append((shared, members))
        members += [order[i] for i in node.leaves]
        todo += [(child, shared, members) for child in node.children]
    return [PrefixGroup(shared, tuple(members)) for shared, members in groups if members]


def _tree(heads: Sequence[NDArray[np.uint32]]) -> tuple[_Node, list[_Node]]:
    """Nested intervals of sorted sequences, and all of them with children before parents."""
    root = _Node(0)
    stack = [root]
    closed: list[_Node] = []
    for i in range(len(heads)):
        before = _common(heads[i - 1], heads[i]) if i else 0
        after = _common(heads[i], heads[i + 1]) if i + 1 < len(heads) else 0
        last: _Node | None = None
        while stack[-1].depth > before:
            last = stack.pop()
            closed.append(last)
            if stack[-1].depth >= before:
                stack[-1].children.append(last)
                last = None
        if stack[-1].depth < before:
            stack.append(_Node(before, children=[last] if last else []))
        elif last is not None:
            stack[-1].children.append(last)
        if after > stack[-1].depth:
            stack.append(_Node(after))
        stack[-1].leaves.append(i)
    while len(stack) > 1:
        last = stack.pop()
        closed.append(last)
        stack[-1].children.append(last)
    closed.append(root)
    for node in reversed(closed):  # parents before children
        node.above = node.above or (0,)
        for child in node.children:
            child.above = (*node.above, node.depth) if node.depth else node.above
    return root, closed


def _common(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
