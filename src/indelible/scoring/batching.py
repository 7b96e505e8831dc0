"""Batches: pure planning, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indelible.data.chat import Encoded
from indelible.scoring.prefix import PrefixGroup, group_by_prefix


@dataclass(frozen=True, slots=True)
class Batch:
    """Queries that run together. The first `n_shared` tokens are the same in all and come from one cached pass."""

    n_shared: int
    members: tuple[int, ...]

    def split(self) -> tuple[Batch, Batch]:
        """Two halves, for when memory did not suffice."""
        half = len(self.members) // 2
        return Batch(self.n_shared, self.members[:half]), Batch(self.n_shared, self.members[half:])


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches in running order, and what they cost."""

    batches: tuple[Batch, ...]
    costs: tuple[int, ...]  # tokens computed for each query; a shared beginning counts for the first of its group


def plan(encoded: Sequence[Encoded], *, batch_tokens: int, share: bool = True, kv_tokens: int = 1 << 62) -> Plan:
    """Token-budget batches, longest first.

    Longest first has three uses: neighbours have nearly the same length, so little is padding; the time left is never
    underestimated; and if memory will not suffice, that shows at once. A batch holds at most `batch_tokens` padded
    tokens, or a single query that alone is longer. `kv_tokens` bounds the cached tokens of a batch with a shared
    beginning (beginning times batch size).
    """
    groups = group_by_prefix(encoded) if share else [PrefixGroup(0, tuple(range(len(encoded))))]
    groups.sort(key=lambda g: -max(len(encoded[i]) for i in g.members) if g.members else 0)
    batches: list[Batch] = []
    costs = [len(e) for e in encoded]
    for group in groups:
        for i in group.members[1:]:
            costs[i] -= group.n_shared
        current: list[int] = []
        for i in sorted(group.members, key=lambda i: (-len(encoded[i]), i)):
            width = len(encoded[current[0]]) if current else 0  # the longest comes first
            n_rows = len(current) + 1
            full = n_rows * (width - group.n_shared) > batch_tokens or n_rows * width > kv_tokens
            if current and full:
                batches.append(Batch(group.n_shared, tuple(current)))
                current = []
            current.append(i)
        if current:
            batches.append(Batch(group.n_shared, tuple(current)))
    return Plan(tuple(batches), tuple(costs))
