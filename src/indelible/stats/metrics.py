"""One number with everything needed to read it: a row of metrics.json."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass


def json_number(value: float | None) -> float | None:
    """The value as a plain float, or None for None, NaN and infinities, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Metric:
    """One row. Where the number does not exist `value` is None and `reason` says why.

    Attributes:
        attack: the attack's name. model: "target", "base" or "none" (fitted scores: the blind control, the
            combination).
        metric: "auc", "p_value", "tpr@0.01", "tpr_bounded@0.01", and for the target model "p_holm", "auc_minus_base",
            "auc_minus_blind", "auc_minus:<other attack>", "p_minus:<other attack>", "smallest_auc"; of the combination
            "auc_minus_best" and "p_minus_best".
        low, high, level, method: the interval, its confidence, and how value or interval were made.
        realised_fpr, fpr_upper, threshold: of an operating point; see `stats.roc.OperatingPoint`.
        n_members, n_nonmembers: records the number rests on.
    """

    attack: str
    model: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    method: str | None = None
    realised_fpr: float | None = None
    fpr_upper: float | None = None
    threshold: float | None = None
    n_members: int = 0
    n_nonmembers: int = 0
    reason: str | None = None

    def to_dict(self) -> dict[str, str | int | float | None]:
        """The row for JSON: plain types, null for what is missing, never NaN or Infinity."""
        row = dataclasses.asdict(self)
        for name, value in row.items():
            if isinstance(value, float):
                row[name] = json_number(value)
        return row
