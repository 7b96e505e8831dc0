"""ARFF, the format of Weka and OpenML: numeric, nominal, string and date attributes, `?` for missing, sparse rows.

scipy's reader knows no strings, which real tables hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from indelible.data.files import fail
from indelible.data.table_csv import unique
from indelible.data.table_types import Kind

_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s{]+)\s*(.+)$""", re.IGNORECASE)
_NUMERIC = ("numeric", "real", "integer")


def parse_arff(shown: str, text: str) -> tuple[dict[str, pd.Series[Any]], dict[str, Kind]]:
    """Columns by name (float64 where declared numeric, else str or None), and the kinds that the file declares.

    Raises:
        DataError: no attributes or rows, a line that cannot be read, a value that is none of a nominal's.
    """
    names: list[str] = []
    kinds: list[str | tuple[str, ...]] = []
    rows: list[list[str | None]] = []
    in_data = False
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        if in_data:
            rows.append(_row(shown, number, line, kinds))
        elif line.lower().startswith("@attribute"):
            match = _ATTRIBUTE.match(line)
            if match is None:
                fail(f"{shown}, line {number}: not an attribute; expected '@attribute NAME TYPE': mend the line.")
            names.append(_bare(match[1]))
            kinds.append(_kind(shown, number, match[2].strip()))
        elif line.lower().startswith("@data"):
            in_data = True
        elif not line.lower().startswith("@relation"):
            fail(f"{shown}, line {number}: expected @relation, @attribute or @data before the rows: mend the line.")
    if not names or not rows:
        fail(f"{shown} holds {len(names)} attributes and {len(rows)} rows; expected at least one of each.")
    unique(shown, names)
    columns: dict[str, pd.Series[Any]] = {}
    declared: dict[str, Kind] = {}
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        cells = [row[i] for row in rows]
        if kind in _NUMERIC:
            columns[name] = pd.Series([_number(shown, name, j, c) for j, c in enumerate(cells, 1)], dtype="float64")
        else:
            columns[name] = pd.Series(cells, dtype=object)
            if isinstance(kind, tuple):
                declared[name] = "category"
    return columns, declared


def _kind(shown: str, number: int, text: str) -> str | tuple[str, ...]:
    kind = text.split()[0].lower()
    if text.startswith("{") and text.endswith("}"):
        return tuple(_bare(cell) for cell in _cells(text[1:-1]))
    if kind not in (*_NUMERIC, "string", "date"):
        fail(f"{shown}, line {number}: attribute type '{text}'; expected numeric, real, integer, string, date or "
              "{a, b, ...}.")  # fmt: skip
    return kind


def _cells(line: str) -> list[str]:
    """Cells with their quotes; both kinds of quotes may stand in one line, which the `csv` module doesn't take."""
    quote, cell, cells, escaped = "", "", [], False
    for char in line:
        if escaped or char == "\\":
            escaped = not escaped
            cell += char
        elif quote:
            quote = "" if char == quote else quote
            cell += char
        elif char == ",":
            cells.append(cell.strip())
            cell = ""
        else:
            quote = char if char in "'\"" and not cell.strip() else ""
            cell += char
    return [*cells, cell.strip()]


def _bare(cell: str) -> str:
    if len(cell) > 1 and cell[0] == cell[-1] and cell[0] in "'\"":
        cell = cell[1:-1]
    return re.sub(r"\\(.)", r"\1", cell)


def _row(shown: str, number: int, line: str, kinds: Sequence[str | tuple[str, ...]]) -> list[str | None]:
    if line.startswith("{") and line.endswith("}"):
        # What a sparse row leaves out is zero, which for a nominal attribute is the first of its values.
        cells = [kind[0] if isinstance(kind, tuple) else "0" for kind in kinds]
        for pair in filter(None, _cells(line[1:-1])):
            index, _, cell = pair.partition(" ")
            if not index.isdigit() or int(index) >= len(kinds):
                fail(f"{shown}, line {number}: sparse cell '{pair}'; expected 'INDEX VALUE', INDEX below {len(kinds)}.")
            cells[int(index)] = cell.strip()
    elif "'" in line or '"' in line or "\\" in line:
        cells = _cells(line)
    else:
        cells = [c.strip() for c in line.split(",")]
    if len(cells) != len(kinds):
        fail(f"{shown}, line {number}: {len(cells)} cells; expected {len(kinds)}, one an attribute: mend the line.")
    values = [None if c in ("?", "") else _bare(c) for c in cells]
    for value, kind in zip(values, kinds, strict=True):
        if isinstance(kind, tuple) and value is not None and value not in kind:
            fail(f"{shown}, line {number}: '{value}' is none of the attribute's values; mend the row or the header.")
    return values


def _number(shown: str, name: str, row: int, cell: str | None) -> float:
    if cell is None:
        return float(np.nan)
    try:
        return float(cell)
    except ValueError:
        fail(f"{shown}: '{cell}' in row {row} of column '{name}', which is declared numeric; expected a number.")
