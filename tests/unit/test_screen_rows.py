"""The user's grounding rows: which are trained on, which measure utility, what is left out and said of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from indelible.canaries.config import DesignConfig
from indelible.canaries.design import build_design
from indelible.canaries.readings import Checkpoint, measure_utility
from indelible.canaries.screen_config import GroundingFiles, ScreenOptions
from indelible.canaries.screen_rows import Screenshots, training_examples, utility_examples
from indelible.canaries.screen_task import ScreenTask, pool
from indelible.data.records import Query
from indelible.data.screen_duplicates import Looks
from indelible.errors import DataError
from indelible.report.canary_tables import utility
from indelible.stats.utility_rows import utility_rows

SHADES = [(200, 30 * i % 256, 90 * i % 256) for i in range(12)]
POOL = {"trained": 2, "controls": 1, "reserve": 0, "sizes": [[448, 336]], "must_read": False}


def osworld(folder: Path, n_images: int, n_rows: int, *, refusals: int = 0) -> Path:
    """A folder in the layout of OSWorld-G: `n_rows` targets on each screenshot, all of one description."""
    (folder / "images").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for i in range(n_images):
        Image.new("RGB", (200, 100), SHADES[i]).save(folder / "images" / f"{i}.png")
        for k in range(n_rows + refusals):
            kind = "bbox" if k < n_rows else "refusal"
            row = {"id": f"{folder.name}-{i}-{k}", "image_path": f"{i}.png", "image_size": [200, 100]}
            rows.append({**row, "instruction": "Click", "box_type": kind, "box_coordinates": [10 * k, 10, 10, 10]})
    (folder / "OSWorld-G_refined.json").write_text(json.dumps(rows))
    return folder


def screenspot(folder: Path, n: int) -> Path:
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    rows = []
    for i in range(n):
        Image.new("RGB", (160, 90), (i, 250 - 20 * i, 10)).save(folder / "images" / f"s{i}.png")
        row = {"id": f"s{i}", "img_filename": f"s{i}.png", "img_size": [160, 90], "bbox": [1, 2, 30, 40]}
        rows.append({**row, "instruction": f"Press {i}", "group": "Office"})
    (folder / "annotations" / "word.json").write_text(json.dumps(rows))
    return folder


def atlas(folder: Path, name: str, images: list[str], n_rows: int) -> dict[str, Any]:
    """Settings of an OS-Atlas file of `n_rows` targets on each of some images of a folder."""
    rows = [
        {"img_filename": image, "instruction": f"{image} {k}", "bbox": [0.1 * k, 0.1, 0.1 * k + 0.05, 0.5]}
        for image in images
        for k in range(n_rows)
    ]
    (folder / f"{name}.json").write_text(json.dumps(rows))
    return {"kind": "os-atlas", "path": str(folder / f"{name}.json"), "images": str(folder)}


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = tmp_path / "shots"
    folder.mkdir()
    for i, shade in enumerate(SHADES):
        Image.new("RGB", (200, 100), shade).save(folder / f"{i}.png")
    return folder


def test_every_row_of_a_benchmark_counts(tmp_path: Path) -> None:
    """C-A4 uses all 510 and all 1,581: no cap a screenshot, no description dropped."""
    files = [GroundingFiles(kind="osworld-g", path=str(osworld(tmp_path / "g", 2, 10, refusals=1)))]
    found = utility_examples(files, Screenshots([]), 0, 100)
    assert len({example.id for example in found.examples}) == 20
    assert found.left_out == {"refusal": 2}
    assert [e.id for e in utility_examples(files, Screenshots([]), 0, 5).examples] == [e.id for e in found.examples[:5]]


def test_fewer_utility_rows_than_there_are_come_from_every_set(tmp_path: Path) -> None:
    files = [
        GroundingFiles(kind="osworld-g", path=str(osworld(tmp_path / "g", 3, 4))),
        GroundingFiles(kind="screenspot-pro", path=str(screenspot(tmp_path / "s", 6))),
    ]
    few = utility_examples(files, Screenshots([]), 0, 8).examples
    assert Counter(e.source for e in few) == {"osworld-g": 4, "screenspot-pro": 4}
    everything = utility_examples(files, Screenshots([]), 0, 99).examples
    assert Counter(e.source for e in everything) == {"osworld-g": 12, "screenspot-pro": 6}


def test_rows_are_cut_after_near_duplicates_are_gone(shots: Path) -> None:
    """A file that has enough rows without them is enough."""
    canaries = pool(None, ScreenOptions.model_validate(POOL))
    (shots / "twin.png").write_bytes(canaries[0].picture.png)
    names = ["twin.png", *(f"{i}.png" for i in range(3))]
    looks = [Looks.of(screen) for screen in canaries]
    for seed in range(4):  # the twin is drawn first, last and between
        files = [GroundingFiles(**atlas(shots, "rows", names, 6), rows=12)]
        found = training_examples(files, Screenshots(looks), seed)
        assert len(found.examples) == 12
        assert {*Counter(e.image for e in found.examples).values()} == {4}
        assert found.left_out.get("on a screenshot like a canary's", 0) in (0, 4)
    with pytest.raises(DataError, match=r"13 grounding rows asked for, 12 usable \(at most 4 a screenshot; 4 on a"):
        training_examples([GroundingFiles(**atlas(shots, "rows", names, 6), rows=13)], Screenshots(looks), 0)


def test_a_screenshot_is_read_once_and_is_on_one_side(shots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files that share screenshots: one picture in memory, and none both trained on and held out."""
    files = [atlas(shots, "one", [f"{i}.png" for i in range(12)], 2), atlas(shots, "two", ["3.png", "7.png"], 3)]
    task = {"name": "screens", "screens": {**POOL, "rows_from": files}}
    config = DesignConfig.model_validate(
        {"task": task, "rows": 24, "batch_size": 4, "canaries": 1, "dose": 1, "controls": 0, "heldout": 3}
    )
    design, rows, _ = build_design(config)
    trained = [row.images[0] for row in rows if not row.answer.startswith("type(")]
    assert not {*trained} & {row.images[0] for row in design.heldout}
    assert len({id(image.png) for image in trained}) == len({*trained})
    assert capsys.readouterr().err == ""


