"""Wrong input of a study file in one line: unknown keys at any depth, and paths of axes that lead nowhere."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from indelible.attacks import ATTACKS
from indelible.config import AuditConfig, TrainConfig
from indelible.errors import ConfigError, did_you_mean
from indelible.sweep.config import DataPlan, FilePlan, Mix, ModelPlan, SweepConfig

OWN_AUDIT = ("out", "seed", "fail_if", "data")
OWN_TRAINING = ("model", "train", "out", "seed", "save_at", "data")
"""Settings that the sweep fills in itself."""

Checked = TypeVar("Checked", bound=BaseModel)


def check(kind: type[Checked], given: Mapping[str, Any], what: str = "") -> Checked:
    """Settings as their checked form.

    Raises:
        ConfigError: an unknown key (with the closest known one) or a wrong value; `what` says in which file.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigError(what + _one_line(kind, error)) from error


def _one_line(kind: type[BaseModel], error: ValidationError) -> str:
    unknown = [e for e in error.errors() if e["type"] == "extra_forbidden"]
    first = (unknown or error.errors())[0]
    where = [str(part) for part in first["loc"]]
    if unknown:
        inside = ".".join(where[:-1])
        owner = _owner(kind, first["loc"])
        known = [field.alias or name for name, field in owner.model_fields.items()]
        return did_you_mean(where[-1], known, f"setting of {inside}" if inside else "setting")
    if first["type"] == "missing":
        return f"setting '{'.'.join(where)}' is missing"
    said = str(first["msg"]).removeprefix("Value error, ")
    given = "" if isinstance(first["input"], Mapping) else f" (given: {first['input']!r})"
    return f"setting '{'.'.join(where)}': {said}{given}" if where else said


def _owner(kind: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The model that the last key of an error's location was looked up in."""
    current: Any = kind
    for part in loc[:-1]:
        models = _models_in(current)
        named = next((m for m in models if _tag(m) == part), None)
        if named is not None:
            current = named
            continue
        fields = [
            field
            for m in models
            for name, field in m.model_fields.items()
            if part in (name, field.alias)
        ]  # fmt: skip
        current = fields[0].annotation if fields else current
    return next(iter(_models_in(current)), kind)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, dict, tuple, Annotated):
        return [m for part in get_args(annotation) for m in _models_in(part)]
    return []


def _tag(model: type[BaseModel]) -> str | None:
    """The value of `kind` that stands for a model of a union."""
    field = model.model_fields.get("kind")
    return next(iter(get_args(field.annotation)), None) if field is not None else None


def check_path(config: SweepConfig, axis: str, path: str) -> None:
    """That a dotted path leads somewhere.

    Raises:
        ConfigError: it does not; with the closest name.
    """
    parts = path.split(".")

    def no(part: str, known: Iterable[str], what: str) -> NoReturn:
        raise ConfigError(f"axis '{axis}', path {path}: {did_you_mean(part, list(known), what)}")

    def field(kind: type[BaseModel], at: int, what: str, without: Iterable[str] = ()) -> str:
        known = {f.alias or name: name for name, f in kind.model_fields.items() if name not in without}
        if len(parts) <= at:
            raise ConfigError(f"axis '{axis}', path {path}: it ends too early, expected one of {', '.join(known)}")
        if parts[at] not in known:
            no(parts[at], known, what)
        return known[parts[at]]

    def end(at: int) -> None:
        if len(parts) > at:
            raise ConfigError(f"axis '{axis}', path {path}: nothing lies below {'.'.join(parts[:at])}")

    def training(at: int) -> None:
        if len(parts) > at:
            field(TrainConfig, at, "setting of training", OWN_TRAINING)
            end(at + 1)

    root = parts[0]
    if root not in ("data", "models", "audit", "measure"):
        no(root, ("data", "models", "audit", "measure"), "beginning of a path")
    if root == "models":
        if len(parts) < 2 or parts[1] not in config.models:
            no(parts[1] if len(parts) > 1 else "", config.models, "model")
        if len(parts) > 2 and field(ModelPlan, 2, "setting of a model") == "training":
            training(3)
        elif len(parts) > 3 and parts[2] != "arrange":
            end(3)
    elif root == "data":
        name = field(DataPlan, 1, "setting of data")
        of: dict[str, Any] = {"files": config.data.files, "mixes": config.data.mixes, "splits": config.data.splits}
        if name in of and len(parts) > 2:
            if parts[2] not in of[name]:
                no(parts[2], of[name], f"name in data.{name}")
            if name == "splits":
                end(3)
            elif len(parts) > 3:
                field(FilePlan if name == "files" else Mix, 3, f"setting of data.{name}")
        elif name == "split":
            end(2)
    elif root == "measure":
        if config.measure is None:
            raise ConfigError(f"axis '{axis}', path {path}: this study has no measure")
        if field(type(config.measure), 1, "setting of measure") == "training":
            training(2)
    else:
        name = field(AuditConfig, 1, "setting of an audit", OWN_AUDIT)
        if name == "settings" and len(parts) > 2:
            _attack_path(parts[2:], no)
        elif name not in ("settings", "load"):
            end(2)
        elif name == "load" and len(parts) > 2:
            field(type(AuditConfig.model_fields["load"].default), 2, "setting of load")


def _attack_path(parts: Sequence[str], no: Any) -> None:
    if parts[0] not in ATTACKS:
        no(parts[0], ATTACKS, "attack")
    known = [f.name for f in dataclasses.fields(ATTACKS[parts[0]])]
    if len(parts) > 1 and (parts[1] not in known or len(parts) > 2):
        no(".".join(parts[1:]), known, f"setting of {parts[0]}")
