"""Grounding rows, the score of replies, and the files of published sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from indelible.data.grounding import (
    GROUNDING_FORMATS,
    GroundingExample,
    Rectangle,
    bounds,
    grounding_format,
    grounding_row,
    screen_examples,
)
from indelible.data.grounding_files import read_os_atlas, read_osworld_g, read_screenspot_pro
from indelible.data.grounding_scores import answered_point, in_polygon, is_hit
from indelible.data.pictures import picture
from indelible.data.screens import render_screen
from indelible.errors import ConfigError, DataError

SIZE = (800, 500)
IMAGE = picture(Image.new("RGB", SIZE, "white"))


def example(target: object = Rectangle(681, 111, 782, 151), **changes: object) -> GroundingExample:
    fields = {"id": "a", "image": IMAGE, "size": SIZE, "element": "More details tab", "target": target, **changes}
    return GroundingExample(**fields)  # type: ignore[arg-type]


def test_answers_are_written_in_each_familys_numbers() -> None:
    answers = {
        "qwen2.5-vl": "[681,111,782,151]",
        "qwen2.5-vl-point": "[366,131]",
        "qwen3-vl": "[851,222,978,302]",
        "internvl3": "<ref>More details tab</ref><box>[[851,222,978,302]]</box>",
        "point-per-mille": "[914,262]",
    }
    assert answers.keys() == GROUNDING_FORMATS.keys()
    for name, answer in answers.items():
        row = grounding_row(example(), grounding_format(name), processed=(400, 500))
        assert row.answer == answer
        assert "More details tab" in row.instruction
        assert row.picture == IMAGE


def test_halves_are_rounded_to_even() -> None:
    row = grounding_row(example(Rectangle(0.4, 1.25, 1.2, 250)), grounding_format("qwen3-vl"))
    assert row.answer == "[0,2,2,500]"


@given(
    st.sampled_from(sorted(GROUNDING_FORMATS)),
    *(st.integers(0, 700), st.integers(0, 400), st.integers(20, 100), st.integers(20, 100)),
)
def test_the_right_answer_hits_in_every_format(name: str, left: int, top: int, width: int, height: int) -> None:
    wanted = example(Rectangle(left, top, left + width, top + height))
    form = grounding_format(name)
    row = grounding_row(wanted, form, processed=(420, 260))
    point = answered_point(row.answer, form, SIZE, (420, 260))
    assert point is not None
    assert is_hit(point, wanted.target)


@pytest.mark.parametrize(
    ("name", "reply", "point"),
    [
        ("qwen2.5-vl", "[10,20,30,40]", (20, 30)),
        ("qwen2.5-vl", "The element is at [10, 20, 30.0, 40].", (20, 30)),
        ("qwen2.5-vl", '[{"bbox_2d": [10, 20, 30, 40], "label": "x"}]', (20, 30)),
        ("qwen2.5-vl", "(10,20),(30,40)", (20, 30)),
        ("qwen2.5-vl", "[10,20]", None),
        ("qwen2.5-vl", "10,20,30,40", None),
        ("qwen2.5-vl", "", None),
        ("qwen2.5-vl-point", "[10, 20]", (20, 20)),
        ("qwen2.5-vl-point", "(-3,20)", (-6, 20)),
        ("qwen2.5-vl-point", "[10,20,30,40]", None),
        ("qwen3-vl", "[0,0,1000,1000]", (400, 250)),
        ("internvl3", "<box>[[500, 500, 500, 500]]</box>", (400, 250)),
        ("point-per-mille", "click [500, 100]", (400, 50)),
    ],
)
def test_replies_are_read_as_points_of_the_original_image(
    name: str, reply: str, point: tuple[float, float] | None
) -> None:
    assert answered_point(reply, grounding_format(name), SIZE, processed=(400, 500)) == point


def test_polygons_count_their_inside_and_edge() -> None:
    hook = ((0, 0), (10, 0), (10, 10), (6, 10), (6, 4), (0, 4))
    inside = [(5, 2), (8, 9), (0, 0), (10, 5), (6, 7), (3, 4)]
    outside = [(3, 6), (11, 5), (-1, 2), (5, 10), (6, 11)]
    assert all(in_polygon(point, hook) for point in inside)
    assert not any(in_polygon(point, hook) for point in outside)
    assert bounds(hook) == Rectangle(0, 0, 10, 10)
    assert grounding_row(example(hook), grounding_format("qwen2.5-vl")).answer == "[0,0,10,10]"


def test_a_format_that_needs_the_processed_size_says_so() -> None:
    with pytest.raises(ConfigError, match="its size is missing"):
        grounding_row(example(), grounding_format("qwen2.5-vl-point"))
    with pytest.raises(ConfigError, match="Did you mean 'qwen3-vl'"):
        grounding_format("qwen3vl")


def test_rendered_screens_give_background_rows() -> None:
    screens = [render_screen(i, size=(448, 336)) for i in range(2)]
    examples = screen_examples(screens, per_screen=3, seed=1)
    assert examples == screen_examples(screens, per_screen=3, seed=1)
    assert len(examples) == 6 == len({e.id for e in examples})
    for e, screen in zip(examples[::3], screens, strict=True):
        assert e.element in {element.label for element in screen.elements}
        assert e.picture() == screen.picture


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "app").mkdir(parents=True)
    Image.new("RGB", (200, 100)).save(folder / "a.png")
    Image.new("RGB", (400, 200)).save(folder / "app" / "b.png")
    (folder / "bad.png").write_bytes(b"no image")
    return folder


def test_os_atlas_files_are_read_and_bad_rows_counted(images: Path) -> None:
    path = images.parent / "windows_splited.json"
    good = {"img_filename": "a.png", "instruction": "Start", "bbox": [0.1, 0.2, 0.5, 0.4], "data_type": "Button"}
    wrong = [
        {"img_filename": "c.png"},
        {"img_filename": "bad.png"},
        {"instruction": " "},
        {"bbox": [0.5, 0.2, 0.1, 0.4]},
    ]
    path.write_text(json.dumps([good, *({**good, **change} for change in wrong)]))
    found = read_os_atlas(path, images, group="windows")
    (only,) = found.examples
    assert only.target == pytest.approx((20, 20, 100, 40))
    assert (only.size, only.element, only.group) == ((200, 100), "Start", "windows")
    assert only.picture().width == 200
    assert found.left_out == {
        "image missing or unreadable": 2,
        "blank instruction": 1,
        "box empty or outside the image": 1,
    }
    path.write_text(json.dumps([{**good, "img_filename": "c.png"}]))
    with pytest.raises(DataError, match=r"no usable row \(1 image missing or unreadable\)"):
        read_os_atlas(path, images)
    path.write_text(json.dumps([{**good, "bbox": "here"}]))
    with pytest.raises(DataError, match="'bbox' is \"here\"; expected a list of 4 numbers"):
        read_os_atlas(path, images)


def osworld(kind: str, numbers: list[float], **changes: object) -> dict[str, object]:
    row = {"id": f"x-{kind}", "image_path": "a.png", "image_size": [200, 100], "instruction": "Click it"}
    return {**row, "box_type": kind, "box_coordinates": numbers, "GUI_types": ["Button"], **changes}


def test_osworld_g_keeps_boxes_and_polygons_and_leaves_refusals_out(images: Path) -> None:
    path = images.parent / "OSWorld-G_refined.json"
    rows = [
        osworld("bbox", [10, 20, 30, 40]),
        osworld("polygon", [0, 0, 50, 0, 50, 50]),
        osworld("refusal", [-1, -1, -1, -1]),
    ]
    path.write_text(json.dumps(rows))
    found = read_osworld_g(images.parent)
    assert [e.target for e in found.examples] == [(10, 20, 40, 60), ((0, 0), (50, 0), (50, 50))]
    assert found.left_out == {"refusal": 1}
    for row, message in (
        (osworld("circle", [1, 2, 3]), "expected bbox, polygon or refusal"),
        (osworld("polygon", [1, 2, 3]), "a polygon of 3 numbers"),
        (osworld("bbox", [500, 20, 30, 40]), "outside the image of 200x100"),
        (osworld("bbox", [1, 2, 3, 4], image_path="c.png"), r"c\.png': no such file"),
        (osworld("bbox", [1, 2, 3, 4], image_path="bad.png"), r"bad\.png': not readable"),
        (osworld("bbox", [1, 2, 3, 4], image_size=[0, 5]), "expected a width and a height"),
    ):
        path.write_text(json.dumps([row]))
        with pytest.raises(DataError, match=message) as caught:
            read_osworld_g(images.parent)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="no such file; expected a list of OSWorld-G"):
        read_osworld_g(images.parent, refined=False)


def test_screenspot_pro_reads_all_files_and_other_sizes(images: Path) -> None:
    with pytest.raises(DataError, match=r"no annotations/\*\.json"):
        read_screenspot_pro(images.parent)
    folder = images.parent / "annotations"
    folder.mkdir()
    row = {
        "id": "w_0",
        "img_filename": "app/b.png",
        "bbox": [10, 20, 30, 40],
        "instruction": "open the menu",
        "application": "word",
        "platform": "windows",
        "img_size": [800, 400],
        "ui_type": "icon",
        "group": "Office",
    }
    (folder / "word_windows.json").write_text(json.dumps([row]))
    (folder / "blender_windows.json").write_text(json.dumps([{**row, "id": "b_0", "img_size": [400, 200]}]))
    found = read_screenspot_pro(images.parent).examples
    assert [(e.id, e.target) for e in found] == [("b_0", (10, 20, 30, 40)), ("w_0", (5, 10, 15, 20))]
    assert found[0].group == "Office"
