"""Settings of a study's report: tables, figures, and what the paper has that they are held against."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from indelible.config import Settings

Only = dict[str, tuple[str, ...]]


class TablePlan(Settings):
    """A table a metric: `rows` and `columns` are `attack`, an axis, `part` or `block`; the axes left over go into the
    heads of the columns. `only`: labels that are shown of a key."""

    rows: str = "attack"
    columns: str | None = None
    metrics: tuple[str, ...] = ("auc", "tpr@0.01")
    only: Only = Field(default_factory=dict)


class FigurePlan(Settings):
    """`lines`: `metrics` over `x`, a line for each of `lines` (an axis, `attack`, or `metric`). `distributions`: scores
    of either side, a panel for each value of `x`. `scatter`: the two drops of a fidelity study, likewise."""

    kind: Literal["lines", "distributions", "scatter"] = "lines"
    x: str
    lines: str = "attack"
    metrics: tuple[str, ...] = ("auc",)
    only: Only = Field(default_factory=dict)


class Show(Settings):
    """What the report shows."""

    tables: tuple[TablePlan, ...] = ()
    figures: tuple[FigurePlan, ...] = ()


class PaperTable(Settings):
    """Numbers of the paper beside ours. `values`: row label to number, or to column label to number, in the study's own
    labels; `names` says what the paper calls them. `n`: its records a side, from which follows what its numbers tell
    apart; `error`: the standard error of each, for metrics where that does not follow."""

    where: str
    metric: str = "auc"
    rows: str = "attack"
    columns: str | None = None
    values: dict[str, float | dict[str, float]]
    names: dict[str, str] = Field(default_factory=dict)
    only: Only = Field(default_factory=dict)
    n: int = Field(default=500, ge=2)
    error: float | None = Field(default=None, gt=0)

    def value(self, row: str | None, column: str | None) -> float | None:
        """The number of our row and column labels."""
        found = self.values.get(row or "")
        if isinstance(found, dict):
            return found.get(column or "")
        return found if self.columns is None else None


class Expect(Settings):
    """A shape the paper shows without numbers: over `x`, `metric` of each of `lines` (labels of `by`; metrics, where
    that is `metric`) `rises`, `falls`, has its `peak` `between` two values, is `above` that of `than`, `stays` within a
    `margin` of its first value, or `flattens`: at least a `share` of its change comes in the first step, at most `rest`
    in any later one."""

    where: str
    shape: Literal["rises", "falls", "peak", "above", "stays", "flattens"]
    x: str
    by: str = "attack"
    lines: tuple[str, ...] = Field(min_length=1)
    metric: str = "auc"
    between: tuple[float, float] | None = None
    than: tuple[str, ...] = ()
    margin: float | None = Field(default=None, gt=0)
    share: float = Field(default=0.5, gt=0, lt=1)
    rest: float = Field(default=0.05, gt=0, lt=1)
    only: Only = Field(default_factory=dict)

    @model_validator(mode="after")
    def _needed(self) -> Expect:
        needed = {"peak": "between", "above": "than", "stays": "margin"}.get(self.shape)
        if needed is not None and not getattr(self, needed):
            raise ValueError(f"shape {self.shape} needs {needed}")
        return self
