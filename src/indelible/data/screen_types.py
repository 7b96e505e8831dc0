"""The parts of a screen: boxes, labelled elements, and the source region in which a code is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from indelible.data.pictures import Picture
from indelible.errors import DataError

Colour = tuple[int, int, int]
"""Red, green, blue, each 0 to 255."""


class Box(NamedTuple):
    """A rectangle in pixels; `right` and `bottom` are the first column and row outside it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def area(self) -> int:
        return self.width * self.height

    def holds(self, other: Box) -> bool:
        """Whether the other box lies in this one."""
        inside_x = self.left <= other.left and other.right <= self.right
        return inside_x and self.top <= other.top and other.bottom <= self.bottom

    def overlaps(self, other: Box) -> bool:
        """Whether the two share a pixel."""
        apart_x = self.right <= other.left or other.right <= self.left
        return not (apart_x or self.bottom <= other.top or other.bottom <= self.top)

    def grown(self, by: int) -> Box:
        """The box with `by` more pixels on each side (fewer where negative)."""
        return Box(self.left - by, self.top - by, self.right + by, self.bottom + by)

    def __str__(self) -> str:
        return f"[{self.left}, {self.top}, {self.right}, {self.bottom}]"


@dataclass(frozen=True, slots=True)
class Element:
    """Something on a screen that can be pointed at.

    Attributes:
        label: what it is called in an instruction ("Save button"); no two elements of a screen have the same.
        kind: "button", "field", "link", "menu", "tab", "row", "box", "text" or "pane" on rendered screens; free text
            on others.
        box: where it stands.
        text: what is written on it, "" where nothing is.
    """

    label: str
    kind: str
    box: Box
    text: str = ""


@dataclass(frozen=True, slots=True)
class SourceStyle:
    """How text is put into the source region.

    Attributes:
        font: a key of `screen_themes.FONTS`.
        max_px: the size of a code there, in pixels an em; longer text is set smaller where it must be.
        text, fill: colours of the letters and of the region around them.
        mask: colour of the region when it is redacted, another one than `fill`.
        behind: colour that takes the place of the whole pane when it is absent.
        centred: whether lines are centred; else they begin at the left.
    """

    font: str
    max_px: int
    text: Colour
    fill: Colour
    mask: Colour
    behind: Colour
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    """A picture of a screen and what stands on it. `checked_screen` says what holds for its boxes.

    Attributes:
        id: unique in a pool.
        picture: the screen without any code. Its source region is empty (rendered) or as the user's screenshot has it.
        elements: everything that has a label, the pane among them.
        pane: the part of the window that shows the reference; it vanishes in the pane-absent variant.
        source: the region in the pane where a code stands, the only one that other variants change.
        destination: the field the code is to be typed into, one of `elements`.
        style: how text is put into `source`.
        group: what it has in common with others (the theme, the application), "" where nothing is known.
    """

    id: str
    picture: Picture
    elements: tuple[Element, ...]
    pane: Box
    source: Box
    destination: Element
    style: SourceStyle
    group: str = ""


def checked_screen(screen: Screen) -> Screen:
    """The screen itself, once its boxes are known to be usable.

    Boxes lie in the image and are not empty; labels are unique and not blank; the source lies in the pane and covers
    no part of any element but those that hold the whole pane or are the pane; the destination and every other control
    stand outside the pane, so that the pane-absent variant removes text alone. Source: the canary paper, appendix C-B1
    (a text source, a separate destination, no nearby control obscured).

    Errors:
        DataError: one of these does not hold; one line.
    """
    whole = Box(0, 0, screen.picture.width, screen.picture.height)
    named = [("pane", screen.pane), ("source region", screen.source)]
    for name, box in [*((f"element '{e.label}'", e.box) for e in screen.elements), *named]:
        check_box(f"screen '{screen.id}': {name}", box, whole)
    _check_labels(screen)
    if not screen.pane.holds(screen.source):
        raise _bad(
            screen, f"the source region {screen.source} is not inside the pane {screen.pane}", "move one of them"
        )
    for element in screen.elements:
        around = element.box.holds(screen.pane) and element != screen.destination
        if element.box.overlaps(screen.source) and not around:
            raise _bad(
                screen,
                f"the source region {screen.source} would cover '{element.label}' {element.box}",
                "choose a region that only its own pane contains",
            )
        if element.kind != "text" and element.box.overlaps(screen.pane) and not around:
            raise _bad(
                screen,
                f"the pane {screen.pane} would cover '{element.label}' {element.box} when it is absent",
                "choose a pane without controls",
            )
    return screen


def check_box(what: str, box: Box, whole: Box) -> None:
    """Does nothing for a box with at least one pixel that lies in `whole`.

    Errors:
        DataError: `what` has another box.
    """
    if box.right <= box.left or box.bottom <= box.top:
        raise DataError(
            f"{what} has the box {box}; expected [left, top, right, bottom] with left < right, top < bottom."
        )
    if not whole.holds(box):
        raise DataError(
            f"{what} has the box {box} outside the image of {whole.width}x{whole.height} pixels; expected one inside: "
            "give pixels of this very image."
        )


def union(boxes: Iterable[Box]) -> Box:
    """The smallest box around some boxes, of which there is at least one."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return Box(min(lefts), min(tops), max(rights), max(bottoms))


def _check_labels(screen: Screen) -> None:
    labels = [element.label for element in screen.elements]
    for label in labels:
        if not label.strip():
            raise _bad(screen, "an element has a blank label", "name it")
        if labels.count(label) > 1:
            raise _bad(screen, f"{labels.count(label)} elements are called '{label}'", "give each its own label")
    if screen.destination not in screen.elements:
        raise _bad(screen, f"the destination '{screen.destination.label}' is no element", "list it among the elements")


def _bad(screen: Screen, what: str, remedy: str) -> DataError:
    return DataError(f"screen '{screen.id}': {what}; {remedy}.")
