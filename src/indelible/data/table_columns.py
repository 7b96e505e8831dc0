"""How one column becomes numbers: frozen on the training context, and never so that two values become one.

Every block is (n, width) float32 and finite. `positions` is the fall-back that keeps values apart where nothing else
does: the place of a value among the sorted values of the whole table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from indelible.errors import DataError

Block = NDArray[np.float32]

N_TEXT_FEATURES = 8
LINEAR_UP_TO = 5.0
"""Standard deviations up to which a number is encoded as it is; beyond, it grows as their logarithm."""

_N_HASHED, _PROJECTION_SEED = 4096, 20260630
_TEXT_STEP = 1e-3  # texts whose features are closer than this are taken for equal, and get positions
_HUGE = 1e300


class ColumnEncoding(Protocol):
    """One column's rule."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns it makes."""
        ...

    def encode(self, values: NDArray[Any]) -> Block:
        """(n,) values to (n, width)."""
        ...

    def neutral(self) -> Block:
        """(width,) of a row that says nothing: the context's mean, its most frequent category, its mean text."""
        ...

    def noised(self, block: Block, rng: np.random.Generator, scale: float) -> Block:
        """(n, width) moved or redrawn."""
        ...


def squash(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """z up to 5 in size, beyond sign(z) (5 + ln(1 + |z| - 5)): strictly increasing, and its slope has no jump."""
    size = np.abs(z)
    beyond = np.log1p(np.maximum(size - LINEAR_UP_TO, 0))
    squashed: NDArray[np.float64] = np.sign(z) * (np.minimum(size, LINEAR_UP_TO) + beyond)
    return squashed


def unsquash(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `squash`."""
    size = np.abs(y)
    beyond = np.expm1(np.maximum(size - LINEAR_UP_TO, 0))
    z: NDArray[np.float64] = np.sign(y) * (np.minimum(size, LINEAR_UP_TO) + beyond)
    return z


def spaced(ranks: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Ranks 0..n-1 as numbers of mean 0 and variance 1: (rank - (n - 1) / 2) / sqrt((n^2 - 1) / 12)."""
    if n < 2:
        return np.zeros(len(ranks))
    result: NDArray[np.float64] = (np.asarray(ranks, dtype=np.float64) - (n - 1) / 2) / np.sqrt((n * n - 1) / 12)
    return result


def centre_and_scale(context: NDArray[np.float64], table: NDArray[np.float64]) -> tuple[float, float, str]:
    """Mean and standard deviation (divisor n) over the context's values; where they are all equal, the standard
    deviation over the table's; where there are none, both over the table's. And which, "" for the context's."""
    source, why = (context, "") if context.size else (table, "no value in the context: the table's mean and spread")
    centre = float(source.mean()) if source.size else 0.0
    scale = _spread(source)
    if not scale > 0:
        scale = _spread(table)
        why = why or "one value in the context: the table's spread"
    return centre, scale if scale > 0 else 1.0, why


def _spread(values: NDArray[np.float64]) -> float:
    # Equal values have a spread of 0, which `std` can miss by rounding.
    return float(values.std()) if values.size and values.min() < values.max() else 0.0


@dataclass(frozen=True)
class NumberEncoding:
    """squash((x - mean) / sd); then 1 where missing (the number is then 0), if the table misses any; then positions, if
    float32 makes two of the table's values equal.

    Attributes:
        values: (k,) the table's values, sorted, distinct; empty where no positions are needed.
    """

    name: str
    centre: float
    scale: float
    has_missing: bool
    values: NDArray[np.float64]
    note: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns it makes."""
        return _named(self.name, (), self.has_missing, bool(self.values.size))

    def encode(self, values: NDArray[Any]) -> Block:
        """(n,) float64 with NaN where missing."""
        x = np.asarray(values, dtype=np.float64)
        missing = np.isnan(x)
        if np.isinf(x).any():
            raise DataError(f"column '{self.name}' holds an infinite number; expected finite ones: mend the table")
        _refuse_missing(self.name, missing, self.has_missing)
        filled = np.where(missing, self.centre, x)
        return self._block(filled, missing, np.searchsorted(self.values, filled))

    def _block(self, x: NDArray[np.float64], missing: NDArray[np.bool_], ranks: NDArray[Any]) -> Block:
        with np.errstate(over="ignore"):
            z = np.clip((x - self.centre) / self.scale, -_HUGE, _HUGE)  # only what overflows
        columns = [squash(z)]
        if self.has_missing:
            columns.append(missing.astype(np.float64))
        if self.values.size:
            columns.append(spaced(ranks, self.values.size))
        return np.stack(columns, axis=1).astype(np.float32)

    def neutral(self) -> Block:
        """The context's mean, present."""
        one = np.array([self.centre])
        first: Block = self._block(one, np.array([False]), np.searchsorted(self.values, one))[0]
        return first

    def noised(self, block: Block, rng: np.random.Generator, scale: float) -> Block:
        """Moved by `scale` standard deviations times a normal draw; missing ones stay missing."""
        missing = block[:, 1] > 0.5 if self.has_missing else np.zeros(len(block), dtype=bool)
        z = unsquash(block[:, 0].astype(np.float64)) + scale * rng.standard_normal(len(block))
        x = np.where(missing, self.centre, self.centre + z * self.scale)
        return self._block(x, missing, np.searchsorted(self.values, x))


@dataclass(frozen=True)
class LookupEncoding:
    """A category or a text: each of the table's values has its row of `rows`; then 1 where missing, if any is.

    Attributes:
        index: value -> row number.
        rows: (k, w), different for different values.
        centre: (w,) of the placeholder, and of a missing value.
        pool: (c, width) what the context's rows have, from which noise redraws.
        hashes: whether an unknown text can be encoded too; an unknown category cannot.
    """

    name: str
    parts: tuple[str, ...]
    index: dict[str, int]
    rows: NDArray[np.float64]
    centre: NDArray[np.float64]
    has_missing: bool
    pool: Block
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns it makes."""
        return _named(self.name, self.parts, self.has_missing, False)

    def encode(self, values: NDArray[Any]) -> Block:
        """(n,) str with None where missing."""
        return lookup(self.name, values, self.index, self.rows, self.centre, self.has_missing)

    def neutral(self) -> Block:
        """The most frequent category of the context, or its mean text; present."""
        return np.append(self.centre, [0.0] * self.has_missing).astype(np.float32)

    def noised(self, block: Block, rng: np.random.Generator, scale: float) -> Block:
        """Each value redrawn from the context's rows with probability `scale`."""
        redrawn = rng.random(len(block)) < scale
        drawn = self.pool[rng.integers(len(self.pool), size=len(block))]
        return np.where(redrawn[:, None], drawn, block).astype(np.float32)


def lookup(
    name: str,
    values: NDArray[Any],
    index: dict[str, int],
    rows: NDArray[np.float64],
    centre: NDArray[np.float64],
    has_missing: bool,
) -> Block:
    """Rows of the values, `centre` where missing, and a column that says so if the table misses any."""
    given = values.tolist()
    missing = np.array([v is None for v in given], dtype=bool)
    _refuse_missing(name, missing, has_missing)
    unknown = sorted({v for v in given if v is not None and v not in index})
    if unknown:
        raise DataError(
            f"column '{name}' holds '{unknown[0][:60]}' ({len(unknown)} such values), which no row of the table has "
            "that the encoding was fitted on; expected rows of that table: fit the encoding on the whole table"
        )
    found = np.array([index.get(v, -1) if v is not None else -1 for v in given], dtype=np.int64)
    block = np.vstack([rows, centre])[found]  # -1, where missing, is the last row
    columns = [block, missing[:, None].astype(np.float64)] if has_missing else [block]
    return np.concatenate(columns, axis=1).astype(np.float32)


def _refuse_missing(name: str, missing: NDArray[np.bool_], known: bool) -> None:
    if missing.any() and not known:
        raise DataError(
            f"column '{name}' misses {int(missing.sum())} values, and no row of the table does that the encoding was "
            "fitted on; expected rows of that table: fit the encoding on the whole table"
        )


def _named(name: str, parts: Sequence[str], has_missing: bool, has_positions: bool) -> tuple[str, ...]:
    first = [f"{name} ({part})" for part in parts] or [name]
    return (*first, *[f"{name} (missing)"] * has_missing, *[f"{name} (position)"] * has_positions)


def fit_number(name: str, table: NDArray[np.float64], context: NDArray[np.int64]) -> NumberEncoding:
    """A number or a date (in days), from the table's values (n,) and the context's row numbers."""
    given = table[~np.isnan(table)]
    of_context = table[context]
    centre, scale, why = centre_and_scale(of_context[~np.isnan(of_context)], given)
    has_missing = bool(np.isnan(table).any())
    values = np.unique(given)
    plain = NumberEncoding(name, centre, scale, has_missing, np.empty(0), why)
    merged = len(np.unique(plain.encode(values)[:, 0])) < len(values)
    return NumberEncoding(name, centre, scale, has_missing, values if merged else np.empty(0), why)


def fit_category(name: str, table: NDArray[Any], context: NDArray[np.int64]) -> LookupEncoding:
    """Codes by frequency in the context, ties by name, then the table's other values in sorted order; spaced evenly."""
    seen = Counter(v for v in table[context].tolist() if v is not None)
    others = sorted({v for v in table.tolist() if v is not None} - seen.keys())
    order = [*sorted(seen, key=lambda v: (-seen[v], v)), *others]
    index = {v: i for i, v in enumerate(order)}
    rows = spaced(np.arange(len(order)), len(order))[:, None]
    note = f"{len(others)} categories the context has none of" if others else ""
    centre = rows[0] if order else np.zeros(1)
    return _lookup_encoding(name, (), index, rows, centre, table, context, note)


def fit_text(name: str, table: NDArray[Any], context: NDArray[np.int64]) -> LookupEncoding:
    """Hashed n-grams of 2 to 4 characters within words, without case, projected to 8 numbers by a fixed random matrix,
    standardised over the context; then positions, if two of the table's texts come closer than 0.001 in all eight."""
    texts = sorted({v for v in table.tolist() if v is not None})
    index = {v: i for i, v in enumerate(texts)}
    raw = hashed(texts)
    at = np.array([index[v] for v in table[context].tolist() if v is not None], dtype=np.int64)
    every = np.array([index[v] for v in table.tolist() if v is not None], dtype=np.int64)
    fitted = [centre_and_scale(raw[at, j], raw[every, j]) for j in range(raw.shape[1])]
    rows = squash((raw - [centre for centre, _, _ in fitted]) / [scale for _, scale, _ in fitted])
    parts = tuple(f"text {j + 1}" for j in range(raw.shape[1]))
    centre = np.zeros(raw.shape[1])
    if len(np.unique(np.round(rows.astype(np.float32) / _TEXT_STEP), axis=0)) < len(texts):
        rows = np.column_stack([rows, spaced(np.arange(len(texts)), len(texts))])
        parts, centre = (*parts, "position"), np.append(centre, 0.0)
    return _lookup_encoding(name, parts, index, rows, centre, table, context, fitted[0][2])


def hashed(texts: Sequence[str]) -> NDArray[np.float64]:
    """(n, 8) features of texts; close for texts that share most of their n-grams."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=_N_HASHED)
    if not texts:
        return np.zeros((0, N_TEXT_FEATURES))
    features: NDArray[np.float64] = vectorizer.transform(texts) @ _projection()
    return features


@cache
def _projection() -> NDArray[np.float64]:
    rng = np.random.default_rng(_PROJECTION_SEED)
    drawn: NDArray[np.float64] = rng.standard_normal((_N_HASHED, N_TEXT_FEATURES)) / np.sqrt(N_TEXT_FEATURES)
    return drawn


def _lookup_encoding(
    name: str,
    parts: tuple[str, ...],
    index: dict[str, int],
    rows: NDArray[np.float64],
    centre: NDArray[np.float64],
    table: NDArray[Any],
    context: NDArray[np.int64],
    note: str,
) -> LookupEncoding:
    has_missing = any(v is None for v in table.tolist())
    pool = lookup(name, table[context], index, rows, centre, has_missing)
    return LookupEncoding(name, parts, index, rows, centre, has_missing, pool, note)
