"""From a study file to its cells: the product of its axes, settings checked before anything runs."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from indelible.attacks import FITTED
from indelible.checked import check
from indelible.config import AuditConfig, TrainConfig, resolve
from indelible.errors import ConfigError, did_you_mean
from indelible.selection import check_names, configured, expand
from indelible.sweep.checks import OWN_AUDIT, OWN_TRAINING, check_metrics, check_path
from indelible.sweep.config import (
    DataPlan,
    FidelityOptions,
    GapOptions,
    Measure,
    ModelPlan,
    SweepConfig,
)
from indelible.training.budget import check_private

ROLES = ("model", "base", "reference", "generator")
"""Settings of an audit that name a model of the study."""

SETS = ("members", "nonmembers", "pool")
"""Settings of an audit that name a set of rows of the study."""


@dataclass(frozen=True)
class Cell:
    """One combination of the axes and a seed.

    Attributes:
        labels: axis to label.
        audit: settings of the audit, with names of models and sets where an audit has paths.
        measure: what is measured instead of an audit.
    """

    labels: Mapping[str, str]
    seed: int
    data: DataPlan
    models: Mapping[str, ModelPlan]
    audit: Mapping[str, Any]
    measure: Measure | None = None

    @property
    def name(self) -> str:
        """For a person: `rate 0.3, seed 1`."""
        return ", ".join([*(f"{axis} {label}" for axis, label in self.labels.items()), f"seed {self.seed}"])

    @property
    def slug(self) -> str:
        """For a folder."""
        words = "-".join([*self.labels.values(), f"seed{self.seed}"])
        return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")[:60]

    @property
    def tested(self) -> str:
        """The label of the model that is audited or measured."""
        return self.measure.model if self.measure is not None else str(self.audit["model"])


def digest(*values: Any) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def plan_cells(config: SweepConfig) -> list[Cell]:
    """Every cell, those of one model after each other.

    Raises:
        ConfigError: a path that leads nowhere, a name that is none, a setting that is wrong, with its axis or cell.
    """
    check_metrics(config)
    for axis, plan in config.axes.items():
        for path in dict.fromkeys(path for value in plan.values for path in value.changes):
            check_path(config, axis, path)
    cells = []
    for seed in config.seeds:
        for values in itertools.product(*(axis.values for axis in config.axes.values())):
            labels = {axis: value.label for axis, value in zip(config.axes, values, strict=True)}
            tree = _tree(config)
            for path, change in ((p, c) for value in values for p, c in value.changes.items()):
                _put(tree, path.split("."), copy.deepcopy(change))
            cells.append(_cell(labels, seed, tree))
    return _by_model(cells)


def _tree(config: SweepConfig) -> dict[str, Any]:
    """What axes may change, as plain values."""
    dumped = config.model_dump(mode="json", by_alias=True, include={"data", "models", "measure"}, exclude_unset=True)
    return {"measure": None, **dumped, "audit": _with_defaults(config)}


def _with_defaults(config: SweepConfig) -> dict[str, Any]:
    """The audit's settings; a model or set of the study that is called like a role plays it."""
    sets = set_names(config.data)
    named = {role: role for role in ROLES[1:] if role in config.models}
    named |= {name: {"members": "train"}.get(name, name) for name in SETS}
    return {
        "model": "target",
        "level": config.level,
        **{key: name for key, name in named.items() if key in ROLES or name in sets},
        **copy.deepcopy(config.audit),
    }


def set_names(data: DataPlan) -> list[str]:
    """What rows can be asked for: splits, mixes, and the files that are not split."""
    return [*data.splits, *data.mixes, *(name for name in data.files if name != data.main)]


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *inner, last = path
    at = tree
    for part in inner:
        if not isinstance(at.get(part), dict):
            at[part] = {}
        at = at[part]
    at[last] = value


def _cell(labels: Mapping[str, str], seed: int, tree: Mapping[str, Any]) -> Cell:
    where = "".join(f"{axis} {label}: " for axis, label in labels.items())
    try:
        core = check(_Core, {key: tree[key] for key in ("data", "models", "measure")})
        cell = Cell(labels, seed, core.data, core.models, tree["audit"], core.measure)
        _check_names(cell)
        for plan in cell.models.values():
            if plan.start is not None:
                training_config(plan, seed)
        if cell.measure is None:
            audit_config(cell)
        elif isinstance(cell.measure, GapOptions):
            training_settings(cell.measure.training, seed)
    except ConfigError as error:
        raise ConfigError(where + str(error)) from error
    return cell


class _Core(BaseModel):
    data: DataPlan
    models: dict[str, ModelPlan]
    measure: Measure | None


