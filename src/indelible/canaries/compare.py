"""`indelible canary compare`: several audits, each of a training of its own, judged as arms of one protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from indelible.canaries.config import ProbeOptions
from indelible.canaries.measure import Measured, Part, conclude
from indelible.canaries.readings import COLUMNS
from indelible.config import Settings
from indelible.environment import default_out, run_facts
from indelible.errors import ConfigError, UserError
from indelible.report.canary import KINDS, READINGS, UTILITY
from indelible.runs import RunDir, read_json, read_manifest, read_table


class CompareConfig(Settings):
    """`indelible canary compare`."""

    runs: tuple[str, ...] = Field(min_length=2)
    out: str | None = None
    level: float = Field(default=0.95, gt=0.5, lt=1)


def run_compare(config: CompareConfig, given: Mapping[str, Any], *, command: Sequence[str]) -> Path:
    """Put finished canary runs together and judge them anew; nothing is asked of a model.

    A condition keeps its name; where two runs use the same name with the same seed, each is called `RUN: NAME`.
    Canaries are matched by id and seed, as within a run: designs of one seed and one task have the same ones.

    Returns:
        the new run directory.

    Raises:
        UserError: a run is not a canary run, or the runs' codes were ranked among different numbers of candidates.
    """
    paths = [Path(path) for path in config.runs]
    manifests = [read_manifest(path) for path in paths]
    for path, manifest in zip(paths, manifests, strict=True):
        if manifest.get("kind") not in KINDS:
            raise UserError(f"{path} is a run of kind {manifest.get('kind')}; expected canary audits or canary runs")
    frames = [read_table(path / READINGS, COLUMNS) for path in paths]
    sizes = {int(size) for frame in frames for size in frame["n_candidates"].unique()}
    if len(sizes) > 1:
        raise UserError(f"codes were ranked among {' and '.join(map(str, sorted(sizes)))} candidates: not comparable")
    utilities = [read_json(path / UTILITY, list) for path in paths]
    names = [set(zip(frame["condition"], frame["seed"], strict=True)) for frame in frames]
    measured = Measured()
    for i, (path, frame, utility, manifest) in enumerate(zip(paths, frames, utilities, manifests, strict=True)):
        taken = {name for k, other in enumerate(names) if k != i for name in other}
        clash = bool(names[i] & taken)
        measured.add(_part(frame, utility, manifest, f"{path.resolve().name}: " if clash else ""))
    out = Path(config.out or default_out("canary-compare", "runs"))
    if out.resolve() in {path.resolve() for path in paths}:
        raise ConfigError(f"--out {out} is one of the runs: give a new folder")
    run = RunDir.open(out, force=bool(given.get("force")))
    first = manifests[0]
    facts = {
        **run_facts("canary-run", run.path, config, given, command, device=measured.device),
        "design": first.get("design") or {},
        "training": common_settings([m.get("training") for m in manifests]) or None,
        "survival": {path.resolve().name: m.get("survival") for path, m in zip(paths, manifests, strict=True)},
        "not_run": _distinct([item for m in manifests for item in m.get("not_run") or []]),
        "made_from": [str(path) for path in paths],
        "timings": {},
    }
    names_of_probes = dict.fromkeys(name for m in manifests for name in m.get("probes") or [])
    conclude(run, measured, ProbeOptions(probes=tuple(names_of_probes)), facts, level=config.level)
    return run.path


def _part(frame: pd.DataFrame, utility: list[dict[str, Any]], manifest: Mapping[str, Any], prefix: str) -> Part:
    named = frame.assign(condition=prefix + frame["condition"])
    rows = [{**row, "condition": prefix + str(row["condition"])} for row in utility]
    model = (manifest.get("models") or {}).get("target") or {}
    device = str((manifest.get("hardware") or {}).get("device"))
    return Part("target", named, rows, model, str(manifest.get("dtype")), device, manifest.get("drift"))


def common_settings(trainings: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Settings of all trainings; where they differ, all values that occur."""
    known = [t for t in trainings if t]
    out: dict[str, Any] = {}
    for key in dict.fromkeys(key for t in known for key in t):
        found = list(dict.fromkeys(json.dumps(t.get(key)) for t in known))
        out[key] = known[0].get(key) if len(found) == 1 else " / ".join(text.strip('"') for text in found)
    return out


def _distinct(items: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [dict(pair) for pair in dict.fromkeys(tuple(sorted(item.items())) for item in items)]
