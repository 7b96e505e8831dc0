"""From the settings of a canary run to its trials: which trainings, on which designs, and which are comparable."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from indelible.canaries.allotment import plan_canaries
from indelible.canaries.config import CanaryRunConfig, CanaryTraining, DesignConfig, ProbeOptions
from indelible.config import resolve
from indelible.errors import ConfigError
from indelible.stats.contrasts import MIN_CANARIES

CLEAN = "clean"

_AXES_OF_DESIGN = ("cue", "dose", "placement", "rotation", "reserve", "auxiliary", "support", "panel")
_NO_MATTER = ("controls", "heldout", "format", "delay", "seed")
_AXES_OF_TRAINING = ("schedule",)
_NO_MATTER_IN_TRAINING = ("save_at", "device", "micro_batch_tokens", "max_tokens")


@dataclass(frozen=True)
class Trial:
    """One training: a condition, which is a named arm of the settings, and a seed."""

    condition: str
    seed: int
    design: DesignConfig
    training: CanaryTraining
    probe: ProbeOptions

    @property
    def name(self) -> str:
        """Folder name."""
        return f"{self.condition}-seed{self.seed}"


def plan_trials(config: CanaryRunConfig) -> list[Trial]:
    """Arms times seeds, seed by seed.

    Raises:
        ConfigError: an arm's settings are wrong, two arms are the same, or an arm has a name of a clean training.
    """
    for name in config.arms:
        if name == CLEAN or name.startswith(f"{CLEAN}-"):
            raise ConfigError(f"an arm cannot be called '{name}': that is the training without canaries")
    trials: list[Trial] = []
    for seed in config.seeds:
        arms = _matched([_trial(config, name, seed) for name in config.arms])
        for i, one in enumerate(arms):
            for other in arms[:i]:
                if (one.design, one.training, one.probe) == (other.design, other.training, other.probe):
                    raise ConfigError(f"arms '{other.condition}' and '{one.condition}' are the same")
        trials += arms
    if len({trial.design.task.name == "screens" for trial in trials}) > 1:
        raise ConfigError("arms of the task screens stand beside arms of text: give each a run of its own")
    return trials


def _trial(config: CanaryRunConfig, name: str, seed: int) -> Trial:
    changes = dict(config.arms[name] or {})
    parts = {key: {**getattr(config, key), **(changes.pop(key, None) or {})} for key in ("training", "probe")}
    given = {**config.design, **changes}
    if config.data is not None:
        given["task"] = {**(given.get("task") or {}), "path": config.data}
    try:
        design, _ = resolve(DesignConfig, {**given, "seed": seed})
        training, _ = resolve(CanaryTraining, parts["training"])
        probe, _ = resolve(ProbeOptions, parts["probe"])
        probe = probe.of_task(design.task.name)
    except ConfigError as error:
        raise ConfigError(f"arm '{name}': {error}") from error
    return Trial(name, seed, design, training, probe)


def _matched(arms: Sequence[Trial]) -> list[Trial]:
    """The arms with one reserve of places, the largest dose among them, so that their places are nested."""
    reserve = max(1, *(max(arm.design.dose) for arm in arms))
    return [
        arm if arm.design.reserve else replace(arm, design=arm.design.model_copy(update={"reserve": reserve}))
        for arm in arms
    ]


def sparse_groups(trials: Sequence[Trial]) -> str | None:
    """One line on groups of focal canaries (one dose and placement of an arm) too small for a conclusion in a seed.

    None where there is none. Rotations and panels of one design are one group, as in the audit.
    """
    groups: dict[str, Counter[tuple[int, Any]]] = defaultdict(Counter)
    arms: dict[str, list[str]] = defaultdict(list)
    for trial in trials:
        if trial.seed == trials[0].seed:
            alike = trial.design.model_dump(mode="json", exclude={"rotation", "panel"})
            key = digest(alike, trial.training.model_dump(mode="json"))
            focal = [plan for plan in plan_canaries(trial.design) if plan.role == "focal"]
            groups[key].update((plan.dose, plan.placement) for plan in focal)
            arms[key].append(trial.condition)
    few = {key: [n for n in group.values() if n < MIN_CANARIES] for key, group in groups.items()}
    named = [f"{', '.join(arms[key])}: {len(small)} of {len(groups[key])}" for key, small in few.items() if small]
    if not named:
        return None
    least = min(n for small in few.values() for n in small)
    return (
        f"groups of focal canaries with fewer than {MIN_CANARIES} in a seed ({'; '.join(named)}; the smallest has "
        f"{least}): nothing will be concluded from them; plant more, or in fewer groups"
    )


def clean_trial(trial: Trial) -> Trial:
    """The same training without canaries. Trials that differ in their canaries alone share it, name and all."""
    background = background_of(trial.design)
    key = digest(background.model_dump(mode="json"), trial.training.model_dump(mode="json", exclude={"save_at"}))
    training = trial.training.model_copy(update={"save_at": ()})
    return replace(trial, condition=f"{CLEAN}-{key}", design=background, training=training)


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
        "panel": None,
    }
    if design.task.name == "screens":  # there the canaries' own turns say these, and grounding rows do not
        empty |= {"instruction": None, "explain": ()}
    return design.model_copy(update=empty)


def protocol_of(design: DesignConfig, training: Mapping[str, Any] | None, model: str) -> str:
    """A digest of all settings that are no axis of a canary audit: trials of one digest differ on axes alone.

    Args:
        training: what is known of the training; None where nothing is.
    """
    own = design.model_dump(mode="json", exclude={*_AXES_OF_DESIGN, *_NO_MATTER})
    if design.task.name == "file":  # what is held out is missing in training
        own["heldout"] = design.heldout
    if design.task.name == "screens" and design.explain == ("visible" if design.cue == "redacted" else design.cue,):
        own["explain"] = "its cue"  # each arm's instruction has its own cue's rule (C-C6): part of the cue, no axis
    names = {*CanaryTraining.model_fields} - {*_AXES_OF_TRAINING, *_NO_MATTER_IN_TRAINING}
    known = {name: training.get(name) for name in sorted(names)} if training else "unknown"
    return digest(own, known, model)


def digest(*values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def common_settings(settings: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Settings of several trainings in one; where they differ, all values that occur."""
    known = [one for one in settings if one]
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for one in known for key in one):
        found = list(dict.fromkeys(json.dumps(one.get(key)) for one in known))
        out[key] = known[0].get(key) if len(found) == 1 else " / ".join(text.strip('"') for text in found)
    return out