def _check_names(cell: Cell) -> None:
    """Every model and set that is named exists, and no model starts from itself."""
    sets, models = set_names(cell.data), list(cell.models)
    twice = [name for name in sets if sets.count(name) > 1]
    if twice:
        raise ConfigError(f"two sets of rows are called '{twice[0]}': rename the split, mix or file")
    if cell.data.main not in cell.data.files:
        raise ConfigError(f"data.split: {did_you_mean(cell.data.main, list(cell.data.files), 'file')}")
    plain = [name for name in sets if name not in cell.data.mixes]
    for name, mix in cell.data.mixes.items():
        for part in (mix.of, mix.by):
            _known(part, plain, f"data.mixes.{name}", "set")
    for name, plan in cell.models.items():
        if plan.start is not None:
            _known(plan.start, models, f"models.{name}.from", "model")
            _known(str(plan.rows), sets, f"models.{name}.rows", "set")
            lineage(cell, name)
    if isinstance(cell.measure, GapOptions | FidelityOptions):
        _known(cell.measure.model, models, "measure.model", "model")
        own = ("members", "nonmembers") if isinstance(cell.measure, GapOptions) else ("records", "pool")
        for key in own:
            _known(getattr(cell.measure, key), sets, f"measure.{key}", "set")
        return
    for key, known, what in (*((k, models, "model") for k in ROLES), *((k, sets, "set") for k in SETS)):
        if cell.audit.get(key) is not None:
            _known(str(cell.audit[key]), known, f"audit.{key}", what)
    for key in ("model", "members", "nonmembers"):
        if cell.audit.get(key) is None:
            raise ConfigError(f"audit.{key} is missing: name a {'model' if key == 'model' else 'set of rows'}")


def _known(name: str, known: Sequence[str], where: str, what: str) -> None:
    if name not in known:
        raise ConfigError(f"{where}: {did_you_mean(name, list(known), what)}")


def lineage(cell: Cell, label: str) -> list[str]:
    """A model and those it was trained from, the given one last.

    Raises:
        ConfigError: it starts from itself.
    """
    out = [label]
    while (start := cell.models[out[-1]].start) is not None:
        if start in out:
            raise ConfigError(f"models.{label}: it is trained from itself ({' from '.join([*out, start])})")
        out.append(start)
    return out


def training_config(plan: ModelPlan, seed: int, **places: str) -> TrainConfig:
    """How a model is trained; `places` are the paths of model, rows and folder, once they are known.

    Raises:
        ConfigError: a wrong setting.
    """
    given = {**plan.training, "shuffle": False} if plan.arrange is not None else plan.training
    made = training_settings(given, seed, **places)
    if plan.epoch is not None and plan.epoch > made.epochs:
        raise ConfigError(f"epoch {plan.epoch}: that training has {made.epochs}")
    return made


def training_settings(given: Mapping[str, Any], seed: int, **places: str) -> TrainConfig:
    """Settings of a training with its seed and places.

    Raises:
        ConfigError: a wrong setting, or settings of DP-SGD that do not go together. MissingExtra: it needs opacus.
    """
    made: TrainConfig = _resolved(TrainConfig, {**given, "seed": seed, **places}, OWN_TRAINING, "training", given)
    check_private(made)
    return made


def audit_config(cell: Cell, **places: Any) -> AuditConfig:
    """The audit of a cell; `places` are the paths of models, rows and folder, once they are known.

    Raises:
        ConfigError: a wrong setting, attack, or setting of an attack.
    """
    made: AuditConfig = _resolved(
        AuditConfig, {**cell.audit, "seed": cell.seed, **places}, OWN_AUDIT, "audit", cell.audit
    )
    check_names(made.attacks)
    names = expand(made.attacks)
    for name in made.settings:
        if name not in names:
            raise ConfigError(f"audit.settings for '{name}', which is not among the attacks ({', '.join(names)})")
    for name in names:
        if name not in FITTED:
            configured(name, made)
    return made


def _resolved(kind: Any, given: Mapping[str, Any], own: Iterable[str], what: str, users: Mapping[str, Any]) -> Any:
    for key in own:
        if key in users:
            raise ConfigError(f"{what}.{key} is set by the sweep: leave it out")
    blank = dict.fromkeys(("model", "train", "out"), "-") if kind is TrainConfig else {}
    try:
        return resolve(kind, {**blank, **given})[0]
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _by_model(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with those of one model side by side, so that no more models than needed are kept at a time."""
    first: dict[str, int] = {}

    def place(cell: Cell) -> int:
        plans = [cell.models[name].model_dump(mode="json") for name in lineage(cell, cell.tested)]
        return first.setdefault(digest(cell.seed, cell.data.model_dump(mode="json"), plans), len(first))

    return sorted(cells, key=place)
