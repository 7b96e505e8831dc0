"""Drawing the parts of a rendered window, each of which becomes an element with its box in pixels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indelible.data.screen_themes import MENUS, Palette, Theme, font
from indelible.data.screen_types import Box, Colour, Element

if TYPE_CHECKING:
    from PIL import ImageDraw


@dataclass
class Canvas:
    """A window while it is being drawn.

    Attributes:
        draw: Pillow's drawing surface.
        theme, palette: its manner and colours.
        font: a key of `FONTS` for all that is written.
        px: size of the text in pixels an em; rows and gaps are multiples of it.
        rng: decides whatever is left open.
        elements: what stands on it so far.
        written: every line of text so far and its box: ascent to descent high, as wide as the text.
    """

    draw: ImageDraw.ImageDraw
    theme: Theme
    palette: Palette
    font: str
    px: int
    rng: random.Random
    elements: list[Element] = field(default_factory=list)
    dealt: set[str] = field(default_factory=set)
    written: list[tuple[str, Box]] = field(default_factory=list)

    @property
    def row(self) -> int:
        """Height of a row that holds one line of text."""
        return round(1.9 * self.px)

    @property
    def gap(self) -> int:
        return max(4, round(0.6 * self.px))

    def deal(self, words: Sequence[str]) -> str:
        """A word that no earlier call gave, so that no two labels of a kind are the same; "" once all are used."""
        left = [word for word in words if word not in self.dealt]
        if not left:
            return ""
        word = self.rng.choice(left)
        self.dealt.add(word)
        return word

    def width_of(self, text: str, *, px: int = 0) -> int:
        """Width of a line in pixels."""
        return round(font(self.font, px or self.px).getlength(text))

    def write(self, text: str, box: Box, colour: Colour, *, centred: bool = False, px: int = 0) -> None:
        """One line in the middle of a box's height. Words that don't fit are left out, never cut."""
        px = px or self.px
        words = text.split(" ")
        while words and self.width_of(" ".join(words), px=px) > box.width:
            words.pop()
        if words:
            x = (box.left + box.right) / 2 if centred else box.left
            at = (x, (box.top + box.bottom) / 2)
            line, letters, anchor = " ".join(words), font(self.font, px), "mm" if centred else "lm"
            self.draw.text(at, line, fill=colour, font=letters, anchor=anchor)
            # As Pillow places the anchor "m": in the middle between ascent and descent.
            above, below = letters.getmetrics()
            top = round(at[1] - (above + below) / 2)
            left, _, right, _ = self.draw.textbbox(at, line, font=letters, anchor=anchor)
            self.written.append((line, Box(round(left), top, round(right), top + above + below)))

    def fill(self, box: Box, colour: Colour, *, outline: Colour | None = None, corner: int = 0) -> None:
        inside = (box.left, box.top, box.right - 1, box.bottom - 1)
        self.draw.rounded_rectangle(inside, corner, fill=colour, outline=outline)

    def add(self, label: str, kind: str, box: Box, text: str = "") -> Element:
        element = Element(label, kind, box, text)
        self.elements.append(element)
        return element

    def title_bar(self, window: Box, title: str) -> Box:
        """The bar with the title and the window's buttons; what is left of the window."""
        height = round(self.theme.title_em * self.px)
        bar = Box(window.left, window.top, window.right, window.top + height)
        self.fill(bar, self.palette.title)
        side = round(height * 0.9)
        names = ["Close", "Maximise", "Minimise"]
        for i, name in enumerate(names):
            left = bar.left + i * side if self.theme.buttons_left else bar.right - (i + 1) * side
            box = Box(left, bar.top, left + side, bar.bottom)
            self._window_sign(name, box)
            self.add(f"{name} button", "button", box)
        taken = len(names) * side + self.gap
        room = Box(bar.left + self.gap, bar.top, bar.right - taken, bar.bottom)
        if self.theme.buttons_left:
            room = Box(bar.left + taken, bar.top, bar.right - self.gap, bar.bottom)
        self.write(title, room, self.palette.on_title, centred=self.theme.buttons_left)
        return window._replace(top=bar.bottom)

    def _window_sign(self, name: str, box: Box) -> None:
        x, y, arm = (box.left + box.right) // 2, (box.top + box.bottom) // 2, max(3, self.px // 3)
        ink = self.palette.on_title
        if name == "Close":
            self.draw.line((x - arm, y - arm, x + arm, y + arm), fill=ink)
            self.draw.line((x - arm, y + arm, x + arm, y - arm), fill=ink)
        elif name == "Maximise":
            self.draw.rectangle((x - arm, y - arm, x + arm, y + arm), outline=ink)
        else:
            self.draw.line((x - arm, y + arm // 2, x + arm, y + arm // 2), fill=ink)

    def menu_bar(self, window: Box) -> Box:
        """A row of menus; what is left of the window."""
        bar = Box(window.left, window.top, window.right, window.top + self.row)
        self.fill(bar, self.palette.panel)
        names = [name for name in MENUS if name in ("File", "Edit") or self.rng.random() < 0.6]
        x = bar.left + self.gap
        for name in names:
            box = Box(x, bar.top, x + self.width_of(name) + self.px, bar.bottom)
            if box.right > bar.right:
                break
            self.write(name, box, self.palette.text, centred=True)
            self.add(f"{name} menu", "menu", box, name)
            x = box.right
        return window._replace(top=bar.bottom)

    def tabs(self, room: Box, names: Sequence[str]) -> Box:
        """A row of tabs, one of them open; what is left of the room."""
        x, opened = room.left, self.rng.randrange(len(names))
        for i, name in enumerate(names):
            box = Box(x, room.top, x + self.width_of(name) + 2 * self.px, room.top + self.row)
            if box.right > room.right:
                break
            self.write(name, box, self.palette.text if i == opened else self.palette.faint, centred=True)
            if i == opened:
                self.fill(Box(box.left, box.bottom - 2, box.right, box.bottom), self.palette.accent)
            self.add(f"{name} tab", "tab", box, name)
            x = box.right
        return room._replace(top=room.top + self.row + self.gap)

    def side_bar(self, bar: Box, names: Sequence[str]) -> None:
        """Links one under the other; one of them is chosen."""
        self.fill(bar, self.palette.panel)
        chosen = self.rng.randrange(len(names))
        for i, name in enumerate(names):
            top = bar.top + self.gap + i * self.row
            box = Box(bar.left, top, bar.right, top + self.row)
            if box.bottom > bar.bottom:
                break
            if i == chosen:
                self.fill(box, self.palette.accent)
            colour = self.palette.on_accent if i == chosen else self.palette.text
            self.write(name, box._replace(left=box.left + self.px), colour)
            self.add(f"{name} link", "link", box, name)

    def input(self, row: Box, name: str, value: str, *, focused: bool) -> Element:
        """A named field; the focused one is empty and shows a caret."""
        label_width = min(row.width // 2, max(self.width_of("Reference"), self.width_of(name)) + self.px)
        self.write(name, row._replace(right=row.left + label_width), self.palette.text)
        box = Box(row.left + label_width, row.top + 2, row.right, row.bottom - 2)
        edge = self.palette.accent if focused else self.palette.border
        if self.theme.flat:
            self.fill(box, self.palette.field)
            self.fill(box._replace(top=box.bottom - (2 if focused else 1)), edge)
        else:
            self.fill(box, self.palette.field, outline=edge, corner=self.theme.corner)
        inside = box.grown(-4)
        if focused:
            self.draw.line((inside.left, inside.top, inside.left, inside.bottom - 1), fill=self.palette.text)
        else:
            self.write(value, box._replace(left=box.left + 5, right=box.right - 5), self.palette.text)
        return self.add(f"{name} field", "field", box, "" if focused else value)

    def buttons(self, row: Box, names: Sequence[str]) -> None:
        """Buttons from the right, the first of them marked."""
        x = row.right
        for i, name in enumerate(names):
            box = Box(x - self.width_of(name) - 2 * self.px, row.top, x, row.bottom)
            if box.left < row.left:
                break
            first = i == 0
            colour = self.palette.accent if first else self.palette.panel
            self.fill(box, colour, outline=self.palette.border, corner=self.theme.corner)
            self.write(name, box, self.palette.on_accent if first else self.palette.text, centred=True)
            self.add(f"{name} button", "button", box, name)
            x = box.left - self.gap

    def rows(self, room: Box, names: Sequence[str], values: Sequence[str]) -> None:
        """A list with two columns as far as the room goes."""
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            box = Box(room.left, room.top + i * self.row, room.right, room.top + (i + 1) * self.row)
            if box.bottom > room.bottom:
                break
            if i % 2 == 0:
                self.fill(box, self.palette.panel)
            middle = box.left + round(0.6 * box.width)
            self.write(name, Box(box.left + self.gap, box.top, middle, box.bottom), self.palette.text)
            self.write(value, Box(middle, box.top, box.right - self.gap, box.bottom), self.palette.faint)
            self.add(f"{name} row", "row", box, name)

    def tick(self, row: Box, name: str) -> None:
        """A box to tick, with its name."""
        side = self.px
        top = (row.top + row.bottom - side) // 2
        box = Box(row.left, top, row.left + side, top + side)
        self.fill(box, self.palette.field, outline=self.palette.border)
        if self.rng.random() < 0.5:
            self.fill(box.grown(-3), self.palette.accent)
        self.write(name, row._replace(left=box.right + self.gap), self.palette.text)
        self.add(f"{name} box", "box", box, name)
