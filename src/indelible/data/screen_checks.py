"""Checks of a variant before it is trained on: untouched surroundings, coverage, and what can be read on it.

Every check holds for the picture itself and, where one is given, for what a model's image processing makes of it. That
processing is a function from picture to image that stretches the whole of it to another size (any one of a family that
cuts tiles does so first); one that pads moves everything and can't be judged here. Source: the canary paper, appendix
C-B1 (visual checks, also after the models' image processing; the rules below are our own, as it gives none).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from indelible.data.pictures import Picture, pixels
from indelible.data.screen_reading import read_line, read_page
from indelible.data.screen_types import Box, Screen
from indelible.data.screen_variants import Mode, lay_out, region_of
from indelible.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Processing = Callable[[Picture], "Image.Image"]
"""What a model family makes of a picture before it cuts it into patches, such as a resize."""

INK = (0.003, 0.45)
"""Smallest and largest share of a source region that the letters of a text may cover."""
PART = 4
"""That many payload characters in a row, found on a picture, are a part of a code; three may be a word by chance."""
_ALIKE = str.maketrans("OIl", "011")
_KERNEL = 3
"""Half the width of the widest resampling filter in use (Lanczos), in pixels of the coarser grid."""
_STROKE = 60
"""Levels by which a pixel of a letter differs from the ground, in one channel at least."""


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """What was found on a variant that passed.

    Attributes:
        mode: of the variant.
        n_changed_px: pixels that differ from the screen, all of them in the region.
        ink_share: of the region's pixels that are letters; 0 for a mask.
        text_px: size of the letters in pixels an em, 0 where there are none.
        text_px_processed: the same after processing, along the height.
    """

    mode: Mode
    n_changed_px: int
    ink_share: float
    text_px: int
    text_px_processed: float


def check_variant(
    screen: Screen, shown: Picture, mode: Mode, lines: str | Sequence[str] = (), *, process: Processing | None = None
) -> VariantFacts:
    """What is found in the pixels of a variant made by `screen_variants.show` with the same arguments.

    - Surroundings: outside the source region (the pane for `absent`) no pixel differs; after processing, none further
      from it than the filter reaches.
    - Coverage: a mask or an absent pane is of one colour; letters cover 0.3% to 45% of the region, and nothing that
      stood in the region before sticks out of it.

    Args:
        process: of a model family; None checks the picture alone.

    Errors:
        DataError: a check fails; one line.
    """
    before, after = pixels(screen.picture), pixels(shown)
    region = region_of(screen, mode)
    n_changed = check_untouched(screen.id, before, after, region)
    _check_covered(screen, before)
    ink = _check_coverage(screen, after, mode, region)
    px = lay_out(screen, lines).px if mode == "visible" else 0
    scale = 1.0
    if process is not None:
        small_before, small = process(screen.picture), process(shown)
        check_untouched(screen.id, small_before, small, _reach(region, after, small), _resized(small))
        scale = small.height / after.height
    return VariantFacts(mode, n_changed, ink, px, px * scale)


def read_variant(
    screen: Screen,
    shown: Picture,
    mode: Mode,
    lines: str | Sequence[str] = (),
    *,
    code: str = "",
    process: Processing | None = None,
) -> tuple[str, ...]:
    """What OCR reads on a variant made by `screen_variants.show` with the same arguments; a second or more a picture.

    Each word of a visible text must be read: the code, which is one word, exactly, case and hyphens included. In words
    of encoded cues letters alike (O and 0, I and l and 1, large and small) are taken for one another and one character
    may be read wrongly, as OCR drops some of a row of equal digits. On the other modes the whole picture is read, with
    no text in the region, and no four successive payload characters of the code anywhere (the first group, the prefix,
    is left out: FIL may stand in a menu).

    Args:
        code: that is shown or hidden, in canonical form; "" where there is none.
        process: of a model family; None reads the picture alone.

    Returns:
        the words of a visible text as they are read, then as they are read after processing; none for other modes.

    Errors:
        DataError: a text cannot be read, or something can that should not; one line. MissingExtra: the OCR library is
        not installed.
    """
    after = pixels(shown)
    words = lay_out(screen, lines).words if mode == "visible" else ((code, region_of(screen, mode)),)
    reading = _check_words if mode == "visible" else _check_hidden
    read = reading(screen.id, after, words, code, "")
    if process is None:
        return read
    small = process(shown)
    moved = tuple((word, _scaled(box, after, small)) for word, box in words)
    return read + reading(screen.id, small, moved, code, _resized(small))


def check_untouched(name: str, before: Image.Image, after: Image.Image, region: Box, when: str = "") -> int:
    """Number of pixels that differ, all of them in the region.

    Errors:
        DataError: sizes differ, or a pixel outside the region does.
    """
    if before.size != after.size:
        raise DataError(
            f"screen '{name}': a variant of {after.size} pixels{when}; expected {before.size}, as the screen."
        )
    differs = (np.asarray(before) != np.asarray(after)).any(axis=2)  # (H, W)
    n_differing = int(differs.sum())
    differs[max(region.top, 0) : region.bottom, max(region.left, 0) : region.right] = False
    if differs.any():
        y, x = (int(places[0]) for places in np.nonzero(differs))
        raise DataError(
            f"screen '{name}': {int(differs.sum())} pixels outside the region {region} changed{when}, the first at "
            f"({x}, {y}); expected changes inside it alone."
        )
    return n_differing


def strokes_cut(image: Image.Image, box: Box) -> int:
    """Pixels on the edge of a box where something goes on from inside to outside: cut letters or lines.

    A pixel counts where it and its neighbour across the edge are alike (within 32 levels) and both differ from the
    most frequent colour along this edge by 60 levels or more in a channel.
    """
    array = np.asarray(image.convert("RGB"), dtype=np.int16)
    height, width = array.shape[:2]
    rows, columns = slice(box.top, box.bottom), slice(box.left, box.right)
    edges = []
    if box.top > 0:
        edges.append((array[box.top, columns], array[box.top - 1, columns]))
    if box.bottom < height:
        edges.append((array[box.bottom - 1, columns], array[box.bottom, columns]))
    if box.left > 0:
        edges.append((array[rows, box.left], array[rows, box.left - 1]))
    if box.right < width:
        edges.append((array[rows, box.right - 1], array[rows, box.right]))
    n_cut = 0
    for inside, outside in edges:
        colours, counts = np.unique(inside, axis=0, return_counts=True)
        ground = colours[counts.argmax()]
        stroke = np.abs(inside - ground).max(axis=1) >= _STROKE
        goes_on = np.abs(inside - outside).max(axis=1) <= 32
        n_cut += int((stroke & goes_on).sum())
    return n_cut


def part_found(code: str, texts: Sequence[str]) -> str:
    """Four successive payload characters of a code that stand in one of the texts (case ignored), or "".

    The payload is what follows the first hyphen; hyphens and spaces are left out on both sides.
    """
    payload = re.sub(r"[^A-Z0-9]", "", code.split("-", 1)[-1].upper())
    squeezed = [re.sub(r"[^A-Z0-9]", "", text.upper()) for text in texts]
    parts = [payload[i : i + PART] for i in range(max(1, len(payload) - PART + 1))] if payload else []
    return next((part for part in parts for text in squeezed if part in text), "")


def _check_covered(screen: Screen, before: Image.Image) -> None:
    if n_cut := strokes_cut(before, screen.source):
        raise DataError(
            f"screen '{screen.id}': something that stands in the source region {screen.source} goes on outside it (at "
            f"{n_cut} edge pixels) and would be cut, not covered; expected a region that holds all of it: enlarge it."
        )


def _check_coverage(screen: Screen, after: Image.Image, mode: Mode, region: Box) -> float:
    array = np.asarray(after.crop(region), dtype=np.int16)
    ground = {"visible": screen.style.fill, "redacted": screen.style.mask, "absent": screen.style.behind}[mode]
    far = np.abs(array - np.array(ground, dtype=np.int16)).max(axis=2)
    if mode != "visible":
        if far.any():
            raise DataError(
                f"screen '{screen.id}': {int((far > 0).sum())} pixels of the region {region} are not of the colour "
                f"{ground} in the {mode} variant; expected it to be covered wholly."
            )
        return 0.0
    ink = float((far >= _STROKE).mean())
    if not INK[0] <= ink <= INK[1]:
        raise DataError(
            f"screen '{screen.id}': letters cover {ink:.2%} of the source region {region}; expected {INK[0]:.1%} to "
            f"{INK[1]:.0%}: fit the region to the text, and choose a text colour that stands out from the ground."
        )
    return ink


Words = Sequence[tuple[str, Box]]


def _check_words(name: str, image: Image.Image, words: Words, code: str, where: str) -> tuple[str, ...]:
    read = tuple(_read_word(image, word, box) for word, box in words)
    for said, (word, _) in zip(read, words, strict=True):
        if said != word and (word == code or _n_edits(said, word) > 1):
            raise DataError(
                f"screen '{name}': the source region shows '{word}' but is read as '{said}'{where}; expected it to be "
                "legible: enlarge the region, the letters or the image that the model gets."
            )
    return read


def _read_word(image: Image.Image, word: str, box: Box) -> str:
    """What is read in a box; where that is not the word, the word if a widened line is read so."""
    said = read_line(image, box)
    again = (read_line(image, box, stretch=stretch) for stretch in (1.5, 2.0, 3.0))
    return word if said == word or word in again else said


def _n_edits(said: str, word: str) -> int:
    """Characters to insert, drop or replace to get from one to the other, letters that look alike being the same."""
    a, b = said.translate(_ALIKE).lower(), word.translate(_ALIKE).lower()
    before = list(range(len(b) + 1))
    for i, character in enumerate(a, start=1):
        now = [i]
        for j, other in enumerate(b, start=1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (character != other)))
        before = now
    return before[-1]


def _check_hidden(name: str, image: Image.Image, words: Words, code: str, where: str) -> tuple[str, ...]:
    ((_, region),) = words
    page = read_page(image)
    for text, box in page:
        middle = Box((box.left + box.right) // 2, (box.top + box.bottom) // 2, 0, 0)
        if region.holds(middle._replace(right=middle.left + 1, bottom=middle.top + 1)):
            raise DataError(f"screen '{name}': '{text}' is read where the code was hidden{where}; expected no text.")
    if part := part_found(code, [text for text, _ in page]):
        raise DataError(
            f"screen '{name}': '{part}' of the code is read on a variant that hides it{where}; expected no part of it: "
            "remove it from the screenshot."
        )
    return ()


def _resized(small: Image.Image) -> str:
    return f" after the model's resizing to {small.width}x{small.height} pixels"


def _scaled(box: Box, before: Image.Image, after: Image.Image) -> Box:
    x, y = after.width / before.width, after.height / before.height
    return Box(math.floor(box.left * x), math.floor(box.top * y), math.ceil(box.right * x), math.ceil(box.bottom * y))


def _reach(box: Box, before: Image.Image, after: Image.Image) -> Box:
    """The scaled box and as much around it as a resampling filter mixes in."""
    x, y = after.width / before.width, after.height / before.height
    scaled = _scaled(box, before, after)
    wide, tall = (math.ceil(_KERNEL * max(scale, 1.0)) + 1 for scale in (x, y))
    return Box(scaled.left - wide, scaled.top - tall, scaled.right + wide, scaled.bottom + tall)
