"""The settings of `experiments/vision/paper` against the paper's appendix C, without data, model or training."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from indelible.canaries.config import CanaryRunConfig
from indelible.canaries.outlook import _arm, focal_places, outlook, placed
from indelible.canaries.plan import clean_trial, plan_trials
from indelible.config import resolve
from indelible.errors import ConfigError, DataError, ModelError

PAPER = Path(__file__).parents[2] / "experiments" / "vision" / "paper"
FILES = sorted(path.stem for path in PAPER.glob("*.yaml"))
ARMS = {"dose": 48, "timing": 4, "population": 2, "encoded": 10, "transformed": 6, "grid": 26}
CANARY_ROWS = {
    "dose": {36 * 2**k for k in range(8)}, "timing": {144}, "population": {98, 98 + 336},
    "encoded": {144}, "transformed": {144}, "grid": {144},
}  # fmt: skip
CORPUS = {
    False: {"linux": 3_400, "macos": 3_300, "windows": 3_300},
    True: {"linux": 168, "macos": 433, "windows": 9_399},
}
FORMATS = {
    "qwen3-vl-4b": "qwen3-vl", "qwen2.5-vl-7b": "qwen2.5-vl", "internvl3-8b": "internvl3",
    "qwen2.5-vl-32b": "qwen2.5-vl-point",
}  # fmt: skip


def settings(name: str) -> CanaryRunConfig:
    return resolve(CanaryRunConfig, yaml.safe_load((PAPER / f"{name}.yaml").read_text()))[0]


def test_every_study_and_model_of_the_paper_has_its_file() -> None:
    assert {f"{study}-{model}" for study in ARMS for model in FORMATS if study != "grid"} | {"grid-qwen2.5-vl-7b"} == {
        *FILES
    }


@pytest.mark.parametrize("name", FILES)
def test_settings_are_those_of_appendix_c(name: str) -> None:
    study, model = name.split("-", 1)
    config = settings(name)
    trials = plan_trials(config)
    is_largest = model == "qwen2.5-vl-32b"
    assert config.model.split("/")[1].lower().startswith(model)
    assert config.seeds == (0, 1, 2)
    assert len(trials) == 3 * ARMS[study]
    n_canary_rows = set()
    for trial in trials:
        design, training, probe = trial.design, trial.training, trial.probe
        assert (design.rows, design.batch_size, design.heldout, design.controls) == (10_000, 32, 510 + 1_581, 10)
        rate = (5e-7, 16, 0.1) if is_largest else (2e-5, 10, 0.01)  # C-A2
        assert (training.learning_rate, training.warmup_steps, training.weight_decay) == rate
        assert (training.max_grad_norm, training.lora_rank, training.max_tokens) == (1.0, 0, 16_384)
        assert training.schedule == ("constant" if trial.condition.startswith("constant") else "cosine")
        assert (probe.decoys, probe.max_new_tokens, probe.utility, probe.base) == (19_999, 24, 2_091, True)  # C-B2
        screens = design.task.screens
        assert screens is not None
        assert (screens.trained, screens.controls, screens.reserve, screens.format) == (72, 10, 13, FORMATS[model])
        assert {Path(f.path).stem.split("_")[0]: f.rows for f in screens.rows_from} == CORPUS[is_largest]  # C-A1
        assert [f.kind for f in screens.utility_from] == ["osworld-g", "screenspot-pro"]
        if is_largest:
            assert screens.processed is not None
            assert (screens.processed.min_pixels, screens.processed.max_pixels) == (3_136, 12_845_056)  # C-A4
        if trial.seed == 0:
            n_canary_rows.add(sum(map(len, placed(design)[1].values())))
    assert n_canary_rows == CANARY_ROWS[study]
    assert len({clean_trial(trial).name for trial in trials}) == (6 if study == "timing" else 3), "C-A2"


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("timing")])
def test_arms_of_one_panel_and_dose_have_the_same_focal_places(name: str) -> None:
    places: dict[object, set[str]] = {}
    for trial in plan_trials(settings(name).model_copy(update={"seeds": (0,)})):
        key = trial.design.panel, trial.design.dose
        places.setdefault(key, set()).add(focal_places(trial.design))
    assert {len(same) for same in places.values()} == {1}


def test_the_plan_names_the_nine_groups_of_the_timing_study() -> None:
    trials = plan_trials(settings("timing-qwen2.5-vl-7b"))
    lines = _arm([trial for trial in trials if trial.condition == "cosine-a"])
    groups = [line for line in lines if "first in updates" in line]
    assert len(groups) == 9
    assert groups[0].strip() == (
        "8 at dose 2, final 157, 16 updates apart: first in updates 134 to 141, last in 150 to 157"
    )
    digests = lines[1].split("focal places ")[1].split(";")[0].split(", ")
    assert len({*digests}) == 3, "one a seed"


def test_studies_of_several_cues_tell_how_each_is_read() -> None:
    for trial in plan_trials(settings("encoded-qwen3-vl-4b")):  # C-D1: one instruction
        assert trial.design.explain == ("direct-fruit", "chained-fruit", "binary")
    for name in ("grid-qwen2.5-vl-7b", "transformed-qwen3-vl-4b"):  # VI-A, C-C6: each its own; copying for both ends
        for trial in plan_trials(settings(name)):
            cue = trial.design.cue
            assert trial.design.explain == ("visible" if cue == "redacted" else cue,)
            assert ("visible" in trial.probe.probes) == (cue in ("visible", "redacted"))


def test_a_plan_refuses_what_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "screens.json").write_text(
        '{"screens": [{"image": "gone.png", "elements": [], "source": [0, 0, 9, 9], "destination": "x"}]}'
    )
    for model, task, error, what in (
        ("builtin:toy", {}, ModelError, "no vision tower"),
        ("none", {"screens": {"trained": 2, "sizes": [[50, 30]]}}, ConfigError, "at least 400x300"),
        ("none", {"path": str(tmp_path)}, DataError, "gone.png"),
    ):
        design = {"task": {"name": "screens", **task}, "rows": 20, "batch_size": 4, "canaries": 2, "dose": 2}
        config = resolve(CanaryRunConfig, {"model": model, "design": design, "arms": {"a": {"cue": "visible"}}})[0]
        with pytest.raises(error, match=what) as caught:
            outlook(config)
        assert "\n" not in str(caught.value)
