"""The canary commands in process, on the toy model."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command_line import Call, runner

from indelible import cli
from indelible.canaries import bench, exposure
from indelible.canaries import measure as canary_measure
from indelible.runs import verify
from indelible.training import ledger, sft

DESIGN = {
    "task": {"name": "support"}, "rows": 64, "batch_size": 8, "canaries": 6, "dose": 4, "controls": 6, "heldout": 6,
    "code": "##",
}  # fmt: skip
TRAINING = {"learning_rate": 3e-3, "autocast": "off", "device": "cpu"}
LOAD = {"device": "cpu", "dtype": "float32"}
RUN = {
    "model": "builtin:toy", "design": DESIGN, "training": TRAINING, "load": LOAD,
    "probe": {"probes": ["redacted", "as-trained", "substituted"], "utility": 6},
    "arms": {"visible": {"cue": "visible"}, "redacted": {"cue": "redacted"}}, "seeds": [0],
}  # fmt: skip


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder: exit code, output, error output."""
    return runner(monkeypatch, capsys, tmp_path)


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
        "canary", "design", "--data", own, "--rows", 48, "--canaries", 6, "--controls", 6, "--dose", 4, "--code", "##",
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
    assert frame["rank"].between(1, 100).all()
    manifest = json.loads(Path("one/manifest.json").read_text())
    assert {n["what"] for n in manifest["not_run"]} == {"clean", "order of training"}
    assert manifest["survival"]["supervised"] == 6
    code, out, err = call("canary", "compare", "one", "two", "--out", "both")
    assert code == 2
    assert "audits of the same model" in err
    code, out, err = call("canary", "audit", "--model", "tuned", "--model", "tuned", *common, "--out", "twice")
    assert code == 2
    assert "two models at update" in err
    code, out, err = call("train", "--model", "builtin:toy", "--train", own, "--out", "other", "--epochs", 1)
    code, out, err = call("canary", "audit", "--model", "other", *common, "--out", "mixed-up")
    assert code == 2
    assert "trained on another file" in err
    same = ("train", "--model", "builtin:toy", "--train", "design/train.jsonl", "--epochs", 1, "--batch-size", 8)
    code, out, err = call(*same, "--out", "shuffled")
    code, out, err = call("canary", "audit", "--model", "shuffled", *common, "--out", "out-of-order")
    assert code == 2
    assert "its rows were shuffled" in err
    code, out, err = call(*same, "--no-shuffle", "--out", "in-order")
    code, out, err = call("canary", "audit", "--model", "in-order", *common, "--out", "ordered")
    assert code == 0, err
    assert "order of training" not in Path("ordered/manifest.json").read_text()
    code, out, err = call("canary", "compare", "one", "ordered", "--out", "both")
    assert code == 0, err
    assert set(readings(Path("both"))["condition"]) == {"one:design", "ordered:design"}
    assert verify(Path("both")) == []
    code, out, err = call("canary", "restore", "--design", "design", "--out", "restored.jsonl")
    assert code == 0, err
    restored = Path("restored.jsonl").read_text().splitlines()
    assert len(restored) == 48
    assert set(restored) <= set(own.read_text().splitlines())
    assert not call("report", "one")[0]
    assert verify(Path("one")) == []


class Killed(BaseException):
    """Stands for a signal that leaves no time to tidy up."""


def test_a_run_goes_on_where_it_was_killed(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in every stage, a run ends with the numbers of one that was never stopped, and trains nothing twice."""
    config = written(tmp_path / "run.yaml", RUN)
    code, _, err = call("canary", "run", config, "--out", "whole")
    assert code == 0, err
    assert verify(Path("whole")) == []
    assert not Path("whole-work").exists()

    def kill(module: object, name: str, at: int, *, after: bool = False) -> None:
        """Let the next run be killed at the `at`th call of a function, before or after it does its work."""
        real, calls = getattr(module, name), iter(range(1, 1000))

        def wrapped(*args: object, **more: object) -> object:
            now = next(calls) == at
            if now and not after:
                raise Killed
            made = real(*args, **more)
            if now:
                raise Killed
            return made

        with monkeypatch.context() as patch:
            patch.setattr(module, name, wrapped)
            patch.setattr(sys, "argv", ["indelible", "canary", "run", str(config), "--out", "halting"])
            with pytest.raises(Killed):
                cli.main()

    trained: list[str] = []
    real_train = sft.optimise

    def optimise(*args: object, **more: object) -> object:
        trained.append("one")
        return real_train(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sft, "optimise", optimise)
    kill(bench, "write_design", 2)
    kill(ledger, "save_checkpoint", 1)  # the first training is lost, and done again
    kill(bench, "measure", 1)
    kill(exposure, "_read", 5)  # within the probes of a model
    kill(bench, "write_json", 2)  # between a table and the file that says it is whole
    kill(bench, "measure", 3, after=True)
    kill(canary_measure, "verdict", 1)
    code, _, err = call("canary", "run", config, "--out", "halting")
    assert code == 0, err
    assert len(trained) == 4  # clean, visible, redacted, and the one that was lost
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
    (choice,) = training["learning_rate_choice"]
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
    ledger_ = pd.read_parquet("run/insertions.parquet")
    places = {
        name: set(zip(part["canary_id"], part["row"], strict=True)) for name, part in ledger_.groupby("condition")
    }
    low = {name: set(part.loc[part["dose"] == 1, "canary_id"]) for name, part in ledger_.groupby("condition")}
    for name in ("one", "two"):
        assert {place for place in places["alone"] if place[0] in low[name]} < places[name]


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
    frame = readings(Path("run"))
    coins = frame[(frame["role"] == "coin") & (frame["model"] == "target")].set_index("canary_id")
    base = frame[(frame["role"] == "coin") & (frame["model"] == "base")].set_index("canary_id")
    order = (coins["logprob"] - base["logprob"]).sort_values()
    included = coins["included"].reindex(order.index).astype(bool)
    assert bound["v"] == int((~included[:10]).sum() + included[-10:].sum())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"design": {**DESIGN, "rows": 20}}, "rows"),
        ({"design": {**DESIGN, "task": {"name": "suport"}}}, "support"),
        ({"arms": {"one": {"cue": "visble"}}}, "visible"),
        ({"arms": {"one": {"does": 3}}}, "dose"),
        ({"arms": {"one": {}, "two": {}}}, "are the same"),
        ({"arms": {"a/../b": {}}}, "a/../b"),
        ({"arms": {"one": {"reserve": 2}}}, "reserve 2 is below dose 4"),
        ({"design": {**DESIGN, "canaries": 0, "controls": 0}}, "it has no canaries"),
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
    (work / "models").mkdir()
    code, _, err = call("canary", "run", written(tmp_path / "run.yaml", RUN), "--out", "run")
    assert code == 2
    assert "other settings" in err
