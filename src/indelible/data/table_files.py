"""From a file or name to raw columns: CSV in its dialects, Parquet, ARFF, a zip of one of them, scikit-learn's tables.

Nothing is decided here about what a column means; `table_types` reads the values, `tables` makes the table.
"""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from indelible.data.files import fail, listed
from indelible.data.table_csv import parse_csv, unique
from indelible.data.table_types import Kind
from indelible.errors import did_you_mean

_TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".data")
_SUFFIXES = (*_TEXT_SUFFIXES, ".parquet", ".pq", ".arff")


@dataclass(frozen=True)
class NamedTable:
    """A table that scikit-learn carries: its loader in `sklearn.datasets`, and what it holds."""

    loader: str
    meaning: str


NAMED_TABLES: dict[str, NamedTable] = {
    "breast_cancer": NamedTable("load_breast_cancer", "569 tumours, 30 numbers, 2 classes"),
    "wine": NamedTable("load_wine", "178 wines, 13 numbers, 3 classes"),
    "iris": NamedTable("load_iris", "150 flowers, 4 numbers, 3 classes"),
    "digits": NamedTable("load_digits", "1797 images, 64 numbers, 10 classes"),
    "diabetes": NamedTable("load_diabetes", "442 patients, 10 numbers, regression"),
}


@dataclass(frozen=True)
class RawTable:
    """Columns as they were found.

    Attributes:
        name: the file's name without suffix, or the table's.
        columns: by name, all of one length: float64, datetime64, or object (str, None where missing).
        places: where each row was, in `unit`s counted from 1.
        declared: kinds that the file itself declares.
        commas: what a comma within a number may be.
        target: the target's column, where the source names it.
    """

    name: str
    columns: dict[str, pd.Series[Any]]
    places: Sequence[int]
    unit: str = "row"
    declared: dict[str, Kind] = field(default_factory=dict)
    commas: str = "thousands"
    target: str | None = None
    notes: tuple[str, ...] = ()


def read_raw(source: str | Path, header: bool | None = None) -> RawTable:
    """Read a path, or a name in `NAMED_TABLES`.

    Args:
        header: whether a text file's first line holds the columns' names; None finds out.

    Raises:
        DataError: one line: unknown name or path, empty or broken file, rows of different length, a name twice.
    """
    text = str(source)
    if text in NAMED_TABLES:
        return _from_sklearn(text)
    check_source(text)
    path = Path(text)
    try:
        data = path.read_bytes()
    except OSError as error:
        fail(f"{text} cannot be read: {error.strerror}.")
    return _from_bytes(text, path.name, data, header)


def check_source(source: str) -> None:
    """DataError where a source is neither a file nor a name in `NAMED_TABLES`. Nothing is read."""
    path = Path(source)
    if source in NAMED_TABLES:
        return
    if not path.exists():
        looks_like_path = path.suffix.lower() in (*_SUFFIXES, ".zip", ".gz") or len(path.parts) > 1
        hint = "check the path" if looks_like_path else did_you_mean(source, list(NAMED_TABLES), "table")
        fail(f"{source}: no such file; expected CSV, Parquet, ARFF, a zip of one of them, or a table's name: {hint}")
    if path.is_dir():
        fail(f"{source} is a folder; expected one file: give a CSV, Parquet, ARFF or zip file.")


def _from_bytes(shown: str, filename: str, data: bytes, header: bool | None) -> RawTable:
    if not data.strip():
        fail(f"{shown} is empty; expected a table with one row a record.")
    stem = Path(filename).stem
    if data[:4] == b"PK\x03\x04":
        return _from_zip(shown, data, header)
    if data[:2] == b"\x1f\x8b":
        try:
            return _from_bytes(shown, stem if filename.lower().endswith(".gz") else filename,
                               gzip.decompress(data), header)  # fmt: skip
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            fail(f"{shown} is not a whole gzip file ({error}); write it again.")
    if data[:4] == b"PAR1":
        return _from_parquet(shown, stem, data)
    text, notes = _decoded(shown, data)
    if filename.lower().endswith(".arff"):
        from indelible.data.table_arff import parse_arff

        columns, declared = parse_arff(shown, text)
        n_rows = len(next(iter(columns.values())))
        return RawTable(stem, columns, range(1, n_rows + 1), declared=declared, notes=notes)
    if not filename.lower().endswith(_TEXT_SUFFIXES) and text.lstrip()[:1] in "[{":
        fail(f"{shown} looks like JSON; expected CSV, Parquet, ARFF, or a zip of one of them: save it as CSV.")
    cells = parse_csv(shown, text, header)
    commas = "thousands" if cells.separator == "," else "decimal"
    return RawTable(stem, cells.columns, cells.lines, "line", commas=commas, notes=(*notes, *cells.notes))


