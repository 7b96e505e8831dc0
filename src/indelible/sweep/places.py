"""Finding a number of a sweep by its place: an attack, labels of axes, a part of the training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from indelible.sweep.config import SweepConfig
from indelible.sweep.shown import Only

Row = Mapping[str, Any]
Place = Mapping[str, str]
"""Key (`attack`, `part`, `block`, or an axis) to label."""

PARTS = ("part", "block")
ON_BASE = "base_"


@dataclass
class Places:
    """Rows of metrics.json, looked up by place. Where an axis has one label it need not be said."""

    config: SweepConfig
    rows: Sequence[Row]
    _index: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            self._index.setdefault(_key(row, row["axes"], row["attack"], row["metric"]), []).append(row)

    def labels(self, key: str) -> list[str]:
        """The labels of a key, in the order of the study; attacks that it does not name come last."""
        if key == "attack":
            found = dict.fromkeys(str(row["attack"]) for row in self.rows)
            return [name for name in dict.fromkeys([*self.config.audit.get("attacks", ()), *found]) if name in found]
        if key in PARTS:
            return [str(i + 1) for i in range(self.config.parts or 0)]
        return [value.label for value in self.config.axes[key].values]

    def shown(self, key: str, only: Only) -> list[str]:
        """The labels of a key that `only` lets through, in its order where it names some."""
        known = self.labels(key)
        return [label for label in only[key] if label in known] if key in only else known

    def row(self, place: Place, metric: str, seed: int | None = None) -> Row | None:
        """The row of a place, over the seeds or of one; of the audited model, or of the control that asks none.

        `base_` before a metric asks for that of the base model.
        """
        models: tuple[str, ...] = ("target", "none")
        if metric.startswith(ON_BASE):
            models, metric = ("base",), metric.removeprefix(ON_BASE)
        axes = {axis: place.get(axis, plan.values[0].label) for axis, plan in self.config.axes.items()}
        wanted = {key: place.get(key) for key in PARTS}
        found = self._index.get(_key(wanted, axes, place.get("attack"), metric), [])
        own = [row for row in found if row["seed"] == seed]
        return next((row for model in models for row in own if row["model"] == model), None)

    def left_over(self, used: Sequence[str | None], only: Only) -> Iterator[dict[str, str]]:
        """Every combination of attack and axes that a table or figure does not lay out, as far as `only` lets them."""
        free = [key for key in ("attack", *self.config.axes) if key not in used]
        for labels in itertools.product(*(self.shown(axis, only) for axis in free)):
            yield dict(zip(free, labels, strict=True))

    def named(self, place: Place, only: Only) -> str:
        """A place in words: the labels of keys that are shown with more than one."""
        return ", ".join(label for key, label in place.items() if len(self.shown(key, only)) > 1)

    def paper(self, place: Place, metric: str) -> float | None:
        """What the paper has in this place: the first of its tables that has it."""
        for table in self.config.paper_values:
            elsewhere = any(place.get(k) not in labels for k, labels in table.only.items())
            other = any(key in place and key not in (table.rows, table.columns) for key in PARTS)
            if table.metric != metric or elsewhere or other:
                continue
            found = table.value(place.get(table.rows), None if table.columns is None else place.get(table.columns))
            if found is not None:
                return found
        return None


def _key(parts: Mapping[str, Any], axes: Mapping[str, str], attack: str | None, metric: str) -> tuple[Any, ...]:
    return (attack, metric, *(parts.get(key) for key in PARTS), tuple(sorted(axes.items())))
