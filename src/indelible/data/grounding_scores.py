"""Utility: whether replies name a point in the element that was asked for.

Source: the canary paper, appendix C-A4. Replies that can't be parsed count as misses, so the score holds both finding
and answering in the asked format (C-C1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from indelible.data.grounding import GroundingExample, GroundingFormat, Point, Polygon, Rectangle, Size, scales
from indelible.errors import DataError

_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_PAIR = rf"[\[(]{_NUMBER},{_NUMBER}[\])]"
_POINT = re.compile(_PAIR)
_BOX = re.compile(rf"[\[(]{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}[\])]|{_PAIR}\s*,?\s*{_PAIR}")


@dataclass(frozen=True, slots=True)
class Utility:
    """How well elements are found.

    Attributes:
        hits: for each answer whether its point falls into the target; an answer that can't be parsed doesn't.
        parsed: for each answer whether it could be parsed.
    """

    hits: tuple[bool, ...]
    parsed: tuple[bool, ...]

    @property
    def accuracy(self) -> float:
        """Share of answers that hit."""
        return sum(self.hits) / len(self.hits)

    @property
    def parse_rate(self) -> float:
        """Share of answers in the asked format."""
        return sum(self.parsed) / len(self.parsed)


def utility(
    examples: Sequence[GroundingExample],
    replies: Sequence[str],
    form: GroundingFormat,
    processed: Sequence[Size] | None = None,
) -> Utility:
    """The score of replies to examples, in their order. Source: appendix C-A4.

    Args:
        processed: for each example the size of its image after processing; only for coordinates "processed".

    Errors:
        DataError: no examples, or not one reply each. ConfigError: `processed` is needed and missing.
    """
    if not examples or len(examples) != len(replies) or (processed is not None and len(processed) != len(examples)):
        raise DataError(
            f"{len(replies)} replies to {len(examples)} grounding examples; expected one each, and at least one."
        )
    sizes: Sequence[Size | None] = processed if processed is not None else [None] * len(examples)
    points = [
        answered_point(reply, form, example.size, size)
        for example, reply, size in zip(examples, replies, sizes, strict=True)
    ]
    hits = tuple(point is not None and is_hit(point, e.target) for point, e in zip(points, examples, strict=True))
    return Utility(hits, tuple(point is not None for point in points))


def answered_point(reply: str, form: GroundingFormat, size: Size, processed: Size | None = None) -> Point | None:
    """The point a reply names, in pixels of the original image: the middle of a box; None where it can't be parsed.

    A box is the first four numbers in one pair of brackets or parentheses, or two such pairs of numbers side by side
    ((x1,y1),(x2,y2)); a point is the first two numbers in one pair. Numbers outside the image count as parsed. The
    paper does not print its parser; this one is ours.

    Errors:
        ConfigError: `processed` is needed and missing.
    """
    scale_x, scale_y = scales(form, size, processed)
    match = (_BOX if form.shape == "box" else _POINT).search(reply)
    if match is None:
        return None
    values = [float(value) for value in match.groups() if value is not None]
    xs, ys = values[::2], values[1::2]
    return sum(xs) / len(xs) / scale_x, sum(ys) / len(ys) / scale_y


def is_hit(point: Point, target: Rectangle | Polygon) -> bool:
    """Whether a point lies in a box or polygon; on the edge counts as in it."""
    if isinstance(target, Rectangle):
        return target.left <= point[0] <= target.right and target.top <= point[1] <= target.bottom
    return in_polygon(point, target)


def in_polygon(point: Point, polygon: Polygon) -> bool:
    """Whether a point lies in a polygon by the even-odd rule, or on its edge."""
    x, y = point
    inside = False
    for (x1, y1), (x2, y2) in zip(polygon, (*polygon[1:], polygon[0]), strict=True):
        across = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        if across == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
            return True
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            inside = not inside
    return inside
