"""The tables of a run as they are tuned on: read, without duplicates, with classes that the model holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indelible.tabular.config import TableOptions, TabularRunConfig
from indelible.training.budget import stream

if TYPE_CHECKING:
    from indelible.attacks.tabular import ProbeWorld
    from indelible.data.table_duplicates import Duplicates
    from indelible.data.table_splits import TableSplit
    from indelible.data.tables import Table
    from indelible.models.tabular import TabularModel
    from indelible.training.tabular import TuneTask

_N_TRIES = 50
"""Splits drawn until the numbers behind the classes are distributed alike on both sides. With few classes and members
none may do: the closest is kept where classes, of which the labels are, match exactly."""


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


def split_sha256(split: TableSplit, table: Table) -> str:
    """Hash of who is what, and of the labels that rows carry: of ids, not of row numbers."""
    digest = hashlib.sha256()
    for name in ("members", "nonmembers", "context", "reserve"):
        rows = np.asarray(getattr(split, name))
        digest.update(repr((name, [table.row_ids[i] for i in rows], np.asarray(split.target)[rows].tolist())).encode())
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

    Context: `config.context` rows, but at most a quarter of the table, the same number of each class. Reserve: a fifth
    of what context and members leave, or as many as the context has where a quarter of it allows that. Non-members
    get the rest.

    Args:
        least: non-members; `config.least_nonmembers` unless given.
    """
    from indelible.data.table_splits import most_nonmembers
    from indelible.errors import DataError

    least = config.least_nonmembers if least is None else least
    n_rows, n_classes = prepared.n_rows, prepared.n_classes
    context = n_classes * max(1, min(config.context, n_rows // 4) // n_classes)
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


@dataclass(frozen=True, eq=False)
class World:
    """A table split for one number of members and one seed, encoded, as models are tuned on it and asked about it."""

    prepared: Prepared
    split: TableSplit
    probes: ProbeWorld

    @property
    def groups(self) -> dict[str, NDArray[np.int64]]:
        """Row numbers of members, non-members and the training context."""
        return {
            "member": np.asarray(self.split.members),
            "nonmember": np.asarray(self.split.nonmembers),
            "context": np.asarray(self.split.context),
        }

    def task(self, device: str = "cpu") -> TuneTask:
        """What a model on this device is tuned on; the reserve is held out."""
        import torch

        from indelible.training.tabular import TuneTask

        def part(rows: NDArray[np.int64]) -> tuple[Any, Any]:
            rows = np.asarray(rows)
            x = torch.from_numpy(np.array(self.probes.encoded[rows], np.float32))
            y = torch.from_numpy(np.array(self.probes.target[rows], np.int64))
            return x.to(device), y.to(device)

        held = part(self.split.reserve) if len(self.split.reserve) else (None, None)
        return TuneTask(*part(self.split.context), *part(self.split.members), self.prepared.n_classes, *held)

    def facts(self) -> dict[str, Any]:
        """For the manifest: sizes, how alike the two sides are, a hash of who is what."""
        split = self.split
        counts = {
            name: np.bincount(np.asarray(split.target)[rows], minlength=self.prepared.n_classes).tolist()
            for name, rows in self.groups.items()
        }
        return {
            "n_members": len(split.members),
            "n_nonmembers": len(split.nonmembers),
            "n_context": len(split.context),
            "n_reserve": len(split.reserve),
            "randomised": bool(split.randomised),
            "distance": float(split.distance),
            "distance_name": split.distance_name,
            "matched_exactly": bool(split.matched_exactly),
            "class_counts": counts,
            "sha256": split_sha256(split, self.prepared.table),
            "notes": list(split.notes),
        }


def make_world(
    prepared: Prepared, model: TabularModel, config: TabularRunConfig, *, n_members: int, seed: int, randomise: bool
) -> World:
    """Split and encode a table.

    Raises:
        DataError: the table cannot be split so, or two rows are the same to the model.
    """
    from indelible.data.table_splits import split_table
    from indelible.errors import DataError

    wanted = sizes(prepared, n_members, config)
    if isinstance(wanted, str):
        raise DataError(f"{prepared.label}: {wanted}")
    how: dict[str, Any] = {
        "n_members": wanted.members, "n_nonmembers": wanted.nonmembers, "n_context": wanted.context,
        "randomise": randomise, "exact": config.exact, "max_distance": config.max_distance,
    }  # fmt: skip
    split = with_numbers(prepared, split_table(prepared.table, seed=seed, **how))
    for attempt in range(1, _N_TRIES):
        if split.distance < config.max_distance:
            break
        drawn = split_table(prepared.table, seed=stream(seed, f"split {attempt}"), **how)
        split = min(split, with_numbers(prepared, drawn), key=lambda one: one.distance)
    if split.distance >= config.max_distance:
        far = f"KS {split.distance:.3f} at best in {_N_TRIES} draws, expected below {config.max_distance:g}"
        if not split.matched_exactly:
            raise DataError(f"{prepared.label}: {far}: ask for more query rows, or give max_distance")
        split = replace(split, notes=(*split.notes, f"{far}; kept, for the classes are matched exactly"))
    return world_of(prepared, split, model, seed=seed)


def with_numbers(prepared: Prepared, split: TableSplit) -> TableSplit:
    """The split of a table whose target was a number, its distance that of the numbers themselves: classes at quantiles
    are matched already. Other splits as they are.

    Source: IclMem, section 4.1, which asks for a Kolmogorov-Smirnov statistic below 0.05 where it regresses.
    """
    from indelible.data.table_matching import kolmogorov_smirnov

    if prepared.numbers is None:
        return split
    one, two = (prepared.numbers[np.asarray(rows)] for rows in (split.members, split.nonmembers))
    distance = kolmogorov_smirnov(one, two)
    note = f"KS of the numbers behind the classes, members against non-members: {distance:.4f}"
    return replace(split, distance=distance, distance_name="KS", notes=(*split.notes, note))


def world_of(prepared: Prepared, split: TableSplit, model: TabularModel, *, seed: int) -> World:
    """A split table as the model sees it.

    Raises:
        DataError: two different rows reach the model as equal numbers.
    """
    from indelible.attacks.tabular import probe_world
    from indelible.data.table_encoding import check_distinct

    encoding = model.encoder(prepared.table, np.asarray(split.context))
    probes = probe_world(prepared.table, split, encoding, seed=seed)
    used = np.concatenate([np.asarray(getattr(split, n)) for n in ("members", "nonmembers", "context", "reserve")])
    check_distinct(probes.encoded[used], [prepared.table.row_ids[i] for i in used])
    return World(prepared, split, probes)
