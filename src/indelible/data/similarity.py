"""How alike two texts are: shared word n-grams, and cosines of sentence embeddings that are made once a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from indelible.data.pools import DEFAULT_EMBEDDER, embed
from indelible.errors import Unscorable

FLOOR = 1e-16
"""What a similarity of zero or below counts as before its logarithm is taken (PETAL's constant)."""

ALIKE = 1e-6
"""Cosines closer to 1 than this are 1: the rest is rounding, which a logarithm and a regression would blow up."""

KEPT = 100_000
"""Embeddings kept, of about 1.5 kB each; beyond that they are made again."""

Vectors = dict[str, NDArray[np.float32]]
_vectors: dict[tuple[Callable[..., NDArray[np.float32]], str], Vectors] = {}


def ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """How often each run of `n` words occurs."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def ngram_recall(reference: str, candidate: str, n: int = 1) -> float:
    """The share of the reference's word n-grams that the candidate holds (ROUGE-N recall; Lin 2004).

    recall = sum_g min(count_ref(g), count_cand(g)) / sum_g count_ref(g), in [0, 1]. Words are what white space
    separates, as they are written.

    Raises:
        Unscorable: the reference has fewer than `n` words.
    """
    wanted, there = ngrams(reference.split(), n), ngrams(candidate.split(), n)
    if not wanted:
        raise Unscorable("too few words to compare" if n == 1 else f"fewer than {n} words to compare")
    return sum((wanted & there).values()) / sum(wanted.values())


def embedded(texts: Sequence[str], embedder: str = DEFAULT_EMBEDDER) -> Vectors:
    """Unit sentence embeddings by text, those not met before in one batch.

    White space at the ends of a text means nothing to the embedders, so it is taken off: ask for `text.strip()`.
    """
    known = _vectors.setdefault((embed, embedder), {})  # the function too, so that a stand-in never mixes with it
    new = sorted({text for text in texts if text not in known})
    if len(known) + len(new) > KEPT:
        known.clear()
        new = sorted(set(texts))
    if new:
        known.update(zip(new, embed(new, embedder), strict=True))
    return known


def n_embedded() -> int:
    """How many texts have their embedding at hand."""
    return sum(map(len, _vectors.values()))


def similarities(pairs: Sequence[tuple[str, str]], embedder: str = DEFAULT_EMBEDDER) -> NDArray[np.float64]:
    """Cosine of the sentence embeddings of each pair, (n,), at most 1.

    Equal texts are 1 without being embedded. An empty text (a model that said nothing) is like no other: 0.
    """
    bare = [(one.strip(), two.strip()) for one, two in pairs]
    unlike = [i for i, (one, two) in enumerate(pairs) if one and two and one != two and bare[i][0] != bare[i][1]]
    vectors = embedded([text for i in unlike for text in bare[i]], embedder) if unlike else {}
    out = np.array([float(bool(one) and bool(two)) for one, two in pairs], dtype=np.float64)
    for i in unlike:
        one, two = (vectors[text].astype(np.float64) for text in bare[i])
        out[i] = one @ two
    out[out > 1 - ALIKE] = 1.0
    return out


def log_similarities(pairs: Sequence[tuple[str, str]], embedder: str = DEFAULT_EMBEDDER) -> NDArray[np.float64]:
    """Natural logarithm of the similarity of each pair, (n,), from ln(FLOOR) to 0 (PETAL)."""
    alike = similarities(pairs, embedder)
    return np.log(np.where(alike <= 0, FLOOR, alike))


def fit_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope a and intercept b of the least-squares line y ~ a x + b.

    Raises:
        Unscorable: fewer than two points, `x` all alike, or a value that is not finite: there is no such line.
    """
    if len(x) < 2:
        raise Unscorable("fewer than two tokens: no regression")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise Unscorable("the model gave a log-probability that is not finite")
    if float(np.ptp(x)) < ALIKE:
        raise Unscorable("the surrogate's guesses are all equally alike: no regression")
    away = x - x.mean()
    slope = float(away @ (y - y.mean()) / (away @ away))
    return slope, float(y.mean() - slope * x.mean())
