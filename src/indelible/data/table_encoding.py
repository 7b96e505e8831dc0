"""From features to the numbers a model gets: one rule a column, frozen on the training context.

Models that standardise or clip on the context they are given erase the query wherever that context is made of copies
of one row, as it is in the probes. Everything such steps need is therefore fixed once, on the context of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.data.table_columns import (
    ColumnEncoding,
    LookupEncoding,
    NumberEncoding,
    fit_category,
    fit_number,
    fit_text,
)
from indelible.data.tables import Table
from indelible.errors import ConfigError, DataError


@dataclass(frozen=True)
class Encoding:
    """Rules by column, in the order of the table's columns; labels play no part in them.

    Number, date: squash((x - m) / s), m and s the context's mean and standard deviation; squash(z) is z up to five
    standard deviations and grows as a logarithm beyond, so that nothing is clipped. Where the context has one value, s
    is the table's standard deviation, or 1. Category: a code, by frequency in the context and then the table's other
    values in sorted order, spaced evenly with mean 0 and variance 1. Text: eight numbers from hashed character n-grams.
    A column of which a row of the table misses the value has a further one that is 1 where it is missing. Where two
    values of the table would be equal as float32, a further one has their positions in sorted order: two different
    rows of the table never encode to equal vectors.

    Attributes:
        names: of the F' numbers.
        notes: what was fitted on less than the context.
    """

    columns: tuple[ColumnEncoding, ...]
    features: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...]

    def encode(self, features: pd.DataFrame) -> NDArray[np.float32]:
        """(n, F) features, as in `Table.features`, to (n, F') finite numbers.

        Raises:
            DataError: a column is missing, a category is in no row of the table, or a value is missing where no row
                of the table misses it.
        """
        absent = [c for c in self.features if c not in features.columns]
        if absent:
            raise DataError(f"column '{absent[0]}' is missing; expected {len(self.features)} columns, as in the table "
                            "that the encoding was fitted on")  # fmt: skip
        blocks = [rule.encode(features[c].to_numpy()) for c, rule in zip(self.features, self.columns, strict=True)]
        return np.concatenate(blocks, axis=1)

    def placeholder(self) -> NDArray[np.float32]:
        """(F',) a row that says nothing: the context's means, its most frequent categories, its mean text; no value of
        it is missing."""
        return np.concatenate([rule.neutral() for rule in self.columns])

    def noised(self, rows: NDArray[Any], rng: np.random.Generator, scale: float) -> NDArray[np.float32]:
        """Encoded rows (n, F') with noise: numbers and dates moved by `scale` standard deviations times a normal draw,
        categories and texts redrawn from the context's rows with probability `scale`. 0 changes nothing.

        Raises:
            ConfigError: a negative scale.
        """
        if not scale >= 0:
            raise ConfigError(f"noise of scale {scale}; expected 0 or more standard deviations")
        rows = np.asarray(rows, dtype=np.float32)
        if scale == 0:
            return rows.copy()
        ends = np.cumsum([len(rule.names) for rule in self.columns])
        blocks = np.split(rows, ends[:-1], axis=1)
        noised = [rule.noised(block, rng, scale) for rule, block in zip(self.columns, blocks, strict=True)]
        return np.concatenate(noised, axis=1)


def fit_encoding(table: Table, context_rows: NDArray[np.int64] | Sequence[int]) -> Encoding:
    """Freeze an encoding on the rows of the training context.

    Means, spreads, frequencies and what noise redraws are the context's. Of the other rows it takes which categories
    and texts there are, whether values are missing, and, where the context has one value only, the spread.

    Raises:
        ConfigError: no context rows.
    """
    context = np.asarray(context_rows, dtype=np.int64)
    if not context.size:
        raise ConfigError("an encoding of no context rows; expected at least one: give a context")
    rules: list[ColumnEncoding] = []
    notes = []
    for column in table.columns:
        values = table.features[column.name].to_numpy()
        rule: NumberEncoding | LookupEncoding
        if column.kind in ("number", "date"):
            rule = fit_number(column.name, values.astype(np.float64), context)
        else:
            fit = fit_text if column.kind == "text" else fit_category
            rule = fit(column.name, values.astype(object), context)
        rules.append(rule)
        if rule.note:
            notes.append(f"column '{column.name}': {rule.note}")
    names = tuple(name for rule in rules for name in rule.names)
    return Encoding(tuple(rules), tuple(c.name for c in table.columns), names, tuple(notes))


def check_distinct(encoded: NDArray[Any], row_ids: Sequence[str]) -> None:
    """DataError where two rows encode to equal vectors, or a vector is not finite.

    A probe could not tell such rows apart, and one may be a member and the other not.

    Args:
        encoded: (n, F') of rows that all differ.
        row_ids: (n,) their names.
    """
    rows = np.ascontiguousarray(np.asarray(encoded) + 0.0)  # no negative zeros: they equal zero
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise DataError(
            f"row {row_ids[bad]} encodes to a number that is not finite; expected finite numbers: mend the row"
        )
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    same = np.flatnonzero(first[inverse] != np.arange(len(rows)))
    if same.size:
        one, two = row_ids[int(first[inverse[same[0]]])], row_ids[int(same[0])]
        raise DataError(f"{same.size} rows encode to the same numbers as another, the first of them {two}, as {one} "
                        "does; expected rows that differ: remove duplicates before splitting")  # fmt: skip
