"""Memory that the C library holds although nobody uses it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

EVERY_PASSES = 10
"""Passes between two returns: a return costs milliseconds, a pass on a CPU most of a second."""


def give_back() -> None:
    """Return freed memory to the system, where the C library can (glibc's malloc_trim); else nothing happens.

    Each pass has tensors of its own sizes. glibc keeps what is freed between blocks that are still used, finds no place
    there for the next pass's, and takes more: half a MiB a pass.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or no such thing as the program's own symbols
        return None
