"""The run directory: open, write, finish, read, verify.

Every file is written under a temporary name and moved into place, and `manifest.json` is written last: it lists the
sha256 of every other file, so its presence says that the run is complete. JSON is strict: NaN and infinity do not
exist in it; a number that does not exist is null.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from indelible.errors import DataError, UserError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the run directory this package writes; it reads this one and older ones."""

MANIFEST = "manifest.json"
MARKER = ".unfinished"
"""Present from the opening of a run until its manifest is written."""

SCORED = ("audit", "demo", "score")
"""Kinds of runs that hold scores of records."""

TEXTS = "texts.json"
ROWS = "rows.parquet"
"""Raw rows of tables, only with --with-text."""

DERIVED = (
    *("metrics.json", "verdict.json", TEXTS, ROWS, "screens.png"),
    *("report.html", "report.md", "findings.json", "figures"),
)
"""Made anew by every run: leftovers of an interrupted one are removed, so that no old text or number survives."""

_TEMPORARY = ".tmp"
_RECORD_COLUMNS = ("record_id", "member", "group", "n_target_tokens")
_SCORE_COLUMNS = ("record_id", "attack", "model", "score", "reason")


@dataclass(frozen=True)
class Run:
    """A finished audit as read back. `texts` (record id to prompt and target) exists only with `--with-text`."""

    path: Path
    manifest: dict[str, Any]
    records: pd.DataFrame
    scores: pd.DataFrame
    metrics: list[dict[str, Any]]
    verdict: dict[str, Any]
    texts: dict[str, dict[str, str]] | None = None

    @property
    def name(self) -> str:
        """The name in the manifest, else that of the folder."""
        return str(self.manifest.get("name") or self.path.resolve().name)


