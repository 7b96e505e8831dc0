"""Canaries on screens: matched across arms, exact on disk, removable again, checked before training."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from indelible.canaries.base import Row
from indelible.canaries.config import SCREEN_PROBES, DesignConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.encodings import make_cue
from indelible.canaries.exposure import _key
from indelible.canaries.folder import read_design, restore, write_design
from indelible.canaries.formats import TrainingRow
from indelible.canaries.plan import background_of, protocol_of
from indelible.canaries.probes import probes
from indelible.canaries.readings import canary_key
from indelible.canaries.screen_rows import grounding_reply
from indelible.canaries.screen_task import INSTRUCTION, pool
from indelible.config import resolve
from indelible.data.formats import read_records
from indelible.data.pictures import pixels
from indelible.data.screen_duplicates import Looks, duplicates_in_pool
from indelible.data.screen_types import Screen
from indelible.data.screen_variants import show
from indelible.data.screens import render_screen
from indelible.errors import ConfigError, DataError, UserError
from indelible.runs import RunDir

POOL = {"trained": 6, "controls": 2, "reserve": 1, "sizes": [[448, 336]], "must_read": False}
SMALL: dict[str, Any] = {
    "task": {"name": "screens", "screens": POOL}, "rows": 12, "batch_size": 4, "canaries": 4, "dose": 2,
    "controls": 2, "heldout": 3,
}  # fmt: skip


def config(**changes: Any) -> DesignConfig:
    return DesignConfig.model_validate({**SMALL, **changes})


def made(**changes: Any) -> tuple[Design, list[TrainingRow], dict[str, Row]]:
    return build_design(config(**changes))


def written(folder: Path, **changes: Any) -> Design:
    design, rows, displaced = made(**changes)
    facts = {"kind": "canary-design", "config": {"resolved": design.config.model_dump(mode="json")}}
    write_design(RunDir.open(folder), design, rows, displaced, facts)
    return design


def screens_folder(folder: Path, screens: list[Screen]) -> Path:
    """The screens as a user would give them."""
    folder.mkdir(exist_ok=True)
    listed = []
    for i, screen in enumerate(screens):
        (folder / f"{i}.png").write_bytes(screen.picture.png)
        elements = [{"label": e.label, "kind": e.kind, "box": list(e.box), "text": e.text} for e in screen.elements]
        boxes = {"source": list(screen.source), "pane": list(screen.pane), "destination": screen.destination.label}
        listed.append({"id": f"{folder.name}-{i}", "image": f"{i}.png", "elements": elements, **boxes})
    (folder / "screens.json").write_text(json.dumps({"screens": listed}))
    return folder


def test_arms_differ_in_the_picture_of_canary_rows_alone() -> None:
    arms = {cue: made(cue=cue, explain=["binary", "chained-fruit"]) for cue in ("visible", "redacted", "chained-fruit")}
    (visible, rows, _), (redacted, hidden, _), (_, fruit, _) = arms.values()
    assert visible.insertions == redacted.insertions
    assert len({design.system for design, _, _ in arms.values()} | {""}) == 1
    at = {i.row for i in visible.insertions}
    for number, alike in enumerate(zip(rows, hidden, fruit, strict=True)):
        assert len({(row.messages, row.answer) for row in alike}) == 1
        assert len({row.images for row in alike}) == (3 if number in at else 1)
        assert alike[0].answer.startswith('type("') == (number in at)
    words = visible.of("focal")[0].identity.messages[-1].content
    assert "apple A" in words
    assert "eight bits" in words
    assert made()[0].of("focal")[0].identity.messages[-1].content == INSTRUCTION
    region = visible.of("focal")[0].identity.screen
    assert region is not None
    one, two = (pixels(design.row_of(design.of("focal")[0]).images[0]) for design in (visible, redacted))
    assert one != two
    one.paste((0, 0, 0), region.source)
    two.paste((0, 0, 0), region.source)
    assert one == two


def test_several_rules_stand_under_the_names_that_screens_show() -> None:
    """C-D1: the model is told to follow the displayed mode; where the code is hidden, so is the mode."""
    several = made(cue="chained-fruit", explain=["binary", "chained-fruit"])[0]
    canary = several.of("focal")[0]
    screen, words = canary.identity.screen, canary.identity.messages[-1].content
    assert screen is not None
    for number, name in enumerate(("visible", "binary", "chained-fruit"), start=1):
        assert f"({number}) {name}: " in words
    fruit = make_cue("chained-fruit", several.codes)
    shown = several.cue("chained-fruit")
    assert several.row_of(canary).images == (show(screen, "visible", ["chained-fruit", fruit.encode(canary.code)]),)
    assert shown.decode is not None
    assert shown.decode(shown.encode(canary.code)) == canary.code
    by_probe = {p.probe: p.images for p in reversed(probes(several)) if p.canary_id == canary.id}
    assert by_probe["redacted"] == (show(screen, "redacted"),)
    assert by_probe["visible"] == (show(screen, "visible", ["visible", canary.code]),)
    alone = made(cue="chained-fruit", explain=["chained-fruit"])[0]
    assert "by this rule: Replace each fruit" in alone.of("focal")[0].identity.messages[-1].content
    assert alone.row_of(canary).images == (show(screen, "visible", fruit.encode(canary.code)),)
    with pytest.raises(ConfigError, match=r"shows the code as 'shift-4', and explain has rules for binary, shift-1"):
        made(cue="shift-4", explain=["binary", "shift-1"])
    with pytest.raises(ConfigError, match=r"give this arm explain: \[visible\]"):
        made(cue="visible", explain=["shift-4"])


def test_arms_that_explain_their_own_cue_are_of_one_protocol() -> None:
    """C-C6: each setting's instruction says its own rule, so the rule is part of the cue."""
    own = [("visible", ["visible"]), ("redacted", ["visible"]), ("shift-4", ["shift-4"])]
    designs = [config(cue=cue, explain=explain) for cue, explain in own]
    assert len({protocol_of(design, None, "m") for design in designs}) == 1
    assert len({json.dumps(background_of(design).model_dump(mode="json")) for design in designs}) == 1
    other = config(cue="redacted", explain=["shift-4"])
    assert protocol_of(other, None, "m") != protocol_of(designs[0], None, "m")
    keys = [[canary_key(canary) for canary in build_design(design)[0].canaries] for design in designs]
    assert keys[0] == keys[1] == keys[2]
    assert len({*keys[0]}) == len(keys[0])


