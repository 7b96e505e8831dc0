"""The run directory: atomic, finished last, verifiable, readable with one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from indelible import runs
from indelible.errors import DataError, UserError
from indelible.runs import RunDir

RECORDS = pd.DataFrame({"record_id": ["a", "b"], "member": [True, False], "group": ["", ""], "n_target_tokens": [3, 4]})
SCORES = pd.DataFrame(
    {"record_id": ["a", "b"], "attack": "loss", "model": "target", "score": [-1.0, float("nan")], "reason": [None, "x"]}
)


def fill(run: RunDir) -> None:
    run.write_parquet("records.parquet", RECORDS)
    run.write_parquet("scores.parquet", SCORES)
    run.write_json("metrics.json", [])
    run.write_json("verdict.json", {"overall": {"word": "not evaluable", "rule": "", "reasons": []}})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run = RunDir.open(tmp_path / "run")
    fill(run)
    run.finish({"kind": "audit", "name": "x"})
    return run.path


def test_a_finished_run_reads_back(finished: Path) -> None:
    run = runs.read_run(finished)
    assert run.manifest["schema"] == runs.SCHEMA
    assert run.name == "x"
    pd.testing.assert_frame_equal(run.records, RECORDS)
    assert run.scores["score"].isna().tolist() == [False, True]
    assert run.texts is None
    assert runs.verify(finished) == []


def test_the_manifest_comes_last_and_lists_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    replace = runs.os.replace
    monkeypatch.setattr(runs.os, "replace", lambda a, b: (moved.append(Path(b).name), replace(a, b))[1])
    run = RunDir.open(tmp_path / "run")
    fill(run)
    run.write_bytes("figures/roc.png", b"png")
    assert not (run.path / "manifest.json").exists()
    written = run.finish({"kind": "audit"})
    assert moved[-1] == "manifest.json"
    assert list(written["files"]) == [
        "figures/roc.png",
        "metrics.json",
        "records.parquet",
        "scores.parquet",
        "verdict.json",
    ]
    assert sorted(path.name for path in run.path.iterdir()) == sorted(
        ["figures", "manifest.json", "metrics.json", "records.parquet", "scores.parquet", "verdict.json"]
    )


def test_verify_names_what_changed(finished: Path) -> None:
    (finished / "metrics.json").write_text("[ ]")
    (finished / "verdict.json").unlink()
    (finished / "extra.txt").write_text("x")
    problems = runs.verify(finished)
    assert [problem.split(" (")[0] for problem in problems] == [
        "changed: metrics.json",
        "missing: verdict.json",
        "not in the manifest: extra.txt",
    ]


def test_a_finished_run_is_not_overwritten_unless_forced(finished: Path) -> None:
    with pytest.raises(UserError, match="--force"):
        RunDir.open(finished)
    (finished / "mine.txt").write_text("kept")
    RunDir.open(finished, force=True)
    assert sorted(path.name for path in finished.iterdir()) == [".unfinished", "mine.txt"]
    with pytest.raises(UserError, match="unfinished"):
        runs.read_run(finished)


def test_force_removes_nothing_outside_the_run(finished: Path) -> None:
    outside = finished.parent / "outside.txt"
    outside.write_text("x")
    manifest = json.loads((finished / "manifest.json").read_text())
    manifest["files"]["../outside.txt"] = "0"
    manifest["files"][str(outside)] = "0"
    (finished / "manifest.json").write_text(json.dumps(manifest))
    RunDir.open(finished, force=True)
    assert outside.exists()


def test_an_unfinished_run_goes_on_without_old_texts(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run")
    fill(run)
    run.write_json("texts.json", {"a": {"prompt": "secret", "target": "secret"}})
    (run.path / "figures").mkdir()
    (run.path / "figures" / "roc.png").write_bytes(b"x")
    (run.path / "scores.parquet.abc.tmp").write_bytes(b"half")
    RunDir.open(run.path)
    assert sorted(path.name for path in run.path.iterdir()) == [".unfinished", "records.parquet", "scores.parquet"]


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        RunDir.open(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        RunDir.open(tmp_path / "thesis.tex")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [1, -float("inf")]}])
def test_json_has_no_nan(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(ValueError, match="JSON"):
        runs.write_json(path, value)
    assert list(tmp_path.iterdir()) == []
    runs.write_json(path, value, nan_as_null=True)
    assert "null" in path.read_text()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run")
    run.write_json("metrics.json", [1])
    with pytest.raises(TypeError):
        run.write_json("metrics.json", [object()])
    assert json.loads((run.path / "metrics.json").read_text()) == [1]


def test_unreadable_runs_say_what_is_wrong_in_one_line(finished: Path, tmp_path: Path) -> None:
    def message(kind: type[UserError] = UserError) -> str:
        with pytest.raises(kind) as caught:
            runs.read_run(finished)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    with pytest.raises(UserError, match="no run at"):
        runs.read_run(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a run"):
        runs.read_run(tmp_path / "empty")
    (finished / "metrics.json").write_text('[{"value": NaN}]')
    assert "NaN" in message(DataError)
    (finished / "metrics.json").write_text('{"not": "a list"}')
    assert "expected a list" in message(DataError)
    (finished / "metrics.json").write_text("[]")
    (finished / "scores.parquet").write_bytes(b"PAR1 not a table")
    assert "scores.parquet" in message(DataError)
    SCORES.drop(columns="score").to_parquet(finished / "scores.parquet")
    assert "lacks the column(s) score" in message(DataError)
    (finished / "records.parquet").unlink()
    assert "records.parquet is missing" in message(DataError)
    for manifest, expected in (
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1, "kind": "train"}', "of kind train"),
        ("{}", "no schema"),
        ("{", "cannot be read as JSON"),
    ):
        (finished / "manifest.json").write_text(manifest)
        assert expected in message()
