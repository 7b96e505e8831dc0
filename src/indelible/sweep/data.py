"""The rows of a study: files read once, cut by the seed into disjoint sets, written for trainings and audits."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from indelible.config import DataOptions
from indelible.data.duplicates import exact_key
from indelible.data.formats import Table, read_records
from indelible.data.records import Record
from indelible.errors import DataError
from indelible.runs import write_bytes
from indelible.sweep.config import Arrange, DataPlan, FilePlan

WRITTEN = DataOptions(id_column="id", group_column="group")
"""How the sets are read again."""


@dataclass(frozen=True)
class RowSet:
    """A set of rows: its file, that file's hash, the rows in their order there, and whether they are conversations."""

    path: Path
    sha256: str
    records: tuple[Record, ...]
    chat: bool = False


@dataclass
class Rows:
    """All sets of a study, each read, drawn and written once. `folder` is where they are written."""

    folder: Path
    tables: dict[str, Table] = field(default_factory=dict)
    _sets: dict[str, RowSet] = field(default_factory=dict)

    def get(self, data: DataPlan, seed: int, name: str, arrange: Arrange | None = None) -> RowSet:
        """The set of this name: a split, a mix, or a whole file.

        Raises:
            DataError: the file cannot be read, or has too few rows.
        """
        key = json.dumps([data.model_dump(mode="json"), seed, name, arrange and arrange.model_dump()], sort_keys=True)
        if key not in self._sets:
            records = self._records(data, seed, name)
            if arrange is not None:
                records = arranged(records, arrange)
            self._sets[key] = self._written(name, seed, records, chat=self._chat(data, name))
        return self._sets[key]

    def table(self, plan: FilePlan) -> Table:
        """A file as it was read."""
        key = plan.model_dump_json()
        if key not in self.tables:
            self.tables[key] = read_records(
                plan.source,
                format=plan.format,
                columns=plan.columns,
                group_column=plan.group_column,
                id_column=plan.id_column,
                split=plan.split,
            )
        return self.tables[key]

    def usable(self, plan: FilePlan) -> list[Record]:
        """A file's rows without repetitions and without those that are too long."""
        seen: set[str] = set()
        out = []
        for record in self.table(plan).records:
            key = exact_key(record)
            if key not in seen and (plan.max_chars is None or len(record.text) <= plan.max_chars):
                out.append(record)
            seen.add(key)
        return out

    def _records(self, data: DataPlan, seed: int, name: str) -> list[Record]:
        if name in data.splits:
            plan = data.files[data.main]
            return split_rows(self.usable(plan), data.splits, seed, plan.source)[name]
        if name in data.mixes:
            mix = data.mixes[name]
            return mixed(self._records(data, seed, mix.of), self._records(data, seed, mix.by), mix.share, seed, name)
        plan = data.files[name]
        records = sorted(self.usable(plan), key=lambda r: r.id)
        if not records:
            raise DataError(f"{plan.source}: no row is left of at most {plan.max_chars} characters: raise max_chars")
        random.Random(f"{seed}:rows:{name}").shuffle(records)
        return records[: plan.rows]

    def _chat(self, data: DataPlan, name: str) -> bool:
        """Whether the rows are conversations."""
        if name in data.mixes:
            return any(self._chat(data, part) for part in (data.mixes[name].of, data.mixes[name].by))
        return self.table(data.files[data.main if name in data.splits else name]).kind == "chat"

    def _written(self, name: str, seed: int, records: Sequence[Record], *, chat: bool) -> RowSet:
        content = "".join(json.dumps(as_row(r, chat=chat), ensure_ascii=False) + "\n" for r in records).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.folder / f"{name}-seed{seed}-{sha256[:12]}.jsonl"
        if not path.exists():
            write_bytes(path, content)
            path.chmod(0o600)
        return RowSet(path, sha256, tuple(records), chat)


def split_rows(records: Sequence[Record], sizes: Mapping[str, int], seed: int, source: str) -> dict[str, list[Record]]:
    """Disjoint sets of these sizes; records of one group (one question) are in one set. Each set is in random order.

    Raises:
        DataError: there are too few rows.
    """
    wanted = sum(sizes.values())
    parts = ", ".join(f"{name} {n}" for name, n in sizes.items())
    if wanted > len(records):
        raise DataError(
            f"{source} has {len(records)} usable rows (no repetition, none too long); data.splits asks for {wanted} "
            f"({parts}): ask for fewer, or give a larger file"
        )
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: r.id):  # nothing depends on the order of the file
        groups[record.group or record.id].append(record)
    order = sorted(groups)
    random.Random(f"{seed}:splits").shuffle(order)
    out: dict[str, list[Record]] = {}
    for name, size in sizes.items():
        taken: list[Record] = []
        left = []
        for group in order:
            if len(taken) + len(groups[group]) <= size:
                taken += groups[group]
            else:
                left.append(group)
        if len(taken) < size:
            raise DataError(
                f"{source}: rows that share a question stay together, so that {name} gets {len(taken)} rows of the "
                f"{size} that data.splits asks for ({parts}): ask for fewer, or give a larger file"
            )
        random.Random(f"{seed}:order:{name}").shuffle(taken)
        out[name], order = taken, left
    return out


def mixed(of: Sequence[Record], by: Sequence[Record], share: float, seed: int, name: str) -> list[Record]:
    """`of` with a share of its rows replaced by the first rows of `by`; a larger share replaces more, and those too.

    Raises:
        DataError: `by` has too few rows.
    """
    n = round(share * len(of))
    if n > len(by):
        raise DataError(f"data.mixes.{name}: a share of {share:g} takes {n} rows of {len(by)}: ask for less")
    places = list(range(len(of)))
    random.Random(f"{seed}:mix:{name}").shuffle(places)
    out = list(of)
    for place, record in zip(places[:n], by, strict=False):
        out[place] = record
    return out


def parts_of(n_rows: int, n_parts: int) -> list[int]:
    """The part, from 0, of each of `n_rows` rows: parts follow each other and differ in size by one row at most."""
    return [i * n_parts // n_rows for i in range(n_rows)]


def arranged(records: Sequence[Record], plan: Arrange) -> list[Record]:
    """The rows part by part, in the order of the plan."""
    order = list(range(plan.parts))
    if plan.seed is not None:
        random.Random(f"{plan.seed}:parts").shuffle(order)
    part = parts_of(len(records), plan.parts)
    return [record for k in order for i, record in enumerate(records) if part[i] == k]


def as_row(record: Record, *, chat: bool) -> dict[str, Any]:
    """A record as a row that reads back as the same record; `chat`: it comes from a file of conversations."""
    row: dict[str, Any] = {"id": record.id, "group": record.group}
    if not record.messages and not chat:
        return {**row, "text": record.target}
    turns = [{"role": m.role, "content": m.content} for m in record.messages]
    if chat:
        return {**row, "messages": [*turns, {"role": "assistant", "content": record.target}]}
    *system, user = turns
    said = {"system": system[0]["content"]} if system else {}
    return {**row, **said, "prompt": user["content"], "response": record.target}
