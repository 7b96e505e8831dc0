"""Rendered screens: seeded desktop-like windows with labelled elements, a source region and a destination field.

They stand in for the paper's pool of Windows screenshots, which can't be passed on. Every word on them is made up. The
same seed gives the same bytes under the same versions of Pillow and of the font packages.

Differs from the paper: it draws its 95 screens from OS-Atlas; ours are drawn, and so poorer than real ones. Use
`screen_files.read_screens` for real screenshots.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from indelible.data import screen_themes as made_of
from indelible.data.pictures import picture
from indelible.data.screen_duplicates import Looks
from indelible.data.screen_themes import SIZES, THEMES, Palette, Theme, draw_palette
from indelible.data.screen_types import Box, Element, Screen, SourceStyle, checked_screen
from indelible.data.screen_widgets import Canvas
from indelible.errors import ConfigError, DataError, did_you_mean

__all__ = ["SIZES", "THEMES", "render_screen", "screen_pool"]

MIN_WIDTH, MIN_HEIGHT = 400, 300
CODE_LINES = 3
"""Lines of text that a rendered source region has room for: the longest fruit cues need three."""


def screen_pool(n: int, seed: int, *, sizes: Sequence[tuple[int, int]] = SIZES) -> list[Screen]:
    """n rendered screens of which no two are near duplicates.

    Sizes and themes take turns, so that a pool of any size holds them evenly. A longer pool of a seed begins with the
    shorter one. Source: the canary paper, appendix C-B1.

    Errors:
        ConfigError: n below 1, or a size below 400x300. DataError: no such pool was found.
    """
    if n < 1:
        raise ConfigError(f"a pool of {n} screens asked for; expected at least 1.")
    names = [theme.name for theme in THEMES]
    pool: list[Screen] = []
    taken: list[Looks] = []
    for k in range(4 * n + 100):
        # Sizes advance once a round of themes, so that every theme comes in every size.
        size = sizes[(k + k // len(names)) % len(sizes)]
        screen = render_screen(f"{seed}-{k}", size=size, theme=names[k % len(names)])
        looks = Looks.of(screen)
        if not any(looks.near(other) for other in taken):
            pool.append(screen)
            taken.append(looks)
        if len(pool) == n:
            return pool
    raise DataError(
        f"only {len(pool)} of {n} screens without near duplicates were found; expected all: allow more sizes."
    )


def render_screen(seed: int | str, *, size: tuple[int, int] | None = None, theme: str | None = None) -> Screen:
    """The screen of a seed, with an empty source region; `screen_variants` shows codes in it.

    The seed decides size and theme where they aren't given, and colours, fonts, layout and words. The destination is
    the focused field. The id is `screen-<seed>`, the group is the theme.

    Errors:
        ConfigError: a size below 400x300 or an unknown theme. MissingExtra: a font package is not installed.
    """
    return written_screen(seed, size=size, theme=theme)[0]


def check_size(size: tuple[int, int]) -> None:
    """That a screen of so many pixels (width, height) can be rendered.

    Raises:
        ConfigError: it is too small.
    """
    if size[0] < MIN_WIDTH or size[1] < MIN_HEIGHT:
        raise ConfigError(
            f"screens of {size[0]}x{size[1]} pixels asked for; expected at least {MIN_WIDTH}x{MIN_HEIGHT}."
        )


def written_screen(
    seed: int | str, *, size: tuple[int, int] | None = None, theme: str | None = None
) -> tuple[Screen, list[tuple[str, Box]]]:
    """The screen of `render_screen`, and every line that is written on it with its box: what a reader learns from.

    A line that a dialog half covers has "" for its text, and the part of its box that is left.
    """
    from PIL import Image, ImageDraw

    rng = random.Random(f"screen {seed}")
    width, height = rng.choice(SIZES) if size is None else size
    manner = rng.choice(THEMES) if theme is None else _theme(theme)
    check_size((width, height))
    palette = draw_palette(manner, rng)
    image = Image.new("RGB", (width, height), palette.desktop)
    px = max(10, width // 70) + rng.randint(0, 2)
    canvas = Canvas(ImageDraw.Draw(image), manner, palette, rng.choice(manner.fonts), px, rng)
    main = _frame(canvas, Box(0, 0, width, height))
    if main.width >= 34 * px and main.height >= 30 * px and rng.random() < 0.25:
        main = _dialog(canvas, main)
    pane, source, destination, style = _content(canvas, main)
    screen = checked_screen(
        Screen(f"screen-{seed}", picture(image), tuple(canvas.elements), pane, source, destination, style, manner.name)
    )
    return screen, canvas.written


def _theme(name: str) -> Theme:
    known = {theme.name: theme for theme in THEMES}
    if name not in known:
        raise ConfigError(did_you_mean(name, list(known), "theme"))
    return known[name]


def _frame(canvas: Canvas, whole: Box) -> Box:
    """Desktop, window, bars and sidebar; the room that is left for content."""
    rng, colours = canvas.rng, canvas.palette
    if whole.height >= 480 and rng.random() < 0.7:
        bar = whole._replace(top=whole.bottom - canvas.row)
        canvas.fill(bar, colours.panel)
        start = bar._replace(right=bar.left + 2 * canvas.row)
        canvas.fill(start, colours.accent)
        canvas.write("Start", start, colours.on_accent, centred=True)
        canvas.add("Start button", "button", start, "Start")
        whole = whole._replace(bottom=bar.top)
    edge = whole.width // 25
    window = Box(
        whole.left + rng.randint(0, edge),
        whole.top + rng.randint(0, edge // 2),
        whole.right - rng.randint(0, edge),
        whole.bottom - rng.randint(0, edge // 2),
    )
    canvas.fill(window, colours.window)
    title = f"{canvas.deal(made_of.SUBJECTS)} - {rng.choice(made_of.MAKERS)} {rng.choice(made_of.PRODUCTS)}"
    room = canvas.title_bar(window, title)
    if canvas.theme.menu:
        room = canvas.menu_bar(room)
    if canvas.theme.sidebar != "none" and whole.width >= 512:
        wide = round(rng.uniform(8.5, 11) * canvas.px)
        names = rng.sample(made_of.PLACES, rng.randint(4, 8))
        left = canvas.theme.sidebar == "left"
        cut = room.left + wide if left else room.right - wide
        canvas.side_bar(room._replace(right=cut) if left else room._replace(left=cut), names)
        room = room._replace(left=cut) if left else room._replace(right=cut)
    return room.grown(-canvas.gap)


def _dialog(canvas: Canvas, room: Box) -> Box:
    """A dialog over a list that can't be reached behind it; the room inside."""
    rng, colours = canvas.rng, canvas.palette
    n_before = len(canvas.written)
    for i in range(room.height // canvas.row):
        line = room._replace(top=room.top + i * canvas.row, bottom=room.top + (i + 1) * canvas.row)
        canvas.write(f"{rng.choice(made_of.SUBJECTS)}, {rng.choice(made_of.PEOPLE)}", line, colours.border)
    wide = round(room.width * rng.uniform(0.75, 0.92))
    tall = round(room.height * rng.uniform(0.8, 0.92))
    left, top = room.left + rng.randint(0, room.width - wide), room.top + rng.randint(0, room.height - tall)
    outside = Box(left, top, left + wide, top + tall)
    canvas.fill(outside.grown(2), colours.border)
    canvas.fill(outside, colours.window)
    behind = [part for line in canvas.written[n_before:] for part in _uncovered(line, outside.grown(2))]
    canvas.written[n_before:] = behind
    bar = outside._replace(bottom=outside.top + canvas.row)
    canvas.fill(bar, colours.accent)
    canvas.write(canvas.deal(made_of.SUBJECTS), bar._replace(left=bar.left + canvas.gap), colours.on_accent)
    return outside._replace(top=bar.bottom).grown(-canvas.gap)


def _uncovered(line: tuple[str, Box], cover: Box) -> list[tuple[str, Box]]:
    """What is left of a line behind something."""
    _, box = line
    if not box.overlaps(cover):
        return [line]
    if box.top < cover.top or box.bottom > cover.bottom:
        return []  # cut along its length
    parts = [box._replace(right=min(box.right, cover.left)), box._replace(left=max(box.left, cover.right))]
    return [("", part) for part in parts if part.width > 0]


def _content(canvas: Canvas, room: Box) -> tuple[Box, Box, Element, SourceStyle]:
    """The pane, the form with the destination, and lists and buttons where there is room."""
    rng = canvas.rng
    behind = canvas.palette.window
    code_px = canvas.px + rng.randint(1, 3)
    pane_height = round(1.6 * canvas.px) + CODE_LINES * (code_px + code_px // 3) + 2 * canvas.gap + 8
    # Pane, two fields, buttons: what must fit. Everything else goes into what is left.
    spare = room.height - pane_height - 3 * (canvas.row + canvas.gap) - canvas.gap
    if spare > canvas.row + canvas.gap and rng.random() < 0.4:
        room = canvas.tabs(room, rng.sample(("Overview", "Details", "History", "Files", "Members"), 3))
        spare -= canvas.row + canvas.gap
    buttons = room._replace(top=room.bottom - canvas.row)
    canvas.buttons(buttons, rng.sample(made_of.ACTIONS, rng.randint(2, 4)))
    room = room._replace(bottom=buttons.top - canvas.gap)
    n_fields = 2 + sum(spare > (i + 1) * (canvas.row + canvas.gap) and rng.random() < 0.6 for i in range(2))
    form_height = n_fields * (canvas.row + canvas.gap)
    if room.width >= 50 * canvas.px and rng.random() < 0.5:
        cut = room.left + round(room.width * rng.uniform(0.48, 0.52))
        halves = [room._replace(right=cut - canvas.gap), room._replace(left=cut)]
        rng.shuffle(halves)
        pane_room = halves[0]._replace(bottom=room.top + pane_height)
        destination = _form(canvas, halves[1]._replace(bottom=room.top + form_height), n_fields)
        room = room._replace(top=room.top + max(pane_height, form_height) + canvas.gap)
    elif rng.random() < 0.5:
        pane_room = room._replace(bottom=room.top + pane_height)
        below = pane_room.bottom + canvas.gap
        destination = _form(canvas, Box(room.left, below, room.right, below + form_height), n_fields)
        room = room._replace(top=below + form_height)
    else:
        destination = _form(canvas, room._replace(bottom=room.top + form_height), n_fields)
        pane_room = room._replace(top=room.top + form_height, bottom=room.top + form_height + pane_height)
        room = room._replace(top=pane_room.bottom + canvas.gap)
    pane, source = _pane(canvas, pane_room)
    _rest(canvas, room)
    return pane, source, destination, _style(canvas.palette, canvas.theme, code_px, behind, rng)


def _form(canvas: Canvas, room: Box, n_fields: int) -> Element:
    """Fields one under the other; the destination is one of them."""
    rng = canvas.rng
    focused = rng.randrange(n_fields)
    found: Element | None = None
    for i, name in enumerate(rng.sample(list(made_of.FIELDS), n_fields)):
        top = room.top + i * (canvas.row + canvas.gap)
        row = Box(room.left, top, room.right, top + canvas.row)
        if i == focused:
            found = canvas.input(row, rng.choice(made_of.DESTINATIONS), "", focused=True)
        else:
            canvas.input(row, name, rng.choice(made_of.FIELDS[name]), focused=False)
    if found is None:
        raise RuntimeError("a form without a focused field")
    return found


def _pane(canvas: Canvas, room: Box) -> tuple[Box, Box]:
    """The pane with its caption and the empty source region under it."""
    colours, rng = canvas.palette, canvas.rng
    canvas.fill(room, colours.panel, outline=colours.border, corner=canvas.theme.corner)
    caption = rng.choice(made_of.CAPTIONS)
    inside = room.grown(-canvas.gap)
    head = inside._replace(bottom=inside.top + round(1.4 * canvas.px))
    canvas.write(caption, head, colours.faint)
    source = inside._replace(top=head.bottom + 2)
    canvas.fill(source, colours.field)
    canvas.add(f"{caption} pane", "pane", room, caption)
    return room, source


def _rest(canvas: Canvas, room: Box) -> None:
    """A line of boxes to tick and a list, as far as the room goes."""
    rng = canvas.rng
    if room.height > 2 * canvas.row and rng.random() < 0.5:
        row = room._replace(bottom=room.top + canvas.row)
        half = row.left + row.width // 2
        first, second = rng.sample(made_of.OPTIONS, 2)
        canvas.tick(row._replace(right=half), first)
        canvas.tick(row._replace(left=half), second)
        room = room._replace(top=row.bottom)
    n_rows = max(0, room.height // canvas.row)
    names = [name for name in (canvas.deal(made_of.SUBJECTS) for _ in range(min(n_rows, 12))) if name]
    canvas.rows(room, names, [rng.choice(made_of.PEOPLE) for _ in names])


def _style(colours: Palette, theme: Theme, px: int, behind: tuple[int, int, int], rng: random.Random) -> SourceStyle:
    return SourceStyle(
        rng.choice(theme.code_fonts), px, colours.text, colours.field, colours.mask, behind, centred=rng.random() < 0.3
    )
