"""What rendered screens are made from: fonts, themes, colours, sizes and words.

The fonts are those that installed packages carry, so that a seed gives the same picture on every machine: DejaVu and
STIX come with Matplotlib, the others with the `vision` extra.
"""

from __future__ import annotations

import colorsys
import importlib.util
import random
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from indelible.data.screen_types import Colour
from indelible.errors import ConfigError, MissingExtra, did_you_mean

if TYPE_CHECKING:
    from PIL import ImageFont

FONTS: dict[str, tuple[str, str]] = {
    "dejavu-sans": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSans.ttf"),
    "dejavu-sans-bold": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"),
    "dejavu-serif": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSerif.ttf"),
    "dejavu-mono": ("matplotlib", "mpl-data/fonts/ttf/DejaVuSansMono.ttf"),
    "stix": ("matplotlib", "mpl-data/fonts/ttf/STIXGeneral.ttf"),
    "lato": ("font_lato", "files/Lato-Regular.ttf"),
    "lato-bold": ("font_lato", "files/Lato-Bold.ttf"),
    "source-sans": ("font_source_sans_pro", "files/SourceSansPro-Regular.ttf"),
    "source-sans-semibold": ("font_source_sans_pro", "files/SourceSansPro-Semibold.ttf"),
    "source-serif": ("font_source_serif_pro", "files/SourceSerifPro-Regular.ttf"),
    "caladea": ("font_caladea", "files/Caladea-Regular.ttf"),
    "manrope": ("font_manrope", "files/Manrope-Medium.ttf"),
    "hanken": ("font_hanken_grotesk", "files/HankenGrotesk-Regular.otf"),
    "hanken-semibold": ("font_hanken_grotesk", "files/HankenGrotesk-SemiBold.otf"),
}
"""Name: (package that carries the file, path in it)."""

SIZES: tuple[tuple[int, int], ...] = ((448, 336), (512, 384), (640, 480), (720, 540), (800, 600), (1024, 768))
"""Widths and heights of rendered screens, in pixels."""


@lru_cache(maxsize=256)
def font(name: str, px: int) -> ImageFont.FreeTypeFont:
    """The font of a key of `FONTS` at `px` pixels an em, laid out without ligatures or kerning tables of the system.

    Errors:
        ConfigError: no such key. MissingExtra: the package that carries it is not installed.
    """
    from PIL import ImageFont

    # Pillow's own layout is part of every Pillow; the other one depends on what the machine has.
    return ImageFont.truetype(font_file(name), px, layout_engine=ImageFont.Layout.BASIC)


@cache
def font_file(name: str) -> str:
    """Path of a font; errors as for `font`."""
    if name not in FONTS:
        raise ConfigError(did_you_mean(name, list(FONTS), "font"))
    package, file = FONTS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtra(
            f"font '{name}' comes with the package {package}, which is not installed. "
            "Install it with: pip install 'indelible[vision]'"
        )
    return str(Path(spec.origin).parent / file)


@dataclass(frozen=True, slots=True)
class Theme:
    """The manner of a family of windows; colours within it vary from screen to screen.

    Attributes:
        dark: light letters on dark ground.
        fonts: of all that is written; `code_fonts`: one of them is used in the source region.
        corner: radius of buttons and fields in pixels.
        title_px: height of the title bar in ems of the text; 0 leaves it out.
        menu, sidebar: "none", "left" or "right"; a menu bar stands under the title.
        buttons_left: whether the window's own buttons stand at the left.
        flat: fields are underlined instead of framed.
    """

    name: str
    dark: bool
    fonts: tuple[str, ...]
    code_fonts: tuple[str, ...]
    corner: int
    title_em: float
    menu: bool
    sidebar: str
    buttons_left: bool = False
    flat: bool = False


