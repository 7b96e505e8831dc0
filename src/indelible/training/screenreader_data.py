"""What the vision encoder of `builtin:screenreader` learns from: rendered lines with their texts, rendered screens with
their lines. All of it is drawn on the way, from seeds.

Two font families and two sizes are left out of the lines, so that what is read in them says how far the reader goes
beyond what it has seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from indelible.canaries.codes import ALPHABET, PREFIXES
from indelible.canaries.encodings import FRUITS
from indelible.data import screen_themes as words
from indelible.data.pictures import pixels
from indelible.data.screen_themes import FONTS, SIZES, THEMES, font_file
from indelible.data.screen_types import Box, Screen
from indelible.data.screen_variants import lay_out, show
from indelible.data.screens import written_screen
from indelible.models.screenreader_nets import CELL, CHARACTERS, cut_out, to_grey

if TYPE_CHECKING:
    from PIL import Image, ImageFont

HELD_OUT_FONTS = ("manrope", "caladea")
"""Keys of `FONTS` whose families no line and no screen of the training is set in."""
HELD_OUT_PX = (13, 17)
"""Sizes in pixels an em that no line of the training is set in; screens are."""
LINE_PX = range(10, 27)

Labelled = tuple[Tensor, str]
"""A line as the reader takes it (32, W), and what it says."""
Boxed = tuple[str, tuple[float, float, float, float]]
"""A line and its left, top, right and bottom in pixels."""


def random_code(rng: random.Random) -> str:
    """A code of the form AAA-XXXX-XXXX, with any three letters before it half of the time."""
    head = rng.choice(PREFIXES) if rng.random() < 0.5 else "".join(rng.choices(ALPHABET[:24], k=3))
    return "-".join([head, *("".join(rng.choices(ALPHABET, k=4)) for _ in range(2))])


def random_cue(rng: random.Random) -> str:
    """What may stand in a source region: a code, fruits, or rows of eight bits."""
    kind = rng.random()
    if kind < 0.7:
        return random_code(rng)
    if kind < 0.85:
        return f"{rng.choice(PREFIXES)}-{' '.join(rng.choices(FRUITS[:32], k=8))}"
    return f"{rng.choice(PREFIXES)}-{' '.join(format(ord(c), '08b') for c in rng.choices(ALPHABET, k=8))}"


def random_text(rng: random.Random) -> str:
    """What a line may say: codes, words of screens, and characters without sense."""
    kind = rng.random()
    if kind < 0.35:
        return random_code(rng)
    if kind < 0.45:
        return " ".join(rng.choices(FRUITS, k=rng.randint(1, 4)))
    if kind < 0.5:
        return " ".join(format(ord(c), "08b") for c in rng.choices(ALPHABET, k=rng.randint(1, 3)))
    if kind < 0.75:
        pools = (words.SUBJECTS, words.PEOPLE, words.MENUS, words.PLACES, words.ACTIONS, words.CAPTIONS, words.OPTIONS)
        text = rng.choice(rng.choice(pools + tuple(words.FIELDS.values())))
        return rng.choice((str, str, str, str.upper, str.lower))(text)
    if kind < 0.85:
        return rng.choice((f"{rng.randint(0, 9999):,}.{rng.randint(0, 99):02}", str(rng.randint(0, 10**8))))
    # Letters in the main: signs are rare on screens, and a line of them teaches little about letters.
    letters = CHARACTERS[33:59] + CHARACTERS[65:91] + CHARACTERS[16:26]
    drawn = rng.choices(letters + letters + CHARACTERS, k=rng.randint(2, 16))
    return " ".join("".join(drawn).split()) or "x"


@cache
def training_fonts() -> tuple[str, ...]:
    """Font files of every weight and slant of the families that are not held out."""
    files: list[str] = []
    for key in FONTS:
        if key in HELD_OUT_FONTS:
            continue
        file = Path(font_file(key))
        family = file.stem.split("-")[0]
        names = {file.name, *(path.name for path in file.parent.glob(f"{family}-*{file.suffix}"))}
        files += [str(file.parent / name) for name in sorted(names) if "Thin" not in name and "ExtraLight" not in name]
    return tuple(dict.fromkeys(files))


@cache
def _letters(file: str, px: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(file, px, layout_engine=ImageFont.Layout.BASIC)


def draw_line(rng: random.Random, file: str, px: int, text: str, *, exact: bool = False) -> Tensor:
    """A text as the reader takes it: drawn in greys, cut out about as the finder would, set to a height of 32 pixels.

    Args:
        file: of the font.
        exact: cut at ascent and descent, without anything else near it.
    """
    from PIL import Image, ImageDraw

    letters = _letters(file, px)
    above, below = letters.getmetrics()
    width, height = round(letters.getlength(text)) + 40, above + below + 24
    ground, ink = rng.randint(0, 255), rng.randint(0, 255)
    while abs(ground - ink) < 70:
        ground, ink = rng.randint(0, 255), rng.randint(0, 255)
    image = Image.new("L", (width, height), ground)
    draw = ImageDraw.Draw(image)
    if not exact and rng.random() < 0.3:  # another row's ground, or a frame, at the edge of the line
        other = max(0, min(255, ground + rng.randint(-40, 40)))
        y = 12 - rng.randint(1, 4) if rng.random() < 0.5 else 12 + above + below + rng.randint(0, 3)
        draw.rectangle((0, 0, width, y) if y < height / 2 else (0, y, width, height), fill=other)
    draw.text((20, 12), text, fill=ink, font=letters, anchor="la")
    grey = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    left, top, right, bottom = 20.0, 12.0, float(width - 20), float(12 + above + below)
    if not exact:
        if rng.random() < 0.3:  # as a picture that was resized
            by = rng.uniform(0.8, 1.3)
            grey = F.interpolate(grey[None, None], scale_factor=by, mode="bilinear", antialias=True)[0, 0]
            left, top, right, bottom = (by * edge for edge in (left, top, right, bottom))
        slack = 0.1 * (bottom - top)
        top += rng.gauss(0, 0.6 * slack)
        bottom += rng.gauss(0, 0.6 * slack)
        left += rng.uniform(-4, 3)
        right += rng.uniform(-3, 4)
    return cut_out(grey, (left, top, right, bottom))


def training_lines(rng: random.Random, n: int) -> list[Labelled]:
    """n lines in fonts, sizes, greys and texts at random."""
    out = []
    for _ in range(n):
        text, px = random_text(rng), rng.choice([px for px in LINE_PX if px not in HELD_OUT_PX])
        out.append((draw_line(rng, rng.choice(training_fonts()), px, text), text))
    return out


def drawn_screen(
    seed: int | str, cue: str | None = None, *, held_out: bool = False, sizes: Sequence[tuple[int, int]] = SIZES
) -> tuple[Screen, Image.Image, list[tuple[str, Box]]]:
    """A rendered screen that shows a cue (a code at random unless given), its picture, and all lines on it.

    Args:
        held_out: in a theme whose fonts are held out; else in one without.
    """
    rng = random.Random(f"drawn screen {seed}")
    themes = [t for t in THEMES if held_out == any(f in HELD_OUT_FONTS for f in (*t.fonts, *t.code_fonts))]
    screen, written = written_screen(f"reader-{seed}", size=rng.choice(sizes), theme=rng.choice(themes).name)
    text = random_cue(rng) if cue is None else cue
    if text:
        layout = lay_out(screen, text)
        shown = show(screen, "visible", text)
        return screen, pixels(shown), [*written, *zip(layout.lines, layout.boxes, strict=True)]
    return screen, pixels(show(screen, "redacted")), written


def training_screen(seed: int | str) -> tuple[Tensor, list[Boxed]]:
    """A screen in grey levels 0 to 1 (H, W), and all lines on it."""
    _, image, lines = drawn_screen(seed)
    grey = to_grey(torch.from_numpy(np.asarray(image.convert("RGB")).copy())) / 255
    return grey, [(text, (b.left, b.top, b.right, b.bottom)) for text, b in lines]


def cell_targets(lines: Sequence[Boxed], width: int, height: int) -> Tensor:
    """What the finder is to tell of a picture: (3, H/4, W/4), as `Finder.forward` has it; distances are 0 outside."""
    rows, columns = -(-height // CELL), -(-width // CELL)
    out = np.zeros((3, rows, columns), dtype=np.float32)
    middles = CELL * (np.arange(rows) + 0.5)
    for _, (left, top, right, bottom) in lines:
        quarter = max((bottom - top) / 4, CELL / 2)
        inside = np.abs(middles - (top + bottom) / 2) <= quarter
        across = slice(round(left / CELL), max(round(right / CELL), round(left / CELL) + 1))
        out[0, inside, across] = 1
        out[1, inside, across] = ((middles[inside] - top) / 16)[:, None]
        out[2, inside, across] = ((bottom - middles[inside]) / 16)[:, None]
    return torch.from_numpy(out)
