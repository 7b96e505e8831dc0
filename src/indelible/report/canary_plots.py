"""What the figures of a canary report share: exposure axes with ceiling and null, points with spread and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indelible.report.canary_facts import NULL_BITS, CanaryFacts, Setting
from indelible.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, open_canvas, png_bytes
from indelible.report.format import decimal, is_number, plain
from indelible.stats.cells import HIDDEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "D", "^", "v", "P")
N_SERIES = len(COLOURS)
N_LINES = 16
"""Most lines of a figure that has one line a setting; the rest stands in the tables."""

_LINE = 100
"""Letters that fit beside each other in a legend."""

_EDGE = "#1F2933"
_UNKNOWN_CEILING = 14.0


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    marker: str
    label: str


def looks(labels: Sequence[str]) -> list[Look]:
    """One look a label: colours safe for colour-blind readers; no two of the first 36 share colour and marker."""
    return [
        Look(COLOURS[i % N_SERIES], MARKERS[(i + i // N_SERIES) % N_SERIES], short(label, 52))
        for i, label in enumerate(labels)
    ]


def short(name: str, limit: int = 30) -> str:
    """A name that fits beside a plot."""
    text = plain(name)
    return text if len(text) <= limit else text[: limit - 1] + "…"


@contextmanager
def canvas(width: float, height: float, rows: int = 1) -> Iterator[tuple[Canvas, list[Axes]]]:
    """A figure in the style of the audit report, with `rows` panels one below the other."""
    with open_canvas(width, height, rows=rows) as (drawn, panels):
        yield drawn, [panels] if rows == 1 else list(panels)


def png(drawn: Canvas) -> bytes:
    """The figure as a file."""
    return png_bytes(drawn)


def exposure_axis(axes: Axes, facts: CanaryFacts, *, along: str = "y", name: str = "Exposure, bits") -> None:
    """Scale one axis in bits and draw the ceiling and the null median of 1.0 bit on it."""
    top = facts.ceilings[-1] if facts.ceilings else _UNKNOWN_CEILING
    lines = [(ceiling, f"ceiling {decimal(ceiling, 2)}", "--") for ceiling in facts.ceilings]
    lines.append((NULL_BITS, "null median 1.0", ":"))
    for bits, text, style in lines:
        if along == "y":
            axes.axhline(bits, color=GREY, linestyle=style, linewidth=1.2, zorder=1)
            place: dict[str, Any] = {"xy": (1, bits), "xycoords": ("axes fraction", "data"), "xytext": (-2, 2)}
            axes.annotate(text, textcoords="offset points", ha="right", va="bottom", fontsize=8, color=GREY, **place)
        else:
            axes.axvline(bits, color=GREY, linestyle=style, linewidth=1.2, zorder=1)
            place = {"xy": (bits, 1), "xycoords": ("data", "axes fraction"), "xytext": (0, 2)}
            axes.annotate(text, textcoords="offset points", ha="center", va="bottom", fontsize=8, color=GREY, **place)
    if along == "y":
        axes.set_ylim(-0.4, top + 1.3)
        axes.set_ylabel(name)
    else:
        axes.set_xlim(-0.4, top + 0.6)
        axes.set_xlabel(name)
    axes.grid(True, axis="y" if along == "y" else "x")


def point(
    axes: Axes,
    facts: CanaryFacts,
    setting: Setting,
    x: float,
    look: Look,
    *,
    room: float = 0.2,
    label: bool = False,
) -> None:
    """Median over all seeds with its interquartile range at `x`, and the median of each seed beside it, hollow."""
    middle = facts.value(setting, "exposure_median")
    low, high = (facts.value(setting, f"exposure_{end}") for end in ("q1", "q3"))
    if middle is not None and low is not None and high is not None:
        axes.plot([x, x], [low, high], color=look.colour, linewidth=2.2, alpha=0.55, solid_capstyle="butt", zorder=2)
    for place, seed in seed_places(facts, x, room):
        value = facts.value(setting, "exposure_median", HIDDEN, seed)
        if value is not None:
            style: dict[str, Any] = {"markersize": 4.2, "markerfacecolor": "white", "linestyle": "none", "zorder": 3}
            axes.plot(place, value, look.marker, color=look.colour, **style)
    name = look.label if label else None
    if middle is None:
        axes.plot([], [], look.marker, color=look.colour, linestyle="none", label=name)
        return
    style = {"markersize": 7.5, "markeredgecolor": _EDGE, "markeredgewidth": 0.7, "linestyle": "none", "zorder": 4}
    axes.plot(x, middle, look.marker, color=look.colour, label=name, **style)


def seed_places(facts: CanaryFacts, x: float, room: float) -> list[tuple[float, int]]:
    """Places right of `x` for the hollow marks, one a seed, in the order of the seeds, within `room` of `x`."""
    number = max(3, len(facts.seeds))
    return [(x + room * (0.4 + 0.5 * i / (number - 1)), seed) for i, seed in enumerate(facts.seeds)]


def shifts(number: int, width: float = 0.62) -> list[float]:
    """Offsets that set `number` series side by side around a category."""
    if number < 2:
        return [0.0] * number
    gap = min(0.26, width / (number - 1))
    return [gap * (i - (number - 1) / 2) for i in range(number)]


def categories(axes: Axes, names: Sequence[str], name: str) -> None:
    """A horizontal axis of words, turned where they are long."""
    turned = sum(len(short(one)) for one in names) > 62
    style: dict[str, Any] = {"rotation": 24, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    axes.set_xticks(range(len(names)), [short(one) for one in names], **style)
    axes.set_xlim(-0.6, len(names) - 0.3)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(name)


def legend(axes: Axes, *, title: str = "") -> None:
    """The legend, in as many columns as fit: above the whole figure, or with a title above its own panel."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    columns = max(1, min(4, _LINE // (max(map(len, labels)) + 7)))
    style: dict[str, Any] = {"ncols": columns, "handletextpad": 0.4, "columnspacing": 1.4}
    if title:
        style |= {"title": title, "title_fontproperties": {"weight": "bold"}, "alignment": "left"}
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), borderaxespad=0.2, **style)
    else:
        axes.figure.legend(handles, labels, loc="outside upper left", **style)


