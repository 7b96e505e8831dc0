"""`indelible sweep` in process, on the toy model: a grid interrupted and resumed, measures, cells that cannot run."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from indelible import audit, cli
from indelible.attacks import context
from indelible.runs import verify
from indelible.sweep.bench import Bench
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

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder that has rows: exit code, output, error output."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"Where is parcel {i}?", "answer": f"In depot {i * 37 % 101}, shelf {i}."} for i in range(60)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["indelible", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many trainings and audits were begun."""
    counts = {"trainings": 0, "audits": 0}

    def counted(what: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(training_run, "run_train", counted("trainings", training_run.run_train))
    monkeypatch.setattr(audit, "run_audit", counted("audits", audit.run_audit))
    monkeypatch.setattr(audit, "render", lambda path, manifest: None)  # reports of audits are tested elsewhere
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


def test_a_grid_interrupted_after_a_cell_goes_on_with_equal_results(
    call: Call, monkeypatch: pytest.MonkeyPatch, done: dict[str, int]
) -> None:
    file = study()
    whole = Bench.run
    n_run = 0

    def stopping(self: Bench, cell: Any) -> Path:
        nonlocal n_run
        n_run += 1
        if n_run == 2:
            raise KeyboardInterrupt
        return whole(self, cell)

    monkeypatch.setattr(Bench, "run", stopping)
    code, _, err = call("sweep", file, "--out", "out")
    assert code == 130
    assert "run the same command again" in err
    assert done == {"trainings": 1, "audits": 1}
    assert not Path("out/manifest.json").exists()
    monkeypatch.setattr(Bench, "run", whole)
    code, out, err = call("sweep", file, "--out", "out")
    assert code == 0, err
    assert done == {"trainings": 2, "audits": 4}  # a model a way of training, an audit a cell, none of them twice
    assert "at hand" in err
    assert "out/report.html" in out
    assert verify(Path("out")) == []

    assert call("sweep", file, "--out", "straight")[0] == 0
    assert done == {"trainings": 4, "audits": 8}
    assert metrics(Path("straight")) == metrics(Path("out"))

    # numbers stand at their places, over the seeds and of each, by part and as a loss
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["kind"] == "sweep"
    assert len(manifest["cells"]) == 4
    assert len(manifest["trainings"]) == 2
    assert all(Path(cell["run"]).is_dir() for cell in manifest["cells"])
    for cell in manifest["cells"]:
        own = json.loads((Path(cell["run"]) / "metrics.json").read_text())
        (auc,) = (row for row in own if (row["attack"], row["model"], row["metric"]) == ("loss", "target", "auc"))
        (row,) = found(Path("out"), "auc", axes=cell["axes"], attack="loss", seed=0, part=None, block=None)
        assert (row["value"], row["low"], row["n_members"]) == (auc["value"], auc["low"], auc["n_members"])
        (pooled,) = found(Path("out"), "auc", axes=cell["axes"], attack="loss", seed=None, part=None, block=None)
        assert (pooled["value"], pooled["n_seeds"]) == (auc["value"], 1)
        parts = found(Path("out"), "auc", axes=cell["axes"], attack="loss", seed=0, block=None)
        assert sorted(str(r["part"]) for r in parts) == ["1", "2", "None"]
        assert sum(r["n_members"] for r in parts if r["part"]) == auc["n_members"]
        assert len(found(Path("out"), "loss_members", axes=cell["axes"], seed=0)) == 1
    rate_does_not_move_loss = {row["value"] for row in found(Path("out"), "auc", attack="loss", seed=0, part=None,
                               block=None) if row["axes"]["tuning"] == "full"}  # fmt: skip
    assert len(rate_does_not_move_loss) == 1

    # models and rows are gone, audits are not; the report holds no row's text, and can be drawn again without the work
    assert sorted(path.name for path in Path("out-work").iterdir() if path.is_dir()) == ["cells", "trainings"]
    report = Path("out/report.html").read_text()
    assert "Beside the paper" in report
    assert "paper 0.900" in report
    assert "parcel" not in report
    assert {path.name for path in Path("out/figures").iterdir()} == {"1-auc.png", "2-distributions.png"}
    before = report
    Path("out-work").rename("elsewhere")
    code, _, err = call("report", "out")
    assert code == 0, err
    assert Path("out/report.html").read_text() == before
    assert verify(Path("out")) == []
    Path("elsewhere").rename("out-work")

    code, _, err = call("sweep", file, "--out", "out")
    assert code == 2
    assert "holds a finished sweep" in err
    code, _, err = call("sweep", file, "--out", "out", "--force")
    assert code == 0, err
    assert done == {"trainings": 4, "audits": 8}  # all of it was at hand


def test_more_seeds_and_changed_rows(call: Call, done: dict[str, int]) -> None:
    axes = {"n": {"path": "audit.max_records", "values": [12]}}
    common: dict[str, Any] = {"axes": axes, "parts": None, "show": {}, "expect": []}
    file = study(**common, audit={**STUDY["audit"], "attacks": ["loss"], "settings": {}})
    code, _, err = call("sweep", file, "--out", "out", "--seeds", "0,1")
    assert code == 0, err
    assert done == {"trainings": 2, "audits": 2}
    (pooled,) = found(Path("out"), "auc", attack="loss", seed=None)
    single = [row["value"] for row in found(Path("out"), "auc", attack="loss") if row["seed"] is not None]
    assert pooled["value"] == pytest.approx(np.mean(single))
    assert (pooled["seed_low"], pooled["seed_high"], pooled["n_seeds"]) == (min(single), max(single), 2)
    # other rows are other cells; those of before stay at hand
    lines = Path("rows.jsonl").read_text().replace("depot", "store")
    Path("rows.jsonl").write_text(lines)
    code, _, err = call("sweep", file, "--out", "out", "--force")
    assert code == 0, err
    assert done == {"trainings": 3, "audits": 3}
    assert [cell["seed"] for cell in json.loads(Path("out/manifest.json").read_text())["cells"]] == [0]


def test_what_cannot_run_is_said_and_the_rest_goes_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    axes = {
        "load": {"values": [{"label": "4 bit", "set": {"audit.load.quantise": "4bit"}}, {"label": "whole", "set": {}}]},
        "pool": {"path": "audit.pool", "values": ["far", None]},
    }
    files = {"own": "rows.jsonl", "far": "nowhere/rows.jsonl"}
    file = study(
        axes=axes, parts=None, expect=[], data={"files": files, "splits": {"train": 16, "nonmembers": 14}},
        audit={**STUDY["audit"], "attacks": ["loss", "reference"], "settings": {}},
        show={"tables": [{"rows": "attack", "columns": "load", "metrics": ["auc"]}]},
    )  # fmt: skip
    code, _, err = call("sweep", file, "--out", "out")
    assert code == 0, err
    manifest = json.loads(Path("out/manifest.json").read_text())
    reasons = {tuple(cell["axes"].values()): cell["reason"] for cell in manifest["cells"]}
    assert "bitsandbytes" in reasons["4 bit", "none"]
    assert "no such file" in reasons["whole", "far"]
    assert "no such file" in reasons["4 bit", "far"]
    assert reasons["whole", "none"] is None
    report = Path("out/report.md").read_text()
    assert "needs bitsandbytes" in report
    assert "no reference model given" in report  # an attack that could not run is no reason to lose a cell


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
    assert verify(Path("out")) == []


def test_a_plan_says_what_is_ahead_and_runs_nothing(call: Call, done: dict[str, int]) -> None:
    code, out, err = call("sweep", study(), "--out", "out", "--plan")
    assert code == 0, err
    assert "small: Fig. 0; 4 cells" in out
    assert "rate 0.3, tuning LoRA, seed 0" in out
    assert "rows: train 16, nonmembers 14" in out
    assert "2 trainings" in out
    assert "forward tokens" in out
    assert "expected: " in out
    assert done == {"trainings": 0, "audits": 0}
    assert {path.name for path in Path().iterdir()} == {"rows.jsonl", "study.yaml"}


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"axis": {}}, (), "study study.yaml: unknown setting 'axis'. Did you mean 'axes'?"),
        ({"axes": {"rate": {"path": "audit.settings.icp-sp.rat", "values": [1]}}}, (), "setting of icp-sp 'rat'"),
        (
            {"data": {"files": {"own": "rows.jsonl"}, "splits": {"train": 50, "nonmembers": 20}}}, (),
            "rows.jsonl has 60 usable rows (no repetition, none too long); data.splits asks for 70 (train 50,",
        ),
        ({}, ("--data", "none.jsonl"), "none.jsonl: no such file"),
        ({}, ("--seeds", "a"), "--seeds a: expected whole numbers separated by commas"),
        ({"seeds": []}, (), "setting 'seeds'"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(call: Call, changes: dict[str, Any], words: tuple[str, ...], message: str) -> None:
    code, out, err = call("sweep", study(**changes), "--out", "out", *words)
    assert code == 2
    assert message in err
    assert err.strip().count("\n") == 0
    assert out == ""


def test_a_folder_of_something_else_is_left_alone(call: Call) -> None:
    Path("out-work").mkdir()
    Path("out-work/mine.txt").write_text("mine")
    code, _, err = call("sweep", study(), "--out", "out")
    assert code == 2
    assert "was not made by a sweep" in err
    assert Path("out-work/mine.txt").read_text() == "mine"


def test_help_is_there(call: Call) -> None:
    code, out, _ = call("sweep", "--help")
    assert code == 0
    assert "--plan" in out
