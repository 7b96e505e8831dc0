"""Progress: a bar on a terminal, a plain line now and then elsewhere. Of several processes one shows it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from indelible import distributed

EVERY_SECONDS = 15.0


class Progress:
    """`with Progress("scoring", total=n, unit="tokens") as p: p.advance(k)`."""

    def __init__(self, stage: str, *, total: int, unit: str) -> None:
        self.stage, self.total, self.unit = stage, total, unit
        self.done = 0
        self._start = self._last = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self.total and distributed.speaks() and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.stage, total=self.total)
        return self

    def advance(self, n: int) -> None:
        """`n` more units are done."""
        self.done += n
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, advance=n)
        elif now - self._last > EVERY_SECONDS:
            self._last = now
            left = (now - self._start) / self.done * (self.total - self.done)
            say(f"{self.stage}: {self.done:,} of {self.total:,} {self.unit}, about {left:.0f} s left")

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None and self.total:
            seconds = time.monotonic() - self._start
            say(f"{self.stage}: {self.done:,} {self.unit} in {seconds:.1f} s")


def say(line: str) -> None:
    """One line to the person watching; results go to standard output, this goes to standard error."""
    if distributed.speaks():
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
