"""The studies that come with the package: they plan, their rows suffice, and they show what their records allow."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from indelible.checked import check
from indelible.data.formats import Table
from indelible.sweep.bench import Bench
from indelible.sweep.config import DataPlan, SweepConfig
from indelible.sweep.data import Rows
from indelible.sweep.plan import audit_config, plan_cells
from indelible.sweep.run import read_study

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STUDIES = sorted((EXPERIMENTS / "icp_mia").glob("*.yaml"))
OWN = {"calibration"}
"""Studies of ours, which repeat nothing of the paper."""

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Where the studies' data are, if they are at hand; the studies call it `data`."""


def test_there_is_a_study_for_every_table_and_figure() -> None:
    wanted = {
        "comparison", "comparison-summaries", "masking", "mask-rate", "generation", "pool", "peft", "k", "privacy",
        "label-only", "residual", "order", "schedule", "gap", "fidelity",
    }  # fmt: skip
    assert {path.stem for path in STUDIES} == wanted | OWN
    papers = {path.stem: yaml.safe_load(path.read_text()).get("paper") for path in STUDIES}
    assert all((papers[name] is None) == (name in OWN) for name in papers)
    said = " ".join(filter(None, papers.values()))
    assert {int(n) for n in re.findall(r"\d+", said)} == set(range(1, 14))  # figures
    assert {*re.findall(r"\b[IV]+\b", said)} == {"I", "II", "III", "IV", "V", "VI", "VII", "VIII"}  # tables


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_plan_and_their_splits_fit(path: Path, tmp_path: Path) -> None:
    config, _ = read_study(str(path), {})
    cells = plan_cells(config)
    assert len(cells) == len(config.seeds) * math.prod(len(axis.values) for axis in config.axes.values())
    made = tmp_path / "data.jsonl"
    text = "".join(
        json.dumps({"prompt": f"Question {i}: what is {i * 37 % 101}?", "response": f"It is {i} of {i * 7919 % 1009}."})
        + "\n"
        for i in range(900)
    )
    made.write_text(text)
    files = {name: {"source": str(made), "rows": plan.rows} for name, plan in config.data.files.items()}
    rows = Rows(tmp_path / "made")
    for cell in cells:
        data = check(DataPlan, {**cell.data.model_dump(mode="json"), "files": files})
        for name in (*data.splits, *data.mixes):
            got = rows.get(data, cell.seed, name)
            assert len(got.records) == data.splits[data.mixes[name].of if name in data.mixes else name]


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    """Files as they were read, for all studies."""
    return {}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_data_have_the_rows_that_studies_ask_for(path: Path, tmp_path: Path, tables: dict[str, Table]) -> None:
    config, _ = read_study(str(path), {"seeds": [0]}, str(DATA))
    if not all(Path(plan.source).exists() for plan in config.data.files.values()):
        pytest.skip("the studies' data are not at hand")
    cells = plan_cells(config)
    ready, lost = Bench(config, tmp_path, Rows(tmp_path / "data", tables)).prepare(cells)
    assert [one.reason for one in lost] == []
    assert len(ready) == len(cells)


def rates(config: SweepConfig) -> set[float]:
    """False-positive rates of the TPRs that a study shows or compares."""
    shown = [m for part in (*config.show.tables, *config.show.figures) for m in part.metrics]
    named = [*shown, *(t.metric for t in config.paper_values), *(e.metric for e in config.expect)]
    return {float(m.removeprefix("tpr@")) for m in named if m.startswith("tpr@")}


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_rates_that_are_shown_exist_on_the_records_that_are_audited(path: Path) -> None:
    config, _ = read_study(str(path), {})
    smallest = min(rates(config), default=1.0)
    for cell in plan_cells(config):
        if cell.measure is not None:
            assert smallest == 1.0
            continue
        audit, splits = audit_config(cell), cell.data.splits
        sets = {key: cell.data.mixes[name].of if name in cell.data.mixes else name
                for key, name in ((key, str(cell.audit[key])) for key in ("members", "nonmembers"))}  # fmt: skip
        others = splits[sets["nonmembers"]]
        if cell.audit.get("pool") is None:
            others -= round(0.1 * others)  # the audit sets these aside as its pool
        least = min(splits[sets["members"]], others, audit.max_records or 10**9)
        least -= 7 if "con-recall" in audit.attacks else 0
        # a few more than are needed are drawn: near duplicates of members are left out
        assert least * smallest >= 1 - 1e-9, f"{least} records a side have no rate of {smallest}"
        assert others * smallest >= 1.05 or smallest == 1.0


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_one_seed_is_said_and_scores_and_their_calibrated_forms_have_one_setting(path: Path) -> None:
    config, _ = read_study(str(path), {})
    head = path.read_text().split("name:")[0].replace("\n# ", " ")
    assert len(config.seeds) > 1 or "One seed" in head
    assert len(config.seeds) != 2 or "Two seeds" in head
    for cell in plan_cells(config):
        settings = cell.audit.get("settings", {})
        for name in ("icp-sp", "icp-ref"):
            if f"{name}-cal" in cell.audit.get("attacks", ()):
                assert settings.get(f"{name}-cal") == settings.get(name)
        if "icp-sp-gen" in cell.audit.get("attacks", ()):
            assert settings["icp-sp-gen"]["probes"] == settings["icp-sp"]["probes"]
            assert settings["icp-sp-gen"]["k"] == settings["icp-sp"]["k"]


# ----------------------------------------------------------------------------------------- calibration, measured


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """experiments/combined_scores.py."""
    spec = importlib.util.spec_from_file_location("combined_scores", EXPERIMENTS / "combined_scores.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake_run(settings: dict[str, dict[str, Any]]) -> Any:
    return SimpleNamespace(manifest={"attacks": [{"name": name, "settings": one} for name, one in settings.items()]})


def test_scores_of_other_settings_are_not_compared(script: ModuleType) -> None:
    both = {"k": 3, "rate": 0.5, "probes": "best"}
    assert script.mismatch(fake_run({"icp-sp": both, "icp-sp-cal": both}), "icp-sp-cal", "icp-sp") is None
    other = {**both, "probes": "mean", "k": 5}
    said = script.mismatch(fake_run({"icp-sp": both, "icp-sp-cal": other}), "icp-sp-cal", "icp-sp")
    assert said == "settings differ: k 5 against 3, probes mean against best"


def test_a_part_of_the_records_is_not_compared_with_all(script: ModuleType) -> None:
    assert script.too_few("base", 40, 200) == "the base was asked about 40 of 200 records: leave out --control-records"
    assert script.too_few("base", 200, 200) is None
