"""Looking things up in a canary run: the settings that were tried, and the metrics rows of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.report.format import MetricRow, is_number, plain
from indelible.stats.cells import AXES, HIDDEN, PLACES
from indelible.stats.cells import Setting as Places
from indelible.stats.cells import setting_of as places_of

if TYPE_CHECKING:
    import pandas as pd

NULL_BITS = 1.0
"""Median exposure of codes that the model does not know (rank uniform; notes to section III-B)."""


@dataclass(frozen=True)
class CanaryRun:
    """A canary run or canary audit as read back: canaries.parquet, utility.json, metrics.json, verdict.json."""

    path: Path
    manifest: dict[str, Any]
    readings: pd.DataFrame
    utility: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    verdict: dict[str, Any]

    @property
    def name(self) -> str:
        """The name in the manifest, else that of the folder."""
        return str(self.manifest.get("name") or self.path.resolve().name)


@dataclass(frozen=True, kw_only=True)
class Setting(Places):
    """Canaries that were treated alike: the place on every axis, and the condition, or `parts` of it.

    parts: the condition, or those that are rotations of one design and that the statistics make one group.
    """

    condition: str
    parts: tuple[str, ...]

    def of_part(self, part: str) -> Setting:
        """The same places in one of the conditions."""
        return replace(self, condition=part, parts=(part,))


@dataclass(frozen=True)
class Appearances:
    """When the canaries of a setting stood in training: medians over canaries, in updates; None for controls."""

    first: float | None
    last: float | None


def setting_of(row: Mapping[str, Any]) -> Setting:
    """The setting of a metrics row or a reading."""
    condition = str(row["condition"])
    return Setting(**vars(places_of(row)), condition=condition, parts=tuple(row.get("parts") or (condition,)))


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def written(axis: str, value: object) -> str:
    """A place on an axis for reading: "dose 8", "gap 16", "cosine"."""
    if value is None or value == "":
        return "–"
    if axis == "dose":
        return f"dose {value}"
    if axis == "spacing":
        return f"gap {float(str(value)):g}"
    return plain(value)


@dataclass(frozen=True)
class CanaryFacts:
    """Read access to one canary run. Nothing here recomputes a number of metrics.json."""

    run: CanaryRun

    @cached_property
    def _index(self) -> dict[tuple[Any, ...], MetricRow]:
        found: dict[tuple[Any, ...], MetricRow] = {}
        for row in self.run.metrics:
            if not row.get("against") and row.get("role") != "all":
                found.setdefault((*_key(row), row.get("step"), str(row.get("metric"))), row)
        return found

    @cached_property
    def _steps(self) -> dict[tuple[Any, ...], list[int]]:
        """Checkpoints of each (setting, role, model, probe, seed), ascending."""
        found: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        for *key, step, _ in self._index:
            if is_number(step):
                found[tuple(key)].add(int(step))
        return {key: sorted(steps) for key, steps in found.items()}

    def steps(
        self,
        setting: Setting,
        probe: str = HIDDEN,
        seed: int | None = None,
        *,
        model: str = "target",
        role: str = "focal",
    ) -> list[int]:
        """The updates at which this was measured; empty where it was not."""
        return self._steps.get((setting, role, model, probe, seed), [])

    def row(
        self,
        setting: Setting,
        metric: str,
        probe: str = HIDDEN,
        seed: int | None = None,
        *,
        step: int | None = None,
        model: str = "target",
        role: str = "focal",
    ) -> MetricRow | None:
        """The metrics row, over all seeds unless one is named, at the last checkpoint unless a step is named."""
        key = (setting, role, model, probe, seed)
        if step is None:
            steps = self._steps.get(key)
            step = steps[-1] if steps else None
        return self._index.get((*key, step, metric))

    def value(
        self, setting: Setting, metric: str, probe: str = HIDDEN, seed: int | None = None, **more: Any
    ) -> float | None:
        """The value of `row`, or None."""
        value = (self.row(setting, metric, probe, seed, **more) or {}).get("value")
        return float(value) if is_number(value) else None

    def of_model(self, condition: str, metric: str) -> MetricRow | None:
        """The row of a number that is of the model and not of canaries, over all seeds at the last checkpoint."""
        found = [
            row
            for row in self.run.metrics
            if (row.get("role"), row.get("model"), row.get("seed")) == ("all", "target", None)
            and (row.get("condition"), row.get("metric")) == (condition, metric)
        ]
        return max(found, key=lambda row: int(row.get("step") or 0), default=None)

    def of_role(self, role: str, model: str = "target") -> list[Setting]:
        """The settings with metrics for canaries of a role on a model, in the order of the configuration."""
        found = [key[0] for key in self._steps if key[1:3] == (role, model)]
        return sorted(dict.fromkeys(found), key=self._order)

    @property
    def on_screens(self) -> bool:
        """Whether the canaries stand on screens."""
        return (self.run.manifest.get("design") or {}).get("task") == "screens"

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings of the focal canaries; rotations of one design as the one group that the statistics make."""
        found = self.of_role("focal")
        joined = {one.of_part(part) for one in found if len(one.parts) > 1 for part in one.parts}
        return [one for one in found if one not in joined]

    def _order(self, setting: Setting) -> tuple[Any, ...]:
        place = self.placements.index(setting.placement) if setting.placement in self.placements else 0
        first = self.conditions.index(setting.condition), len(setting.parts), setting.arm
        return *first, setting.dose, place, setting.spacing or 0.0, setting.population

    @cached_property
    def conditions(self) -> list[str]:
        """The conditions, in the order of the metrics and then of the readings."""
        names = [_word(row.get("condition")) for row in self.run.metrics]
        return list(dict.fromkeys([*names, *(_word(name) for name in self._column("condition"))]))

    @cached_property
    def seeds(self) -> list[int]:
        """The training seeds."""
        found = {row.get("seed") for row in self.run.metrics} | set(self._column("seed"))
        return sorted(int(seed) for seed in found if is_number(seed))

    @cached_property
    def ceilings(self) -> list[float]:
        """The highest exposures that can be measured: log2 of each number of candidates, ascending, in bits."""
        return [math.log2(size) for size in self.candidates]

    @cached_property
    def candidates(self) -> list[int]:
        """The numbers of codes that a code was ranked among."""
        return sorted({int(n) for n in self._column("n_candidates") if is_number(n) and n >= 1})

    @cached_property
    def placements(self) -> list[str]:
        """The placements, earliest first by their mean update; uniform, which is everywhere, last."""
        middles: dict[str, list[float]] = defaultdict(list)
        for setting, when in self._appearances.items():
            if when.first is not None and when.last is not None:
                middles[setting.placement].append((when.first + when.last) / 2)
        found = {_word(row.get("placement")) for row in self.run.metrics if row.get("role") == "focal"} - {""}

        def key(name: str) -> tuple[bool, float, str]:
            own = middles.get(name) or [0.0]
            return name == "uniform", sum(own) / len(own), name

        return sorted(found, key=key)

    def appearances(self, setting: Setting) -> Appearances:
        """First and last appearance of the focal canaries of a setting; over rotations, the mean of their medians."""
        found = [self._appearances.get(setting.of_part(part)) for part in setting.parts]
        ends = []
        for name in ("first", "last"):
            own = [value for one in found if one is not None and (value := getattr(one, name)) is not None]
            ends.append(sum(own) / len(own) if own else None)
        return Appearances(*ends)

    @cached_property
    def _appearances(self) -> dict[Setting, Appearances]:
        columns = ["condition", *PLACES, "first_step", "last_step"]
        frame = self.run.readings
        if frame.empty or not set(columns) <= set(frame.columns):
            return {}
        focal = frame.loc[(frame["role"] == "focal") & (frame["model"] == "target"), columns]
        found = {}
        for _, part in focal.groupby(["condition", *PLACES], dropna=False, observed=True):
            middle = part[["first_step", "last_step"]].median()
            ends = [float(value) if is_number(value) else None for value in middle]
            found[setting_of({str(name): value for name, value in part.iloc[0].to_dict().items()})] = Appearances(
                ends[0], ends[1]
            )
        return found

    @cached_property
    def last_utility(self) -> list[Mapping[str, Any]]:
        """The rows of utility.json at the last checkpoint of each condition, seed and model."""
        last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for row in self.run.utility:
            key = tuple(str(row.get(name)) for name in ("condition", "seed", "model"))
            if key not in last or (row.get("step") or 0) > (last[key].get("step") or 0):
                last[key] = row
        return list(last.values())

    def _column(self, name: str) -> list[Any]:
        frame = self.run.readings
        return list(frame[name].dropna().unique().tolist()) if name in frame.columns else []

    @cached_property
    def varying(self) -> list[str]:
        """The axes on which the focal canaries of this run differ."""
        return [name for name in AXES if len({getattr(setting, name) for setting in self.settings}) > 1]

    def label(self, setting: Setting, axes: Iterable[str] | None = None) -> str:
        """A setting in words: its places on some axes, by default those that vary in this run; "" where none does."""
        words = [
            written(axis, getattr(setting, axis))
            for axis in (self.varying if axes is None else axes)
            if getattr(setting, axis) not in (None, "")
        ]
        return ", ".join(words)

    def named(self, setting: Setting) -> str:
        """A short name that no other setting has: its condition, and what tells it from others of that condition."""
        own = [one for one in self.settings if one.condition == setting.condition]
        words = self.label(setting, [axis for axis in AXES if len({getattr(one, axis) for one in own}) > 1])
        if sum(not one.differing(setting) for one in own) > 1:  # other settings that are no axis
            words = ", ".join(filter(None, (words, f"protocol {plain(setting.protocol)[:8]}")))
        return ": ".join(filter(None, (plain(setting.condition), words))) or "all canaries"

    def title(self, setting: Setting) -> str:
        """A full name: its condition, and its places on all axes that vary in this run."""
        name, words = plain(setting.condition), self.label(setting)
        return ": ".join(dict.fromkeys(filter(None, (name, words)))) or "all canaries"

    def series(self, axis: str) -> list[list[Setting]]:
        """Groups of settings of one protocol that differ on one axis alone, with two places on it or more."""
        groups: dict[tuple[Any, ...], list[Setting]] = defaultdict(list)
        for setting in self.settings:
            groups[setting.without(axis)].append(setting)
        return [group for group in groups.values() if len({getattr(one, axis) for one in group}) > 1]

    def measured(self, metric: str = "exposure_median", probe: str = HIDDEN) -> list[tuple[Setting, float]]:
        """The settings whose metric exists, over all seeds at the last checkpoint, lowest first."""
        found = [(setting, self.value(setting, metric, probe)) for setting in self.settings]
        return sorted(((one, value) for one, value in found if value is not None), key=lambda pair: pair[1])


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """(setting, role, model, probe, seed) of a metrics row."""
    seed = row.get("seed")
    return (
        setting_of(row),
        str(row.get("role") or "focal"),
        str(row.get("model") or "target"),
        str(row.get("probe") or ""),
        int(seed) if is_number(seed) else None,
    )
