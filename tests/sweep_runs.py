"""`indelible sweep` in process on the toy model: a small study, and what a run of it left."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from command_line import runner as run_in

from indelible import audit
from indelible.training import run as training_run

TRAINING = {"epochs": 4, "batch_size": 8, "learning_rate": 3e-3, "autocast": "off", "device": "cpu"}
LOAD = {"device": "cpu", "dtype": "float32"}
STUDY: dict[str, Any] = {
    "name": "small",
    "paper": "Fig. 0",
    "data": {"files": {"own": "rows.jsonl"}, "splits": {"train": 16, "nonmembers": 14}},
    "models": {"base": "builtin:toy", "target": {"from": "base", "rows": "train", "training": TRAINING}},
    "audit": {
        "attacks": ["loss", "icp-sp"], "settings": {"icp-sp": {"k": 1}}, "n_bootstrap": 200, "drift_records": 0,
        "base_control": False, "load": LOAD,
    },
    "axes": {
        "rate": {"path": "audit.settings.icp-sp.rate", "values": [0.3, 0.7]},
        "tuning": {
            "values": [{"label": "full", "set": {}}, {"label": "LoRA", "set": {"models.target.training.lora_rank": 2}}]
        },
    },
    "parts": 2,
    "show": {
        "tables": [{"rows": "attack", "columns": "rate", "metrics": ["auc"]}],
        "figures": [
            {"kind": "lines", "x": "rate", "lines": "attack"},
            {"kind": "distributions", "x": "rate", "only": {"attack": ["loss"]}},
        ],
    },
    "paper_values": [{"where": "Table 0", "values": {"loss": 0.9, "icp-sp": 0.6}}],
    "expect": [{"where": "Fig. 0", "shape": "above", "x": "rate", "lines": ["loss"], "than": ["icp-sp"]}],
}  # fmt: skip


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Runs a command line in a new folder that has rows: exit code, output, error output."""
    rows = [{"question": f"Where is parcel {i}?", "answer": f"In depot {i * 37 % 101}, shelf {i}."} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_in(monkeypatch, capsys, tmp_path)


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many trainings and audits were begun. Reports of audits are left out: they are tested elsewhere."""
    counts = {"trainings": 0, "audits": 0}

    def counted(what: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(training_run, "run_train", counted("trainings", training_run.run_train))
    monkeypatch.setattr(audit, "run_audit", counted("audits", audit.run_audit))
    monkeypatch.setattr(audit, "render", lambda path, manifest: None)
    return counts


def study(**changes: Any) -> Path:
    """The study, with whole settings exchanged, in a file."""
    path = Path("study.yaml")
    path.write_text(yaml.safe_dump({**copy.deepcopy(STUDY), **changes}, sort_keys=False))
    return path


def metrics(path: Path) -> list[dict[str, Any]]:
    return json.loads((path / "metrics.json").read_text())


def found(path: Path, metric: str, **wanted: Any) -> list[dict[str, Any]]:
    rows = [row for row in metrics(path) if row["metric"] == metric]
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
