"""A sweep as read back, and what its metrics are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indelible.sweep.places import ON_BASE, Places

KIND = "sweep"

METRICS = {
    "auc": ("AUC", "decimal"),
    "tpr@0.1": ("members caught at 10% false positives", "percent"),
    "tpr@0.01": ("members caught at 1% false positives", "percent"),
    "tpr@0.001": ("members caught at 0.1% false positives", "percent"),
    "p_holm": ("p-value after Holm", "p"),
    "auc_minus_base": ("AUC minus that on the base model", "signed"),
    "auc_minus_blind": ("AUC minus that of the blind baseline", "signed"),
    "spearman": ("Spearman correlation of the two drops", "decimal"),
    "spearman_token": ("Spearman correlation of the drops a token", "decimal"),
    "p_spearman": ("p-value of that correlation", "p"),
    "spearman_run": ("Spearman correlation within a batch, mean of the batches", "decimal"),
    "loss_members": ("loss of members, nats a token", "decimal"),
    "loss_nonmembers": ("loss of non-members, nats a token", "decimal"),
    "drop_members": ("drop of the members' loss, nats a token", "decimal"),
    "drop_nonmembers": ("drop of the non-members' loss, nats a token", "decimal"),
}
"""Metric to what it is called and how it is written."""


@dataclass(frozen=True)
class SweepRun:
    """A sweep as read back."""

    path: Path
    manifest: Mapping[str, Any]
    places: Places
    agreement: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]


def read_sweep(path: Path | str, manifest: Mapping[str, Any] | None = None) -> SweepRun:
    """Read a sweep; `manifest` and the errors as for `render_sweep`."""
    from indelible.errors import UserError
    from indelible.runs import read_json, read_manifest
    from indelible.sweep.config import SweepConfig

    path = Path(path)
    found = read_manifest(path) if manifest is None else manifest
    if found.get("kind") != KIND:
        raise UserError(f"{path} is a run of kind {found.get('kind')}, expected {KIND}: give the folder of a sweep.")
    settings = SweepConfig.model_validate(found["config"]["resolved"])
    return SweepRun(
        path,
        found,
        Places(settings, read_json(path / "metrics.json", list)),
        read_json(path / "agreement.json", list),
        read_json(path / "verdicts.json", list),
    )


def written(metric: str) -> tuple[str, str]:
    """What a metric is called, and how its value is written; `base_` before its name: that of the base model."""
    if metric.startswith(ON_BASE):
        name, style = written(metric.removeprefix(ON_BASE))
        return f"{name}, on the base", style
    return METRICS.get(metric, (metric.replace("_", " "), "decimal"))