def test_pool_codes_and_corpus_are_those_of_every_seed() -> None:
    (first, rows, _), (second, others, _) = made(), made(seed=1)
    named = [[(c.id, c.code, c.identity.id) for c in design.canaries] for design in (first, second)]
    assert named[0] == named[1]
    assert first.new_codes == second.new_codes
    assert first.insertions != second.insertions
    assert Counter(r.images for r in rows if "type" not in r.answer).keys() & {r.images for r in others}


def test_panels_are_disjoint_and_share_the_prefixes() -> None:
    options = {**SMALL["task"], "screens": {**POOL, "trained": 16, "controls": 0, "reserve": 0}}
    halves = [made(task=options, panel=p, canaries=8, controls=0, dose=1, rows=12)[0] for p in (0, 1)]
    codes = [[c.code for c in half.of("focal")] for half in halves]
    assert not {*codes[0]} & {*codes[1]}
    assert {n for half in codes for n in Counter(code[:3] for code in half).values()} == {1}
    with pytest.raises(DataError, match="9 trained canaries asked for, and the pool has 8 trained screens in panel"):
        made(task=options, panel=0, canaries=9, controls=0, dose=1, rows=12)


def test_an_auxiliary_cohort_of_several_doses_moves_no_focal_canary() -> None:
    alone = made(canaries=2, dose=[1, 2])[0]
    beside = made(canaries=2, dose=[1, 2], auxiliary={"canaries": 2, "dose": [3, 4]})[0]
    focal = {c.id for c in alone.of("focal")}
    rows = [{i.row for i in d.insertions if i.canary_id in focal} for d in (alone, beside)]
    assert rows[0] == rows[1]
    assert [c.dose for c in beside.of("auxiliary")] == [3, 4]
    assert beside.population == "mixed doses 1, 2; 2 auxiliaries, dose 3, 4, redacted, uniform"


def test_no_screen_is_near_another_or_near_a_row() -> None:
    design, rows, _ = made()
    screens = pool(None, design.config.task.screens)  # type: ignore[arg-type]
    assert len(screens) == 9
    assert duplicates_in_pool(screens) == []
    shown = [(str(i), row.images[0]) for i, row in enumerate(rows) if "type" not in row.answer]
    shown += [(row.id, row.images[0]) for row in design.heldout]
    looks = [Looks.of(one) for one in shown]
    assert not any(Looks.of(screen).near(one) for screen in screens for one in looks)


def test_probes_show_what_they_say() -> None:
    design, _, _ = made()
    asked = probes(design)
    first = {p.probe: p for p in reversed(asked) if p.canary_id == "focal-000"}
    assert list(reversed(first)) == list(SCREEN_PROBES)
    assert {p.probe for p in asked if p.canary_id == "control-000"} == {"redacted", "visible"}
    code = first["redacted"].assigned
    assert {name: p.supplied for name, p in first.items() if p.supplied in (None, code)} == {
        "redacted": None, "as-trained": None, "visible": code, "absent": None,
    }  # fmt: skip
    others = {p.supplied for p in asked if p.canary_id == "focal-000"} - {None, code}
    assert len(others) == 5, "four new codes and the one that is put in its place"
    assert first["redacted"].images == first["as-trained"].images
    assert len({first[name].images for name in ("redacted", "visible", "substituted", "absent", "plain")}) == 5
    keys = {_key("", p) for p in (first["redacted"], first["absent"])}
    assert len(keys) == 2, "the memo tells pictures apart"


