"""`indelible train --dp-epsilon` and an audit of what it made, through the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from indelible.cli import main
from indelible.data.synthetic import synthetic_records, write_jsonl


def cli(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr(sys, "argv", ["indelible", *map(str, args)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_an_audit_s_manifest_says_what_private_training_promised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rows, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    train = [
        "train", "--model", "builtin:toy", "--train", rows.train, "--out", out, "--epochs", 3, "--batch-size", 8,
        "--learning-rate", 3e-3, "--lora-rank", 32, "--dp-epsilon", 10, "--max-grad-norm-per-row", 0.5,
        "--save-at", 3, "--device", "cpu",
    ]  # fmt: skip
    assert cli(monkeypatch, *train) == 0
    said = capsys.readouterr().err
    assert "DP-SGD to epsilon 10 at delta 0.0025: rows clipped to 0.5" in said
    assert (out / "checkpoint-3").is_dir()
    assert cli(monkeypatch, *train[:-4], "--out", tmp_path / "x", "--no-shuffle") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("indelible: --no-shuffle cannot keep its order")
    write_jsonl(tmp_path / "heldout.jsonl", synthetic_records(60, seed=78))
    audit = [
        "audit", "--model", out, "--members", rows.train, "--nonmembers", tmp_path / "heldout.jsonl",
        "--attacks", "loss", "--no-base-control", "--out", tmp_path / "run", "--drift-records", 0,
    ]  # fmt: skip
    assert cli(monkeypatch, *audit) == 0
    promised = json.loads((tmp_path / "run" / "manifest.json").read_text())["training"]["privacy"]
    assert 9.9 < promised["epsilon"] <= 10
    assert promised["delta"] == 1 / 400
    assert promised["clip_norm"] == 0.5
    assert promised["accountant"].startswith("rdp (opacus ")
    assert promised["steps"] == 15
    log = pd.read_parquet(out / "training_log.parquet")
    assert log["step"].nunique() == 15 - promised["empty_steps"]
    sizes = log.groupby("step").size()
    assert sizes.nunique() > 3  # drawn, not dealt
