"""Exceptions of the package.

IndelibleError
├── UserError            something the user can mend; the command line prints it as one line and exits 2
│   ├── ConfigError      a setting or flag
│   ├── DataError        a file, a row, a column
│   ├── ModelError       a model folder, a tokenizer, a template
│   └── MissingExtra     an optional dependency is not installed
└── Unscorable           one score cannot be computed; it becomes NaN with this reason, and is counted
"""

from __future__ import annotations


class IndelibleError(Exception):
    """Base of everything this package raises on purpose."""


class UserError(IndelibleError):
    """What the user gave cannot be used: says what was read, what was expected, what to do."""


class ConfigError(UserError):
    """A setting is unknown, contradictory or out of range."""


class DataError(UserError):
    """A data file cannot be read as records."""


class ModelError(UserError):
    """A model cannot be loaded or does not fit the data."""


class MissingExtra(UserError):
    """An optional dependency is needed and absent."""


class Unscorable(IndelibleError):
    """One record's score does not exist. Never replaced by a number."""


def did_you_mean(name: str, known: list[str], what: str) -> str:
    """One line for an unknown name: the closest known one, then all of them."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"unknown {what} '{name}'.{hint} Known: {', '.join(sorted(known))}."