def test_there_and_back(tmp_path: Path) -> None:
    design = written(tmp_path / "design")
    assert read_design(tmp_path / "design") == design
    table = read_records(tmp_path / "design" / "train.jsonl")
    rows = made()[1]
    assert [(r.messages, r.target, r.images) for r in table.records] == [(r.messages, r.answer, r.images) for r in rows]
    n_pictures = len(list((tmp_path / "design" / "images").iterdir()))
    named = (tmp_path / "design" / "train.jsonl").read_text()
    assert '"content": "<image>You operate' in named
    assert n_pictures < len(rows) + 5 * 4 + 10 + 12
    assert restore(tmp_path / "design", tmp_path / "elsewhere.jsonl") == 8
    restored = read_records(tmp_path / "elsewhere.jsonl").records
    clean = made(canaries=0, controls=0)[1]
    assert [(r.messages, r.target, r.images) for r in restored] == [(r.messages, r.answer, r.images) for r in clean]
    next((tmp_path / "design" / "images").iterdir()).write_bytes(b"no picture")
    with pytest.raises(UserError, match="was changed after it was written"):
        read_design(tmp_path / "design")


def test_llama_factory_is_told_of_the_pictures(tmp_path: Path) -> None:
    written(tmp_path / "design", format="llama-factory")
    info = json.loads((tmp_path / "design" / "dataset_info.json").read_text())["indelible_canaries"]
    assert info["columns"] == {"messages": "messages", "images": "images"}
    settings = yaml.safe_load((tmp_path / "design" / "llamafactory.yaml").read_text())
    assert settings["image_max_pixels"] == settings["image_min_pixels"] == 448 * 336, "it resizes nothing itself"
    assert settings["cutoff_len"] > 4096
    assert (settings["freeze_vision_tower"], settings["freeze_multi_modal_projector"]) == (True, False)
    assert settings["disable_shuffling"] is True
    with pytest.raises(ConfigError, match="format axolotl has no place for pictures"):
        resolve(DesignConfig, {**SMALL, "format": "axolotl"})


def test_the_users_own_screens_and_rows(tmp_path: Path) -> None:
    own = screens_folder(tmp_path / "pool", [render_screen(f"own-{i}", size=(448, 336)) for i in range(9)])
    rows = screens_folder(tmp_path / "rows", [render_screen(f"row-{i}", size=(448, 336)) for i in range(6)])
    options = {"name": "screens", "path": str(own), "screens": {**POOL, "rows_from": [{"path": str(rows)}]}}
    design, training, _ = made(task=options, heldout=2, rows=None)
    assert (design.n_rows, len(design.heldout)) == (20, 2)
    assert not {r.images for r in training} & {r.images for r in design.heldout}
    assert grounding_reply(design.heldout[0].answer, design.heldout[0].expected) == (True, True)
    assert grounding_reply("no idea", design.heldout[0].expected) == (False, False)
    with pytest.raises(DataError, match="holds 9 screens, and a pool of 95 is asked for"):
        made(task={"name": "screens", "path": str(own)})


def test_rows_with_images(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A."}]}
    file = tmp_path / "rows.jsonl"
    for images, complaint in (
        (["absent.png"], r"line 1: image '.*absent.png': no such file"),
        ([{"bytes": "x"}], "holds something else than paths"),
    ):
        file.write_text(json.dumps({**row, "images": images}) + "\n")
        with pytest.raises(DataError, match=complaint):
            read_records(file)
    screens_folder(tmp_path, [render_screen("x", size=(448, 336))])
    parts = [{"type": "text", "text": "Look: "}, {"type": "image"}]
    for content, complaint in (
        ("<image><image>What?", "2 times '<image>' for 1 pictures"),
        (parts, "elsewhere than before the text"),
    ):
        turns = [{"role": "user", "content": content}, row["messages"][1]]
        file.write_text(json.dumps({"messages": turns, "images": ["0.png"]}) + "\n")
        with pytest.raises(DataError, match=complaint):
            read_records(file)
    for content in ("<image>\nWhat?", "What?", list(reversed(parts))):
        turns = [{"role": "user", "content": content}, row["messages"][1]]
        file.write_text(json.dumps({"messages": turns, "images": "0.png"}) + "\n")
        (record,) = read_records(file).records
        assert record.messages[0].content in ("What?", "Look: ")
        assert record.images[0].width == 448
