"""JSON files of annotations: read whole, and each value checked, with one clear line where it is not as expected."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from indelible.errors import DataError, did_you_mean


def read_json(path: Path, expected: str) -> Any:
    """The value a JSON file holds.

    Errors:
        DataError: the file is missing, not UTF-8 or not JSON; `expected` says what should be there.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected {expected}. Check the path.")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text; expected {expected}.") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: malformed JSON ({error.msg}); expected {expected}: mend the line."
        ) from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: JSON that can't be read ({type(error).__name__}); expected {expected}.") from error


def rows(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of JSON objects.

    Errors:
        DataError: it is something else, or empty.
    """
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        raise DataError(f"{where}: expected a list of one or more objects.")
    return value


def known_keys(row: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Does nothing where every key is known.

    Errors:
        DataError: one is not; names the closest that is.
    """
    for key in row:
        if key not in known:
            raise DataError(f"{where}: {did_you_mean(key, sorted(known), 'key')}")


def text(row: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    """A string that is not blank, or the default where the key is absent.

    Errors:
        DataError: it is absent without a default, blank, or no string.
    """
    value = row.get(key, default)
    if not isinstance(value, str) or (not value.strip() and value != default):
        raise DataError(f"{where}: '{key}' is {_said(row, key)}; expected a text that is not blank.")
    return value


def numbers(row: Mapping[str, Any], key: str, where: str, n: int | None = None) -> tuple[float, ...]:
    """A list of finite numbers, n of them where n is given.

    Errors:
        DataError: it is absent or something else.
    """
    value = row.get(key)
    good = isinstance(value, list) and all(
        isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in value
    )
    if not isinstance(value, list) or not good or (n is not None and len(value) != n):
        expected = "a list of numbers" if n is None else f"a list of {n} numbers"
        raise DataError(f"{where}: '{key}' is {_said(row, key)}; expected {expected}.")
    return tuple(float(x) for x in value)


def integers(row: Mapping[str, Any], key: str, where: str, n: int) -> tuple[int, ...]:
    """A list of n whole numbers.

    Errors:
        DataError: it is absent or something else.
    """
    value = numbers(row, key, where, n)
    if any(x != int(x) for x in value):
        raise DataError(f"{where}: '{key}' is {_said(row, key)}; expected {n} whole numbers.")
    return tuple(int(x) for x in value)


def _said(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        return "missing"
    said = json.dumps(row[key])
    return said if len(said) <= 60 else f"{said[:57]}..."
