"""`indelible canary compare`: several audits, each of a training of its own, judged as arms of one protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field

from indelible.canaries.config import ProbeOptions
from indelible.canaries.measure import Measured, Part, conclude
from indelible.canaries.plan import common_settings
from indelible.canaries.readings import COLUMNS
from indelible.config import Settings
from indelible.environment import default_out, run_facts
from indelible.errors import ConfigError, UserError
from indelible.report.canary import KINDS, READINGS, UTILITY
from indelible.runs import RunDir, read_json, read_manifest, read_table, verify


class CompareConfig(Settings):
    """`indelible canary compare`."""

    runs: tuple[str, ...] = Field(min_length=2)
    out: str | None = None
    level: float = Field(default=0.95, gt=0.5, lt=1)


def run_compare(config: CompareConfig, given: Mapping[str, Any], *, command: Sequence[str]) -> Path:
    """Put finished canary runs together and judge them anew; nothing is asked of a model.

    A condition keeps its name; where two runs use the same name with the same seed, each is called `RUN:NAME`. Canaries
    are matched by code and context, and trainings are set against each other where they differ on axes alone.

    Returns:
        the new run directory.

    Raises:
        UserError: a run is not a canary run, or the runs' codes were ranked among different numbers of candidates.
    """
    paths = [Path(path) for path in config.runs]
    manifests = [read_manifest(path) for path in paths]
    changed = [f"{path}: {line}" for path in paths for line in verify(path)]
    if changed:
        raise UserError(f"{'; '.join(changed)}: a run that was changed after it was finished is not judged")
    for path, manifest in zip(paths, manifests, strict=True):
        if manifest.get("kind") not in KINDS:
            raise UserError(f"{path} is a run of kind {manifest.get('kind')}; expected canary audits or canary runs")
    _refuse_repeats(paths, manifests)
    frames = [read_table(path / READINGS, COLUMNS) for path in paths]
    sizes = {int(size) for frame in frames for size in frame["n_candidates"].unique()}
    if len(sizes) > 1:
        raise UserError(f"codes were ranked among {' and '.join(map(str, sorted(sizes)))} candidates: not comparable")
    utilities = [read_json(path / UTILITY, list) for path in paths]
    names = _distinct_names(paths, frames)
    measured = Measured()
    for name, frame, utility, manifest in zip(names, frames, utilities, manifests, strict=True):
        for part in _parts(frame, utility, manifest, name):
            measured.add(part)
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


def _refuse_repeats(paths: Sequence[Path], manifests: Sequence[Mapping[str, Any]]) -> None:
    """One training counts once: two audits of the same weights are no replication."""
    seen: dict[str, Path] = {}
    for path, manifest in zip(paths, manifests, strict=True):
        for print_ in manifest.get("trained") or []:
            if print_ in seen and seen[print_] != path:
                raise UserError(
                    f"{seen[print_]} and {path} hold audits of the same model: give runs of different trainings"
                )
            seen[print_] = path
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("the same run was given twice: give runs of different trainings")


def _distinct_names(paths: Sequence[Path], frames: Sequence[pd.DataFrame]) -> list[str]:
    """What goes before each run's conditions: nothing, or the run's name where another has the same condition."""
    held = [set(zip(frame["condition"], frame["seed"], strict=True)) for frame in frames]
    out: list[str] = []
    for i, path in enumerate(paths):
        others = {key for k, keys in enumerate(held) if k != i for key in keys}
        name = re.sub(r"[^\w.-]+", "-", path.resolve().name) + ":" if held[i] & others else ""
        out.append(name if name not in out or not name else f"{i + 1}-{name}")
    return out


def _parts(frame: pd.DataFrame, utility: list[dict[str, Any]], manifest: Mapping[str, Any], prefix: str) -> list[Part]:
    named = frame.assign(condition=prefix + frame["condition"])
    device = str((manifest.get("hardware") or {}).get("device"))
    parts = []
    for role in ("target", "base", "clean"):
        rows = [{**row, "condition": prefix + str(row["condition"])} for row in utility if row["model"] == role]
        own, model = named[named["model"] == role], (manifest.get("models") or {}).get(role)
        if len(own):
            drift = manifest.get("drift") if role == "target" else None
            parts.append(Part(role, own, rows, model or {}, str(manifest.get("dtype")), device, drift))
    return parts


def _distinct(items: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [dict(pair) for pair in dict.fromkeys(tuple(sorted(item.items())) for item in items)]