def _from_zip(shown: str, data: bytes, header: bool | None) -> RawTable:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            tables = [n for n in archive.namelist() if n.lower().endswith(_SUFFIXES) and not n.startswith("__MACOSX")]
            if len(tables) != 1:
                found = listed(tables or archive.namelist())
                fail(f"{shown} holds {len(tables)} tables ({found}); expected exactly one CSV, Parquet or ARFF file: "
                      "unpack it and give one.")  # fmt: skip
            inner = archive.read(tables[0])
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        fail(f"{shown} is not a zip file that can be unpacked ({error}); write it again.")
    raw = _from_bytes(f"{shown} ({tables[0]})", Path(tables[0]).name, inner, header)
    return replace(raw, notes=(f"read from {Path(tables[0]).name} in the archive", *raw.notes))


def _decoded(shown: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return data.decode("utf-16"), ("encoding UTF-16",)
        except UnicodeDecodeError as error:
            fail(f"{shown} begins like UTF-16 text and is not ({error.reason}); save it as UTF-8.")
    if b"\0" in data:
        fail(f"{shown} is a binary file of an unknown kind; expected CSV, Parquet, ARFF, or a zip of one of them.")
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        try:
            return data.decode("cp1252"), ("encoding Windows-1252, for it is not UTF-8",)
        except UnicodeDecodeError:
            return data.decode("latin-1"), ("encoding Latin-1, for it is neither UTF-8 nor Windows-1252",)


def _from_parquet(shown: str, name: str, data: bytes) -> RawTable:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(data)).read()
    except (pa.ArrowException, OSError) as error:
        fail(f"{shown} is not a whole Parquet file ({error}); write it again.")
    unique(shown, table.column_names)
    if not table.num_rows:
        fail(f"{shown} holds no rows; expected one row a record.")
    columns, notes = {}, []
    for column, values in zip(table.column_names, table.columns, strict=True):
        if column.startswith("__index_level_"):
            notes.append(f"{column}, pandas's index, left out")
        else:
            columns[column] = _from_arrow(values)
    if not columns:
        fail(f"{shown} holds no columns; expected features and a target.")
    return RawTable(name, columns, range(1, table.num_rows + 1), notes=tuple(notes))


def _from_arrow(values: Any) -> pd.Series[Any]:
    import pyarrow as pa

    kind = values.type
    if pa.types.is_dictionary(kind):
        kind, values = kind.value_type, values.cast(kind.value_type)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        listed_values = values.to_pylist()
        if pa.types.is_integer(kind) and any(v is not None and abs(v) > 2**53 for v in listed_values):
            return text_series(listed_values)  # a float would make neighbours equal
        return pd.Series([np.nan if v is None else float(v) for v in listed_values], dtype="float64")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pd.Series(values.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]"))
    return text_series(values.to_pylist())


def text_series(values: Sequence[Any]) -> pd.Series[Any]:
    """Strings stripped, anything else as Python writes it; None where missing or blank."""
    texts = [None if v is None else (v if isinstance(v, str) else str(v)).strip() or None for v in values]
    return pd.Series(texts, dtype=object)


def _from_sklearn(name: str) -> RawTable:
    from sklearn import datasets

    bunch = getattr(datasets, NAMED_TABLES[name].loader)()
    columns: dict[str, pd.Series[Any]] = {
        str(column): pd.Series(bunch.data[:, i].astype(np.float64)) for i, column in enumerate(bunch.feature_names)
    }
    labels = bunch.target
    if "target_names" in bunch and labels.dtype.kind in "iu":
        columns["target"] = text_series([str(bunch.target_names[code]) for code in labels])
    else:
        columns["target"] = pd.Series(labels.astype(np.float64))
    return RawTable(name, columns, range(1, len(labels) + 1), target="target", notes=("from scikit-learn",))
