"""What a column holds: numbers, categories, free text or dates; found out from its values and said, or as declared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.data.files import fail

Kind = Literal["number", "category", "text", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)

CLEARLY_NUMERIC = 0.9
"""Share of numbers among the values from which on the rest of the column is taken for garbage, not for text."""
MAX_CATEGORIES, MAX_CATEGORY_SHARE, FEW_CATEGORIES = 200, 0.1, 30
"""A column of strings is a category with at most 30 values, or at most 200 that are a tenth of the rows; else text."""
LARGEST = 1e150
"""Numbers of this size and above are refused: their squares overflow."""

_LEADING_ZERO = re.compile(r"[+-]?0\d+")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d+(\.\d+)?")
_LONG_CODE = re.compile(r"\d{16,}")
_LOOKS_LIKE_A_DATE = re.compile(r".*\d.*[-/. ].*\d.*|.*[A-Za-z]{3}.*\d.*")
_ORDINAL = re.compile(r"(\d)(st|nd|rd|th)\b")
_DATE_FORMATS = (
    "ISO8601",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d-%m-%Y",
    "%B %d, %Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%m/%d/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%d.%m.%Y %H:%M",
)
_EPOCH = np.datetime64("1970-01-01", "us")
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Parsed:
    """A column that was read.

    Attributes:
        values: (n,) float64 with NaN where missing (number; date, in days since 1970), or object str with None.
        note: what isn't obvious about how it was read; "" otherwise.
        first_odd: of a column of numbers and other values the first of the others and where it is; "" otherwise. A
            value of the table: for the terminal, not for what a run keeps.
    """

    values: NDArray[Any]
    kind: Kind
    note: str = ""
    first_odd: str = ""

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(n,) where nothing is."""
        return np.asarray(pd.isna(self.values), dtype=bool)


def parse_column(
    name: str,
    values: pd.Series[Any],
    *,
    kind: Kind | None = None,
    commas: str = "thousands",
    table: str = "table",
    places: Sequence[int] | None = None,
    unit: str = "row",
    mend: str = "",
) -> Parsed:
    """Read one column.

    Args:
        values: float64, datetime64, or object (str, None where missing).
        kind: as declared; None finds out.
        commas: what a comma within a number means, `decimal` or `thousands`. Read so only where every value fits.
        places: where each value was, for errors.
        mend: what an error over values that are no numbers advises, instead of declaring the column's type.

    Raises:
        DataError: values that are no numbers (or dates) in a column that is declared so, or of which nine tenths are
            numbers; infinite or huge numbers.
    """
    at = places if places is not None else range(1, len(values) + 1)
    where = _Where(table, name, at, unit, mend)
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        days = _days(values)
        return Parsed(days, "date") if kind in (None, "date") else _from_typed(days, kind, where)
    if values.dtype == object:
        return _from_strings(values.to_numpy(dtype=object), kind, commas, where)
    return _from_typed(values.to_numpy(dtype=np.float64), kind or "number", where)


@dataclass(frozen=True)
class _Where:
    table: str
    name: str
    places: Sequence[int]
    unit: str
    mend: str

    def first(self, cells: Sequence[Any] | NDArray[Any], wrong: NDArray[np.bool_]) -> str:
        """The first of the wrong cells, and where it is."""
        at = int(np.flatnonzero(wrong)[0])
        return f"'{str(cells[at])[:60]}' in {self.unit} {self.places[at]}"

    def refuse(
        self, cells: Sequence[Any] | NDArray[Any], wrong: NDArray[np.bool_], n_given: int, what: str, hint: str
    ) -> None:
        """DataError that counts the wrong cells and shows the first; nothing where none is wrong."""
        found = np.flatnonzero(wrong)
        if found.size:
            fail(f"{self.table}, column '{self.name}': {found.size} of {n_given} values are not {what}, the first "
                  f"{self.first(cells, wrong)}; {hint}.")  # fmt: skip


def _from_typed(numbers: NDArray[np.float64], kind: Kind, where: _Where) -> Parsed:
    if kind in ("number", "date"):
        if kind == "date":
            fail(f"{where.table}, column '{where.name}' holds numbers; expected dates: declare it a number.")
        return Parsed(_usable(numbers, where), "number")
    texts = [None if np.isnan(v) else number_name(v) for v in numbers]
    return Parsed(_objects(texts), kind, f"numbers taken as {kind}")


