"""Answers on disk, so that an interrupted or repeated audit asks nothing twice.

Keys are HMACs of (model fingerprint, query, engine version) under a key of this user; values are numbers. Token ids are
masked with a keystream from the same key, so that the file by itself spells no text. The folder is readable by its
owner alone.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from indelible.data.records import Query
from indelible.models.base import TokenLogprobs


def cache_root() -> Path:
    """The user's cache folder: `INDELIBLE_CACHE`, else the platform's own place."""
    from platformdirs import user_cache_path

    return Path(os.environ.get("INDELIBLE_CACHE") or user_cache_path("indelible"))


class AnswerCache:
    """A SQLite table of answers. One process writes at a time; readers are never blocked (write-ahead log)."""

    def __init__(self, folder: Path | None = None, *, engine_version: int) -> None:
        self.folder = folder or cache_root() / "answers"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(self.folder, 0o700)
        self._secret = self._read_secret()
        self._version = engine_version
        self._distrusted: set[str] = set()
        self._db = sqlite3.connect(self.folder / "answers.sqlite", timeout=60)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._db.commit()

    def _read_secret(self) -> bytes:
        path = self.folder / "key"
        if not path.exists():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()

    def _key(self, fingerprint: str, query: Query) -> bytes:
        text = f"{self._version}:{fingerprint}:".encode() + query.digest()
        return hmac.new(self._secret, text, hashlib.sha256).digest()

    def _mask(self, key: bytes, ids: np.ndarray) -> np.ndarray:
        stream = hashlib.shake_256(self._secret + key).digest(4 * len(ids))
        return ids ^ np.frombuffer(stream, dtype=np.int32)

    def read(self, fingerprint: str, queries: Sequence[Query]) -> dict[Query, TokenLogprobs]:
        """The answers that are there."""
        if fingerprint in self._distrusted:
            return {}
        found: dict[Query, TokenLogprobs] = {}
        for query in queries:
            key = self._key(fingerprint, query)
            row = self._db.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                continue
            table = np.frombuffer(row[0], dtype=np.float32).reshape(4, -1)
            argmax = self._mask(key, table[3].view(np.int32))
            found[query] = TokenLogprobs(table[0], table[1], table[2], argmax)
        return found

    def write(self, fingerprint: str, answers: Iterable[tuple[Query, TokenLogprobs]]) -> None:
        """Store answers in one transaction."""
        rows = []
        for query, a in answers:
            key = self._key(fingerprint, query)
            table = np.stack([a.logprobs, a.mean, a.std, self._mask(key, a.argmax).view(np.float32)])
            rows.append((key, table.tobytes()))
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def read_texts(self, fingerprint: str, queries: Sequence[Query]) -> dict[Query, str]:
        """The replies that are there."""
        if fingerprint in self._distrusted:
            return {}
        found: dict[Query, str] = {}
        for query in queries:
            key = self._key(fingerprint, query)
            row = self._db.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found[query] = self._hide(key, row[0]).decode()
        return found

    def write_texts(self, fingerprint: str, replies: Iterable[tuple[Query, str]]) -> None:
        """Store replies in one transaction, masked as token ids are."""
        keyed = [(self._key(fingerprint, query), text.encode()) for query, text in replies]
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO answers VALUES (?, ?)", [(key, self._hide(key, raw)) for key, raw in keyed]
            )

    def _hide(self, key: bytes, raw: bytes) -> bytes:
        """Mask bytes with the key's own stream; the same again brings them back."""
        stream = hashlib.shake_256(self._secret + key).digest(len(raw))
        return bytes(a ^ b for a, b in zip(raw, stream, strict=True))

    def distrust(self, fingerprint: str) -> None:
        """Give no answer of this model from now on; new ones take the places of the old."""
        self._distrusted.add(fingerprint)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
