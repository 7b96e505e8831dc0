"""Packs: which stretches of a token tree run together. Pure planning, no tensors.

A pack is one row of tokens without padding: stretches of many sequences, one after the other. Each token attends to the
stretches before it on its own path and to nothing else.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from indelible.scoring.prefix import TokenTree


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward pass.

    Attributes:
        needed: stretches on the paths of its members, in preorder. Those already computed need not run again.
        members: sequences that end here.
        keep: stretches whose keys and values the next pack continues from.
    """

    needed: tuple[int, ...]
    members: tuple[int, ...]
    keep: frozenset[int]

    def split(self, tree: TokenTree) -> tuple[Pack, Pack]:
        """Two halves, for when memory did not suffice."""
        half = len(self.members) // 2
        parts = self.members[:half], self.members[half:]
        needed = [{s for i in part for s in tree.chain(i)} for part in parts]
        first, second = (tuple(s for s in self.needed if s in wanted) for wanted in needed)
        return Pack(first, parts[0], frozenset()), Pack(second, parts[1], self.keep)


@dataclass(frozen=True, slots=True)
class Plan:
    """Packs in running order, and what they cost."""

    packs: tuple[Pack, ...]
    costs: tuple[int, ...]  # tokens computed for each sequence; a shared stretch counts for the first that needs it


def plan(tree: TokenTree, *, batch_tokens: int, kv_tokens: int, carried: Set[int] = frozenset()) -> Plan:
    """Packs of at most `batch_tokens` computed tokens (or one sequence that alone is longer), in the tree's order.

    Where a pack ends inside a subtree, the stretches above it stay in memory as keys and values for the next one, as
    long as they are at most `kv_tokens` together; beyond that they are computed again. `carried` is at hand before
    the first.
    """
    order = sorted(range(len(tree.last)), key=lambda i: (tree.last[i], i))
    costs = [0] * len(tree.last)
    packs: list[Pack] = []
    needed: set[int] = set()
    members: list[int] = []
    n_tokens = 0

    def cost_of(chain: list[int]) -> int:
        return sum(len(tree.stretches[s]) for s in chain if s not in needed and s not in carried)

    def close(following: list[int]) -> None:
        nonlocal needed, members, carried, n_tokens
        keep: set[int] = set()
        room = kv_tokens
        for s in following:  # outermost first: they serve the most sequences
            room -= len(tree.stretches[s])
            if s not in needed or room < 0:
                break
            keep.add(s)
        packs.append(Pack(tuple(sorted(needed)), tuple(members), frozenset(keep)))
        needed, members, carried, n_tokens = set(), [], keep, 0

    for i in order:
        chain = tree.chain(i)
        cost = cost_of(chain)
        if members and n_tokens + cost > batch_tokens:
            close(chain)
            cost = cost_of(chain)
        members.append(i)
        needed.update(chain)
        costs[i] = cost
        n_tokens += cost
    if members:
        close([])
    return Plan(tuple(packs), tuple(costs))
