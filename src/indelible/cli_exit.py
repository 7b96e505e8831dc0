"""How the command line ends: exit codes, and who says what. See `indelible.cli`."""

from __future__ import annotations

import sys

import typer

from indelible import distributed
from indelible.errors import UserError

INTERRUPTED = 130
"""Exit code after Ctrl-C. Some versions of the parser return it, others raise typer.Abort."""


def run_app(app: typer.Typer) -> int:
    """Run the command line: the user's mistakes end in one line, bugs in a traceback. Returns the exit code."""
    try:
        with distributed.as_one():
            code = app(standalone_mode=False)
            if code == INTERRUPTED:
                raise KeyboardInterrupt
    except UserError as error:
        _complain(f"indelible: {error}")
        return 2
    except (typer.Abort, KeyboardInterrupt):
        _complain("indelible: interrupted; run the same command again to go on where it stopped")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence: usage errors to 2, bugs to 3
        return _last_resort(error)
    return code if isinstance(code, int) else 0


def _complain(line: str) -> None:
    if distributed.speaks():
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _last_resort(error: Exception) -> int:
    import traceback

    show = getattr(error, "format_message", None)  # a usage error of the command-line parser
    if show is not None:
        _complain(f"indelible: {show()}")
        return 2
    _complain("".join(traceback.format_exception(error)).rstrip())
    _complain("indelible: this is a bug; please report it with the lines above")
    return 3
