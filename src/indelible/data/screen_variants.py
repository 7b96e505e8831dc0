"""Variants of a screen: the same pixels but for the source region, which shows a text, a mask or nothing at all.

A code, a substituted code and every encoded cue are texts; the caller encodes (`canaries.encodings`). In the variant
without the pane, what is behind it takes its place. Source: the canary paper, figure 6, appendices C-B1 and C-D1.

Differs from the paper: it prints eight encoded units on two lines, in a pane of a kind it does not show; we use as many
lines as the largest letters need. A mode label is a line of the text (`canaries.screen_task.labelled`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from indelible.data.pictures import Picture, picture, pixels
from indelible.data.screen_themes import font
from indelible.data.screen_types import Box, Screen
from indelible.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from PIL import ImageFont

Mode = Literal["visible", "redacted", "absent"]
MIN_PX = 10
"""The smallest letters that count as legible, in pixels an em. Below it the OCR library misreads codes."""
MARGIN_PX = 3
"""Between the text and the edge of the source region."""

_ENCODED_BREAK = re.compile(r"(?<=-)(?=\S)")


@dataclass(frozen=True, slots=True)
class TextLayout:
    """How a text stands in a source region.

    Attributes:
        px: size of the letters, in pixels an em.
        lines: what each line says.
        boxes: where each line stands: its height is that of the font, its width that of the text.
        words: each stretch without spaces and where it stands; a code is one.
    """

    px: int
    lines: tuple[str, ...]
    boxes: tuple[Box, ...]
    words: tuple[tuple[str, Box], ...]


def show(screen: Screen, mode: Mode, lines: str | Sequence[str] = ()) -> Picture:
    """The screen with its source region as `mode` has it.

    - `visible`: the lines of text on the region's ground, each given by itself or behind a line break; a long line goes
      on over the next ones.
    - `redacted`: the mask over the whole region. `absent`: the whole pane in the colour behind it.

    Pixels outside the region (outside the pane for `absent`) are those of the screen, exactly.

    Errors:
        ConfigError: an unknown mode, or lines for another mode than `visible`. DataError: the text is blank, or would
        have to be smaller than 10 pixels to fit; one line.
    """
    texts = _lines(mode, lines)
    image = pixels(screen.picture)
    if mode == "absent":
        image.paste(screen.style.behind, screen.pane)
    elif mode == "redacted":
        image.paste(screen.style.mask, screen.source)
    else:
        # Drawn on a piece of its own, so that no letter can leave the region.
        from PIL import Image, ImageDraw

        layout = lay_out(screen, texts)
        piece = Image.new("RGB", (screen.source.width, screen.source.height), screen.style.fill)
        draw = ImageDraw.Draw(piece)
        letters = font(screen.style.font, layout.px)
        for text, box in zip(layout.lines, layout.boxes, strict=True):
            at = (box.left - screen.source.left, box.top - screen.source.top)
            draw.text(at, text, fill=screen.style.text, font=letters, anchor="la")
        image.paste(piece, (screen.source.left, screen.source.top))
    return picture(image)


def lay_out(screen: Screen, lines: str | Sequence[str]) -> TextLayout:
    """Where the text of a `visible` variant stands: at the style's size where it fits, else as large as it can be.

    Lines break at spaces; a text of several units also breaks after the hyphens between them. Over several lines they
    are made about equally long.

    Errors:
        DataError: the text is blank, or too long for the region at 10 pixels an em.
    """
    texts = _lines("visible", lines)
    room = screen.source.grown(-MARGIN_PX)
    for px in range(max(screen.style.max_px, MIN_PX), MIN_PX - 1, -1):
        letters = font(screen.style.font, px)
        height = sum(letters.getmetrics())
        n_lines = room.height // height if height else 0
        filled = [_filled(text, letters, room.width) for text in texts]
        found = [line for lines_of_text in filled for line in lines_of_text]
        if len(found) <= n_lines and all(_width(line, letters) <= room.width for line in found):
            balanced = [
                line
                for text, lines_of_text in zip(texts, filled, strict=True)
                for line in _balanced(text, lines_of_text, letters, room.width)
            ]
            return _placed(screen, room, tuple(balanced), px, height)
    raise DataError(
        f"screen '{screen.id}': a text of {sum(map(len, texts))} characters does not fit legibly into the source "
        f"region of {screen.source.width}x{screen.source.height} pixels (with letters of at least {MIN_PX} pixels); "
        "expected a larger region or a shorter text."
    )


def region_of(screen: Screen, mode: Mode) -> Box:
    """The only part of the picture that a mode changes."""
    return screen.pane if mode == "absent" else screen.source


def _lines(mode: str, lines: str | Sequence[str]) -> list[str]:
    if mode not in get_args(Mode):
        raise ConfigError(did_you_mean(mode, list(get_args(Mode)), "mode of a screen"))
    given = [lines] if isinstance(lines, str) else list(lines)
    texts = [line for text in given for line in text.split("\n")]
    if mode != "visible" and texts:
        raise ConfigError(f"mode '{mode}' shows no text, but {texts[0]!r} was given; expected no lines.")
    if mode == "visible" and not any(text.strip() for text in texts):
        raise DataError("a visible variant with a blank text asked for; expected at least one line to show.")
    return texts


def _placed(screen: Screen, room: Box, lines: tuple[str, ...], px: int, height: int) -> TextLayout:
    letters = font(screen.style.font, px)
    top = room.top + (room.height - len(lines) * height) // 2
    boxes, words = [], []
    for i, line in enumerate(lines):
        width = _width(line, letters)
        left = room.left + (room.width - width) // 2 if screen.style.centred else room.left
        box = Box(left, top + i * height, left + width, top + (i + 1) * height)
        boxes.append(box)
        at = 0
        for word in line.split(" "):
            start = left + int(letters.getlength(line[:at]))
            words.append((word, box._replace(left=start, right=start + _width(word, letters))))
            at += len(word) + 1
    return TextLayout(px, lines, tuple(boxes), tuple(words))


def _units(text: str) -> list[str]:
    """What a line may be broken into: words, and in a text of several ones also after hyphens."""
    return [part for word in text.split(" ") for part in (_ENCODED_BREAK.split(word) if " " in text else [word])]


def _balanced(text: str, filled: list[str], letters: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The text on as many lines as it fills at a width, but with lines about equally wide."""
    if len(filled) == 1:
        return filled
    low, high = width // len(filled) // 2, width
    best = filled
    while low < high:  # the narrowest width that needs no more lines
        middle = (low + high) // 2
        tried = _filled(text, letters, middle)
        if len(tried) <= len(filled) and all(_width(line, letters) <= middle for line in tried):
            best, high = tried, middle
        else:
            low = middle + 1
    return best


def _filled(text: str, letters: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The text on lines of a width, each filled before the next; a part that is too wide stands alone."""
    first, *others = _units(text)
    lines = [first]
    for part in others:
        space = "" if lines[-1].endswith("-") and not lines[-1].endswith(" -") else " "
        if _width(longer := f"{lines[-1]}{space}{part}", letters) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _width(line: str, letters: ImageFont.FreeTypeFont) -> int:
    # The ink of a first or last letter may stick out of its advance, so the larger of both counts.
    left, _, right, _ = letters.getbbox(line, anchor="la")
    return int(max(right - min(left, 0), letters.getlength(line))) + 1
