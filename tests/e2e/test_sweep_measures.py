"""`indelible sweep` in process, on the toy model: measures, what differences rest on, the base's own losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sweep_runs import LOAD, STUDY, Call, counted, found, metrics, runner, study

from indelible.attacks import context
from indelible.runs import verify
from indelible.sweep import run as sweep_run
from indelible.sweep.checks import known_metrics
from indelible.sweep.config import SweepConfig
from indelible.sweep.contrasts import row_key


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder that has rows: exit code, output, error output."""
    return runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many trainings and audits were begun."""
    return counted(monkeypatch)


def known() -> set[str]:
    """Metrics that the settings of the run say it has."""
    manifest = json.loads(Path("out/manifest.json").read_text())
    return {*known_metrics(SweepConfig.model_validate(manifest["config"]["resolved"]))}


def test_measures_of_the_gap_by_epoch(call: Call, done: dict[str, int]) -> None:
    training = {"epochs": 1, "learning_rate": 1e-3, "batch_size": 8, "autocast": "off"}
    file = study(
        axes={"epoch": {"path": "models.target.epoch", "values": [0, 2, 4]}}, parts=None, expect=[], paper_values=[],
        measure={"kind": "gap", "n": 12, "training": training, "load": LOAD},
        show={
            "tables": [{"rows": "epoch", "metrics": ["drop_members", "auc"]}],
            "figures": [
                {"kind": "lines", "x": "epoch", "lines": "metric", "metrics": ["loss_members", "loss_nonmembers"]},
                {"kind": "distributions", "x": "epoch"},
            ],
        },
    )  # fmt: skip
    code, _, err = call("sweep", file, "--out", "out")
    assert code == 0, err
    assert done == {"trainings": 1, "audits": 0}  # epochs are checkpoints of one training
    assert {row["metric"] for row in metrics(Path("out"))} == known()
    losses = {row["axes"]["epoch"]: row["value"] for row in found(Path("out"), "loss_members", seed=0)}
    assert losses["0"] > losses["2"] > losses["4"]
    members, others = (
        {row["axes"]["epoch"]: row["value"] for row in found(Path("out"), f"drop_{side}", seed=0)}
        for side in ("members", "nonmembers")
    )
    assert others["4"] > members["4"] > 0
    log = json.loads(next(Path("out-work/trainings").iterdir()).joinpath("training.json").read_text())
    assert log["save_at"] == [4]  # the last epoch is the training itself
    assert {path.name for path in Path("out/figures").iterdir()} == {
        "1-loss_members-loss_nonmembers.png", "2-distributions.png",
    }  # fmt: skip


def test_measures_of_fidelity(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "embed", lambda texts, embedder: np.ones((len(texts), 1), dtype=np.float32))
    file = study(
        models={"base": "builtin:toy"}, parts=None, paper_values=[], expect=[], seeds=[0, 1],
        data={"files": {"own": "rows.jsonl"}, "splits": {"sampled": 12, "pool": 6}},
        measure={
            "kind": "fidelity", "records": "sampled", "pool": "pool", "batch": 4, "runs": 3, "top": 2, "load": LOAD
        },
        axes={"step": {"path": "measure.step", "values": ["batch", "record"]}},
        show={
            "tables": [{"rows": "step", "metrics": ["spearman", "p_spearman", "spearman_run"]}],
            "figures": [{"kind": "scatter", "x": "step", "lines": "step"}],
        },
    )  # fmt: skip
    code, _, err = call("sweep", file, "--out", "out")
    assert code == 0, err
    drops = pd.read_parquet("out/drops.parquet")
    assert len(drops) == 2 * 2 * 12
    for row in found(Path("out"), "spearman"):
        if row["seed"] is not None:
            cell = next(
                c for c in json.loads(Path("out/manifest.json").read_text())["cells"]
                if (c["axes"], c["seed"]) == (row["axes"], row["seed"])
            )  # fmt: skip
            part = drops[drops["cell"] == cell["cell"]]
            assert row["value"] == pytest.approx(part["step_drop"].corr(part["icp_drop"], method="spearman"))
    assert {path.name for path in Path("out/figures").iterdir()} == {"1-drops.png"}
    assert {row["metric"] for row in metrics(Path("out"))} == known()
    assert verify(Path("out")) == []


def test_differences_of_a_study_are_those_of_its_audits(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    whole = sweep_run.pulls_of
    monkeypatch.setattr(sweep_run, "pulls_of", lambda *args: kept.append(whole(*args)) or kept[0])
    file = study(
        models={"base": "builtin:toy", "target": STUDY["models"]["target"], "reference": "builtin:toy"},
        audit={**STUDY["audit"], "attacks": ["loss", "icp-sp", "reference-base"]},
        axes={"rate": STUDY["axes"]["rate"]},
        show={"tables": [{"rows": "rate", "metrics": ["loss_nonmembers", "base_loss_nonmembers"],
                          "only": {"attack": ["loss"]}}]},
    )  # fmt: skip
    code, _, err = call("sweep", file, "--out", "out")
    assert code == 0, err
    for cell in json.loads(Path("out/manifest.json").read_text())["cells"]:
        rows = json.loads((Path(cell["run"]) / "metrics.json").read_text())
        assert {row["attack"] for row in rows} == {"loss", "icp-sp", "reference-base"}  # none was added for the model
        (row,) = (r for r in rows if r["metric"] == "auc_minus:loss" and r["attack"] == "icp-sp")
        assert row["method"] == "DeLong, paired"
        place = {"axes": cell["axes"], "seed": 0, "model": "target", "metric": "auc"}
        a, b = (kept[0][row_key({**place, "attack": name})] for name in ("loss", "icp-sp"))
        error = np.sqrt(sum((a[key] - b[key]) ** 2 for key in a))
        assert row["high"] - row["low"] == pytest.approx(2 * 1.959964 * error, rel=1e-6)
        part = kept[0][row_key({**place, "attack": "loss", "part": "2"})]
        assert len(part) == 14 - 1 + 8  # non-members but the one that is the pool, half the members

    # without a control on the base, its held-out loss follows from `reference-base`
    scores = pd.read_parquet(Path(cell["run"]) / "scores.parquet")
    scores = scores.pivot(index="record_id", columns="attack", values="score")
    member = pd.read_parquet(Path(cell["run"]) / "records.parquet").set_index("record_id")["member"]
    of_base = (scores["reference-base"] - scores["loss"])[~member]
    (row,) = (r for r in found(Path("out"), "loss_nonmembers", seed=0, model="base") if r["axes"] == cell["axes"])
    assert row["value"] == pytest.approx(of_base.mean(), abs=1e-5)
    assert f"{row['value']:.3f}" in Path("out/report.md").read_text()
