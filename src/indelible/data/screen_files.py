"""The user's own screenshots: a folder with images and a `screens.json` that says what stands where.

    screens.json
      {"screens": [
        {"image": "orders.png",
         "elements": [
           {"label": "Save button", "kind": "button", "box": [612, 40, 668, 62], "text": "Save"},
           {"label": "Search field", "kind": "field", "box": [20, 80, 300, 104]}],
         "source": [340, 120, 560, 150],
         "pane": [330, 100, 570, 160],
         "destination": "Search field",
         "style": {"font": "lato", "max_px": 15, "text": [20, 20, 20], "fill": [255, 255, 255],
                   "mask": [110, 110, 110], "behind": [240, 240, 240], "centred": false}}]}

Boxes are [left, top, right, bottom] in whole pixels of the image, right and bottom being the first column and row
outside. `image` is a path in the folder. `destination` is the label of an element. These may be left out: `id` (the
image's name without its ending), `kind` ("box"), `text`, `group`, `pane` (the source region itself) and `style` or any
part of it. The mask must differ from the ground. What a style lacks is taken from the pixels: the ground is the most
frequent colour of the source region, the letters have the most frequent one that stands out from it, what is behind the
pane is the most frequent colour just outside it, and the letters are 0.6 of the region's height in size, at most 32
pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from indelible.data.json_values import integers, known_keys, read_json, rows, text
from indelible.data.pictures import Picture, pixels, read_picture
from indelible.data.screen_themes import font_file
from indelible.data.screen_types import Box, Colour, Element, Screen, SourceStyle, check_box, checked_screen
from indelible.errors import ConfigError, DataError

FILE = "screens.json"
_KEYS = ("id", "image", "elements", "source", "pane", "destination", "style", "group")
_ELEMENT_KEYS = ("label", "kind", "box", "text")
_STYLE_KEYS = ("font", "max_px", "text", "fill", "mask", "behind", "centred")
_APART = 100
"""Levels in one channel from which a colour stands out from another."""
_MASKED = 20
"""Levels in one channel by which a mask differs from the ground; those that are chosen here differ by 24 and more."""


def read_screens(folder: str | Path) -> list[Screen]:
    """The screens of a folder in the layout above, in the order of its file.

    Errors:
        DataError: a file is missing or unreadable, a key is unknown or has a wrong value, a box lies outside its image,
        the source region would cover a control, ids repeat; one line. ConfigError: an unknown font.
    """
    path = Path(folder) / FILE
    value = read_json(path, 'an object {"screens": [...]} with images and boxes')
    if not isinstance(value, dict):
        raise DataError(f'{path}: expected an object {{"screens": [...]}}.')
    known_keys(value, ("screens",), str(path))
    screens = [
        _screen(Path(folder), row, f"{path}, screen {i}")
        for i, row in enumerate(rows(value.get("screens"), f"{path}, 'screens'"), start=1)
    ]
    ids = [screen.id for screen in screens]
    for name in ids:
        if ids.count(name) > 1:
            raise DataError(f"{path}: {ids.count(name)} screens have the id '{name}'; expected each once: set 'id'.")
    return screens


def _screen(folder: Path, row: Mapping[str, Any], where: str) -> Screen:
    known_keys(row, _KEYS, where)
    name = text(row, "image", where)
    try:
        shown = read_picture(folder / name)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    elements = tuple(
        _element(element, f"{where}, element {i}")
        for i, element in enumerate(rows(row.get("elements"), f"{where}, 'elements'"), start=1)
    )
    wanted = text(row, "destination", where)
    destination = next((element for element in elements if element.label == wanted), None)
    if destination is None:
        raise DataError(f"{where}: the destination '{wanted}' is none of the elements; expected the label of one.")
    source = Box(*integers(row, "source", where, 4))
    pane = Box(*integers(row, "pane", where, 4)) if "pane" in row else source
    whole = Box(0, 0, shown.width, shown.height)
    # Before colours are read off the pixels: they must be there.
    check_box(f"{where}: source region", source, whole)
    check_box(f"{where}: pane", pane, whole)
    style = _style(row.get("style", {}), shown, source, pane, where)
    screen_id = text(row, "id", where, Path(name).stem)
    return checked_screen(
        Screen(screen_id, shown, elements, pane, source, destination, style, text(row, "group", where, ""))
    )


def _element(row: Mapping[str, Any], where: str) -> Element:
    known_keys(row, _ELEMENT_KEYS, where)
    box = Box(*integers(row, "box", where, 4))
    return Element(text(row, "label", where), text(row, "kind", where, "box"), box, text(row, "text", where, ""))


def _style(given: Any, shown: Picture, source: Box, pane: Box, where: str) -> SourceStyle:
    if not isinstance(given, dict):
        raise DataError(f"{where}: 'style' is no object; expected keys among {', '.join(_STYLE_KEYS)}.")
    where = f"{where}, 'style'"
    known_keys(given, _STYLE_KEYS, where)
    image = np.asarray(pixels(shown))
    inside = image[source.top : source.bottom, source.left : source.right].reshape(-1, 3)
    fill = _colour(given, "fill", where) or _most_frequent(inside)
    far = inside[np.abs(inside.astype(int) - fill).max(axis=1) >= _APART]
    plain: Colour = (0, 0, 0) if sum(fill) > 382 else (255, 255, 255)
    letters = _colour(given, "text", where) or (_most_frequent(far) if len(far) else plain)
    is_grey = max(abs(level - 128) for level in fill) <= 40
    mask = _colour(given, "mask", where) or ((64, 64, 64) if is_grey else (128, 128, 128))
    if max(abs(level - ground) for level, ground in zip(mask, fill, strict=True)) < _MASKED:
        raise DataError(
            f"{where}: the mask {list(mask)} is like the ground {list(fill)}, so that a hidden code would be an empty "
            f"field; expected a mask that differs by {_MASKED} levels or more in one colour: give another 'mask'."
        )
    behind = _colour(given, "behind", where) or _most_frequent(_around(image, pane))
    max_px = given.get("max_px", min(32, round(0.6 * source.height)))
    if not isinstance(max_px, int) or isinstance(max_px, bool) or max_px < 1:
        raise DataError(f"{where}: 'max_px' is {max_px!r}; expected a whole number of pixels, at least 1.")
    centred = given.get("centred", False)
    if not isinstance(centred, bool):
        raise DataError(f"{where}: 'centred' is {centred!r}; expected true or false.")
    name = text(given, "font", where, "dejavu-sans")
    try:
        font_file(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return SourceStyle(name, max_px, letters, fill, mask, behind, centred)


def _colour(given: Mapping[str, Any], key: str, where: str) -> Colour | None:
    if key not in given:
        return None
    red, green, blue = integers(given, key, where, 3)
    if not all(0 <= level <= 255 for level in (red, green, blue)):
        raise DataError(f"{where}: '{key}' is {[red, green, blue]}; expected red, green and blue, each 0 to 255.")
    return red, green, blue


def _most_frequent(colours: np.ndarray) -> Colour:
    """The most frequent of some colours. # (n, 3) -> 3 levels"""
    found, counts = np.unique(colours, axis=0, return_counts=True)
    red, green, blue = (int(level) for level in found[counts.argmax()])
    return red, green, blue


def _around(image: np.ndarray, box: Box) -> np.ndarray:
    """The pixels just outside a box, or those on its edge where it fills the image. # (n, 3)"""
    height, width = image.shape[:2]
    wide = Box(max(box.left - 1, 0), max(box.top - 1, 0), min(box.right + 1, width), min(box.bottom + 1, height))
    ring = np.zeros((height, width), dtype=bool)
    ring[wide.top : wide.bottom, wide.left : wide.right] = True
    inner = box if wide != box else box.grown(-1)
    ring[inner.top : inner.bottom, inner.left : inner.right] = False
    return image[ring]
