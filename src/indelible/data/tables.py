"""A table for the audit of tabular models: features by kind, a target, what was inferred and what was left out.

IclMem, section 4.1 ("data preprocessing"). The steps in order: `read_table`, `without_duplicates`, for a regression
`as_classes` where the model knows classes only, then `table_splits.split_table` and `table_encoding.fit_encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.data.files import fail, listed
from indelible.data.table_duplicates import Duplicates, repeats
from indelible.data.table_files import NAMED_TABLES, RawTable, read_raw
from indelible.data.table_roles import Task, column_name, groups_of, one_role_each, parse, row_ids, target_of
from indelible.data.table_types import KINDS, Kind, id_like, number_name
from indelible.errors import ConfigError, did_you_mean

__all__ = ["NAMED_TABLES", "Column", "Duplicates", "Kind", "Table", "as_classes", "check_classes", "read_table",
           "take_rows", "without_duplicates"]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A feature: what its values are, how many different ones there are, how many rows have none."""

    name: str
    kind: Kind
    n_distinct: int
    n_missing: int


@dataclass(frozen=True)
class Table:
    """What is audited.

    Attributes:
        features: (n, F), in the order of `columns`: float64 with NaN where missing (number; date, in days since 1970),
            object with str or None (category, text).
        target: (n,) int64 codes 0..K-1 of `classes`, or float64 for regression.
        classes: names in the order of their codes: by value where all are numbers, else sorted; () for regression.
        row_ids: the id column's values, else r and the number of the row in the file; unique.
        groups: rows of one group stay on one side; None where each row stands for itself.
        notes: what was inferred, dropped and removed, a line each.
        odd: of columns that are numbers for the most part the first value that is none, a line each. Values of the
            table: for the terminal alone.
    """

    name: str
    features: pd.DataFrame
    target: NDArray[Any]
    task: Task
    target_name: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    row_ids: tuple[str, ...]
    groups: tuple[str, ...] | None
    notes: tuple[str, ...]
    odd: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return len(self.row_ids)


def read_table(
    source: str | Path,
    *,
    target: str | int | None = None,
    task: Literal["auto", "classification", "regression"] = "auto",
    group: str | int | None = None,
    id_column: str | int | None = None,
    drop: Sequence[str | int] = (),
    types: Mapping[str, Kind] | None = None,
    header: bool | None = None,
) -> Table:
    """Read a table: a path to CSV, Parquet, ARFF or a zip of one of them, or a name in `NAMED_TABLES`.

    Args:
        target: the column to predict, by name or by position (`-1` is the last); a named table brings its own.
        task: `auto` takes a target that isn't numeric, or has few whole numbers or just two values, for classes.
        group: column whose equal values keep rows together.
        id_column: column of row ids; each must occur once.
        drop: columns to leave out.
        types: kinds by column, instead of what would be inferred. A column that seems to name its rows is left out
            unless it stands here: no two rows would be duplicates, and a model could tell rows by it.
        header: whether a text file's first line names the columns; None finds out.

    Raises:
        ConfigError: an unknown column, kind or task; one column in two roles.
        DataError: a file that can't be read, garbage in a numeric column, a constant target, no features.
    """
    raw = read_raw(source, header)
    names = list(raw.columns)
    if task not in ("auto", "classification", "regression"):
        raise ConfigError(did_you_mean(task, ["auto", "classification", "regression"], "task"))
    target = raw.target if target is None else target
    if target is None:
        raise ConfigError(f"{raw.name}: no target given; expected one of its columns ({listed(names)}): give --target "
                          "NAME, or --target -1 for the last")  # fmt: skip
    target_name = column_name(raw, target, "target")
    roles = {"target": target_name}
    roles |= {what: column_name(raw, given, what) for what, given in (("group", group), ("id column", id_column))
              if given is not None}  # fmt: skip
    dropped = {column_name(raw, given, "column to drop") for given in drop}
    one_role_each(raw, roles, dropped)
    kinds = dict(raw.declared)
    for column, kind in (types or {}).items():
        if kind not in KINDS:
            raise ConfigError(did_you_mean(str(kind), list(KINDS), f"type of column '{column}'"))
        kinds[column_name(raw, column, "column in types")] = kind

    notes = list(raw.notes)
    labels, chosen, classes = target_of(raw, target_name, task, kinds.get(target_name), notes)
    kept = np.flatnonzero(~pd.isna(labels)).astype(np.int64)
    if len(kept) < len(labels):
        notes.append(f"{len(labels) - len(kept)} rows without a target dropped")
    raw = replace(raw, columns={c: v.iloc[kept].reset_index(drop=True) for c, v in raw.columns.items()},
                  places=[raw.places[i] for i in kept.tolist()])  # fmt: skip
    if dropped:
        notes.append(f"left out as asked: {listed(sorted(dropped))}")
    named = {column_name(raw, column, "column in types") for column in types or {}}
    features, columns, odd = _features(raw, {*roles.values(), *dropped}, kinds, named, notes)
    return Table(
        name=raw.name,
        features=features,
        target=labels[kept].astype(np.int64 if classes else np.float64),
        task=chosen,
        target_name=target_name,
        classes=classes,
        columns=columns,
        row_ids=row_ids(raw, kept, len(labels), roles.get("id column")),
        groups=groups_of(raw, roles.get("group")),
        notes=tuple(notes),
        odd=odd,
    )


