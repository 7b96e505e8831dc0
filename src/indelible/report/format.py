"""How values are written in a report: numbers, intervals, cells with a reason where there is no number."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

NOT_AVAILABLE = "n/a"

MetricRow = Mapping[str, Any]
"""One row of metrics.json."""


@dataclass(frozen=True)
class Cell:
    """One table cell.

    Attributes:
        text: the number, or "n/a".
        detail: the second line: interval, realised rate, or why there is no number.
        missing: the number does not exist.
    """

    text: str
    detail: str = ""
    missing: bool = False


def plain(value: object) -> str:
    """Text from data made harmless to read: control and text-direction characters shown as escapes, one line."""
    text = " ".join(str(value).split())
    return "".join(f"\\u{ord(char):04x}" if unicodedata.category(char) in {"Cc", "Cf", "Cs"} else char for char in text)


def passage(value: object) -> str:
    """As `plain`, with the line breaks kept: for a record's own text."""
    return "\n".join(plain(line) for line in str(value).splitlines())


def is_number(value: object) -> TypeGuard[float]:
    """A finite int or float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def decimal(value: float, digits: int = 3) -> str:
    """Fixed digits, a true minus sign, no negative zero."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """As `decimal`, with a plus sign before positive numbers."""
    text = decimal(value, digits)
    return text if text.startswith("−") or float(text) == 0 else "+" + text


def percent(value: float, digits: int = 1) -> str:
    """A share in per cent: 0.0333 as 3.3%; small shares keep two significant digits."""
    share = 100 * value
    if 0 < abs(share) < 0.1:
        return f"{share:.2g}%"
    text = f"{share:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


def p_value(value: float) -> str:
    """A p-value."""
    return "<0.001" if value < 0.001 else decimal(value, 3)


def count(value: object) -> str:
    """An integer with thin spaces between thousands; "n/a" for what is no number."""
    return f"{int(value):,}".replace(",", " ") if is_number(value) else NOT_AVAILABLE


def quantity(value: object) -> str:
    """Any value out of a manifest, on one line."""
    if value is None or value == "" or value == {} or value == []:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "; ".join(f"{plain(key)}: {quantity(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(quantity(item) for item in value)
    return plain(value)


def pretty_json(value: object) -> str:
    """Indented JSON for reading."""
    return passage(json.dumps(value, indent=2, ensure_ascii=False))


STYLES: dict[str, Callable[[float], str]] = {
    "decimal": decimal,
    "signed": signed,
    "percent": percent,
    "share": percent,
    "p": p_value,
    "bits": lambda value: decimal(value, 2),
    "gap": lambda value: signed(value, 2),
    "points": lambda value: signed(100 * value, 0) + "\u00a0points",
}
"""How the value of a metrics row is written. share: in per cent, where no count of canaries stands behind it."""


def level_name(row: MetricRow) -> str:
    """The confidence level, as "95%"."""
    level = row.get("level")
    return percent(float(level)) if is_number(level) else "95%"


def interval(row: MetricRow, style: str = "decimal") -> str:
    """The interval of a row, "[0.510, 0.600]", or "" when it has none."""
    low, high = row.get("low"), row.get("high")
    if not (is_number(low) and is_number(high)):
        return ""
    write = STYLES[style]
    return f"[{write(float(low))},\u00a0{write(float(high))}]"  # one piece, never broken over lines


def missing(reason: object, mark: str = NOT_AVAILABLE) -> Cell:
    """A number that does not exist, with its reason; `mark` stands in its place."""
    return Cell(mark, plain(reason) if reason else "no reason recorded", missing=True)


def metric_cell(
    row: MetricRow | None,
    style: str = "decimal",
    absent: str = "not computed in this run",
    *,
    mark: str = NOT_AVAILABLE,
) -> Cell:
    """Value and interval of a metrics row, written as `STYLES` has it; `mark` and the reason where it is null."""
    if row is None:
        return missing(absent, mark)
    value = row.get("value")
    if not is_number(value):
        return missing(row.get("reason"), mark)
    return Cell(STYLES[style](float(value)), "" if style == "p" else interval(row, style))


def rate_cell(row: MetricRow | None) -> Cell:
    """A true-positive rate with its interval, the false-positive rate realised, and that rate's upper bound."""
    cell = metric_cell(row, "percent")
    if row is None or cell.missing:
        return cell
    detail = [cell.detail] if cell.detail else []
    realised, upper = row.get("realised_fpr"), row.get("fpr_upper")
    if is_number(realised):
        bound = f", at most {percent(upper, 2)}" if is_number(upper) else ""
        detail.append(f"realised FPR {percent(realised, 2)}{bound}")
    return Cell(cell.text, "; ".join(detail))
