"""Rendered screens, their variants, and near duplicates."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from indelible.canaries.codes import code_format
from indelible.canaries.encodings import make_cue
from indelible.data.pictures import picture, pixels, read_picture
from indelible.data.screen_duplicates import Looks, check_distinct, compare, duplicates_in_pool
from indelible.data.screen_types import Box, Element, Screen, checked_screen
from indelible.data.screen_variants import MIN_PX, lay_out, region_of, show
from indelible.data.screens import SIZES, THEMES, render_screen, screen_pool
from indelible.errors import ConfigError, DataError

CODES = code_format("AAA-XXXX-XXXX")
CODE = "PRJ-TQW7-2KMP"


def test_a_picture_is_equal_by_its_pixels_alone(tmp_path: Path) -> None:
    image = Image.new("RGB", (6, 4), "red")
    image.info["Comment"] = "differs"
    first = picture(image)
    assert first == picture(Image.new("RGB", (6, 4), "red"))
    assert hash(first) == hash(picture(pixels(first)))
    assert first != picture(Image.new("RGB", (6, 4), "blue"))
    assert "png" not in repr(first)
    pixels(first).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png") == first


def test_transparent_places_of_a_picture_become_white() -> None:
    assert pixels(picture(Image.new("RGBA", (2, 2), (0, 0, 0, 0)))).getpixel((0, 0)) == (255, 255, 255)


def test_unreadable_images_are_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; expected a PNG"):
        read_picture(tmp_path / "none.png")
    whole = render_screen(0, size=(448, 336)).picture.png
    for name, data in (("text.png", b"no image"), ("empty.png", b""), ("cut.png", whole[: len(whole) // 2])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name}'.*expected a whole PNG") as caught:
            read_picture(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_seed_decides_a_screen_byte_for_byte() -> None:
    for seed in range(3):
        assert render_screen(seed) == render_screen(seed)
        assert render_screen(seed).picture.png == render_screen(seed).picture.png
    assert render_screen(1).picture != render_screen(2).picture


@pytest.mark.parametrize("theme", [theme.name for theme in THEMES])
def test_every_theme_and_size_gives_a_usable_screen_that_holds_every_cue(theme: str) -> None:
    rng = random.Random(theme)
    # Each size comes with half of the themes; the smallest one, where room is scarce, with all.
    for i, size in enumerate(SIZES):
        if i and (i + len(theme)) % 2:
            continue
        screen = render_screen(f"{theme}-{i}", size=size, theme=theme)
        assert (screen.picture.width, screen.picture.height) == size
        assert screen.destination.kind == "field"
        assert len({element.label for element in screen.elements}) == len(screen.elements) >= 8
        assert {element.kind for element in screen.elements} >= {"button", "field", "pane"}
        (code,) = CODES.draw(1, rng)
        for name in ("visible", "binary", "direct-fruit", "chained-fruit", "reverse-4-shift-4"):
            layout = lay_out(screen, make_cue(name, CODES).encode(code))
            assert layout.px >= MIN_PX
            assert all(screen.source.holds(box) for box in layout.boxes)


def test_wishes_that_no_screen_meets_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 400x300"):
        render_screen(1, size=(300, 200))
    with pytest.raises(ConfigError, match="Did you mean 'slate'"):
        render_screen(1, theme="slat")
    with pytest.raises(ConfigError, match="at least 1"):
        screen_pool(0, 1)


@pytest.mark.parametrize("mode", ["visible", "redacted", "absent"])
def test_a_variant_changes_its_region_alone(mode: str) -> None:
    for seed in range(3):
        screen = render_screen(seed, size=SIZES[seed])
        lines = CODE if mode == "visible" else ()
        shown = show(screen, mode, lines)  # type: ignore[arg-type]
        before, after = np.asarray(pixels(screen.picture)), np.asarray(pixels(shown)).copy()
        region = region_of(screen, mode)  # type: ignore[arg-type]
        where = (slice(region.top, region.bottom), slice(region.left, region.right))
        inside = after[where].reshape(-1, 3)
        assert (len(np.unique(inside, axis=0)) == 1) == (mode != "visible")
        assert (inside != before[where].reshape(-1, 3)).any()
        after[where] = before[where]
        assert (after == before).all()


def test_encoded_text_goes_over_lines_and_keeps_every_word() -> None:
    screen = render_screen("small", size=(448, 336), theme="harbour")
    text = make_cue("binary", CODES).encode(CODE)
    layout = lay_out(screen, text)
    assert "".join(layout.lines).replace(" ", "") == text.replace(" ", "")
    assert [word for word, _ in layout.words] == " ".join(layout.lines).split(" ")
    assert len(lay_out(screen, ["one", "two"]).lines) == 2
    assert lay_out(screen, CODE).words == ((CODE, lay_out(screen, CODE).boxes[0]),)


def test_text_that_cannot_be_legible_is_refused_in_one_line() -> None:
    screen = render_screen(0, size=(448, 336))
    with pytest.raises(DataError, match=r"of 3000 characters does not fit legibly") as caught:
        show(screen, "visible", "WORD " * 600)
    assert "\n" not in str(caught.value)
    narrow = replace(screen, source=screen.source._replace(right=screen.source.left + 40))
    with pytest.raises(DataError, match="does not fit legibly"):
        show(narrow, "visible", CODE)
    with pytest.raises(DataError, match="blank text"):
        show(screen, "visible", " ")
    with pytest.raises(ConfigError, match="shows no text"):
        show(screen, "redacted", CODE)
    with pytest.raises(ConfigError, match="Did you mean 'visible'"):
        show(screen, "visibel", CODE)  # type: ignore[arg-type]


def _screen_with(**changes: object) -> Screen:
    return replace(render_screen(0, size=(448, 336)), **changes)  # type: ignore[arg-type]


def test_boxes_that_cannot_be_used_are_refused() -> None:
    good = _screen_with()
    assert checked_screen(good) is good
    source, pane = good.source, good.pane
    cover = Element("Lid button", "button", source.grown(-5))
    wrong: list[tuple[dict[str, object], str]] = [
        ({"source": source._replace(left=source.right)}, "expected .left, top, right, bottom"),
        ({"pane": pane._replace(right=9999)}, "outside the image of 448x336 pixels"),
        ({"source": Box(0, 0, 20, 20)}, "is not inside the pane"),
        ({"elements": (*good.elements, cover)}, "would cover 'Lid button'"),
        (
            {"elements": (*good.elements, replace(cover, box=Box(pane.left, pane.top, pane.left + 3, pane.top + 3)))},
            "would cover 'Lid button' .* when it is absent",
        ),
        ({"elements": (*good.elements, good.elements[0])}, "2 elements are called"),
        ({"elements": (*good.elements, replace(good.elements[0], label=" "))}, "blank label"),
        ({"destination": cover}, "is no element"),
    ]
    for changes, message in wrong:
        with pytest.raises(DataError, match=message) as caught:
            checked_screen(_screen_with(**changes))
        assert "\n" not in str(caught.value)


def _flat(colour: tuple[int, int, int], size: tuple[int, int] = (40, 20)) -> Image.Image:
    return Image.new("RGB", size, colour)


def test_near_duplicates_follow_the_papers_rule() -> None:
    def with_spot(n_columns: int, levels: int) -> Image.Image:
        image = _flat((100, 100, 100))
        image.paste((100 + levels, 100, 100), (0, 0, n_columns, 20))
        return image

    plain = _flat((100, 100, 100))
    share, mean = compare(plain, with_spot(2, 150))
    assert share == pytest.approx(0.95)
    assert mean == pytest.approx(150 / 3 * 0.05)
    assert compare(plain, with_spot(40, 3))[0] == 1.0
    assert compare(plain, with_spot(40, 4)) == (0.0, pytest.approx(4 / 3))
    # Sizes differ: nearest neighbours keep a flat image flat.
    assert compare(plain, _flat((102, 100, 100), (80, 40))) == (1.0, pytest.approx(2 / 3))
    assert compare(_flat((0, 0, 0)), _flat((255, 255, 255))) == (0.0, 255.0)


def test_the_shortlist_loses_no_near_duplicate() -> None:
    rng = np.random.default_rng(3)
    screens = [render_screen(f"short-{i}", size=(448, 336), theme="ledger") for i in range(3)]
    for i, screen in enumerate(screens):
        changed = np.asarray(pixels(screen.picture)).copy()
        places = rng.random(changed.shape[:2]) < 0.045
        changed[places] = 255 - changed[places]
        twin = Looks.of(("twin", picture(Image.fromarray(changed))))
        hits = [hit for one in screens if (hit := Looks.of(one).near(twin))]
        assert [(hit.first, hit.second) for hit in hits] == [(screen.id, "twin")]
        changed[rng.random(changed.shape[:2]) < 0.2] = (200, 40, 90)
        other = Looks.of(("other", picture(Image.fromarray(changed))))
        assert not any(Looks.of(one).near(other) for one in screens)
        assert i < 3


def test_a_screen_that_differs_in_its_code_alone_is_a_near_duplicate() -> None:
    screen = render_screen(7, size=(448, 336))
    other = replace(screen, id="twin", picture=show(screen, "visible", CODE))
    assert duplicates_in_pool([screen, other])
    assert not duplicates_in_pool([screen, render_screen(8, size=(448, 336))])
    with pytest.raises(DataError, match="'screen-7' and 'twin' are near duplicates"):
        check_distinct([screen, other])
    check_distinct([screen, render_screen(8)])


def test_a_pool_is_distinct_reproducible_and_varied() -> None:
    sizes = ((448, 336), (512, 384))
    pool = screen_pool(10, 3, sizes=sizes)
    assert pool[:4] == screen_pool(4, 3, sizes=sizes)
    assert duplicates_in_pool(pool) == []
    assert {screen.group for screen in pool} == {theme.name for theme in THEMES}
    with pytest.raises(DataError, match="near duplicates"):
        check_distinct([*pool, pool[0]])