def without_duplicates(table: Table, *, near: bool = True) -> tuple[Table, Duplicates]:
    """The table without rows that repeat the features of an earlier one, and how many went; see `Duplicates`.

    Whatever the target or group of the rows: a row that is a member with one label and a non-member with another
    would be neither. IclMem, section 4.1 ("feature contamination"). Our reading: the features alone are compared.

    Raises:
        DataError: no two different rows are left.
    """
    keep, duplicates = repeats(table.features, [c.kind for c in table.columns], near=near)
    if len(keep) < 2:
        fail(f"{table.name}: all {table.n_rows} rows are the same ({duplicates.rule}); expected rows that differ in "
              "their features: check the columns that were read, or declare their types.")  # fmt: skip
    note = f"{duplicates.n_exact} exact and {duplicates.n_near} near duplicates removed: {duplicates.rule}"
    return take_rows(table, keep, note), duplicates


def take_rows(table: Table, rows: NDArray[np.int64], note: str) -> Table:
    """The table of these rows; classes that none of them has are left out, and codes follow.

    Raises:
        DataError: a single class is left, or one value of a regression's target.
    """
    features = table.features.iloc[rows].reset_index(drop=True)
    target, classes, notes = table.target[rows], table.classes, [note]
    if len(set(target.tolist())) < 2:
        fail(f"{table.name}: the target '{table.target_name}' is the same in all {len(rows)} rows that are left ({note}"
              "); expected two values: choose another target.")  # fmt: skip
    if classes:
        present = sorted(set(target.tolist()))
        if len(present) < len(classes):
            notes.append(
                f"classes left without a row: {listed([c for i, c in enumerate(classes) if i not in present])}"
            )
            target = np.searchsorted(np.array(present), target).astype(np.int64)
            classes = tuple(classes[i] for i in present)
    return replace(
        table,
        features=features,
        target=target,
        classes=classes,
        columns=tuple(_described(c.name, c.kind, features[c.name]) for c in table.columns),
        row_ids=tuple(table.row_ids[i] for i in rows),
        groups=None if table.groups is None else tuple(table.groups[i] for i in rows),
        notes=(*table.notes, *notes),
    )


