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


def split_columns(text: str | None) -> dict[str, str] | None:
    """What a format calls its columns: name=column pairs, comma-separated.

    Raises:
        ConfigError: a part is no such pair.
    """
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not sep or not value for _, sep, value in pairs):
        raise ConfigError(f"--columns {text}: expected name=column pairs, e.g. prompt=question,response=answer")
    return {name.strip(): value.strip() for name, _, value in pairs}


def split_settings(items: list[str] | None) -> dict[str, dict[str, Any]] | None:
    """Settings by attack, of attack.setting=value.

    Raises:
        ConfigError: an item is none.
    """
    if not items:
        return None
    out: dict[str, dict[str, Any]] = {}
    for item in items:
        key, sep, value = item.partition("=")
        attack, dot, name = key.rpartition(".")
        if not sep or not dot:
            raise ConfigError(f"--set {item}: expected attack.setting=value, e.g. icp-sp.rate=0.7")
        out.setdefault(attack, {})[name] = _scalar(value)
    return out


def _scalar(text: str) -> str | int | float | bool:
    """A number or true/false where the text is one; else the text itself, such as the placeholder [MASK]."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
