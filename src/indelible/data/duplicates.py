"""Which records are the same, and which nearly so: normal form, content ids, exact keys, near duplicates.

A near duplicate is a pair of texts whose shingle sets have a Jaccard similarity |A ∩ B| / |A ∪ B| of at least a
threshold. MinHash with locality-sensitive hashing proposes pairs; every proposed pair is then measured exactly.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.records import Record

Shingles = NDArray[np.uint64]  # sorted, distinct

WIDTH = 5
"""Words (or characters) in one shingle."""

_N_PERMUTATIONS, _MISS = 128, 1e-4

_FEW_WORDS, _SOME_WORDS = 10, 13
# Below 10 words 5-word shingles are too few to compare. Texts of 10 to 12 words are compared both ways, so that a pair
# straddling the border (its sizes differ by a fifth at most) is still seen.
_UNSPACED_LENGTH = 12  # mean word length above which a script is taken to write without spaces
_TEMPLATE_SHARE, _TEMPLATE_MIN = 0.5, 50


def normalise(text: str) -> str:
    """Normal form for comparisons: NFKC, case folded, punctuation off word edges, runs of white space one blank.

    Punctuation inside a word stays (`3-5`, `don't`), for code and sums differ by it. Word edges are punctuation of any
    Unicode category P; a word of nothing else vanishes.
    """
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return " ".join(bare for word in words if (bare := _bare(word)))


def _bare(word: str) -> str:
    if word.isalnum():
        return word
    start, end = 0, len(word)
    while start < end and unicodedata.category(word[start])[0] == "P":
        start += 1
    while end > start and unicodedata.category(word[end - 1])[0] == "P":
        end -= 1
    return word[start:end]


def comparison_text(record: Record) -> str:
    """What is compared of a record: every turn but system turns (they are shared by whole files), then the target."""
    return "\n".join([*(m.content for m in record.messages if m.role != "system"), record.target])


def exact_key(record: Record) -> str:
    """Equal for two records exactly when their turns (system turns aside) are equal in normal form."""
    turns = [normalise(m.content) for m in record.messages if m.role != "system"]
    content = json.dumps([*turns, normalise(record.target)])
    # A text of punctuation alone has an empty normal form; it is compared as it stands.
    return content if any(c.isalnum() for c in content) else json.dumps([record.prompt, record.target])


def content_ids(records: Sequence[Record]) -> list[str]:
    """One id a record, from its content alone: the first 12 hex digits of SHA-256 over roles and normalised turns.

    Records equal in normal form get `-2`, `-3`, ... in the order of their exact content, so that the same row has
    the same id in every order of the file.
    """
    buckets: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for i, record in enumerate(records):
        turns = [[m.role, m.content] for m in record.messages]
        normal = [[role, normalise(content)] for role, content in turns]
        digest = hashlib.sha256(json.dumps([normal, normalise(record.target)]).encode()).hexdigest()[:12]
        buckets[digest].append((json.dumps([turns, record.target]), i))
    ids = [""] * len(records)
    for digest, bucket in buckets.items():
        for n, (_, i) in enumerate(sorted(bucket), start=1):
            ids[i] = digest if n == 1 else f"{digest}-{n}"
    return ids


def short_digest(*parts: Hashable, n_hex: int = 16) -> str:
    """The first `n_hex` hex digits of SHA-256 over `parts`: a seeded order or a name that no platform changes."""
    return hashlib.sha256(json.dumps([str(p) for p in parts]).encode()).hexdigest()[:n_hex]


def jaccard(a: str, b: str) -> float:
    """Exact Jaccard similarity of two texts; the larger of word and character shingles where both apply."""
    best = 0.0
    for by_words in (True, False):
        hasher = _Hasher()
        pair = [hasher.shingles(t, by_words) for t in (normalise(a), normalise(b))]
        if pair[0] is not None and pair[1] is not None:
            best = max(best, _similarity(pair[0], pair[1]))
    return best


def _similarity(a: Shingles, b: Shingles) -> float:
    common = int(np.intersect1d(a, b, assume_unique=True).size)
    union = a.size + b.size - common
    return common / union if union else 0.0


class _Hasher:
    """Shingle sets as 64-bit hashes; word hashes are remembered."""

    # Odd multipliers, one a place in the shingle: a random linear hash of five random 64-bit word hashes.
    _PLACES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], np.uint64)

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def _hash(self, token: str) -> int:
        value = self._known.get(token)
        if value is None:
            value = int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little")
            self._known[token] = value
        return value

    def shingles(self, normal: str, by_words: bool) -> Shingles | None:
        """The shingle set of a text in normal form, or None where this kind of shingle does not apply to it."""
        words = normal.split()
        unspaced = len(normal) > _UNSPACED_LENGTH * max(1, len(words))
        if by_words and (unspaced or len(words) < _FEW_WORDS):
            return None
        if not by_words and not unspaced and len(words) >= _SOME_WORDS:
            return None
        tokens = words if by_words else list(normal)
        if not tokens:
            return None
        hashes = np.array([self._hash(t) for t in tokens], np.uint64)
        width = min(WIDTH, len(tokens))
        windows = np.lib.stride_tricks.sliding_window_view(hashes, width)  # (n_shingles, width)
        mixed: Shingles = np.unique((windows * self._PLACES[-width:]).sum(axis=1, dtype=np.uint64))
        return mixed


def _without_templates(sets: list[Shingles | None]) -> list[Shingles | None]:
    """Take out shingles that more than half of at least 50 texts share: a fixed instruction says nothing of a row."""
    present = [s for s in sets if s is not None]
    if len(present) < _TEMPLATE_MIN:
        return sets
    values, counts = np.unique(np.concatenate(present), return_counts=True)
    template = values[counts > _TEMPLATE_SHARE * len(present)]
    if not template.size:
        return sets
    kept = [s if s is None else np.setdiff1d(s, template, assume_unique=True) for s in sets]
    return [before if after is not None and not after.size else after for before, after in zip(sets, kept, strict=True)]


def _bands(threshold: float) -> tuple[int, int]:
    """LSH bands b and rows r, r as large as misses allow: a pair of similarity s is missed with (1 - s^r)^b.

    At a threshold of 0.8 that gives 25 bands of 5 rows, which miss 5 in 100,000 pairs at 0.8 and fewer above.
    """
    fits = (
        (_N_PERMUTATIONS // r, r)
        for r in range(1, _N_PERMUTATIONS + 1)
        if (1 - threshold**r) ** (_N_PERMUTATIONS // r) <= _MISS
    )
    return max(fits, key=lambda bands: bands[1], default=(_N_PERMUTATIONS, 1))


@dataclass(frozen=True)
class NearIndex:
    """Near-duplicate candidates among a fixed list of texts, found as the texts are added one by one.

    Only indices that were `add`ed can be matched, so a caller that walks through its records in order compares
    each one with what came before, and large families of near copies cost no quadratic time.
    """

    threshold: float
    _families: tuple[tuple[list[Shingles | None], Any, Any], ...]

    @classmethod
    def build(cls, texts: Sequence[str], *, threshold: float = 0.8, seed: int = 0) -> NearIndex:
        """Shingle and MinHash `texts`; nothing is matchable yet. `seed` seeds the permutations."""
        from datasketch import MinHash, MinHashLSH

        normal = [normalise(t) for t in texts]
        hasher = _Hasher()
        n_bands, n_rows = _bands(threshold)
        families = []
        for by_words in (True, False):
            sets = _without_templates([hasher.shingles(t, by_words) for t in normal])
            # datasketch's permutations work on 32-bit values
            low = [[] if s is None else (s & np.uint64(0xFFFFFFFF)).tolist() for s in sets]
            hashes = MinHash.bulk(low, num_perm=n_bands * n_rows, seed=seed + 1, hashfunc=int)
            families.append((sets, hashes, MinHashLSH(num_perm=n_bands * n_rows, params=(n_bands, n_rows))))
        return cls(threshold, tuple(families))

    def add(self, i: int) -> None:
        """Make text `i` matchable."""
        for sets, hashes, lsh in self._families:
            if sets[i] is not None:
                lsh.insert(i, hashes[i])

    def match(self, i: int, accept: Callable[[int], bool]) -> int | None:
        """The lowest added index whose similarity to text `i` reaches the threshold and that `accept` takes."""
        found: set[int] = set()
        for sets, hashes, lsh in self._families:
            mine = sets[i]
            if mine is None:
                continue
            for j in lsh.query(hashes[i]):
                other = sets[j]
                smaller, larger = sorted((mine.size, other.size))
                if smaller >= self.threshold * larger and accept(j) and _similarity(mine, other) >= self.threshold:
                    found.add(j)
        return min(found) if found else None


def near_pairs(texts: Iterable[str], *, threshold: float = 0.8, seed: int = 0) -> list[tuple[int, int]]:
    """All pairs (i, j), i < j, of near-duplicate texts. Quadratic in the size of a family of near copies."""
    texts = list(texts)
    index = NearIndex.build(texts, threshold=threshold, seed=seed)
    pairs = []
    for j in range(len(texts)):
        earlier: set[int] = set()
        while (i := index.match(j, lambda k: k not in earlier)) is not None:  # noqa: B023
            earlier.add(i)
            pairs.append((i, j))
        index.add(j)
    return sorted(pairs)