def number_name(value: float) -> str:
    """A number as a category's or a class's name: whole ones without a point."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _usable(numbers: NDArray[np.float64], where: _Where) -> NDArray[np.float64]:
    wrong = np.abs(numbers) >= LARGEST
    hint = "mend them or leave them empty"
    where.refuse(list(numbers), wrong, int((~np.isnan(numbers)).sum()), f"finite numbers below {LARGEST:g}", hint)
    return numbers + 0.0  # no negative zero: it would be another value to some comparisons and not to others


def _from_strings(cells: NDArray[Any], kind: Kind | None, commas: str, where: _Where) -> Parsed:
    given = np.array([c is not None for c in cells], dtype=bool)
    texts: list[str] = [str(c) for c in cells[given]]
    n_given = len(texts)
    if kind in ("category", "text"):
        return Parsed(cells, kind)
    if kind == "date":
        days, style = _dates(texts)
        if days is None:
            days = _as_dates(texts, style)
            hint = "write all as YYYY-MM-DD, or declare it text"
            where.refuse(cells, _spread(np.isnan(days), given, fill=False), n_given, f"dates (read as {style})", hint)
        return Parsed(_spread(days, given, fill=np.nan), "date", f"dates read as {style}")
    numbers, note = _numbers(texts, commas)
    bad = np.isnan(numbers)
    coded = kind is None and _is_code(texts)
    if n_given and not coded and (kind == "number" or not bad.all()):
        clear = kind == "number" or bad.mean() <= 1 - CLEARLY_NUMERIC
        if clear:
            declared = f"types {{'{where.name}': 'category'}} or 'text' in a --config file"
            hint = where.mend or f"mend them, leave them empty, or declare the column: {declared}"
            where.refuse(cells, _spread(bad, given, fill=False), n_given, "numbers", hint)
            return Parsed(_usable(_spread(numbers, given, fill=np.nan), where), "number", note)
    days, style = _dates(texts)
    if days is not None:
        return Parsed(_spread(days, given, fill=np.nan), "date", f"dates read as {style}")
    n_distinct = len(set(texts))
    few = n_distinct <= FEW_CATEGORIES or (n_distinct <= MAX_CATEGORIES and n_distinct <= MAX_CATEGORY_SHARE * n_given)
    note, first = "codes with leading zeros or over 15 digits, not numbers" if coded else "", ""
    if not coded and n_given and bad.mean() < 0.5:
        note = f"{1 - bad.mean():.0%} of its values are numbers, the others not"
        first = where.first(cells, _spread(bad, given, fill=False))
    return Parsed(cells, "category" if few else "text", note, first)


def _spread(values: NDArray[Any], given: NDArray[np.bool_], fill: float | bool) -> NDArray[Any]:
    """Values of the rows that have one, put back among all rows."""
    whole = np.full(given.size, fill, dtype=values.dtype)
    whole[given] = values
    return whole


def _is_code(texts: Sequence[str]) -> bool:
    """Whole numbers of which one has a leading zero, or too many digits for a float: their value isn't all of them."""
    if not any(_LEADING_ZERO.fullmatch(t) or _LONG_CODE.fullmatch(t) for t in texts):
        return False
    return sum(t.lstrip("+-").isdigit() for t in texts) >= CLEARLY_NUMERIC * len(texts)


def _numbers(texts: Sequence[str], commas: str) -> tuple[NDArray[np.float64], str]:
    """Numbers, NaN where a text is none; a comma is read only where all values can be read with it."""
    plain = _floats(texts)
    if np.isnan(plain).any() and any("," in t for t in texts):
        pattern, put, note = {
            "decimal": (_DECIMAL_COMMA, ".", "decimal commas"),
            "thousands": (_THOUSANDS, "", "commas between thousands"),
        }[commas]
        if all(pattern.fullmatch(t) for t in texts):
            return _floats([t.replace(",", put) for t in texts]), note
    return plain, ""


def _floats(texts: Sequence[str]) -> NDArray[np.float64]:
    return np.asarray(pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce"), dtype=np.float64)


def _dates(texts: Sequence[str]) -> tuple[NDArray[np.float64] | None, str]:
    """Days since 1970 if one style fits all texts, else None and the style that fits most."""
    if not texts or not all(_LOOKS_LIKE_A_DATE.fullmatch(t) for t in texts[:100]):
        return None, _DATE_FORMATS[0]
    fits: dict[str, int] = {}
    for style in _DATE_FORMATS:
        days = _as_dates(texts[:100], style)
        fits[style] = int((~np.isnan(days)).sum())
        if fits[style] == min(len(texts), 100) and not np.isnan(days := _as_dates(texts, style)).any():
            return days, style
    return None, max(fits, key=lambda style: fits[style])


def _as_dates(texts: Sequence[str], style: str) -> NDArray[np.float64]:
    bare = pd.Series([_ORDINAL.sub(r"\1", t) for t in texts], dtype=object)
    return _days(pd.to_datetime(bare, format=style, errors="coerce", utc=True))


def _days(dates: pd.Series[Any]) -> NDArray[np.float64]:
    if getattr(dates.dtype, "tz", None) is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    stamps = dates.to_numpy(dtype="datetime64[us]")
    days = (stamps - _EPOCH).astype(np.int64) / _DAY_US
    return np.where(np.isnat(stamps), np.nan, days)


def id_like(name: str, parsed: Parsed) -> str | None:
    """Why a column seems to name its rows rather than describe them; None if it doesn't.

    It does if no value comes twice in 20 rows or more and the values are whole numbers that count on with few gaps, or
    the column's name says so, or are strings without blanks.
    """
    values = parsed.values[~parsed.missing]
    if len(values) < 20 or len(set(values.tolist())) < len(values):
        return None
    named = re.search(r"(^|[_. ])(id|uuid|guid|key|index|no)$|ID$|Id$", name) is not None
    if parsed.kind in ("category", "text"):
        return "every value differs" if named or not any(" " in v for v in values) else None
    if parsed.kind != "number" or not np.equal(np.mod(values, 1), 0).all():
        return None
    if values.max() - values.min() < 1.1 * len(values):
        return "it counts the rows"
    return "whole numbers of which none comes twice" if named else None
