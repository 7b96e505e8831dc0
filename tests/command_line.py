"""`indelible` in process: what a user types, and what comes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from indelible import cli

Call = Callable[..., tuple[int, str, str]]
"""Words of a command to exit code, output and error output."""


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Call:
    """Runs command lines in a folder."""
    monkeypatch.chdir(folder)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["indelible", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), said.out, said.err

    return run