def test_what_is_left_out_is_said_and_kept(shots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = atlas(shots, "some", [f"{i}.png" for i in range(6)] + ["gone.png"], 4)
    options = ScreenOptions.model_validate({**POOL, "rows_from": [files]})
    task = ScreenTask(None, options, "Type it.", 10)
    assert task.limits(0) == (20, 4)
    assert task.left_out == {"image missing or unreadable": 4}
    said = capsys.readouterr().err
    assert "rows left out: 4 image missing or unreadable" in said
    assert "10 held-out rows asked for, 4 to be had" in said
    assert said.count("\n") == 2
    config = {"task": {"name": "screens", "screens": options.model_dump(mode="json")}, "canaries": 1, "dose": 1}
    design = build_design(DesignConfig.model_validate({**config, "controls": 0, "heldout": 10, "batch_size": 4}))[0]
    assert design.left_out == task.left_out


def test_utility_is_told_apart_by_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's figures are by benchmark (C-C1)."""
    sets = [
        {"kind": "osworld-g", "path": str(osworld(tmp_path / "g", 3, 1))},
        {"kind": "screenspot-pro", "path": str(screenspot(tmp_path / "s", 2))},
    ]
    task = {"name": "screens", "screens": {**POOL, "format": "qwen2.5-vl", "utility_from": sets}}
    config = {"task": task, "rows": 8, "batch_size": 4, "canaries": 1, "dose": 1, "controls": 0, "heldout": 5}
    design = build_design(DesignConfig.model_validate(config))[0]

    class Answering:
        """Finds what is on screenshots of OSWorld-G alone."""

        def generate(self, queries: list[Query], max_new_tokens: int) -> list[str]:
            return ["[1,11,9,19]" if query.images[0].width == 200 else "[1,1]" for query in queries]

    class Scored(dict[Query, Any]):
        found: ClassVar[dict[Query, Any]] = {}
        failed = ()

        def __missing__(self, query: Query) -> Any:
            return SimpleNamespace(logprobs=np.array([-1.0 if query.images[0].width == 200 else -3.0]))

    monkeypatch.setattr("indelible.canaries.readings.answer", lambda *_, **__: (Scored(), None))
    rows = []
    for model in ("target", "base"):
        checkpoint = Checkpoint("arm", model, 2 * (model == "target"), 2, "constant", "p")
        asked: Any = Answering()
        rows.append(measure_utility(asked, design, design.heldout, checkpoint, level=0.95)[0])
    sources: Any = rows[0]["sources"]
    assert {name: (one["n"], one["accuracy"], one["parse_rate"]) for name, one in sources.items()} == {
        "osworld-g": (3, 1.0, 1.0), "screenspot-pro": (2, 0.0, 0.0),
    }  # fmt: skip
    assert rows[0]["accuracy"] == 0.6
    found = {row["metric"]: row for row in utility_rows(rows) if row["model"] == "target" and row["seed"] == 0}
    assert (found["accuracy (osworld-g)"]["value"], found["accuracy (osworld-g)"]["n"]) == (1.0, 3)
    assert found["accuracy_minus_base (screenspot-pro)"]["value"] == 0.0
    assert found["accuracy"]["value"] == 0.6
    assert {name: one["heldout_loss"] for name, one in sources.items()} == {"osworld-g": 1.0, "screenspot-pro": 3.0}
    facts: Any = SimpleNamespace(last_utility=rows, on_screens=True, of_model=lambda condition, name: found.get(name))
    assert [line.head for line in utility(facts)] == [
        "arm, with canaries", "arm, with canaries, osworld-g", "arm, with canaries, screenspot-pro",
        "arm, before training", "arm, before training, osworld-g", "arm, before training, screenspot-pro",
    ]  # fmt: skip
