"""Text files of cells: separator, quotes and header found out and said; cells stay text, missing ones None."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from indelible.data.files import fail, listed

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "nan", "-nan", "null", "none"})
"""Cells of a text file that stand for a missing value, in any case; those that pandas takes, and ARFF's `?`."""

_SEPARATORS = "\t;|,"  # tried in this order: cells between semicolons often hold decimal commas, not the reverse
_N_SNIFFED = 50


@dataclass(frozen=True)
class Cells:
    """Columns of text by name, None where missing; the line of each row; what was found out."""

    columns: dict[str, pd.Series[Any]]
    lines: Sequence[int]
    separator: str
    notes: tuple[str, ...]


def parse_csv(shown: str, text: str, header: bool | None) -> Cells:
    """Columns of a text file; `header` says whether its first line names them, None finds out.

    Raises:
        DataError: no rows, rows of different length, a name twice, broken quotes.
    """
    separator = _separator(text)
    quote = "'" if _single_quoted(text, separator) else '"'
    rows: list[list[str]] = []
    places: list[int] = []
    limit = csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 kB
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quotechar=quote, skipinitialspace=True)
    try:
        for cells in reader:
            if any(c.strip() for c in cells):
                rows.append([c.strip() for c in cells])
                places.append(reader.line_num)
    except csv.Error as error:
        fail(f"{shown}, line {reader.line_num}: malformed CSV ({error}); mend the quotes of this row.")
    finally:
        csv.field_size_limit(limit)
    if not rows:
        fail(f"{shown} is empty; expected a table with one row a record.")
    _same_width(shown, rows, places, separator)
    reason = "as asked" if header is not None else None
    if header is None:
        header, reason = _has_header(rows)
    names = _names(shown, rows[0]) if header else [f"c{i}" for i in range(len(rows[0]))]
    if header:
        rows, places = rows[1:], places[1:]
        if not rows:
            fail(f"{shown} holds a header and no rows; expected one row a record.")
    notes = [f"separator {separator!r}, quotes {quote}"]
    notes.append("first line holds the names" if header else f"no header ({reason}): columns are named c0, c1, ...")
    seen: Counter[str] = Counter()
    columns = {}
    for i, column in enumerate(names):
        cells_of = [_cell(row[i], seen) for row in rows]
        columns[column] = pd.Series(cells_of, dtype=object)
    if seen:
        shown_tokens = ", ".join(f"{token!r} {n} times" for token, n in sorted(seen.items()))
        notes.append(f"read as missing: {shown_tokens}")
    return Cells(columns, places, separator, tuple(notes))


def _cell(cell: str, seen: Counter[str]) -> str | None:
    if cell.lower() not in MISSING:
        return cell
    seen[cell] += 1
    return None


def _head(text: str, separator: str, quote: str = '"') -> list[list[str]]:
    rows = []
    try:
        for cells in csv.reader(io.StringIO(text[:200_000], newline=""), delimiter=separator, quotechar=quote):
            if any(c.strip() for c in cells):
                rows.append(cells)
            if len(rows) == _N_SNIFFED:
                break
    except csv.Error:
        return []
    return rows


def _separator(text: str) -> str:
    """The one that cuts the first lines into the same number of cells most often; the first tried among equals."""
    best, share = ",", 0.5
    for separator in _SEPARATORS:
        widths = Counter(len(cells) for cells in _head(text, separator))
        if widths:
            width, n = widths.most_common(1)[0]
            if width > 1 and n / widths.total() > share:
                best, share = separator, n / widths.total()
    return best


def _single_quoted(text: str, separator: str) -> bool:
    cells = [c.strip() for row in _head(text, separator) for c in row]
    quoted = sum(len(c) > 1 and c[0] == c[-1] == "'" for c in cells)
    return quoted > len(cells) / 2


def _same_width(shown: str, rows: Sequence[Sequence[str]], places: Sequence[int], separator: str) -> None:
    width = len(rows[0])
    wrong = [i for i, cells in enumerate(rows) if len(cells) != width]
    if wrong:
        i = wrong[0]
        fail(f"{shown}, line {places[i]}: {len(rows[i])} cells; expected {width}, as in the first line ({len(wrong)} "
              f"such lines; separator taken: {separator!r}): quote cells that hold the separator.")  # fmt: skip


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return cell.lower() not in MISSING


def _has_header(rows: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Whether the first row names the columns, and if not why.

    It does not if a cell of it is a number (save names that count on by one, such as 0, 1, 2 or 2019, 2020) or stands
    for missing, or if most of its cells come again beneath them.
    """
    first, rest = rows[0], rows[1:]
    numbers = [c for c in first if _is_number(c)]
    counting = len(numbers) > 1 and all(c.isdigit() for c in numbers)
    counting = counting and all(int(b) - int(a) == 1 for a, b in pairwise(numbers))
    if numbers and not counting:
        return False, f"the first line holds a number, {numbers[0]!r}"
    if any(c and c.lower() in MISSING for c in first):
        return False, "the first line holds a missing value"
    again = [c in {row[i] for row in rest} for i, c in enumerate(first)]
    if sum(again) > len(first) / 2:
        return False, "most values of the first line come again beneath"
    return True, ""


def _names(shown: str, cells: Sequence[str]) -> list[str]:
    names = [c or f"c{i}" for i, c in enumerate(cells)]
    unique(shown, names)
    return names


def unique(shown: str, names: Sequence[str]) -> None:
    """DataError where a column's name comes twice."""
    twice = [c for c, n in Counter(names).items() if n > 1]
    if twice:
        fail(f"{shown}: duplicate column {listed(twice)}; expected each name once: rename or remove one.")