THEMES: tuple[Theme, ...] = (
    Theme("ledger", False, ("dejavu-sans",), ("dejavu-sans", "dejavu-mono"), 2, 2.0, True, "none"),
    Theme("harbour", False, ("source-sans",), ("source-sans-semibold", "dejavu-mono"), 4, 2.2, True, "left"),
    Theme("orchard", False, ("lato",), ("lato", "lato-bold"), 6, 2.4, False, "left", buttons_left=True),
    Theme("slate", True, ("hanken",), ("hanken-semibold", "dejavu-mono"), 5, 2.2, False, "left"),
    Theme("gazette", False, ("caladea", "source-serif"), ("caladea", "source-serif"), 0, 2.0, True, "right"),
    Theme("kiosk", False, ("manrope",), ("manrope", "dejavu-sans-bold"), 8, 2.8, False, "none", flat=True),
    Theme("midnight", True, ("dejavu-sans",), ("dejavu-sans", "dejavu-sans-bold"), 3, 2.0, True, "right"),
    Theme("archive", False, ("dejavu-serif", "stix"), ("dejavu-serif",), 0, 2.0, True, "none", flat=True),
)


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one screen."""

    desktop: Colour
    window: Colour
    panel: Colour
    field: Colour
    border: Colour
    text: Colour
    faint: Colour
    accent: Colour
    on_accent: Colour
    title: Colour
    on_title: Colour
    mask: Colour


def draw_palette(theme: Theme, rng: random.Random) -> Palette:
    """Colours for a theme. They vary enough that two screens of a theme differ in most of their pixels."""
    hue, other = rng.random(), rng.random()
    if theme.dark:
        window = _colour(hue, rng.uniform(0.05, 0.35), rng.uniform(0.10, 0.24))
        panel = _colour(hue, rng.uniform(0.05, 0.35), rng.uniform(0.26, 0.34))
        field = _colour(hue, rng.uniform(0.02, 0.25), rng.uniform(0.04, 0.09))
        border, text, faint = (_colour(hue, 0.1, value) for value in (0.45, 0.97, 0.78))
    else:
        window = _colour(hue, rng.uniform(0.0, 0.12), rng.uniform(0.88, 0.99))
        panel = _colour(other, rng.uniform(0.04, 0.16), rng.uniform(0.84, 0.95))
        field = _colour(hue, rng.uniform(0.0, 0.03), rng.uniform(0.97, 1.0))
        border, text, faint = (
            _colour(hue, 0.1, 0.62),
            _colour(hue, 0.3, rng.uniform(0.05, 0.18)),
            _colour(hue, 0.2, 0.36),
        )
    accent = _colour(other, rng.uniform(0.55, 0.9), rng.uniform(0.35, 0.62))
    title = accent if rng.random() < 0.5 else panel
    return Palette(
        desktop=_colour(rng.random(), rng.uniform(0.2, 0.7), rng.uniform(0.3, 0.8)),
        window=window,
        panel=panel,
        field=field,
        border=border,
        text=text,
        faint=faint,
        accent=accent,
        on_accent=(255, 255, 255),
        title=title,
        on_title=(255, 255, 255) if title == accent else text,
        mask=_colour(hue, 0.05, 0.72 if theme.dark else 0.42),
    )


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)


MAKERS = (
    "Alder",
    "Birch",
    "Cobalt",
    "Dunlin",
    "Ember",
    "Fathom",
    "Garnet",
    "Heron",
    "Iris",
    "Juniper",
    "Kestrel",
    "Linden",
)
PRODUCTS = (
    "Desk",
    "Ledger",
    "Post",
    "Files",
    "Orders",
    "Studio",
    "Cases",
    "Planner",
    "Stock",
    "Helpdesk",
    "Claims",
    "Fleet",
)
SUBJECTS = (
    *("Spring delivery", "Roof repair", "Team lunch", "Lease renewal", "Printer fault", "Travel refund", "Site visit"),
    *(
        "Spare parts",
        "Annual audit",
        "New laptop",
        "Water meter",
        "Conference room",
        "Insurance claim",
        "Garden design",
    ),
    *(
        "Museum loan",
        "Bicycle fleet",
        "Choir concert",
        "Harvest report",
        "Bridge survey",
        "Window order",
        "Lost parcel",
    ),
)
PEOPLE = (
    *("Ada Moreno", "Ben Okafor", "Carla Weiss", "Dinesh Rao", "Elin Berg", "Farid Aziz", "Greta Nowak", "Hugo Lima"),
    *("Ines Costa", "Jonas Beck", "Keiko Mori", "Lars Holm", "Mina Petrov", "Noah Silva", "Olga Marin", "Paul Jansen"),
)
MENUS = ("File", "Edit", "View", "Insert", "Tools", "Window", "Help", "Format", "Data")
PLACES = (
    "Inbox",
    "Drafts",
    "Archive",
    "Reports",
    "Contacts",
    "Settings",
    "Projects",
    "Invoices",
    "Calendar",
    "Trash",
    "Tasks",
)
ACTIONS = ("Save", "Cancel", "Apply", "Send", "Print", "Export", "Refresh", "Delete", "Share", "Back", "Next", "Open")
FIELDS = {
    "Name": PEOPLE,
    "Email": ("office@harbour.example", "desk@orchard.example", "mail@kestrel.example"),
    "Phone": ("555 0142", "555 0178", "555 0119"),
    "City": ("Aarhus", "Bergamo", "Coimbra", "Dresden", "Espoo", "Ghent"),
    "Notes": ("call back on Monday", "paid in full", "second floor"),
    "Amount": ("48.20", "1,250.00", "312.75", "96.00"),
    "Date": ("3 May", "17 June", "28 August", "9 October"),
    "Team": ("North", "South", "Harbour", "Night shift"),
}
"""Name of a field: what may stand in it."""
DESTINATIONS = ("Search", "Reference", "Find record", "Lookup", "Code", "Ticket number", "Filter", "Track item")
OPTIONS = ("Keep a copy", "Notify me", "Urgent", "Read only", "Show details", "Remember")
CAPTIONS = (
    "Reference",
    "Reference code",
    "Document code",
    "Current record",
    "Your reference",
    "File reference",
    "Case reference",
)
