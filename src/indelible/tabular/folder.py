"""What a tabular run has done so far: finished blocks on disk, so that a run stopped anywhere goes on.

A block's file is named by everything that decides its numbers. A block is read back from its file even when it was just
made, so that a run that was stopped and one that was not write the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.errors import UserError
from indelible.runs import MANIFEST, write_bytes, write_json

if TYPE_CHECKING:
    import pandas as pd

MARKER = ".indelible-tabular"


def digest(*values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Work:
    """The working folder beside a run. A block is there once its facts are, which are written last."""

    path: Path

    def has(self, name: str) -> bool:
        """Whether a block is finished."""
        facts = self.path / f"{name}.json"
        if not facts.exists():
            return False
        table = self.path / f"{name}.parquet"
        return table.exists() and _sha256(table) == json.loads(facts.read_bytes()).get("sha256")

    def write(self, name: str, frame: pd.DataFrame, facts: Mapping[str, Any]) -> None:
        """Keep a block: its scores and what else is known of it."""
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        path = write_bytes(self.path / f"{name}.parquet", buffer.getvalue())
        write_json(self.path / f"{name}.json", {**facts, "sha256": _sha256(path)}, nan_as_null=True)

    def read(self, name: str) -> tuple[pd.DataFrame, dict[str, Any]]:
        """A finished block."""
        import pandas as pd

        facts = json.loads((self.path / f"{name}.json").read_bytes())
        return pd.read_parquet(self.path / f"{name}.parquet"), facts

    def remove(self) -> None:
        """The run is finished and holds everything that was here."""
        shutil.rmtree(self.path, ignore_errors=True)


def open_work(out: Path, *, force: bool) -> Work:
    """The working folder beside `out`.

    Raises:
        UserError: the run is finished, or the folder holds something else.
    """
    if (out / MANIFEST).exists() and not force:
        raise UserError(f"{out} holds a finished run; give another --out, or --force to replace it.")
    path = out.with_name(out.name + "-work")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / MARKER).exists())):
        raise UserError(f"{path} exists and was not made by a tabular run; give another --out")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        (path / MARKER).touch()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): give another --out.") from error
    return Work(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
