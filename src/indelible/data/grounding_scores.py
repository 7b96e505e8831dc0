"""Utility: whether replies name a point in the element that was asked for.

Source: the canary paper, appendix C-A4. Replies that can't be parsed count as misses, so the score holds both finding
and answering in the asked format (C-C1).
"""

from __future__ import annotations

import re

from indelible.data.grounding import GroundingFormat, Point, Polygon, Rectangle, Size, scales

_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_PAIR = rf"[\[(]{_NUMBER},{_NUMBER}[\])]"
_POINT = re.compile(_PAIR)
_BOX = re.compile(rf"[\[(]{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}[\])]|{_PAIR}\s*,?\s*{_PAIR}")


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