@dataclass(frozen=True)
class RunDir:
    """A run being written. Get one from `RunDir.open`."""

    path: Path

    @staticmethod
    def check(path: Path | str, *, force: bool = False) -> None:
        """That a run can be written there; for callers that write late.

        Raises:
            UserError: the run is finished and `force` is not given, or the folder holds something else than a run.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; a run needs a folder: give another --out.")
        if (path / MANIFEST).exists():
            if not force:
                raise UserError(f"{path} holds a finished run; give another --out, or --force to replace it.")
        elif path.exists() and not (path / MARKER).exists() and any(path.iterdir()):
            raise UserError(f"{path} is not empty and is not a run; give --out a new or empty folder.")

    @classmethod
    def open(cls, path: Path | str, *, force: bool = False) -> RunDir:
        """Create a run directory, or go on with an unfinished one.

        Raises:
            UserError: the run is finished and `force` is not given, or the folder holds something else than a run.
        """
        path = Path(path)
        cls.check(path, force=force)
        manifest = path / MANIFEST
        if manifest.exists():
            listed = _listed_files(path)
            (path / MARKER).touch()
            manifest.unlink()
            for name in listed:
                (path / name).unlink(missing_ok=True)
        try:  # a run says who is a member: for its owner alone, until he shares it
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (path / MARKER).touch()
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}): give another --out.") from error
        for leftover in [*path.rglob("*" + _TEMPORARY), *(path / name for name in DERIVED)]:
            _remove(leftover)
        return cls(path)

    def write_json(self, name: str, value: object, *, nan_as_null: bool = False) -> Path:
        """Write strict JSON. NaN and infinity raise ValueError, or become null when `nan_as_null`."""
        return write_json(self.path / name, value, nan_as_null=nan_as_null)

    def write_parquet(self, name: str, frame: pd.DataFrame) -> Path:
        """Write a table, without its index."""
        target = self.path / name
        with _Replacing(target) as temporary:
            frame.to_parquet(temporary, index=False)
        return target

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write bytes."""
        return write_bytes(self.path / name, content)

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Hash every file of the run and write the manifest, last. Returns the manifest as written."""
        written = {**manifest, "schema": SCHEMA, "files": hash_files(self.path)}
        write_json(self.path / MANIFEST, written)
        (self.path / MARKER).unlink(missing_ok=True)
        return written


def write_bytes(path: Path, content: bytes) -> Path:
    """Write `content` under a temporary name in the same folder, then move it to `path`."""
    with _Replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_json(path: Path, value: object, *, nan_as_null: bool = False) -> Path:
    """Write strict, indented JSON atomically.

    Raises:
        ValueError: the value holds NaN or infinity and `nan_as_null` is false.
    """
    if nan_as_null:
        value = without_nan(value)
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return write_bytes(path, (text + "\n").encode("utf-8", errors="backslashreplace"))


def without_nan(value: Any) -> Any:
    """`value` with every NaN and infinity, at any depth, replaced by None."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def hash_files(path: Path, *, skip: Iterable[str] = ()) -> dict[str, str]:
    """sha256 of every file under `path` but the manifest, temporary files and the names in `skip`, sorted by name."""
    left_out = {MANIFEST, MARKER, *skip}
    names = (file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    return {
        name: _sha256(path / name) for name in sorted(names) if name not in left_out and not name.endswith(_TEMPORARY)
    }


def read_run(path: Path | str) -> Run:
    """Read a finished audit, demo or score run.

    Raises:
        UserError: the run is missing, unfinished, of a newer schema, or of a kind that holds no scores.
        DataError: a file of it cannot be read.
    """
    path = Path(path)
    manifest = read_manifest(path)
    kind = manifest.get("kind")
    if kind not in SCORED:
        raise UserError(f"{path} is a run of kind {kind}; it holds no scores of records, expected {', '.join(SCORED)}.")
    return read_tables(path, manifest)


def read_tables(path: Path, manifest: Mapping[str, Any]) -> Run:
    """The tables of a run under a manifest that is already at hand (the draft of a run about to be finished)."""
    metrics = read_json(path / "metrics.json", list)
    verdict = read_json(path / "verdict.json", dict)
    texts = read_json(path / TEXTS, dict) if (path / TEXTS).exists() else None
    records = read_table(path / "records.parquet", _RECORD_COLUMNS)
    scores = read_table(path / "scores.parquet", _SCORE_COLUMNS)
    return Run(path, dict(manifest), records, scores, metrics, verdict, texts)


def read_manifest(path: Path | str) -> dict[str, Any]:
    """The manifest of a finished run of any kind; the errors of `read_run`."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"no run at {path}: give the folder that holds its {MANIFEST}.")
    if not (path / MANIFEST).exists():
        if (path / MARKER).exists():
            raise UserError(f"the run in {path} is unfinished: repeat its command to go on.")
        raise UserError(f"{path} is not a run: it has no {MANIFEST}.")
    manifest = cast("dict[str, Any]", read_json(path / MANIFEST, dict))
    schema = manifest.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise DataError(f"{path / MANIFEST} states no schema number: it was not written by this package.")
    if schema > SCHEMA:
        raise UserError(f"the run in {path} has schema {schema}, this version reads up to {SCHEMA}: update indelible.")
    return manifest


def verify(path: Path | str) -> list[str]:
    """Compare a finished run with the hashes in its manifest; one line for each changed, missing or added file.

    The manifest itself is not covered: keep its own hash elsewhere to detect that it was rewritten.
    """
    path = Path(path)
    listed = read_manifest(path).get("files")
    if not isinstance(listed, dict):
        raise DataError(f"{path / MANIFEST} lists no file hashes.")
    found = hash_files(path)
    problems = []
    for name, digest in sorted(listed.items()):
        if name not in found:
            problems.append(f"missing: {name}")
        elif found[name] != digest:
            problems.append(f"changed: {name} (sha256 {found[name][:12]}…, manifest {str(digest)[:12]}…)")
    return problems + [f"not in the manifest: {name}" for name in sorted(found.keys() - listed.keys())]


class _Replacing:
    """Context manager: a temporary path beside `target`, moved onto it on success and removed on failure."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __enter__(self) -> Path:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=self.target.name + ".", suffix=_TEMPORARY, dir=self.target.parent)
        os.close(handle)
        self.temporary = Path(name)
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            umask = os.umask(0)
            os.umask(umask)
            self.temporary.chmod(0o666 & ~umask)  # mkstemp makes files private; a report is for sharing
            os.replace(self.temporary, self.target)
        else:
            self.temporary.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed_files(path: Path) -> list[str]:
    """Names in the manifest that lie inside the run; none when the manifest cannot be read."""
    try:
        files = json.loads((path / MANIFEST).read_bytes()).get("files", {})
    except (ValueError, AttributeError):
        return []
    inside = path.resolve()
    return [str(name) for name in files if (path / str(name)).resolve().is_relative_to(inside)]


def _remove(path: Path) -> None:
    """Remove a file, or the figures folder's pictures and then the folder when nothing else is in it."""
    if path.is_dir():
        for picture in path.glob("*.png"):
            picture.unlink()
        if not any(path.iterdir()):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path, kind: type) -> Any:
    """Strict JSON of a run, of the kind expected. Raises DataError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"it holds {constant}, which JSON does not have")

    try:
        value = json.loads(path.read_bytes(), parse_constant=refuse)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run is incomplete.") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(value, kind):
        raise DataError(f"{path} holds a {type(value).__name__}, expected a {kind.__name__}.")
    return value


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """A table of a run, with the columns expected. Raises DataError."""
    import pandas as pd
    import pyarrow as pa

    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run is incomplete.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the column(s) {', '.join(missing)}; it has {', '.join(frame.columns)}.")
    return frame
