"""From a file, folder or hub name to rows of columns; every problem is one line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from indelible.data.layouts import LAYOUTS
from indelible.errors import DataError

_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


@dataclass(frozen=True)
class Rows:
    rows: list[dict[str, Any]]
    places: Sequence[int]
    unit: Literal["line", "row"]
    kind: str
    sha256: str = ""


def load_rows(name: str, split: str) -> Rows:
    if name.startswith("named:"):
        from indelible.data.named import load_named  # it reads files through this module

        return load_named(name, split)
    path = Path(name)
    if path.is_dir():
        return _from_datasets(name, split, folder=True)
    if not path.exists():
        suffixes = {s.lower() for s in path.suffixes}
        if suffixes & {*_KINDS, ".gz", ".txt", ".zip"} or not _HUB_NAME.fullmatch(name):
            fail(f"{name}: no such file; expected a JSONL, JSON, CSV, TSV or Parquet file: check the path.")
        return _from_datasets(name, split, folder=False)
    try:
        data = path.read_bytes()
    except OSError as error:
        fail(f"{name} cannot be read: {error.strerror}.")
    digest = hashlib.sha256(data).hexdigest()
    if path.suffix.lower() == ".gz" or data[:2] == b"\x1f\x8b":
        path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        try:
            data = gzip.decompress(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            fail(f"{name} is not a whole gzip file ({error}); write it again.")
    if not data.strip():
        fail(f"{name} is empty; expected one record a row.")
    kind = "parquet" if data[:4] == b"PAR1" else _KINDS.get(path.suffix.lower(), "")
    if kind == "parquet":
        return replace(_from_parquet(name, data), sha256=digest)
    text = _decoded(name, data)
    if not text.strip():
        fail(f"{name} is empty; expected one record a row.")
    kind = kind or _sniffed(name, text)
    rows = _from_csv(name, text, kind) if kind in ("csv", "tsv") else _from_json(name, text, kind)
    return replace(rows, sha256=digest)


def _decoded(name: str, data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        fail(f"{name} is UTF-16 text; expected UTF-8: save it as UTF-8.")
    if b"\0" in data:
        fail(f"{name} is a binary file; expected JSONL, JSON, CSV, TSV or Parquet.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fail(f"{name}, line {line}: not UTF-8 (a binary file, or another encoding); expected UTF-8 text.")


def _sniffed(name: str, text: str) -> str:
    head = text.lstrip().split("\n", 1)[0]
    if head[:1] in "[{":
        return "json"
    cells = {kind: {c.strip(' "\r') for c in head.split(by)} for kind, by in (("tsv", "\t"), ("csv", ","))}
    kinds = [kind for kind, has in cells.items() if any(has >= set(layout.columns) for layout in LAYOUTS)]
    if not kinds:
        fail(f"{name}: the kind of file is not known from its name or first line; expected .jsonl, .json, .csv, .tsv "
              "or .parquet: rename it.")  # fmt: skip
    return kinds[0]


class _RepeatedKeyError(ValueError):
    pass


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise _RepeatedKeyError(next(k for k, n in Counter(k for k, _ in pairs).items() if n > 1))
    return row


def _json(name: str, text: str, line: int) -> Any:
    """Parse JSON that starts at `line` of the file."""
    try:
        return json.loads(text, object_pairs_hook=_no_repeats)
    except _RepeatedKeyError as error:
        fail(f"{name}, from line {line}: duplicate column '{error}'; expected each column once a row: remove one.")
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1}, column {error.colno}"
        fail(f"{name}, {at}: malformed JSON ({error.msg}); expected one JSON object a row: mend the line.")
    except (ValueError, RecursionError) as error:
        fail(f"{name}, from line {line}: JSON that cannot be read ({error}).")


def _from_json(name: str, text: str, kind: str) -> Rows:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    whole = lines[0][1].lstrip()[:1] == "["
    if not whole and kind == "json":
        # JSON lines often carry the name .json: then the first line is an object of its own, and more follow.
        try:
            whole = len(lines) == 1 or not isinstance(json.loads(lines[0][1]), dict)
        except (ValueError, RecursionError):
            whole = True
    if not whole:
        return Rows(_objects(name, [_json(name, line, n) for n, line in lines], [n for n, _ in lines], "line"),
                     [n for n, _ in lines], "line", "jsonl")  # fmt: skip
    value = _json(name, text, 1)
    if isinstance(value, dict):
        value = value["data"] if isinstance(value.get("data"), list) else [value]
    if not isinstance(value, list):
        fail(f"{name} holds one JSON value; expected an array of objects, or an object with such an array as 'data'.")
    places = range(1, len(value) + 1)
    return Rows(_objects(name, value, places, "row"), places, "row", "json")


def _objects(name: str, rows: list[Any], places: Sequence[int], unit: str) -> list[dict[str, Any]]:
    for place, row in zip(places, rows, strict=True):
        if not isinstance(row, dict):
            fail(f"{name}, {unit} {place}: not a JSON object; expected one object with named columns a row.")
    return rows


def _from_csv(name: str, text: str, kind: str) -> Rows:
    limit = csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 kB
    rows, places = [], []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if kind == "tsv" else ",", strict=True)
    try:
        header = next(cells for cells in reader if cells)
        _once(name, header)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                fail(f"{name}, line {reader.line_num}: {len(cells)} cells; expected {len(header)}, as in the header: "
                      "quote cells that hold the separator.")  # fmt: skip
            rows.append(dict(zip(header, cells, strict=True)))
            places.append(reader.line_num)
    except csv.Error as error:
        fail(f"{name}, line {reader.line_num}: malformed {kind.upper()} ({error}); mend the quotes of this row.")
    finally:
        csv.field_size_limit(limit)
    return Rows(rows, places, "line", kind)


def _from_parquet(name: str, data: bytes) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        _once(name, file.schema_arrow.names)
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        fail(f"{name} is not a whole Parquet file ({error}); write it again.")
    return Rows(rows, range(1, len(rows) + 1), "row", "parquet")


def _once(name: str, header: Collection[str]) -> None:
    twice = [c for c, n in Counter(header).items() if n > 1 and c]
    if twice:
        fail(f"{name}: duplicate column '{twice[0]}'; expected each column once: rename or remove one.")


def _from_datasets(name: str, split: str, *, folder: bool) -> Rows:
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        if folder:
            data = datasets.load_from_disk(name)
            if isinstance(data, datasets.DatasetDict):
                if split not in data:
                    fail(f"{name} has no split '{split}'; found {listed(data)}.")
                data = data[split]
        else:
            hub_name, _, config = name.partition(":")
            data = datasets.load_dataset(hub_name, config or None, split=split)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        if folder:
            fail(f"{name} is a folder that `datasets` did not save ({error}); expected a file, or such a folder.")
        fail(f"{name}: no such file, and the hub did not give a data set of this name, split '{split}' ({error}); "
              "check the path or name and the network.")  # fmt: skip
    # As Arrow, for images and sound would be decoded otherwise.
    rows = data.with_format("arrow")[:].to_pylist()
    digest = hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()
    return Rows(rows, range(1, len(rows) + 1), "row", "datasets", digest)


def listed(names: Collection[str]) -> str:
    """Names for an error or note: at most twenty, in the order found."""
    shown = [str(n) for n in names][:20]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (", ".join(shown) or "none") + more


def fail(message: str) -> NoReturn:
    # Names and reasons come from outside and may hold line breaks; an error is one line.
    raise DataError(" ".join(message.split()))
