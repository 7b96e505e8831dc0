"""The canary commands in process, on the toy model."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from indelible import cli
from indelible.canaries import run as canary_run
from indelible.runs import verify

DESIGN = {
    "task": {"name": "support"}, "rows": 64, "batch_size": 8, "canaries": 6, "dose": 4, "controls": 6, "heldout": 6,
    "code": "###",
}  # fmt: skip
TRAINING = {"learning_rate": 3e-3, "autocast": "off", "device": "cpu"}
LOAD = {"device": "cpu", "dtype": "float32"}
RUN = {
    "model": "builtin:toy", "design": DESIGN, "training": TRAINING, "load": LOAD,
    "probe": {"probes": ["redacted", "as-trained", "substituted"], "utility": 6},
    "arms": {"visible": {"cue": "visible"}, "redacted": {"cue": "redacted"}}, "seeds": [0],
}  # fmt: skip

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder: exit code, output, error output."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["indelible", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), said.out, said.err

    return run


def written(path: Path, value: object) -> Path:
    path.write_text(yaml.safe_dump(value))
    return path


def own_rows(path: Path, n: int = 60) -> Path:
    said = [(f"Where is parcel {i}?", f"In depot {i % 7}.") for i in range(n)]
    rows = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in said]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def readings(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path / "canaries.parquet")


def test_a_users_path(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own rows, design, training with transformers' Trainer outside, labels checked, audit twice: the same numbers."""
    own = own_rows(tmp_path / "own.jsonl")
    code, out, err = call(
        "canary", "design", "--data", own, "--rows", 48, "--canaries", 6, "--controls", 6, "--dose", 4, "--code", "###",
        "--batch-size", 8, "--model", "builtin:toy", "--out", "design",
    )  # fmt: skip
    assert code == 0, err
    assert "all 6 planted codes survive" in out
    script = Path(__file__).parents[2] / "examples" / "train_outside.py"
    flags = "--design design --model builtin:toy --out tuned --batch-size 8 --learning-rate 3e-3 --labels labels.jsonl"
    monkeypatch.setattr(sys, "argv", [str(script), *flags.split()])
    runpy.run_path(str(script), run_name="__main__")
    capsys.readouterr()
    code, out, err = call("canary", "check", "--design", "design", "--model", "builtin:toy", "--labels", "labels.jsonl")
    assert code == 0, err
    assert "supervise all 24 canary rows" in out
    common = ("--design", "design", "--base", "builtin:toy", "--device", "cpu", "--dtype", "float32", "--utility", 3)
    for name in ("one", "two"):
        code, out, err = call("canary", "audit", "--model", "tuned", *common, "--out", name)
        assert code == 0, err
        assert verify(Path(name)) == []
    pd.testing.assert_frame_equal(readings(Path("one")), readings(Path("two")))
    frame = readings(Path("one"))
    assert set(frame["model"]) == {"target", "base"}
    assert frame["rank"].between(1, 1000).all()
    manifest = json.loads(Path("one/manifest.json").read_text())
    assert {n["what"] for n in manifest["not_run"]} == {"clean"}
    assert manifest["survival"]["supervised"] == 6
    code, out, err = call("canary", "compare", "one", "two", "--out", "both")
    assert code == 0, err
    assert set(readings(Path("both"))["condition"]) == {"one: design", "two: design"}
    assert verify(Path("both")) == []
    code, out, err = call("canary", "audit", "--model", "tuned", "--model", "tuned", *common, "--out", "twice")
    assert code == 2
    assert "two models at update" in err
    code, out, err = call("canary", "restore", "--design", "design", "--out", "restored.jsonl")
    assert code == 0, err
    restored = Path("restored.jsonl").read_text().splitlines()
    assert len(restored) == 48
    assert set(restored) <= set(own.read_text().splitlines())
    assert not call("report", "one")[0]
    assert verify(Path("one")) == []


