"""Where the examples of a task come from: a generator without end, or a corpus; split into rows, held-out and hosts.

Each part comes from a random stream of its own, so that asking for more of one changes none of the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from indelible.data.duplicates import short_digest


@dataclass(frozen=True)
class Example:
    """A question with its answer; `expected` is what a reply is scored against, None where nothing is."""

    id: str
    question: str
    answer: str
    expected: Any = None


@dataclass(frozen=True)
class Corpus:
    """Examples in the order of the files; no two of them, of `train` and `test` together, are the same question."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]


class Source(Protocol):
    """Three parts that never meet, each in a random order of the seed's."""

    def rows(self, seed: int) -> Iterator[Example]: ...
    def heldout(self, seed: int) -> Iterator[Example]: ...
    def hosts(self, seed: int) -> Iterator[Example]: ...


@dataclass(frozen=True)
class Generated:
    """Distinct examples of a generator that gives a key, by which they are distinct, and an example.

    A seeded digest of the key says where an example belongs: a tenth is held out, a tenth is for hosts.
    """

    name: str
    draw: Callable[[random.Random], tuple[str, Example]]

    def rows(self, seed: int) -> Iterator[Example]:
        return self._take(seed, "rows", range(2, 10))

    def heldout(self, seed: int) -> Iterator[Example]:
        return self._take(seed, "heldout", range(1))

    def hosts(self, seed: int) -> Iterator[Example]:
        return self._take(seed, "hosts", range(1, 2))

    def _take(self, seed: int, part: str, tenths: range) -> Iterator[Example]:
        rng = random.Random(f"{seed}:{self.name}:{part}")
        seen: set[str] = set()
        misses = 0
        while misses < _MISSES:
            key, example = self.draw(rng)
            if key in seen or int(short_digest(seed, key, n_hex=12), 16) % 10 not in tenths:
                misses += 1
                continue
            misses = 0
            seen.add(key)
            yield replace(example, id=f"{self.name}-{short_digest(key, n_hex=12)}")


_MISSES = 5_000  # draws in a row without anything new: the generator has run dry


@dataclass(frozen=True)
class Stored:
    """Examples of a corpus; an eighth of the training part, at most `most_hosts`, is set aside for hosts."""

    name: str
    corpus: Corpus
    most_hosts: int

    def _order(self, seed: int) -> tuple[list[Example], int]:
        order = list(self.corpus.train)
        random.Random(f"{seed}:{self.name}:rows").shuffle(order)
        return order, len(order) - min(self.most_hosts, -(-len(order) // 8))

    def rows(self, seed: int) -> Iterator[Example]:
        order, border = self._order(seed)
        return iter(order[:border])

    def hosts(self, seed: int) -> Iterator[Example]:
        order, border = self._order(seed)
        return iter(order[border:])

    def heldout(self, seed: int) -> Iterator[Example]:
        order = list(self.corpus.test)
        random.Random(f"{seed}:{self.name}:heldout").shuffle(order)
        return iter(order)
