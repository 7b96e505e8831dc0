"""From the settings of a canary run to its cells: which trainings, which designs, and what they will cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indelible.canaries.config import CanaryRunConfig, CanaryTraining, DesignConfig, ProbeOptions
from indelible.config import resolve
from indelible.errors import ConfigError

CLEAN = "clean"
"""Name of the conditions that are trained without canaries."""


@dataclass(frozen=True)
class Cell:
    """One training: a condition and a seed. `clean`: trained without the canaries it is asked about."""

    condition: str
    seed: int
    design: DesignConfig
    training: CanaryTraining
    probe: ProbeOptions
    clean: bool = False

    @property
    def name(self) -> str:
        """Folder name."""
        return f"{self.condition}-seed{self.seed}"


def plan_cells(config: CanaryRunConfig) -> list[Cell]:
    """Arms times seeds, seed by seed; with `clean`, before each seed's arms one training without canaries for every
    way of training among them.

    Raises:
        ConfigError: an arm's settings are wrong, two arms are the same, or an arm is called `clean`.
    """
    for name in config.arms:
        if name == CLEAN or name.startswith(f"{CLEAN}-"):
            raise ConfigError(f"an arm cannot be called '{name}': that is the training without canaries")
    cells: list[Cell] = []
    for seed in config.seeds:
        arms = _matched([_cell(config, name, seed) for name in config.arms])
        for i, one in enumerate(arms):
            for other in arms[:i]:
                if (one.design, one.training, one.probe) == (other.design, other.training, other.probe):
                    raise ConfigError(f"arms '{other.condition}' and '{one.condition}' are the same")
        cells += [*(_clean_cells(arms) if config.clean else []), *arms]
    return cells


def _cell(config: CanaryRunConfig, name: str, seed: int) -> Cell:
    changes = dict(config.arms[name] or {})
    parts = {key: {**getattr(config, key), **(changes.pop(key, None) or {})} for key in ("training", "probe")}
    given = {**config.design, **changes}
    if config.data is not None:
        given["task"] = {**(given.get("task") or {}), "path": config.data}
    try:
        design, _ = resolve(DesignConfig, {**given, "seed": seed})
        training, _ = resolve(CanaryTraining, parts["training"])
        probe, _ = resolve(ProbeOptions, parts["probe"])
    except ConfigError as error:
        raise ConfigError(f"arm '{name}': {error}") from error
    return Cell(name, seed, design, training, probe)


def _matched(arms: Sequence[Cell]) -> list[Cell]:
    """The arms with one reserve of places, the largest dose among them, so that their places are nested."""
    reserve = max(max(arm.design.dose) for arm in arms)
    return [
        arm if arm.design.reserve else replace(arm, design=arm.design.model_copy(update={"reserve": max(reserve, 1)}))
        for arm in arms
    ]


def _clean_cells(arms: Sequence[Cell]) -> list[Cell]:
    """Trainings without canaries, one for every background and way of training among the arms.

    The canaries stay in the design of the first such arm, which says what the clean model is asked.
    """
    found: dict[str, Cell] = {}
    for arm in arms:
        key = digest(background_of(arm.design).model_dump(mode="json"), arm.training.model_dump(mode="json"))
        if key not in found:
            name = CLEAN if not found else f"{CLEAN}-{arm.condition}"
            found[key] = Cell(name, arm.seed, arm.design, arm.training, arm.probe, clean=True)
    return list(found.values())


def background_of(design: DesignConfig) -> DesignConfig:
    """The same training file with no canary in it."""
    empty: dict[str, Any] = {
        "canaries": 0,
        "controls": 0,
        "coins": 0,
        "auxiliary": None,
        "support": None,
        "dose": (0,),
        "reserve": None,
        "placement": ("uniform",),
        "rotation": 0,
        "delay": None,
        "cue": "redacted",
        "displacement": "in-place",
    }
    return design.model_copy(update=empty)


def digest(*values: Mapping[str, Any] | Sequence[Any] | str) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cost:
    """What a run will do: trainings with their tokens, probes of tuned models, and of base and clean ones."""

    n_trainings: int
    training_tokens: int
    n_probes: int

    def seconds(self, *, score_rate: float, seconds_per_probe: float) -> float:
        """Rough time. A training token costs about three scored ones: forward, and backward twice that."""
        return 3 * self.training_tokens / score_rate + self.n_probes * seconds_per_probe
