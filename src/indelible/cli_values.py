"""What the sub-commands do alike with the values of their flags."""

from __future__ import annotations

from typing import Any, TypeVar

from indelible.errors import ConfigError

Number = TypeVar("Number", int, float)


def stated(**flags: Any) -> dict[str, Any]:
    """The flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}


def split_names(text: str | None) -> list[str] | None:
    """Comma-separated names."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def split_numbers(flag: str, text: str | None, kind: type[Number]) -> list[Number] | None:
    """Comma-separated numbers.

    Raises:
        ConfigError: one is none.
    """
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{flag} {text}: expected {what} separated by commas") from error
