"""The user's screenshots and their JSON of boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from indelible.data.pictures import Picture, pixels, read_picture
from indelible.data.screen_checks import check_variant, read_variant
from indelible.data.screen_duplicates import Looks, compare
from indelible.data.screen_files import FILE, read_screens
from indelible.data.screen_themes import font
from indelible.data.screen_types import Box
from indelible.data.screen_variants import show
from indelible.errors import ConfigError, DataError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "gui" / "webvoyager"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real screenshots are not beside the repository")


def entry(**changes: Any) -> dict[str, Any]:
    row = {
        "image": "orders.png",
        "elements": [
            {"label": "Save button", "kind": "button", "box": [250, 10, 290, 30], "text": "Save"},
            {"label": "Search field", "kind": "field", "box": [20, 60, 200, 80]},
        ],
        "source": [20, 10, 200, 34],
        "destination": "Search field",
    }
    row.update(changes)
    return {key: value for key, value in row.items() if value is not None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = Image.new("RGB", (300, 100), (240, 244, 250))
    draw = ImageDraw.Draw(image)
    draw.text((24, 14), "Order 77120", font=font("dejavu-sans", 14), fill=(10, 20, 90))
    draw.rectangle((20, 60, 199, 79), outline="black")
    image.save(tmp_path / "orders.png")
    write(tmp_path, entry())
    return tmp_path


def write(folder: Path, *entries: dict[str, Any]) -> None:
    (folder / FILE).write_text(json.dumps({"screens": entries}))


def test_colours_and_sizes_are_taken_from_the_pixels(folder: Path) -> None:
    (screen,) = read_screens(folder)
    assert screen.id == "orders"
    assert screen.pane == screen.source == Box(20, 10, 200, 34)
    assert screen.destination.label == "Search field"
    style = screen.style
    assert (style.fill, style.behind, style.mask) == ((240, 244, 250), (240, 244, 250), (128, 128, 128))
    assert style.text[2] > style.text[0]
    assert style.max_px == 14
    shown = np.asarray(pixels(show(screen, "absent")))
    assert (shown[10:34, 20:200] == style.behind).all()


def test_a_style_may_be_given(folder: Path) -> None:
    style = {"font": "lato", "max_px": 12, "text": [0, 0, 0], "fill": [255, 255, 255], "mask": [9, 9, 9]}
    write(folder, entry(style=style, id="mine", group="orders", pane=[10, 5, 210, 40]))
    (screen,) = read_screens(folder)
    assert (screen.id, screen.group, screen.style.font, screen.style.mask) == ("mine", "orders", "lato", (9, 9, 9))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"image": "missing.png"}, r"missing\.png': no such file; expected a PNG or JPEG"),
    ({"image": FILE}, r"expected a whole PNG or JPEG"),
    (
        {"source": [20, 10, 320, 34]},
        r"source region has the box \[20, 10, 320, 34\] outside the image of 300x100 pixels",
    ),
    ({"source": [200, 10, 20, 34]}, r"expected \[left, top, right, bottom\]"),
    ({"source": [20, 10, 260, 34]}, r"would cover 'Save button' \[250, 10, 290, 30\]; choose a region"),
    ({"source": [20, 10, 200, 70]}, r"would cover 'Search field'"),
    ({"source": [1, 2, 3]}, r"'source' is \[1, 2, 3\]; expected a list of 4 numbers"),
    ({"source": [1.5, 2, 30, 40]}, r"expected 4 whole numbers"),
    ({"source": None}, r"'source' is missing"),
    ({"destination": "Serch field"}, r"destination 'Serch field' is none of the elements"),
    ({"pane": [30, 10, 200, 34]}, r"is not inside the pane"),
    ({"elements": []}, r"expected a list of one or more objects"),
    ({"elements": [{"label": "A", "box": [0, 0, 5, 500]}]}, r"destination"),
    (
        {"elements": [{"label": "Search field", "box": [0, 60, 5, 500]}]},
        r"'Search field' has the box .* outside the image",
    ),
    ({"soruce": [1, 2, 3, 4]}, r"Did you mean 'source'"),
    ({"style": {"colour": [1, 2, 3]}}, r"unknown key 'colour'"),
    ({"style": {"text": [1, 2, 300]}}, r"each 0 to 255"),
    ({"style": {"max_px": 0}}, r"at least 1"),
    ({"style": {"centred": "yes"}}, r"expected true or false"),
    ({"style": {"mask": [240, 244, 250]}}, r"mask \[240, 244, 250\] is like the ground \[240, 244, 250\]"),
    ({"style": {"fill": [9, 9, 9], "mask": [9, 20, 9]}}, r"differs by 20 levels or more"),
    ({"style": 3}, r"'style' is no object"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_input_gives_one_clear_line(folder: Path, changes: dict[str, Any], message: str) -> None:
    write(folder, entry(**changes))
    with pytest.raises(DataError, match=message) as caught:
        read_screens(folder)
    assert "\n" not in str(caught.value)


def test_wrong_files_give_one_clear_line(folder: Path) -> None:
    write(folder, entry(style={"font": "latto"}))
    with pytest.raises(ConfigError, match="Did you mean 'lato'"):
        read_screens(folder)
    write(folder, entry(), entry())
    with pytest.raises(DataError, match="2 screens have the id 'orders'"):
        read_screens(folder)
    for content, message in (("[]", "expected an object"), ('{"screens": 3}', "list of one"), ("{", "malformed JSON")):
        (folder / FILE).write_text(content)
        with pytest.raises(DataError, match=message):
            read_screens(folder)
    (folder / FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_screens(folder)
    with pytest.raises(DataError, match=r"no such file; expected an object"):
        read_screens(folder / "elsewhere")


def real_entry(name: str) -> dict[str, Any]:
    """A web page on which a line of links is the source and the search box the destination."""
    return {
        "id": name,
        "image": name,
        "elements": [
            {"label": "Search box", "kind": "field", "box": [20, 58, 327, 98]},
            {"label": "Sign up button", "kind": "button", "box": [709, 452, 817, 482], "text": "Sign up"},
        ],
        "source": [190, 378, 520, 404],
        "destination": "Search box",
    }


@real
def test_a_real_screenshot_carries_a_code_and_hides_it(tmp_path: Path) -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the OCR library of the extra 'vision' is not installed")
    name = "screenshot6_no_box.png"
    (tmp_path / name).write_bytes((REAL / name).read_bytes())
    write(tmp_path, real_entry(name))
    (screen,) = read_screens(tmp_path)
    assert screen.style.fill == screen.style.behind == (255, 255, 255)
    code = "PRJ-TQW7-2KMP"

    def resized(shown: Picture) -> Image.Image:
        return pixels(shown).resize((1036, 756), Image.Resampling.BICUBIC)

    shown = show(screen, "visible", code)
    check_variant(screen, shown, "visible", code, process=resized)
    assert read_variant(screen, shown, "visible", code, code=code, process=resized) == (code, code)
    check_variant(screen, show(screen, "redacted"), "redacted", process=resized)
    # The same line of links, but cut through the middle of its letters.
    write(tmp_path, {**real_entry(name), "source": [190, 378, 505, 391]})
    (cut,) = read_screens(tmp_path)
    with pytest.raises(DataError, match="goes on outside it"):
        check_variant(cut, show(cut, "redacted"), "redacted")


@real
def test_two_moments_of_one_real_page_are_near_duplicates(tmp_path: Path) -> None:
    name = "screenshot6_no_box.png"
    (tmp_path / name).write_bytes((REAL / name).read_bytes())
    write(tmp_path, real_entry(name))
    others = [(f"moment {n}", read_picture(REAL / f"screenshot{n}_no_box.png")) for n in (4, 9)]
    (screen,) = read_screens(tmp_path)
    (found,) = (hit for other in others if (hit := Looks.of(screen).near(Looks.of(other))))
    assert found.second == "moment 9"
    assert found.close_share == pytest.approx(0.973, abs=0.001)
    assert compare(pixels(others[0][1]), pixels(others[1][1]))[1] > 80
