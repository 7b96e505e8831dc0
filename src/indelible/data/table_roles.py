"""Which column of a table plays which part, target, group or id, and what it says of each row."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.data.files import fail, listed
from indelible.data.table_files import RawTable
from indelible.data.table_types import Kind, Parsed, number_name, parse_column
from indelible.errors import ConfigError

MAX_INTEGER_CLASSES = 20
"""A target of whole numbers is a class if it has at most so many, two rows each on average; else a quantity."""

Task = Literal["classification", "regression"]

_PLAIN_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def column_name(raw: RawTable, given: str | int, what: str) -> str:
    """The name of a column given by name or position; a name is tried first.

    Raises:
        ConfigError: there is none; `what` says in the message what it was to be.
    """
    names = list(raw.columns)
    if given in raw.columns:
        return str(given)
    text = str(given)
    if text.lstrip("-").isdigit():
        if -len(names) <= int(text) < len(names):
            return names[int(text)]
        raise ConfigError(f"{raw.name}: {what} at position {text}; expected {-len(names)} to {len(names) - 1}, for "
                          f"there are {len(names)} columns ({listed(names)})")  # fmt: skip
    close = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ConfigError(f"{raw.name}: {what} '{text}' is none of its columns; {hint}expected one of {listed(names)}")


def one_role_each(raw: RawTable, roles: Mapping[str, str], dropped: set[str]) -> None:
    """ConfigError where a column is given two roles, or a role and dropped."""
    taken = [*roles.items(), *(("dropped column", c) for c in dropped)]
    counts = Counter(column for _, column in taken)
    for column, n in counts.items():
        if n > 1:
            both = " and ".join(what for what, c in taken if c == column)
            raise ConfigError(f"{raw.name}: column '{column}' is {both}; expected one role: name another column")


def row_ids(raw: RawTable, kept: NDArray[np.int64], n_read: int, column: str | None) -> tuple[str, ...]:
    """A name for each row: what the column says, or the number of the row among the `n_read` of the file.

    Raises:
        DataError: a row without an id, or an id twice.
    """
    if column is None:
        width = len(str(n_read))
        return tuple(f"r{i + 1:0{width}d}" for i in kept)
    ids = _names_of(raw, column)
    missing = [i for i, v in enumerate(ids) if v is None]
    twice = [v for v, n in Counter(ids).items() if n > 1 and v is not None]
    if missing or twice:
        what = f"{len(missing)} rows have no id" if missing else f"{len(twice)} ids come twice, such as '{twice[0]}'"
        fail(f"{raw.name}, id column '{column}': {what}; expected one id a row: mend it or leave it out.")
    return tuple(str(v) for v in ids)


def groups_of(raw: RawTable, column: str | None) -> tuple[str, ...] | None:
    """The group of each row; a row without one is a group of its own."""
    if column is None:
        return None
    return tuple(f"row {i + 1} alone" if v is None else v for i, v in enumerate(_names_of(raw, column)))


def _names_of(raw: RawTable, column: str) -> list[str | None]:
    """A column's values as names; None where missing."""
    values = raw.columns[column]
    if values.dtype == object:
        return [None if v is None else str(v) for v in values]
    if values.dtype.kind == "f":
        return [None if np.isnan(v) else number_name(v) for v in values]
    return [None if pd.isna(v) else str(v) for v in values]


def target_of(
    raw: RawTable, name: str, task: Literal["auto"] | Task, kind: Kind | None, notes: list[str]
) -> tuple[NDArray[Any], Task, tuple[str, ...]]:
    """What is predicted: (n,) codes or numbers, NaN where missing; the task; the classes' names in order of code.

    Raises:
        DataError: one value only, or a regression's target that holds what is no number.
    """
    declared: Kind | None = "number" if task == "regression" else kind
    as_classes = "mend them, leave them empty, or take its values for classes: --task classification"
    parsed = parse(raw, name, declared, as_classes if task == "regression" else "")
    if parsed.kind == "date":
        parsed = parse(raw, name, "text")
    values = parsed.values[~parsed.missing]
    distinct = sorted(set(values.tolist()))
    if len(distinct) < 2:
        found = listed([number_name(v) if isinstance(v, float) else str(v) for v in distinct])
        fail(f"{raw.name}: the target '{name}' is constant: {found} in the {len(values)} rows that have a value;"
              " expected at least two values: choose another target.")  # fmt: skip
    numeric = parsed.kind == "number"
    whole = numeric and all(float(v).is_integer() for v in distinct)
    few = whole and len(distinct) <= min(MAX_INTEGER_CLASSES, len(values) // 2)
    if task == "auto":
        task = "classification" if not numeric or few or len(distinct) == 2 else "regression"
        what = "different values" if not numeric else "different whole numbers" if whole else "different numbers"
        notes.append(f"task: {task}, for the target '{name}' has {len(distinct)} {what}"
                     + ("" if numeric else ", not all numbers"))  # fmt: skip
    else:
        notes.append(f"task: {task}, as asked")
    if task == "regression":
        return parsed.values, "regression", ()
    if not numeric and all(_PLAIN_NUMBER.fullmatch(v) for v in distinct):
        distinct.sort(key=float)
    code = {v: float(i) for i, v in enumerate(distinct)}
    coded = np.array([code.get(v, np.nan) for v in parsed.values.tolist()], dtype=np.float64)
    return coded, "classification", tuple(number_name(v) if numeric else str(v) for v in distinct)


def parse(raw: RawTable, name: str, kind: Kind | None, mend: str = "") -> Parsed:
    """A column as `parse_column` reads it, of this kind or of the one it seems to be."""
    return parse_column(name, raw.columns[name], kind=kind, commas=raw.commas, table=raw.name, places=raw.places,
                        unit=raw.unit, mend=mend)  # fmt: skip
