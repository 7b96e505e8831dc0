"""Checks of variants by pixels and by a real OCR library."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image, ImageDraw

from indelible.canaries.codes import code_format
from indelible.canaries.encodings import make_cue
from indelible.data.pictures import Picture, picture, pixels
from indelible.data.screen_checks import check_untouched, check_variant, part_found, read_variant, strokes_cut
from indelible.data.screen_themes import font
from indelible.data.screen_types import Box
from indelible.data.screen_variants import show
from indelible.data.screens import SIZES, THEMES, render_screen
from indelible.errors import DataError

CODES = code_format("AAA-XXXX-XXXX")
CODE = "PRJ-TQW7-2KMP"


def to_patches(shown: Picture) -> Image.Image:
    """A resize to multiples of 28, as a family with patches of 14 pixels does."""
    size = (round(shown.width / 28) * 28, round(shown.height / 28) * 28)
    return pixels(shown).resize(size, Image.Resampling.BICUBIC)


def to_thumbnail(shown: Picture) -> Image.Image:
    return pixels(shown).resize((shown.width // 4, shown.height // 4), Image.Resampling.BICUBIC)


@pytest.fixture
def ocr() -> None:
    pytest.importorskip("rapidocr_onnxruntime", reason="the OCR library of the extra 'vision' is not installed")


@pytest.mark.parametrize("theme", [theme.name for theme in THEMES])
def test_codes_are_whole_before_and_after_resizing(theme: str) -> None:
    screen = render_screen(f"read-{theme}", size=SIZES[len(theme) % 3], theme=theme)
    facts = check_variant(screen, show(screen, "visible", CODE), "visible", CODE, process=to_patches)
    assert 0 < facts.n_changed_px < screen.source.area
    assert 0 < facts.ink_share < 0.45
    assert facts.text_px >= 11


@pytest.mark.usefixtures("ocr")
@pytest.mark.parametrize("theme", [theme.name for theme in THEMES])
def test_codes_are_read_exactly_before_and_after_resizing(theme: str) -> None:
    screen = render_screen(f"read-{theme}", size=SIZES[len(theme) % 3], theme=theme)
    shown = show(screen, "visible", CODE)
    assert read_variant(screen, shown, "visible", CODE, code=CODE, process=to_patches) == (CODE, CODE)


@pytest.mark.usefixtures("ocr")
@pytest.mark.parametrize("cue", ["binary", "chained-fruit", "direct-fruit", "reverse-4-shift-4"])
def test_encoded_cues_are_read_word_by_word(cue: str) -> None:
    screen = render_screen("cue", size=(800, 600), theme="ledger")
    text = make_cue(cue, CODES).encode(CODE)
    read = read_variant(screen, show(screen, "visible", text), "visible", text, code=CODE)
    assert len(read) >= (1 if cue == "reverse-4-shift-4" else 7)


@pytest.mark.usefixtures("ocr")
def test_nothing_is_read_where_the_code_is_hidden() -> None:
    screen = render_screen("hidden", size=(448, 336), theme="orchard")
    redacted = check_variant(screen, show(screen, "redacted"), "redacted")
    assert (redacted.n_changed_px, redacted.ink_share) == (screen.source.area, 0.0)
    assert read_variant(screen, show(screen, "redacted"), "redacted", code=CODE) == ()
    absent = check_variant(screen, show(screen, "absent"), "absent", process=to_patches)
    assert absent.n_changed_px <= screen.pane.area
    assert read_variant(screen, show(screen, "absent"), "absent", code=CODE, process=to_patches) == ()


@pytest.mark.usefixtures("ocr")
def test_a_code_that_stands_elsewhere_is_found() -> None:
    screen = render_screen("leak", size=(448, 336), theme="ledger")
    image = pixels(screen.picture)
    field = next(e.box for e in screen.elements if e.kind == "field" and e != screen.destination)
    draw = ImageDraw.Draw(image)
    draw.rectangle(field, fill="white")
    draw.text(
        (field.left + 5, (field.top + field.bottom) / 2), CODE, font=font("dejavu-sans", 14), fill="black", anchor="lm"
    )
    leaking = replace(screen, picture=picture(image))
    with pytest.raises(DataError, match="of the code is read on a variant that hides it"):
        read_variant(leaking, show(leaking, "redacted"), "redacted", code=CODE)


@pytest.mark.usefixtures("ocr")
def test_a_code_that_resizing_makes_illegible_is_refused() -> None:
    screen = render_screen("tiny", size=(448, 336), theme="harbour")
    shown = show(screen, "visible", CODE)
    with pytest.raises(DataError, match=r"is read as .* after the model's resizing to 112x84 pixels") as caught:
        read_variant(screen, shown, "visible", CODE, code=CODE, process=to_thumbnail)
    assert "\n" not in str(caught.value)
    facts = check_variant(screen, shown, "visible", CODE, process=to_thumbnail)
    assert facts.text_px_processed == facts.text_px / 4


@pytest.mark.usefixtures("ocr")
def test_another_text_than_the_one_named_is_noticed() -> None:
    screen = render_screen("other", size=(448, 336), theme="ledger")
    with pytest.raises(DataError, match="shows 'PRJ-TQW7-2KMP' but is read as 'PRJ-TQW7-2KMQ'"):
        read_variant(screen, show(screen, "visible", "PRJ-TQW7-2KMQ"), "visible", CODE, code=CODE)


def test_pixels_outside_the_region_must_stay() -> None:
    screen = render_screen("touched", size=(448, 336))
    image = pixels(show(screen, "redacted"))
    image.putpixel((3, 2), (1, 2, 3))
    with pytest.raises(DataError, match=r"1 pixels outside the region .* changed, the first at \(3, 2\)"):
        check_variant(screen, picture(image), "redacted")
    with pytest.raises(DataError, match=r"expected \(448, 336\)"):
        check_untouched("a", pixels(screen.picture), Image.new("RGB", (5, 5)), screen.source)


def test_coverage_is_checked() -> None:
    screen = render_screen("cover", size=(448, 336))
    image = pixels(show(screen, "redacted"))
    image.putpixel((screen.source.left, screen.source.top), (1, 2, 3))
    with pytest.raises(DataError, match=r"1 pixels of the region .* expected it to be covered wholly"):
        check_variant(screen, picture(image), "redacted")
    pale = replace(screen, style=replace(screen.style, text=screen.style.fill))
    with pytest.raises(DataError, match=r"letters cover 0\.00% of the source region"):
        check_variant(pale, show(pale, "visible", CODE), "visible", CODE)


def test_text_that_a_region_would_cut_is_found() -> None:
    image = Image.new("RGB", (200, 40), "white")
    ImageDraw.Draw(image).text((20, 10), "Reference 12345", font=font("dejavu-sans", 16), fill="black")
    assert strokes_cut(image, Box(10, 4, 190, 36)) == 0
    assert sum(strokes_cut(image, Box(10, 4, right, 36)) > 0 for right in range(50, 70)) > 6
    assert strokes_cut(image, Box(10, 18, 190, 36)) > 0
    screen = render_screen("cut", size=(448, 336))
    drawn = pixels(screen.picture)
    middle = (screen.source.left - 3, (screen.source.top + screen.source.bottom) // 2)
    ImageDraw.Draw(drawn).line((*middle, middle[0] + 30, middle[1]), fill=screen.style.text, width=3)
    cut = replace(screen, picture=picture(drawn))
    with pytest.raises(DataError, match="goes on outside it"):
        check_variant(cut, show(cut, "redacted"), "redacted")


def test_a_part_of_a_code_is_four_payload_characters_in_a_row() -> None:
    assert part_found(CODE, ["Menu", "tqw7"]) == "TQW7"
    assert part_found(CODE, ["x W7-2K y"]) == "W72K"
    assert part_found(CODE, ["PRJ", "TQW", "2KM"]) == ""
    assert part_found("", ["anything"]) == ""
