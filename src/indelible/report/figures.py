"""Figures of a report, as PNG bytes: matplotlib without a display, colour-blind safe colours (Okabe and Ito)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from indelible.report.facts import COMBINED, Curve, Facts
from indelible.report.format import decimal, is_number, percent, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#5B6470"
_CURVE_COLOURS = (BLUE, ORANGE, GREEN)
_N_CURVES = 3
_N_HISTOGRAMS = 3
_DPI = 160
_STYLE: Any = {
    "text.parse_math": False,  # a name with dollar signs is a name
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8A929C",
    "axes.labelcolor": "#1F2933",
    "axes.axisbelow": True,
    "grid.color": "#E3E7EB",
    "grid.linewidth": 0.7,
    "xtick.color": "#3E4C59",
    "ytick.color": "#3E4C59",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Figure:
    """A drawn figure. `name` is its file name without the ending; `alt` says in words what it shows."""

    name: str
    title: str
    caption: str
    alt: str
    png: bytes


def draw(facts: Facts) -> list[Figure]:
    """Every figure for which the run has data."""
    drawn = (roc(facts), distributions(facts), forest(facts))
    return [figure for figure in drawn if figure is not None]


def roc(facts: Facts) -> Figure | None:
    """ROC curves of the leading attacks on log axes, target solid, base dashed, with the line of chance."""
    attacks = facts.drawable[:_N_CURVES]
    curves = [(attack, facts.curve(attack), facts.curve(attack, "base")) for attack in attacks]
    targets = [curve for _, curve, _ in curves if curve is not None]
    if not targets:
        return None
    smallest = min(0.5 / max(curve.n_nonmembers for curve in targets), 0.5 / max(curve.n_members for curve in targets))
    with open_canvas(6.4, 5.0) as (canvas, axes):
        axes.plot([smallest, 1], [smallest, 1], color=GREY, linestyle=":", linewidth=1.4, label="chance")
        for (attack, target, base), colour in zip(curves, _CURVE_COLOURS, strict=False):
            name = _short(attack)
            if target is not None:
                _step(axes, target, smallest, color=colour, linewidth=2, label=f"{name}, target")
            if base is not None:
                _step(axes, base, smallest, color=colour, linewidth=1.3, linestyle="--", label=f"{name}, base")
        axes.set(xscale="log", yscale="log", xlim=(smallest, 1.05), ylim=(smallest, 1.15))
        for fpr in (0.01, 0.1):
            axes.axvline(fpr, color="#C5CCD3", linewidth=0.8, zorder=0)
        _percent_ticks(axes)
        axes.set_xlabel("False-positive rate: non-members wrongly flagged")
        axes.set_ylabel("True-positive rate: members flagged")
        axes.grid(True)
        axes.legend(loc="lower right", facecolor="white", frameon=True, edgecolor="none", framealpha=0.9)
        png = png_bytes(canvas)
    compared = any(base is not None for _, _, base in curves)
    dashed = "Dashed: the same attack on the base model, which never saw the records. " if compared else ""
    rates = "; ".join(
        f"{plain(attack)} reaches {percent(value)} of members at 1% false positives"
        for attack in attacks
        if (value := facts.value(attack, "tpr@0.01")) is not None
    )
    return Figure(
        "roc",
        "ROC on logarithmic axes",
        f"Solid: the audited model. {dashed}Above the dotted line an attack beats chance; the left edge stands for "
        "zero false positives.",
        f"ROC curves on log axes for {', '.join(plain(attack) for attack in attacks)}. {rates or 'No rate at 1%'}.",
        png,
    )


def distributions(facts: Facts) -> Figure | None:
    """Histograms of member and non-member scores for the leading attacks."""
    attacks = facts.drawable[:_N_HISTOGRAMS]
    if not attacks:
        return None
    with open_canvas(6.8, 0.6 + 1.75 * len(attacks), rows=len(attacks)) as (canvas, panels):
        for attack, axes in zip(attacks, np.atleast_1d(panels), strict=True):
            members, nonmembers = facts.split(attack)
            both = np.concatenate([members, nonmembers])
            low, high = np.quantile(both, [0.005, 0.995])
            if low == high:
                low, high = low - 0.5, high + 0.5
            edges = np.linspace(low, high, 41)
            for values, colour, name, fill in (
                (nonmembers, ORANGE, "non-members", False),
                (members, BLUE, "members", True),
            ):
                clipped = np.clip(values, low, high)
                weights = np.full(len(values), 100 / len(values))
                style: dict[str, Any] = (
                    {"histtype": "stepfilled", "alpha": 0.45} if fill else {"histtype": "step", "linewidth": 1.8}
                )
                axes.hist(
                    clipped, bins=edges, weights=weights, color=colour, label=f"{name} (n={len(values)})", **style
                )
            axes.set_title(_short(attack), loc="left", fontsize=10, fontweight="bold", color="#1F2933")
            axes.set_ylabel("% of records")
            axes.grid(True, axis="y")
        np.atleast_1d(panels)[0].legend(loc="upper right", bbox_to_anchor=(1, 1.3), ncols=2, borderaxespad=0)
        np.atleast_1d(panels)[-1].set_xlabel("Score (higher: more like a member)")
        png = png_bytes(canvas)
    return Figure(
        "scores",
        "Score distributions",
        "The further the filled and the outlined histogram lie apart, the better the attack. Scores outside the "
        "middle 99% are put into the outermost bars.",
        "Histograms of member and non-member scores for " + ", ".join(plain(attack) for attack in attacks) + ".",
        png,
    )


def forest(facts: Facts) -> Figure | None:
    """AUC with interval of every attack, on the target, on the base, and of the fitted ones."""
    attacks = facts.strongest_first
    points = {
        (attack, model): row
        for attack in attacks
        for model in ("target", "base", "none")
        if (row := facts.row(attack, "auc", model)) is not None and is_number(row.get("value"))
    }
    shown = [attack for attack in attacks if any(name == attack for name, _ in points)]
    if not shown:
        return None
    looks = {
        "target": (BLUE, "o", -0.13, "target model"),
        "base": (ORANGE, "s", 0.13, "base model"),
        "none": (PURPLE, "D", 0.0, "blind baseline"),
        COMBINED: (GREEN, "^", -0.13, "all scores, fitted"),
    }
    with open_canvas(6.8, 1.1 + 0.42 * len(shown)) as (canvas, axes):
        labelled = set()
        for (attack, model), row in points.items():
            look = COMBINED if attack == COMBINED and model == "none" else model
            colour, marker, shift, name = looks[look]
            y, value = shown.index(attack) + shift, float(row["value"])
            low, high = (float(row[end]) if is_number(row.get(end)) else value for end in ("low", "high"))
            axes.plot([low, high], [y, y], color=colour, linewidth=1.8, solid_capstyle="butt")
            face = "white" if model == "base" else colour
            label = name if look not in labelled else None
            axes.plot(value, y, marker, color=colour, markerfacecolor=face, markersize=6, linestyle="none", label=label)
            labelled.add(look)
        axes.axvline(0.5, color=GREY, linestyle=":", linewidth=1.4)
        axes.set_yticks(range(len(shown)), [_short(attack) for attack in shown])
        axes.set_ylim(len(shown) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
        axes.set_xlabel("AUC (0.5: no better than chance)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2, handletextpad=0.3)
        png = png_bytes(canvas)
    values = "; ".join(
        f"{plain(attack)} on {model} {decimal(float(row['value']))}" for (attack, model), row in points.items()
    )
    return Figure(
        "auc",
        "AUC with intervals",
        "Each point is an AUC, each bar its interval. An attack counts where its target bar clears one half, on either "
        "side, and lies further from it than its own base point and the blind baseline.",
        f"AUC by attack: {values}.",
        png,
    )


@contextmanager
def open_canvas(width: float, height: float, rows: int = 1) -> Iterator[tuple[Canvas, Any]]:
    """A figure of our style, outside pyplot's global state."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(width, height), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(canvas)
        yield canvas, canvas.subplots(rows)


def png_bytes(canvas: Canvas) -> bytes:
    """The drawn figure as a file."""
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", facecolor="white", metadata={"Software": "Indelible"})
    return buffer.getvalue()


def _step(axes: Axes, curve: Curve, smallest: float, **style: Any) -> None:
    """The curve as steps; zero, which a log axis lacks, is drawn at the edge."""
    first = int(np.flatnonzero(curve.fpr == 0)[-1])  # of the points at zero the highest, else a wall at the edge
    x, y = np.maximum(curve.fpr[first:], smallest), np.maximum(curve.tpr[first:], smallest)
    axes.plot(x, y, drawstyle="steps-post", **style)


def _percent_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: percent(value, 2)))
        axis.set_minor_formatter(NullFormatter())


def _short(name: str, limit: int = 28) -> str:
    """A name that fits beside a plot."""
    text = plain(name)
    return text if len(text) <= limit else text[: limit - 1] + "…"
