"""Where everything stands in a pack: which tokens are whose, and what each of them sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from indelible.scoring.prefix import TokenTree

KeysValues = list[tuple[Tensor, Tensor]]  # one pair a layer, each (1, H_kv, L, D)


@dataclass(frozen=True)
class Span:
    """A shared stretch in a pack: the tokens below it attend to all of it."""

    level: int  # how many shared stretches stand above it
    queries: slice  # tokens of the pack that lie below
    keys: slice | None  # where its own tokens stand in the pack, or
    carried: KeysValues | None  # its keys and values from an earlier pack
    first_position: int


@dataclass(frozen=True)
class Layout:
    """Where everything stands in one pack of T tokens.

    Attributes:
        positions: (T,) position of each token in its sequence.
        own: computed stretches as (first token, length).
        spans: shared stretches with something below them, outer ones first.
        keep: stretches whose keys and values are to be kept, with the place of each; filled in by the pass.
    """

    positions: Tensor
    own: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...] = ()
    keep: Mapping[int, slice] = field(default_factory=dict)
    kept: dict[int, KeysValues] = field(default_factory=dict)
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    @property
    def n_levels(self) -> int:
        """Shared stretches that a token has above it, at most."""
        return max((s.level + 1 for s in self.spans), default=0)

    @cached_property
    def by_length(self) -> list[tuple[int, Tensor]]:
        """Own stretches of equal length together: the length, and the tokens (n * length,) they consist of."""
        starts: dict[int, list[int]] = {}
        for start, length in self.own:
            starts.setdefault(length, []).append(start)
        return [
            (n, (torch.tensor(s)[:, None] + torch.arange(n)).flatten().to(self.positions.device))
            for n, s in starts.items()
        ]

    def visible(self, window: int | None) -> Tensor:
        """(T, K) bool: which keys each token sees; the carried keys come first, in the order of `spans`.

        Made once: layers of one kind see the same.
        """
        if window not in self._masks:
            self._masks[window] = self._visible(window)
        return self._masks[window]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence here."""
        return int(self.positions.max()) + 1

    def _visible(self, window: int | None) -> Tensor:
        n = len(self.positions)
        carried = [s for s in self.spans if s.carried is not None]
        n_carried = sum(_length(s) for s in carried)
        sees = torch.zeros(n, n_carried + n, dtype=torch.bool, device=self.positions.device)
        at = [torch.arange(_length(s), device=sees.device) + s.first_position for s in carried]
        key_positions = torch.cat([*at, self.positions])
        for start, length in self.own:
            rows, columns = slice(start, start + length), slice(n_carried + start, n_carried + start + length)
            sees[rows, columns] = torch.ones(length, length, dtype=torch.bool, device=sees.device).tril()
        cursor = 0
        for span in self.spans:
            if span.keys is None:
                sees[span.queries, cursor : cursor + _length(span)] = True
                cursor += _length(span)
            else:
                sees[span.queries, n_carried + span.keys.start : n_carried + span.keys.stop] = True
        if window is not None:
            sees &= self.positions[:, None] - key_positions[None, :] < window
        return sees


def _length(span: Span) -> int:
    if span.carried is not None:
        return int(span.carried[0][0].shape[2])
    assert span.keys is not None
    return int(span.keys.stop - span.keys.start)


def lay_out(
    tree: TokenTree, needed: Sequence[int], have: Mapping[int, KeysValues], keep: frozenset[int], device: torch.device
) -> tuple[Layout, dict[int, int]]:
    """The layout of a pack, and where each computed stretch begins in it.

    Args:
        needed: stretches on the members' paths, in preorder.
        have: keys and values at hand; these stretches are not computed.
        keep: stretches to keep.
    """
    begins: dict[int, int] = {}
    cursor = 0
    for s in needed:
        if s not in have:
            begins[s] = cursor
            cursor += len(tree.stretches[s])
    below = dict.fromkeys(needed, 0)  # where the computed tokens below a stretch end
    level: dict[int, int] = {}
    enter: dict[int, int] = {}
    cursor = 0
    for s in needed:
        parent = tree.stretches[s].parent
        level[s] = level[parent] + 1 if parent >= 0 else 0
        cursor += len(tree.stretches[s]) if s in begins else 0
        enter[s] = cursor
    for s in reversed(needed):
        below[s] = max(below[s], enter[s])
        parent = tree.stretches[s].parent
        if parent >= 0:
            below[parent] = max(below[parent], below[s])
    spans = []
    for s in needed:
        if below[s] > enter[s]:
            keys = slice(begins[s], begins[s] + len(tree.stretches[s])) if s in begins else None
            spans.append(
                Span(
                    level[s],
                    slice(enter[s], below[s]),
                    keys,
                    have[s] if keys is None else None,
                    tree.stretches[s].start,
                )
            )
    positions = [np.arange(tree.stretches[s].start, tree.stretches[s].stop) for s in begins]
    flat = torch.from_numpy(np.concatenate(positions)).to(device)
    own = tuple((start, len(tree.stretches[s])) for s, start in begins.items())
    places = {s: slice(begins[s], begins[s] + len(tree.stretches[s])) for s in keep if s in begins}
    return Layout(flat, own, tuple(spans), places), begins