def as_classes(table: Table, k: int = 10) -> Table:
    """A regression as a classification: the target cut at its k-quantiles into intervals of about equally many rows.

    Class i holds edge_i <= y < edge_{i+1}, the last one its upper edge too, and is named by this interval. Where many
    rows share a value, edges coincide and there are fewer classes, which a note says. A classification is returned as
    it is. Source: `Our reading` of IclMem, whose text on regression we don't have: the candidates are quantiles.

    Raises:
        ConfigError: k below 2.
    """
    if k < 2:
        raise ConfigError(f"{k} classes; expected at least 2: give more quantiles")
    if table.task == "classification":
        return table
    values = np.asarray(table.target, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    edges = np.unique(np.quantile(values, np.arange(1, k) / k))
    edges = edges[edges > low]
    if not edges.size:  # one value fills the lower quantiles: it against the rest
        edges = np.array([values[values > low].min()])
    codes = np.searchsorted(edges, values, side="right").astype(np.int64)
    bounds = [low, *edges.tolist(), high]
    classes = tuple(
        f"[{_short(a)}, {_short(b)}{']' if i == len(edges) else ')'}" for i, (a, b) in enumerate(pairwise(bounds))
    )
    counts = np.bincount(codes, minlength=len(classes))
    if (counts == 0).any():  # an edge between two values of the target with no row in between
        present = np.flatnonzero(counts)
        codes, classes = np.searchsorted(present, codes).astype(np.int64), tuple(classes[i] for i in present)
        counts = counts[present]
    fewer = "" if len(classes) == k else f" (not {k}: quantiles coincide)"
    sizes = f"{len(classes)} classes{fewer} of {counts.min()} to {counts.max()} rows"
    note = f"target '{table.target_name}' cut at its quantiles into {sizes}"
    return replace(table, target=codes, task="classification", classes=classes, notes=(*table.notes, note))


def check_classes(table: Table, max_classes: int) -> None:
    """DataError where a table has more classes than a model can tell apart."""
    if len(table.classes) > max_classes:
        fail(f"{table.name}: the target '{table.target_name}' has {len(table.classes)} classes; expected at most "
              f"{max_classes}, which the model holds: merge rare ones, read it as regression, or take another target "
              "or model.")  # fmt: skip


def _short(value: float) -> str:
    return number_name(value) if value.is_integer() else f"{value:.6g}"


def _described(name: str, kind: Kind, values: pd.Series[Any]) -> Column:
    return Column(name, kind, int(values.nunique()), int(values.isna().sum()))


def _features(
    raw: RawTable, taken: set[str], kinds: Mapping[str, Kind], named: set[str], notes: list[str]
) -> tuple[pd.DataFrame, tuple[Column, ...], tuple[str, ...]]:
    data: dict[str, pd.Series[Any]] = {}
    columns: list[Column] = []
    useless: list[str] = []
    ids: list[str] = []
    remarks: list[str] = []
    odd: list[str] = []
    for name in raw.columns:
        if name in taken:
            continue
        parsed = parse(raw, name, kinds.get(name))
        values = pd.Series(parsed.values, dtype=parsed.values.dtype)
        column = _described(name, parsed.kind, values)
        if column.n_distinct == 0 or (column.n_distinct == 1 and column.n_missing == 0):
            useless.append(name)
            continue
        if name not in named and (reason := id_like(name, parsed)) is not None:
            keep = f"types {{'{name}': '{parsed.kind}'}} in a settings file"
            remarks.append(
                f"column '{name}' is left out, for it looks like an id ({reason}): make it the id column, or keep it "
                f"by giving its type, {keep}"
            )
            ids.append(name)
            continue
        data[name] = values
        columns.append(column)
        if parsed.note:
            remarks.append(f"column '{name}': {parsed.note}")
        if parsed.first_odd:
            odd.append(f"column '{name}' is read as {parsed.kind}: its first value that is no number is "
                       f"{parsed.first_odd}")  # fmt: skip
    if not columns:
        kept = f" ({listed(ids)} only names rows)" if ids else ", so that all rows are duplicates"
        fail(f"{raw.name} has no feature that differs between rows{kept}; expected at least one beside the target: "
              "check the separator, the dropped columns and the rows.")  # fmt: skip
    by_kind = {kind: [c.name for c in columns if c.kind == kind] for kind in KINDS}
    inferred = "; ".join(f"{len(found)} {kind} ({listed(found)})" for kind, found in by_kind.items() if found)
    notes.append(f"features: {inferred}")
    if useless:
        notes.append(f"left out, for they hold one value or none: {listed(useless)}")
    notes.extend(remarks)
    n_missing = sum(c.n_missing for c in columns)
    if n_missing:
        notes.append(f"{n_missing} values missing in {sum(c.n_missing > 0 for c in columns)} features, kept as missing")
    return pd.DataFrame(data), tuple(columns), tuple(odd)
