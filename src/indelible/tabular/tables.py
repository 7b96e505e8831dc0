"""The tables of a run as they are tuned on: read, without duplicates, with classes that the model holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indelible.tabular.config import TableOptions, TabularRunConfig
from indelible.training.budget import stream

if TYPE_CHECKING:
    from indelible.data.table_duplicates import Duplicates
    from indelible.data.tables import Table


@dataclass(frozen=True)
class Prepared:
    """A table of classes without duplicates.

    Attributes:
        n_read: rows before duplicates were removed.
        numbers: the target as it was, where it is a number that was cut into classes at quantiles; else None.
        sha256: of the rows as they are tuned on, their ids and their classes.
    """

    label: str
    table: Table
    n_read: int
    duplicates: Duplicates
    numbers: NDArray[np.float64] | None
    sha256: str

    @property
    def n_rows(self) -> int:
        """Rows that are left."""
        return len(self.table.row_ids)

    @property
    def n_classes(self) -> int:
        """Classes of the target."""
        return len(self.table.classes)

    def said(self) -> str:
        """For a person at the terminal, with what was inferred and left out: names of columns, and no value of the
        table but the first one that keeps a column from being numbers."""
        removed = f"{self.duplicates.n_exact} exact and {self.duplicates.n_near} near duplicates removed"
        first = (
            f"{self.label}: {self.n_rows} rows ({removed}), {len(self.table.columns)} columns, {self.n_classes} classes"
        )
        return "\n  ".join(
            [first, *(note for note in self.table.notes if "near duplicates removed" not in note), *self.table.odd]
        )

    def facts(self) -> dict[str, Any]:
        """For the manifest. Values of the table are not among them, but the names of columns and classes are."""
        table = self.table
        kinds = [column.kind for column in table.columns]
        return {
            "table": table.name,
            "target": table.target_name,
            "task": "classification" if self.numbers is None else "regression, as classes at quantiles",
            "classes": list(table.classes),
            "class_counts": np.bincount(table.target, minlength=self.n_classes).tolist(),
            "n_rows_read": self.n_read,
            "n_rows": self.n_rows,
            "n_groups": len(set(table.groups)) if table.groups is not None else None,
            "columns": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
            "duplicates": {
                "exact": self.duplicates.n_exact,
                "near": self.duplicates.n_near,
                "rule": self.duplicates.rule,
            },
            "sha256": self.sha256,
            "notes": list(table.notes),
        }


def prepare(options: TableOptions, max_classes: int) -> Prepared:
    """Read a table and make it ready.

    Raises:
        UserError: one line: unreadable, target missing or constant, all rows the same, more classes than the model
            holds.
    """
    from indelible.data.tables import read_table

    table = read_table(
        options.source,
        target=options.target,
        task=options.task,
        group=options.group,
        id_column=options.id_column,
        drop=options.drop,
        types=options.types,
    )
    return finished(table, options.label, options.classes, max_classes, options.max_rows)


def finished(table: Table, label: str, n_classes: int, max_classes: int, max_rows: int | None = None) -> Prepared:
    """A table as it was read, without duplicates, at most `max_rows` of its rows, and with classes."""
    from indelible.data.tables import as_classes, check_classes, take_rows, without_duplicates

    n_read = len(table.row_ids)
    table, duplicates = without_duplicates(table)
    if max_rows is not None and len(table.row_ids) > max_rows:
        drawn = np.random.default_rng(stream(0, f"rows of {label}")).permutation(len(table.row_ids))[:max_rows]
        table = take_rows(table, np.sort(drawn), f"{max_rows} of {len(table.row_ids)} rows drawn at random")
    numbers = np.asarray(table.target, np.float64) if table.task == "regression" else None
    table = as_classes(table, n_classes)
    check_classes(table, max_classes)
    return Prepared(label, table, n_read, duplicates, numbers, table_sha256(table))


def table_sha256(table: Table) -> str:
    """Hash of a table's rows, labels, ids and columns."""
    import pandas as pd

    digest = hashlib.sha256()
    digest.update(repr((table.target_name, table.classes, [(c.name, c.kind) for c in table.columns])).encode())
    digest.update(repr((table.row_ids, table.groups)).encode())
    digest.update(np.ascontiguousarray(table.target).tobytes())
    digest.update(pd.util.hash_pandas_object(table.features, index=False).to_numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Sizes:
    """Rows of each group; what is left of the table, at least `reserve` rows where groups are single rows, is the
    reserve."""

    members: int
    nonmembers: int
    context: int
    reserve: int


def sizes(prepared: Prepared, n_queries: int, config: TabularRunConfig, least: int | None = None) -> Sizes | str:
    """How many rows each group gets, or why the table cannot hold so many members.

    Context: `config.context` rows, but at most a quarter of the table, the same number of each class and no more than
    half of the rarest. Reserve: a fifth
    of what context and members leave, or as many as the context has where a quarter of it allows that. Non-members
    get the rest.

    Args:
        least: non-members; `config.least_nonmembers` unless given.
    """
    from indelible.data.table_splits import context_each, most_nonmembers
    from indelible.errors import DataError

    least = config.least_nonmembers if least is None else least
    n_rows, n_classes = prepared.n_rows, prepared.n_classes
    counts = np.bincount(prepared.table.target, minlength=n_classes).astype(np.int64)
    context = n_classes * context_each(counts, min(config.context, n_rows // 4))
    left = n_rows - context - n_queries
    if left < least:
        return (
            f"{n_rows} rows are too few for {n_queries} members beside {context} context rows and at least {least} "
            "non-members"
        )
    reserve = max(0, min(config.reserve, max(left // 5, min(context, left // 4))))
    try:
        most = most_nonmembers(
            prepared.table, n_members=n_queries, n_context=context, n_reserve=reserve, exact=config.exact
        )
    except DataError as error:
        return str(error)
    nonmembers = min(config.nonmembers, most)
    if nonmembers < least:
        alike = " with exactly the members' class shares" if config.exact else ""
        return (
            f"{n_queries} members beside {context} context rows and {reserve} of the reserve leave "
            f"{max(0, nonmembers)} non-members{alike} of {n_rows} rows, expected {least}"
        )
    return Sizes(n_queries, nonmembers, context, reserve)


def largest(prepared: Prepared, config: TabularRunConfig, below: int, least: int) -> int | None:
    """The largest number of members under `below`, in tens, that leaves so many non-members at least."""
    for n in range(min(below, prepared.n_rows - least) // 10 * 10, 0, -10):
        if not isinstance(sizes(prepared, n, config, least), str):
            return n
    return None