def rate(
    axes: Axes, row: Mapping[str, Any] | None, y: float, look: Look, *, scale: float = 1.0, label: bool = False
) -> None:
    """A value with its interval as a horizontal bar at height `y`; nothing where the value does not exist."""
    value = (row or {}).get("value")
    if row is None or not is_number(value):
        return
    ends = [row.get(end) for end in ("low", "high")]
    low, high = (scale * float(end) if is_number(end) else scale * float(value) for end in ends)
    axes.plot([low, high], [y, y], color=look.colour, linewidth=1.8, solid_capstyle="butt", alpha=0.7)
    name = look.label if label else None
    style: dict[str, Any] = {"markersize": 6, "markeredgecolor": _EDGE, "markeredgewidth": 0.6, "linestyle": "none"}
    axes.plot(scale * float(value), y, look.marker, color=look.colour, label=name, **style)


def lines(axes: Axes, names: Sequence[str]) -> None:
    """A vertical axis of words, first on top."""
    axes.set_yticks(range(len(names)), [short(name, 34) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    for between in range(1, len(names)):
        axes.axhline(between - 0.5, color="#EEF1F4", linewidth=0.8, zorder=0)


def marks(facts: CanaryFacts) -> str:
    """The sentence of a figure's description that names the two lines."""
    ceilings = " and ".join(decimal(ceiling, 2) for ceiling in facts.ceilings) or "unknown"
    return f" Lines mark the ceiling ({ceilings} bits) and the null median (1.0 bit)."