def test_a_run_goes_on_where_it_was_killed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after each of several stages, a run ends with the numbers of one that was never stopped."""
    config = written(tmp_path / "run.yaml", RUN)
    code, _, err = call("canary", "run", config, "--out", "whole")
    assert code == 0, err
    assert verify(Path("whole")) == []
    assert not Path("whole-work").exists()

    class Killed(BaseException):
        """Stands for a signal that leaves no time to tidy up."""

    trained: list[str] = []
    asked: list[str] = []
    real_measure, real_train = canary_run.measure, canary_run._Bench.train

    def stop_at(n: int) -> None:
        def measure(model, source, design, checkpoint, *rest, **more):  # type: ignore[no-untyped-def]
            asked.append(f"{checkpoint.condition} {checkpoint.model}")
            if len(asked) == n:
                raise Killed
            return real_measure(model, source, design, checkpoint, *rest, **more)

        monkeypatch.setattr(canary_run, "measure", measure)

    def train(self, cell, design):  # type: ignore[no-untyped-def]
        folder = self.work / "models" / self.model_key(cell)
        if not folder.exists():
            trained.append(cell.name)
        return real_train(self, cell, design)

    monkeypatch.setattr(canary_run._Bench, "train", train)
    for stop in (1, 3, 5):
        stop_at(stop)
        monkeypatch.setattr(sys, "argv", ["indelible", "canary", "run", str(config), "--out", "halting"])
        with pytest.raises(Killed):
            cli.main()
    stop_at(-1)
    code, _, err = call("canary", "run", config, "--out", "halting")
    assert code == 0, err
    assert sorted(trained) == ["clean-seed0", "redacted-seed0", "visible-seed0"]
    pd.testing.assert_frame_equal(readings(Path("halting")), readings(Path("whole")))
    for name in ("metrics.json", "verdict.json", "utility.json"):
        assert Path("halting", name).read_bytes() == Path("whole", name).read_bytes()
    code, _, err = call("canary", "run", config, "--out", "halting")
    assert code == 2
    assert "holds a finished run" in err


def test_checkpoints_are_read_in_one_run(call: Call, tmp_path: Path) -> None:
    arms = {"early": {"placement": [{"start": 0.0, "stop": 0.5}], "delay": 1}}
    config = {**RUN, "arms": arms, "clean": False, "probe": {"probes": ["redacted"], "utility": 0, "base": False}}
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", config), "--out", "run")
    assert code == 0, err
    frame = readings(Path("run"))
    assert sorted(frame["step"].unique()) == [5, 8]
    focal = frame[frame["role"] == "focal"]
    assert (focal["last_step"] <= 4).all()
    assert frame[frame["role"] == "control"]["last_step"].isna().all()


def test_the_learning_rate_is_chosen_on_held_out_loss(call: Call, tmp_path: Path) -> None:
    arms = {"redacted": {"cue": "redacted"}}
    config = {**RUN, "arms": arms, "learning_rates": [1e-6, 3e-3], "probe": {"probes": ["redacted"], "base": False}}
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", config), "--out", "run")
    assert code == 0, err
    training = json.loads(Path("run/manifest.json").read_text())["training"]
    choice = training["learning_rate_choice"]
    assert choice["chosen"] == training["learning_rate"] == 3e-3
    assert choice["heldout_loss"]["0.003"] < choice["heldout_loss"]["1e-06"]


def test_a_rotation_measures_every_canary_at_every_dose(call: Call, tmp_path: Path) -> None:
    arms = {"one": {"dose": [1, 4]}, "two": {"dose": [1, 4], "rotation": 1}, "alone": {"dose": 1}}
    probe = {"probes": ["redacted"], "base": False, "utility": 0}
    config = {**RUN, "arms": arms, "clean": False, "probe": probe}
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", config), "--out", "run")
    assert code == 0, err
    frame = readings(Path("run"))
    mixed = frame[(frame["role"] == "focal") & frame["condition"].isin(["one", "two"])]
    assert (mixed.groupby("canary_id")["dose"].agg(set) == {1, 4}).all()
    ledger = pd.read_parquet("run/insertions.parquet")
    places = {name: set(zip(part["canary_id"], part["row"], strict=True)) for name, part in ledger.groupby("condition")}
    assert places["alone"] < places["one"] | places["two"]


def test_coins_give_a_bound(call: Call, tmp_path: Path) -> None:
    design = {**DESIGN, "coins": 30, "canaries": 0, "controls": 0}
    config = {**RUN, "design": design, "arms": {"coins": {}}, "clean": False}
    config["probe"] = {"probes": ["redacted"], "utility": 0}
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", config), "--out", "run")
    assert code == 0, err
    (bound,) = json.loads(Path("run/manifest.json").read_text())["epsilon"]
    assert bound["m"] == 30
    assert bound["r"] == 20
    assert bound["refused"] is None
    assert 0 <= bound["epsilon"] <= bound["ceiling"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"design": {**DESIGN, "rows": 20}}, "rows"),
        ({"design": {**DESIGN, "task": {"name": "suport"}}}, "support"),
        ({"arms": {"one": {"cue": "visble"}}}, "visible"),
        ({"arms": {"one": {"does": 3}}}, "dose"),
        ({"arms": {"one": {}, "two": {}}}, "are the same"),
        ({"arms": {"clean-x": {}}}, "cannot be called 'clean-x'"),
        ({"training": {**TRAINING, "save_at": [99]}}, "this training has 8 updates"),
        ({"model": "builtin:nothing"}, "nothing"),
        ({"training": {**TRAINING, "max_tokens": 20}}, "are longer than 20 tokens"),
    ],
)
def test_bad_settings_are_one_line(call: Call, tmp_path: Path, change: dict[str, object], said: str) -> None:
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", {**RUN, **change}), "--out", "run")
    assert code == 2
    assert said in err.strip().splitlines()[-1]
    assert "Traceback" not in err


def test_a_work_folder_of_other_settings_is_refused(call: Call, tmp_path: Path) -> None:
    work = tmp_path / "run-work"
    work.mkdir()
    (work / "settings.json").write_text("{}")
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", RUN), "--out", "run")
    assert code == 2
    assert "other settings" in err
