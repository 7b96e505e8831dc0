"""Grounding sets of others, read in the layouts in which they are published; nothing is downloaded.

- OS-Atlas (training): `desktop_domain/{linux,macos,windows}_splited.json`, a list of objects with `img_filename` (in
  the unpacked image folder), `instruction`, `bbox` as [left, top, right, bottom] in fractions of width and height, and
  sometimes `data_type`.
- OSWorld-G (utility): `OSWorld-G_refined.json` or `OSWorld-G.json`, a list of objects with `id`, `image_path` (in
  `images/`), `image_size`, `instruction`, `box_type` (`bbox`, `polygon` or `refusal`), `box_coordinates` ([left, top,
  width, height] in pixels, or x and y of each corner in one list) and `GUI_types`.
- ScreenSpot-Pro (utility): `annotations/*.json`, each a list of objects with `id`, `img_filename` (in `images/`),
  `img_size`, `bbox` as [left, top, right, bottom] in pixels, `instruction`, `application`, `platform`, `ui_type`,
  `group`.

Source: the canary paper, appendices C-A1 and C-A4; the layouts are those of the sets' own pages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indelible.data.grounding import GroundingExample, Point, Polygon, Rectangle, Size, bounds
from indelible.data.json_values import numbers, read_json, rows, text
from indelible.errors import DataError


@dataclass(frozen=True, slots=True)
class GroundingSet:
    """What a file holds.

    Attributes:
        examples: in the order of the file.
        left_out: why rows were left out, and how many.
    """

    examples: tuple[GroundingExample, ...]
    left_out: Mapping[str, int]


def read_os_atlas(annotations: str | Path, images: str | Path, *, group: str = "") -> GroundingSet:
    """The examples of one OS-Atlas file.

    Rows whose image is missing or unreadable, or whose box is empty or outside the image, or whose instruction is
    blank, are left out and counted (appendix C-A1). Only the images' headers are read here.

    Errors:
        DataError: the file is missing or has another layout, or no row is left.
    """
    path = Path(annotations)
    size_of = _SizeOf(Path(images))
    examples: list[GroundingExample] = []
    left_out: Counter[str] = Counter()
    for i, row in enumerate(rows(read_json(path, "a list of OS-Atlas annotations"), str(path))):
        where = f"{path}, row {i + 1}"
        name = text(row, "img_filename", where)
        fractions = numbers(row, "bbox", where, 4)
        instruction = row.get("instruction")
        if not isinstance(instruction, str) or not instruction.strip():
            left_out["blank instruction"] += 1
            continue
        left, top, right, bottom = fractions
        if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
            left_out["box empty or outside the image"] += 1
            continue
        try:
            width, height = size_of(name)
        except DataError:
            left_out["image missing or unreadable"] += 1
            continue
        target = Rectangle(left * width, top * height, right * width, bottom * height)
        image = Path(images) / name
        examples.append(GroundingExample(f"{name}#{i}", image, (width, height), instruction.strip(), target, group))
    if not examples:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items()))
        raise DataError(f"{path}: no usable row ({reasons}); expected some: check the folder of images {images}.")
    return GroundingSet(tuple(examples), dict(left_out))


def read_osworld_g(folder: str | Path, *, refined: bool = True) -> GroundingSet:
    """The grounding examples of OSWorld-G, with its refined instructions or the first ones.

    Refusal rows are left out and counted: the paper keeps 510 of 564, 470 with boxes and 40 with polygons (C-A4).

    Errors:
        DataError: a file is missing or has another layout, or an image is missing.
    """
    path = Path(folder) / ("OSWorld-G_refined.json" if refined else "OSWorld-G.json")
    size_of = _SizeOf(Path(folder) / "images")
    examples: list[GroundingExample] = []
    left_out: Counter[str] = Counter()
    for i, row in enumerate(rows(read_json(path, "a list of OSWorld-G annotations"), str(path)), start=1):
        where = f"{path}, row {i}"
        kind = text(row, "box_type", where)
        if kind == "refusal":
            left_out["refusal"] += 1
            continue
        if kind not in ("bbox", "polygon"):
            raise DataError(f"{where}: 'box_type' is '{kind}'; expected bbox, polygon or refusal.")
        target: Rectangle | Polygon
        if kind == "bbox":
            left, top, width, height = numbers(row, "box_coordinates", where, 4)
            target = Rectangle(left, top, left + width, top + height)
        else:
            flat = numbers(row, "box_coordinates", where)
            if len(flat) < 6 or len(flat) % 2:
                raise DataError(
                    f"{where}: a polygon of {len(flat)} numbers; expected x and y of three corners or more."
                )
            target = tuple(zip(flat[::2], flat[1::2], strict=True))
        name = text(row, "image_path", where)
        examples.append(_benchmark_example(row, where, name, size_of, "image_size", target, ""))
    return GroundingSet(tuple(examples), dict(left_out))


def read_screenspot_pro(folder: str | Path) -> GroundingSet:
    """The examples of ScreenSpot-Pro, all of them, file by file in the order of their names; 1,581 in the paper (C-A4).

    Errors:
        DataError: a file is missing or has another layout, or an image is missing.
    """
    files = sorted((Path(folder) / "annotations").glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no annotations/*.json; expected the files of ScreenSpot-Pro. Check the folder.")
    size_of = _SizeOf(Path(folder) / "images")
    examples: list[GroundingExample] = []
    for path in files:
        for i, row in enumerate(rows(read_json(path, "a list of ScreenSpot-Pro annotations"), str(path)), start=1):
            where = f"{path}, row {i}"
            target = Rectangle(*numbers(row, "bbox", where, 4))
            name = text(row, "img_filename", where)
            group = text(row, "group", where, "")
            examples.append(_benchmark_example(row, where, name, size_of, "img_size", target, group))
    return GroundingSet(tuple(examples), {})


def _benchmark_example(
    row: Mapping[str, Any],
    where: str,
    name: str,
    size_of: _SizeOf,
    size_key: str,
    target: Rectangle | Polygon,
    group: str,
) -> GroundingExample:
    """An example whose coordinates are moved from the stated image size to the one found, should they differ."""
    width, height = size_of(name)
    stated = numbers(row, size_key, where, 2)
    if min(stated) <= 0:
        raise DataError(f"{where}: '{size_key}' is {list(stated)}; expected a width and a height in pixels.")
    x, y = width / stated[0], height / stated[1]
    moved = _scaled(target, x, y)
    left, top, right, bottom = bounds(moved)
    if not (left < right and top < bottom and left < width and top < height and right > 0 and bottom > 0):
        raise DataError(
            f"{where}: its target [{left:g}, {top:g}, {right:g}, {bottom:g}] is empty or outside the image of "
            f"{width}x{height} pixels; expected one inside."
        )
    instruction = text(row, "instruction", where)
    return GroundingExample(text(row, "id", where), size_of.folder / name, (width, height), instruction, moved, group)


def _scaled(target: Rectangle | Polygon, x: float, y: float) -> Rectangle | Polygon:
    if isinstance(target, Rectangle):
        return Rectangle(target.left * x, target.top * y, target.right * x, target.bottom * y)
    corners: list[Point] = [(a * x, b * y) for a, b in target]
    return tuple(corners)


class _SizeOf:
    """Sizes of the images of a folder, each read once and from its header alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Size] = {}

    def __call__(self, name: str) -> Size:
        if name not in self.known:
            from PIL import Image

            path = self.folder / name
            if not path.is_file():
                raise DataError(
                    f"image '{path}': no such file; expected one of the annotated images. Check the folder."
                )
            try:
                with Image.open(path) as image:
                    self.known[name] = image.size
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                raise DataError(f"image '{path}': not readable ({type(error).__name__}); expected an image.") from error
        return self.known[name]
