"""Wrong input of a study file in one line: unknown keys at any depth, and paths of axes that lead nowhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel

from indelible.attacks import ATTACKS
from indelible.config import AuditConfig, TrainConfig
from indelible.errors import ConfigError, did_you_mean
from indelible.sweep.config import DataPlan, FilePlan, Mix, ModelPlan, SweepConfig
from indelible.sweep.places import ON_BASE

OWN_AUDIT = ("out", "seed", "fail_if", "data")
OWN_TRAINING = ("model", "train", "out", "seed", "save_at", "data")
"""Settings that the sweep fills in itself."""


_SIDES = ("members", "nonmembers")
_RATE = re.compile(r"(tpr|tpr_bounded)@0\.\d+")
_ON_BOTH = ("auc", "p_value", *(f"loss_{side}" for side in _SIDES))
_OF_AUDIT = (
    *_ON_BOTH, *(ON_BASE + name for name in _ON_BOTH), "p_holm", "smallest_auc", "auc_minus_base", "auc_minus_blind",
    "auc_minus_best", "p_minus_best",
)  # fmt: skip
_OF_MEASURE = {
    "gap": ("auc", *(f"{name}_{side}" for name in ("loss", "loss_after", "drop") for side in _SIDES)),
    "fidelity": (
        "spearman", "p_spearman", "spearman_token", "p_spearman_token", "spearman_run", "step_drop", "icp_drop",
    ),
}  # fmt: skip


def known_metrics(config: SweepConfig) -> tuple[str, ...]:
    """Metrics that a study's cells give, rates at a false-positive rate apart."""
    return _OF_AUDIT if config.measure is None else _OF_MEASURE[config.measure.kind]


def check_metrics(config: SweepConfig) -> None:
    """That every metric to be shown, or held against the paper, is one that the study's cells give.

    Raises:
        ConfigError: one is not; with the closest name.
    """
    known = known_metrics(config)
    asked = [metric for table in config.show.tables for metric in table.metrics]
    asked += [metric for figure in config.show.figures if figure.kind == "lines" for metric in figure.metrics]
    asked += [plan.metric for plan in config.paper_values]
    asked += [metric for one in config.expect for metric in (one.lines if one.by == "metric" else (one.metric,))]
    for metric in asked:
        is_rate = config.measure is None and _RATE.fullmatch(metric.removeprefix(ON_BASE))
        if metric not in known and not is_rate:
            rates = [] if config.measure is not None else ["tpr@0.01", "tpr_bounded@0.01"]
            raise ConfigError(did_you_mean(metric, [*known, *rates], "metric"))


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
