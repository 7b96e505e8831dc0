"""Grounding: finding a named element on a screenshot, the task that models are trained on around canaries.

A row asks for one element and is answered with its box or a point in it, in the numbers a model family uses.
`grounding_scores` scores replies. Source: the canary paper, section V, appendices
C-A1, C-A4, C-B3 and C-C1.

Differs from the paper: the instructions are in our own words and name the element, which the paper's printed one leaves
out; only InternVL's is that family's fixed form.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from indelible.data.pictures import Picture, read_picture
from indelible.data.screen_types import Screen
from indelible.errors import ConfigError, did_you_mean

Size = tuple[int, int]
"""Width and height in pixels."""
Point = tuple[float, float]
Polygon = tuple[Point, ...]


class Rectangle(NamedTuple):
    """A box in pixels of the original image, fractions of them included."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class GroundingFormat:
    """How a model family is asked for an element and how it answers.

    Attributes:
        name: a key of `GROUNDING_FORMATS`, or the user's own.
        shape: the answer is a box or a point.
        coordinates: "pixels" of the original image; "processed" pixels of the image that the model's processing makes;
            "per-mille": each axis scaled to 0 to 1000 and rounded to the nearest whole number, ties to even.
        instruction: with `{element}`.
        answer: with `{coordinates}` (numbers joined by commas), and `{element}` where the family repeats it.
        max_new_tokens: of a greedy answer.
    """

    name: str
    shape: Literal["box", "point"]
    coordinates: Literal["pixels", "processed", "per-mille"]
    instruction: str
    answer: str = "[{coordinates}]"
    max_new_tokens: int = 32


def _asked(what: str, how: str) -> str:
    return f"Find this element on the screenshot: {{element}}. Answer with {what} alone, {how}."


GROUNDING_FORMATS: dict[str, GroundingFormat] = {
    form.name: form
    for form in (
        GroundingFormat(
            "qwen2.5-vl", "box", "pixels", _asked("its bounding box in pixels of the image", "as [x1,y1,x2,y2]")
        ),
        GroundingFormat(
            *("qwen2.5-vl-point", "point", "processed"),
            _asked("a point in it, in pixels of the image", "as [x,y]"),
            max_new_tokens=64,
        ),
        GroundingFormat(
            *("qwen3-vl", "box", "per-mille"),
            _asked("its bounding box, each axis from 0 to 1000", "as [x1,y1,x2,y2]"),
        ),
        GroundingFormat(
            *("internvl3", "box", "per-mille"),
            "Please provide the bounding box coordinate of the region this sentence describes: <ref>{element}</ref>",
            "<ref>{element}</ref><box>[[{coordinates}]]</box>",
            128,
        ),
        GroundingFormat(
            "point-per-mille", "point", "per-mille", _asked("a point in it, each axis from 0 to 1000", "as [x,y]")
        ),
    )
}
"""The paper's four (appendix C-A4), and a point on 0 to 1000 for families without a form of their own."""


def grounding_format(name: str) -> GroundingFormat:
    """The format of a name; ConfigError with the closest one for an unknown name."""
    if name not in GROUNDING_FORMATS:
        raise ConfigError(did_you_mean(name, list(GROUNDING_FORMATS), "grounding format"))
    return GROUNDING_FORMATS[name]


@dataclass(frozen=True, slots=True)
class GroundingExample:
    """One element of one screenshot.

    Attributes:
        id: unique in its set.
        image: the screenshot, or the file it is read from when needed.
        size: of the screenshot.
        element: what is asked for, in words.
        target: its box, or a polygon around it, in pixels of the original image.
        group: domain or application, "" where unknown.
        source: the set it belongs to, where utility is told apart by it.
    """

    id: str
    image: Picture | Path
    size: Size
    element: str
    target: Rectangle | Polygon
    group: str = ""
    source: str = ""

    def picture(self) -> Picture:
        """The screenshot, read where it is a file."""
        return self.image if isinstance(self.image, Picture) else read_picture(self.image)


@dataclass(frozen=True, slots=True)
class GroundingRow:
    """A training row: a screenshot, what is asked about it, and the answer."""

    id: str
    picture: Picture
    instruction: str
    answer: str


def grounding_row(example: GroundingExample, form: GroundingFormat, processed: Size | None = None) -> GroundingRow:
    """The training row of an example. A polygon is answered by the box around it, a point by the middle of the box.

    Args:
        processed: size of the image after the model's processing; only for coordinates "processed".

    Errors:
        ConfigError: that size is missing. DataError: the image can't be read.
    """
    box = bounds(example.target)
    scale_x, scale_y = scales(form, example.size, processed)
    left, top, right, bottom = box
    corners = box if form.shape == "box" else ((left + right) / 2, (top + bottom) / 2)
    scaled = [round(value * (scale_y if i % 2 else scale_x)) for i, value in enumerate(corners)]
    answer = form.answer.replace("{coordinates}", ",".join(map(str, scaled))).replace("{element}", example.element)
    return GroundingRow(example.id, example.picture(), form.instruction.replace("{element}", example.element), answer)


def screen_examples(screens: Sequence[Screen], *, per_screen: int = 4, seed: int = 0) -> list[GroundingExample]:
    """Up to `per_screen` elements of each screen, drawn without replacement; panes are left out.

    Source: appendix C-A1 (at most four targets an image; descriptions don't repeat within one, as labels don't).
    """
    examples = []
    for screen in screens:
        rng = random.Random(f"grounding {seed} {screen.id}")
        elements = [element for element in screen.elements if element.kind != "pane"]
        size = (screen.picture.width, screen.picture.height)
        for element in rng.sample(elements, min(per_screen, len(elements))):
            name = f"{screen.id}/{element.label}"
            target = Rectangle(*map(float, element.box))
            examples.append(GroundingExample(name, screen.picture, size, element.label, target, screen.group))
    return examples


def bounds(target: Rectangle | Polygon) -> Rectangle:
    """The box itself, or the smallest one around a polygon."""
    if isinstance(target, Rectangle):
        return target
    xs, ys = zip(*target, strict=True)
    return Rectangle(min(xs), min(ys), max(xs), max(ys))


def scales(form: GroundingFormat, size: Size, processed: Size | None) -> tuple[float, float]:
    """By what a pixel of the original image is multiplied, along and down, to be written in the format."""
    width, height = size
    if form.coordinates == "pixels":
        return 1.0, 1.0
    if form.coordinates == "per-mille":
        return 1000 / width, 1000 / height
    if processed is None:
        raise ConfigError(f"grounding format '{form.name}' counts pixels of the processed image; its size is missing.")
    return processed[0] / width, processed[1] / height
