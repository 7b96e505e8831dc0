"""Rows of a model that was tuned elsewhere: files of members, non-members and context as one table, split as given."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from indelible.data.files import listed
from indelible.errors import ConfigError, DataError
from indelible.tabular.config import TabularProbeConfig
from indelible.tabular.tables import Prepared, finished

if TYPE_CHECKING:
    from indelible.data.table_files import RawTable
    from indelible.data.table_splits import TableSplit

ROLES = ("context", "members", "nonmembers", "reserve")
"""The files, in the order in which a repeated row keeps its first place: a member that is a non-member too stays a
member, and a context row stays one."""

LABEL = "all files together"
"""What the table that the files make is called."""

_ROW = "indelible row"
"""Name of the column that says which file a row is from."""


@dataclass(frozen=True)
class Given:
    """The files as one table, split as they are.

    Attributes:
        rows: file to its row counts: read, without a target, repeated in it or in a file before it, used.
    """

    prepared: Prepared
    split: TableSplit
    rows: Mapping[str, Mapping[str, int]]


def read_given(config: TabularProbeConfig, max_classes: int) -> Given:
    """Read the files, remove rows that stand in several of them, and take them as the groups they are.

    Raises:
        UserError: one line: unreadable, other columns in one file than in another, or a file of which no row is left.
    """
    from indelible.data.table_files import read_raw
    from indelible.data.table_roles import column_name
    from indelible.data.tables import read_table

    sources = {role: getattr(config, role) for role in ROLES if getattr(config, role) is not None}
    raws = {role: read_raw(source) for role, source in sources.items()}
    _same_columns(sources, raws)
    _other_rows(sources, raws)
    # Asked of one file here: what is read below has a column of ours, and a name that no file has.
    column_name(next(iter(raws.values())), config.target, "target")
    commas = {raw.commas for raw in raws.values()}
    if len(commas) > 1:
        raise ConfigError(
            "a comma in a number may be a decimal point in one file and mark thousands in another: save all with one "
            "separator"
        )
    declared = {name: kind for raw in raws.values() for name, kind in raw.declared.items()}
    frame = pd.concat([_frame(role, raw, config.id_column) for role, raw in raws.items()], ignore_index=True)
    with tempfile.TemporaryDirectory() as folder:
        name = "+".join(Path(source).stem for source in sources.values())[:100]
        path = Path(folder) / f"{name}{'.parquet' if commas == {'thousands'} else '.tsv'}"
        if path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        else:  # decimal commas are known by the separator alone
            frame.to_csv(path, index=False, sep="\t")
        table = read_table(
            path,
            target=config.target,
            task=config.task,
            id_column=_ROW,
            drop=[*config.drop, *([config.id_column] if config.id_column is not None else [])],
            types={**declared, **(config.types or {})},
            header=True,
        )
    # Lines are counted in the joined table, which nobody but us has seen.
    table = replace(table, odd=tuple(f"{line} of {', '.join(sources)} one after another" for line in table.odd))
    with_target = Counter(_role(row_id) for row_id in table.row_ids)
    prepared = finished(table, LABEL, config.classes, max_classes)
    used = Counter(_role(row_id) for row_id in prepared.table.row_ids)
    read = Counter(_role(row_id) for row_id in frame[_ROW])
    rows = {
        role: {
            "read": read[role], "without_target": read[role] - with_target[role],
            "repeated": with_target[role] - used[role], "used": used[role],
        }
        for role in sources
    }  # fmt: skip
    for role in ("members", "nonmembers", "context"):
        least = prepared.n_classes if role == "context" else 2
        if used[role] < least:
            raise DataError(
                f"{sources[role]}: {used[role]} of its {read[role]} rows are left once rows of files before it are "
                f"taken out (order: {', '.join(sources)}); expected {least} at least"
            )
    split = _split(prepared, config)
    _share_a_class(prepared, split, sources)
    return Given(prepared, split, rows)


def check_files(config: TabularProbeConfig) -> None:
    """Refuse a file that is not there, before a model is loaded."""
    from indelible.data.table_files import check_source

    for role in ROLES:
        if getattr(config, role) is not None:
            check_source(getattr(config, role))


def _share_a_class(prepared: Prepared, split: TableSplit, sources: Mapping[str, str]) -> None:
    """Scores are compared within classes: one at least must have both a member and a non-member."""
    names = prepared.table.classes
    ours, others = (sorted(set(split.target[rows].tolist())) for rows in (split.members, split.nonmembers))
    if not set(ours) & set(others):
        one, two = (listed([names[code] for code in codes]) for codes in (ours, others))
        raise DataError(
            f"{sources['members']} has rows of {one} alone, {sources['nonmembers']} of {two} alone; expected at least "
            "one class in both, for scores are compared within classes: give non-members of the members' classes"
        )


def _other_rows(sources: Mapping[str, str], raws: Mapping[str, RawTable]) -> None:
    """DataError where the non-members are the members once more."""
    names = list(raws["members"].columns)
    ours, others = (
        set(zip(*(raws[role].columns[name].astype(str) for name in names), strict=True))
        for role in ("members", "nonmembers")
    )
    if others <= ours:
        raise DataError(
            f"{sources['nonmembers']} and {sources['members']} share all rows: each row of the non-members is a member "
            "too; expected rows that the model was not tuned on: give another file (--nonmembers)"
        )


def _frame(role: str, raw: RawTable, id_column: str | None) -> pd.DataFrame:
    frame = pd.DataFrame(dict(raw.columns))
    ids = frame[id_column].astype(str) if id_column is not None and id_column in frame else map(str, raw.places)
    return frame.assign(**{_ROW: [f"{role}:{row_id}" for row_id in ids]})


def _same_columns(sources: Mapping[str, str], raws: Mapping[str, RawTable]) -> None:
    first = next(iter(raws))
    wanted = set(raws[first].columns)
    for role, raw in raws.items():
        lacking, further = wanted - set(raw.columns), set(raw.columns) - wanted
        if lacking or further:
            said = [f"lacks {listed(sorted(lacking))}"] if lacking else []
            said += [f"has {listed(sorted(further))} beside"] if further else []
            raise DataError(f"{sources[role]} {' and '.join(said)}; expected the columns of {sources[first]}")


def _role(row_id: str) -> str:
    return row_id.partition(":")[0]


def _split(prepared: Prepared, config: TabularProbeConfig) -> TableSplit:
    from indelible.data.table_matching import kolmogorov_smirnov, total_variation
    from indelible.data.table_splits import TableSplit

    role = np.array([_role(row_id) for row_id in prepared.table.row_ids], dtype=object)
    rows: dict[str, Any] = {name: np.flatnonzero(role == name).astype(np.int64) for name in ROLES}
    target = np.asarray(prepared.table.target, np.int64)
    counts = {
        name: np.bincount(target[rows[name]], minlength=prepared.n_classes) for name in ("members", "nonmembers")
    }  # fmt: skip
    distance = total_variation(target[rows["members"]], target[rows["nonmembers"]])
    exact = bool((counts["members"] * len(rows["nonmembers"]) == counts["nonmembers"] * len(rows["members"])).all())
    notes = []
    if distance >= config.max_distance:
        notes.append(
            f"labels of members and non-members differ: TVD {distance:.3f}, expected below {config.max_distance:g}: "
            "p-values and AUCs hold classes fixed, rates do not: a score that knows nothing but the label moves them"
        )
    in_context = set(target[rows["context"]].tolist())
    absent = [name for code, name in enumerate(prepared.table.classes) if code not in in_context]
    if absent:
        notes.append(f"the context has no row of {listed(absent)}")
    if not len(rows["reserve"]):
        notes.append("no reserve was given (--reserve): there is no fresh context and no unrelated row")
    if prepared.numbers is not None:
        one, two = (prepared.numbers[rows[name]] for name in ("members", "nonmembers"))
        notes.append(
            f"KS of the numbers behind the classes, members against non-members: {kolmogorov_smirnov(one, two):.4f}"
        )
    return TableSplit(
        rows["members"], rows["nonmembers"], rows["context"], rows["reserve"], target, False, distance, "TVD", exact,
        tuple(notes),
    )  # fmt: skip
