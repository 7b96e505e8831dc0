"""Token sequences that begin alike, as a tree in which a shared beginning stands once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MIN_SAVED_TOKENS = 16
"""A shared stretch stands by itself when that saves at least this many token computations. Each such stretch costs one
more attention call a layer: on two CPU cores, about eight tokens of the embedded model (benchmarks/sharing.py)."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, stop) of sequence `source`, which follow the tokens of stretch `parent` (-1: nothing)."""

    parent: int
    start: int
    stop: int
    source: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class TokenTree:
    """Stretches in preorder (parents before children, subtrees contiguous), and where each sequence ends."""

    stretches: tuple[Stretch, ...]
    last: tuple[int, ...]

    def chain(self, sequence: int) -> list[int]:
        """The stretches that spell a sequence, first to last."""
        out = []
        at = self.last[sequence]
        while at >= 0:
            out.append(at)
            at = self.stretches[at].parent
        return out[::-1]


@dataclass(slots=True)
class _Interval:
    """Neighbours in sorted order that share `depth` leading tokens and no more."""

    depth: int
    leaves: list[int] = field(default_factory=list)  # sequences in no deeper interval
    children: list[_Interval] = field(default_factory=list)
    longest: int = 0


def token_tree(
    sequences: Sequence[NDArray[np.int64]], shareable: Sequence[int], *, min_saved: int = MIN_SAVED_TOKENS
) -> TokenTree:
    """Merge sequences over their shareable beginnings.

    Args:
        sequences: token ids of each.
        shareable: how many leading tokens of each may be computed for several sequences at once.
        min_saved: a shared stretch of n tokens under k continuations saves (k - 1) n token computations; with less than
            this many saved, the continuations compute it themselves.

    Returns:
        a tree; subtrees with the longest sequence come first.
    """
    keys = [s[:n].astype(">u4").tobytes() for s, n in zip(sequences, shareable, strict=True)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    root, closed = _intervals([np.frombuffer(keys[i], dtype=">u4") for i in order])
    for node in closed:  # children before parents
        node.leaves = [order[i] for i in node.leaves]
        kept: list[_Interval] = []
        for child in node.children:
            units = len(child.leaves) + len(child.children)
            if (units - 1) * (child.depth - node.depth) >= min_saved:
                kept.append(child)
            else:
                node.leaves += child.leaves
                kept += child.children
        node.children = kept
        node.longest = max([len(sequences[i]) for i in node.leaves] + [c.longest for c in node.children], default=0)
    stretches: list[Stretch] = []
    last = [-1] * len(keys)
    todo: list[tuple[_Interval | int, int, int]] = [(root, -1, 0)]  # what, under which stretch, at which depth
    while todo:
        node_or_leaf, parent, depth = todo.pop()
        if isinstance(node_or_leaf, int):
            length = len(sequences[node_or_leaf])
            last[node_or_leaf] = len(stretches) if length > depth else parent
            if length > depth:
                stretches.append(Stretch(parent, depth, length, node_or_leaf))
            continue
        node = node_or_leaf
        if node.depth > depth:
            stretches.append(Stretch(parent, depth, node.depth, _any_leaf(node)))
            parent = len(stretches) - 1
        below: list[tuple[int, _Interval | int]] = [(c.longest, c) for c in node.children]
        below += [(len(sequences[i]), i) for i in node.leaves]
        below.sort(key=lambda pair: pair[0])  # the longest is popped first
        todo += [(what, parent, node.depth) for _, what in below]
    return TokenTree(tuple(stretches), tuple(last))


def _any_leaf(node: _Interval) -> int:
    while not node.leaves:
        node = node.children[0]
    return node.leaves[0]


def _intervals(heads: Sequence[NDArray[np.uint32]]) -> tuple[_Interval, list[_Interval]]:
    """Nested intervals of sorted sequences (as in an enhanced suffix array), and all of them, children first."""
    root = _Interval(0)
    stack = [root]
    closed: list[_Interval] = []
    before = 0
    for i in range(len(heads)):
        after = _common(heads[i], heads[i + 1]) if i + 1 < len(heads) else 0
        last: _Interval | None = None
        while stack[-1].depth > before:
            last = stack.pop()
            closed.append(last)
            if stack[-1].depth >= before:
                stack[-1].children.append(last)
                last = None
        if stack[-1].depth < before:
            stack.append(_Interval(before, children=[last] if last else []))
        elif last is not None:
            stack[-1].children.append(last)
        if after > stack[-1].depth:
            stack.append(_Interval(after))
        stack[-1].leaves.append(i)
        before = after
    while len(stack) > 1:
        last = stack.pop()
        closed.append(last)
        stack[-1].children.append(last)
    closed.append(root)
    return root, closed


def _common(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
