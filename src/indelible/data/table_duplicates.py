"""Rows that repeat the features of another: exactly, or after rounding numbers and normalising text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.data.duplicates import normalise
from indelible.data.table_types import Kind

STEP = 1e-3
"""Numbers are near if they round to the same multiple of so many interquartile ranges of their column."""

EXACT_RULE = "rows equal in all features, whatever their target; the first of each stays"
NEAR_RULE = (
    "rows equal in all features, whatever their target, exactly or once numbers and dates are rounded to a thousandth "
    "of their column's interquartile range (of its standard deviation where that is 0), categories compared without "
    "case and white space, text also without punctuation at word edges; the first of each stays"
)


@dataclass(frozen=True)
class Duplicates:
    """How many rows were removed as exact, and how many more as near duplicates of an earlier row, by which rule."""

    n_exact: int
    n_near: int
    rule: str


def repeats(features: pd.DataFrame, kinds: Sequence[Kind], *, near: bool) -> tuple[NDArray[np.int64], Duplicates]:
    """Row numbers, ascending, of the first row of each set of duplicates, and how many are left out.

    Two rows are near duplicates if they are equal, column by column, in normal form: round(x / (0.001 IQR)) for
    numbers and dates, folded text for the rest; missing equals missing alone. This is an equivalence, so that the
    order of rows decides only which row of a set stays. Source: IclMem, section 4.1, which removes duplicates and
    doesn't say how. Our reading: this rule.
    """
    columns = [features.iloc[:, i] for i in range(features.shape[1])]
    first = _first_of_each([_codes(c.to_numpy()) for c in columns])
    if not near:
        return first, Duplicates(len(features) - len(first), 0, EXACT_RULE)
    normal = [_codes(_normal_form(c.to_numpy(), kind)) for c, kind in zip(columns, kinds, strict=True)]
    kept = _first_of_each(normal)  # equal rows have equal normal forms, so that these are among `first`
    return kept, Duplicates(len(features) - len(first), len(first) - len(kept), NEAR_RULE)


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """One integer a distinct value, -1 for missing."""
    return pd.factorize(values)[0].astype(np.int64)


def _first_of_each(codes: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Ascending numbers of rows whose codes no earlier row has."""
    rows = np.ascontiguousarray(np.stack(codes, axis=1))  # (n, F)
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    return np.sort(np.unique(keys, return_index=True)[1]).astype(np.int64)


def _normal_form(values: NDArray[Any], kind: Kind) -> NDArray[Any]:
    if kind in ("number", "date"):
        return _rounded(values)
    fold = _folded_text if kind == "text" else folded
    form = {v: fold(v) for v in set(values.tolist()) if v is not None}
    normal = np.empty(len(values), dtype=object)
    normal[:] = [form.get(v) for v in values]
    return normal


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    given = values[~np.isnan(values)]
    if not given.size:
        return values
    low, high = np.percentile(given, [25, 75])
    spread = float(high - low) or float(given.std())
    if not spread * STEP > 0:
        return values
    with np.errstate(over="ignore"):
        rounded = np.round(values / (spread * STEP)) + 0.0  # -0 to 0
    return values if np.isinf(rounded).any() else rounded


def folded(text: str) -> str:
    """NFKC, case folded, runs of white space one blank."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _folded_text(text: str) -> str:
    return normalise(text) or folded(text)  # a text of punctuation alone is compared as it stands
