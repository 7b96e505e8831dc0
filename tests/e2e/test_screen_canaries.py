"""Canaries on screens from design to report, on tiny random vision-language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import vision_fakes
import yaml
from command_line import Call, runner

from indelible.canaries.config import DesignConfig
from indelible.canaries.design import build_design
from indelible.canaries.preflight import survival
from indelible.canaries.screen_preflight import Eyes, eyes_of
from indelible.data.pictures import picture, pixels
from indelible.errors import DataError
from indelible.runs import verify

POOL = {"trained": 2, "controls": 1, "reserve": 0, "sizes": [[448, 336]], "must_read": False}
DESIGN: dict[str, Any] = {
    "task": {"name": "screens", "screens": POOL}, "rows": 16, "batch_size": 4, "canaries": 2, "dose": 1,
    "controls": 1, "heldout": 2, "cue": "visible", "placement": [{"start": 0.0, "stop": 0.5}], "delay": 0,
}  # fmt: skip
COMMON = ("--device", "cpu", "--dtype", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_fakes.write("internvl", tmp_path_factory.mktemp("internvl"))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command line in a new folder: exit code, output, error output."""
    return runner(monkeypatch, capsys, tmp_path)


def test_a_users_path(call: Call, folder: Path) -> None:
    """Design and check, training by command, audit of both checkpoints, restoration."""
    Path("design.yaml").write_text(yaml.safe_dump(DESIGN))
    code, out, err = call("canary", "design", "--config", "design.yaml", "--model", folder, "--out", "design")
    assert code == 0, err
    assert "save checkpoints at updates 2, 4" in out
    assert "all 2 planted codes survive" in out
    assert "differ in their source region alone" in out
    code, out, err = call("canary", "design", "--config", "design.yaml", "--model", "builtin:toy", "--out", "other")
    assert code == 2
    assert "has no vision tower" in err
    train = ("train", "--train", "design/train.jsonl", "--epochs", 1, "--batch-size", 4, "--no-shuffle")
    code, _, err = call(*train, "--model", "builtin:toy", "--out", "tuned")
    assert code == 2
    assert "has no vision tower" in err
    code, _, err = call(
        *train, "--model", folder, "--out", "tuned", "--max-tokens", 4096, "--save-at", 2, "--learning-rate", 1e-3,
        "--device", "cpu",
    )  # fmt: skip
    assert code == 0, err
    config = {"probe": {"decoys": 99, "utility": 2}, "design": "design", "models": ["tuned/checkpoint-2", "tuned"]}
    Path("audit.yaml").write_text(yaml.safe_dump(config))
    code, _, err = call("canary", "audit", "--config", "audit.yaml", "--out", "audit", *COMMON)
    assert code == 0, err
    assert verify(Path("audit")) == []
    frame = pd.read_parquet("audit/canaries.parquet")
    asked = {int(step): set(part["probe"]) for step, part in frame.groupby("step")}
    assert asked == {2: {"redacted"}, 4: {"redacted", "as-trained", "visible", "substituted", "absent"}}
    assert frame["rank"].between(1, 100).all()
    assert frame[frame["probe"] == "substituted"]["supplied_rank"].notna().all()
    assert frame[(frame["probe"] == "absent") | (frame["probe"] == "redacted")]["copied"].isna().all()
    (utility,) = json.loads(Path("audit/utility.json").read_text())
    assert 0 <= utility["accuracy"] <= utility["parse_rate"] <= 1
    manifest = json.loads(Path("audit/manifest.json").read_text())
    assert manifest["drift"]["max_abs_logprob_nats"] < 1e-3
    assert manifest["survival"]["screen_pictures"] == 2 * 4 + 2, "the substituted code among them"
    assert manifest["survival"]["image_tokens_known"] is True
    metrics = json.loads(Path("audit/metrics.json").read_text())
    assert [m["value"] for m in metrics if m["metric"] == "parse_rate" and m["seed"] == 0] == [utility["parse_rate"]]
    page = Path("audit/report.html").read_text()
    assert "Answers in the asked format" in page
    assert "figures/screens.png" in Path("audit/report.md").read_text()
    code, _, err = call("canary", "audit", "--config", "audit.yaml", "--model", "builtin:toy", "--out", "text", *COMMON)
    assert code == 2
    assert "has no vision tower" in err
    code, out, err = call("canary", "restore", "--design", "design", "--out", "design/clean.jsonl")
    assert code == 0, err


def test_a_run(call: Call, folder: Path) -> None:
    """An arm trained and read in one command, its clean training beside it."""
    config = {
        "model": str(folder), "design": {**DESIGN, "delay": None}, "seeds": [0],
        "training": {"learning_rate": 1e-3, "max_tokens": 4096, "autocast": "off", "device": "cpu"},
        "probe": {"decoys": 99, "utility": 2, "probes": ["redacted"], "base": False},
        "load": {"device": "cpu", "dtype": "float32"}, "arms": {"redacted": {"cue": "redacted"}},
    }  # fmt: skip
    Path("run.yaml").write_text(yaml.safe_dump(config))
    code, out, err = call("canary", "run", "run.yaml", "--plan")
    assert code == 0, err
    assert "16 rows, 4 updates of 4; 2 canary rows" in out
    code, _, err = call("canary", "run", "run.yaml", "--out", "run")
    assert code == 0, err
    frame = pd.read_parquet("run/canaries.parquet")
    assert set(frame["model"]) == {"target", "clean"}
    config["arms"] = {"redacted": {}, "text": {"task": {"name": "support"}, "code": "####"}}
    Path("run.yaml").write_text(yaml.safe_dump(config))
    code, _, err = call("canary", "run", "run.yaml", "--out", "other")
    assert code == 2
    assert "give each a run of its own" in err


def test_the_preflight_looks_at_what_the_model_sees() -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the OCR library is not installed")
    model = vision_fakes.model("internvl")
    legible = {**DESIGN, "task": {"name": "screens", "screens": {**POOL, "must_read": True}}}
    design = build_design(DesignConfig.model_validate(legible))[0]
    eyes = eyes_of(model)
    with pytest.raises(DataError, match="after the model's resizing to 56x56 pixels; expected it to be legible"):
        survival(design, eyes, max_tokens=4096)
    sharp = Eyes(eyes.chat, eyes.encode, pixels)
    facts = survival(design, sharp, max_tokens=4096)
    assert facts["read"] == 5
    assert facts["unread"] == 0
    assert facts["smallest_letters_px"] >= 10
    smeared = Eyes(eyes.chat, eyes.encode, lambda shown: pixels(picture(pixels(shown).rotate(180))))
    with pytest.raises(DataError, match="pixels outside the region"):
        survival(design, smeared, max_tokens=4096)
