"""`indelible sweep` in process, on the toy model: a grid interrupted and resumed, lost cells, wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from sweep_runs import STUDY, Call, counted, found, metrics, runner, study

from indelible.runs import verify
from indelible.sweep.bench import Bench
from indelible.sweep.checks import known_metrics
from indelible.sweep.config import SweepConfig


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder that has rows: exit code, output, error output."""
    return runner(monkeypatch, capsys, tmp_path)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many trainings and audits were begun."""
    return counted(monkeypatch)


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
    known = known_metrics(SweepConfig.model_validate(manifest["config"]["resolved"]))
    assert {row["metric"] for row in metrics(Path("out")) if "@" not in row["metric"]} <= {*known}
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


def test_studies_with_a_folder_in_common_train_and_audit_once_what_is_equal(call: Call, done: dict[str, int]) -> None:
    common: dict[str, Any] = {"parts": None, "show": {}, "expect": []}
    audit = {**STUDY["audit"], "attacks": ["loss"], "settings": {}}
    first = study(**common, audit=audit, axes={"n": {"path": "audit.max_records", "values": [10, 12]}})
    assert call("sweep", first, "--out", "one", "--work", "shared")[0] == 0
    assert done == {"trainings": 1, "audits": 2}
    second = study(**common, audit=audit, axes={"n": {"path": "audit.max_records", "values": [12, 14]}})
    code, _, err = call("sweep", second, "--out", "two", "--work", "shared")
    assert code == 0, err
    assert "at hand" in err
    assert done == {"trainings": 1, "audits": 3}
    assert not Path("two-work").exists()
    cells = json.loads(Path("two/manifest.json").read_text())["cells"]
    assert all(Path(cell["run"]).is_dir() for cell in cells)  # from the folder that holds the sweep's
    named = study(**common, audit={**audit, "max_records": 14}, axes={})  # an equal cell under another name
    assert call("sweep", named, "--out", "four", "--work", "shared")[0] == 0
    assert done == {"trainings": 1, "audits": 3}
    with FileLock("shared/.lock"):
        code, _, err = call("sweep", second, "--out", "five", "--work", "shared")
    assert code == 2
    assert "another sweep is running in shared" in err
    alike = [found(Path(out), "auc", axes={"n": "12"}, attack="loss", seed=0) for out in ("one", "two")]
    assert alike[0] == alike[1]
    code, _, err = call("sweep", second, "--out", "three", "--work", "study.yaml")
    assert code == 2
    assert "study.yaml exists and was not made by a sweep; give another --work" in err


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
