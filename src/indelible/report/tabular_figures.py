"""The figures of a tabular report: heat maps of the grid, curves over epochs, label cardinality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from indelible.report import tabular_wording as wording
from indelible.report.canary_plots import canvas, legend, looks, png
from indelible.report.figures import BLUE, GREEN, GREY, ORANGE, Figure, open_canvas
from indelible.report.format import decimal, is_number, plain
from indelible.report.tabular_facts import Place, TabularRun
from indelible.stats.tabular import CHOSEN, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_TABLES = 12
"""Most tables with figures of their own; the numbers of the others stand in the tables."""

_LEAST_SPREAD = 0.1
"""Of an AUC from one half, on every scale: noise must not fill a figure."""


def draw(run: TabularRun) -> list[Figure]:
    """Every figure for which the run has data."""
    out: list[Figure | None] = []
    for number, table in enumerate(run.tables[:N_TABLES]):
        for profile in dict.fromkeys(place.profile for place in run.places(table)):
            out += [heat(run, table, profile, number)]
        out.append(epochs(run, table, number))
    if len(run.tables) > 1:
        out.append(cardinality(run))
    return [figure for figure in out if figure is not None]


def heat(run: TabularRun, table: str, profile: str | None, number: int) -> Figure | None:
    """AUC of the paper's probe and of the positive control over learning rate and query count."""
    places = [place for place in run.places(table) if place.profile == profile and place.learning_rate is not None]
    rates = sorted({place.learning_rate for place in places if place.learning_rate is not None})
    counts = sorted({place.n_queries for place in places if place.n_queries is not None})
    grids, said = [], []
    for attack in (CHOSEN, POSITIVE):
        grid = np.full((len(counts), len(rates)), np.nan)
        for place in places:
            value = run.value(place, attack, "auc")
            if value is not None and place.learning_rate is not None and place.n_queries is not None:
                grid[counts.index(place.n_queries), rates.index(place.learning_rate)] = value
                said.append(f"{attack} at {place.label}: {decimal(value)}")
        grids.append(grid)
    if not any(np.isfinite(grid).any() for grid in grids):
        return None
    away = max(_LEAST_SPREAD, *(float(np.nanmax(np.abs(g - 0.5))) for g in grids if np.isfinite(g).any()))
    with open_canvas(7.2, 1.5 + 0.55 * len(counts)) as (drawn, whole):
        whole.remove()
        panels = drawn.subplots(1, 2)
        for axes, grid, attack in zip(panels, grids, (CHOSEN, POSITIVE), strict=True):
            image = axes.imshow(grid, cmap="PuOr_r", vmin=0.5 - away, vmax=0.5 + away, aspect="auto")
            axes.set_title(attack, loc="left", fontsize=10, fontweight="bold")
            axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            axes.set_yticks(range(len(counts)), [str(n) for n in counts])
            axes.set_xlabel("learning rate")
            axes.tick_params(length=0)
            for (i, j), value in np.ndenumerate(grid):
                dark = np.isfinite(value) and abs(value - 0.5) > 0.6 * away
                text = decimal(value) if np.isfinite(value) else "–"
                axes.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if dark else "#1F2933")
        panels[0].set_ylabel("query rows")
        drawn.colorbar(image, ax=panels, label="AUC", shrink=0.9)
        picture = png(drawn)
    how = "" if profile in (None, "controlled") else f", {profile}"
    return Figure(
        f"heat-{number}{'' if not how else '-' + str(profile)}",
        f"{plain(table)}{plain(how)}: learning rate and query count",
        wording.HEAT,
        "Heat map of AUCs. " + "; ".join(said),
        picture,
    )


def epochs(run: TabularRun, table: str, number: int) -> Figure | None:
    """AUC of the paper's probe and of the positive control, and how far labels were fitted, over the epochs; the cells
    with the query count of the one that is shown in full."""
    shown = run.reference(table)
    if shown is None or shown.learning_rate is None:
        return None
    places = [p for p in run.places(table) if (p.profile, p.n_queries) == (shown.profile, shown.n_queries)]
    kinds = ((CHOSEN, "auc", f"AUC, {CHOSEN}"), (POSITIVE, "auc", f"AUC, {POSITIVE}"),
             ("training", "accuracy", "labels fitted"))  # fmt: skip
    if max((len(run.curve(place, CHOSEN, "auc")) for place in places), default=0) < 2:
        return None
    said = []
    with canvas(6.8, 6.0, rows=3) as (drawn, panels):
        for axes, (attack, metric, name) in zip(panels, kinds, strict=True):
            named = [f"rate {place.learning_rate:g}" for place in places]
            for place, look in zip(places, looks(named), strict=True):
                points = run.curve(place, attack, metric)
                if points:
                    x, y = zip(*points, strict=True)
                    axes.plot(x, y, look.marker, linestyle="-", color=look.colour, markersize=5, label=look.label)
                    said.append(f"{name}, {look.label}: " + ", ".join(f"epoch {e} {decimal(v)}" for e, v in points))
            if metric == "auc":
                axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.2)
                low, high = axes.get_ylim()
                axes.set_ylim(min(low, 0.5 - _LEAST_SPREAD), max(high, 0.5 + _LEAST_SPREAD))
            axes.set_ylabel(name)
            axes.grid(True, axis="y")
        panels[-1].set_xlabel("epochs")
        legend(panels[0])
        picture = png(drawn)
    return Figure(
        f"epochs-{number}",
        f"{plain(table)}: over the epochs, {shown.n_queries} query rows",
        "Mean over the seeds after every probe epoch that all of them reached; the last one decides.",
        "Lines over epochs. " + "; ".join(said),
        picture,
    )


def cardinality(run: TabularRun) -> Figure | None:
    """AUC against the number of classes, one point a table."""
    found: list[tuple[int, str, Place]] = []
    for table in run.tables:
        place = run.reference(table)
        if place is not None and run.value(place, CHOSEN, "auc") is not None:
            found.append((run.n_classes(table), table, place))
    if len(found) < 2:
        return None
    said = []
    with canvas(6.8, 4.4) as (drawn, (axes,)):
        for attack, colour, marker, shift in ((CHOSEN, BLUE, "o", -0.06), (POSITIVE, ORANGE, "s", 0.06)):
            for i, (k, table, place) in enumerate(sorted(found, key=lambda one: one[:2])):
                row = run.row(place, attack, "auc")
                if row is None or not is_number(row.get("value")):
                    continue
                label = attack if i == 0 else None
                _point(axes, k + shift, float(row["value"]), row.get("low"), row.get("high"), colour, marker, label)
                said.append(f"{plain(table)}, {k} classes, {attack}: {decimal(float(row['value']))}")
        most = max(k for k, _, _ in found)
        line = np.arange(2, most + 1)
        axes.plot(line, 1 - 1 / (2 * line), linestyle="--", color=GREEN, linewidth=1.3, label="1 − 1/(2K)")
        axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.2)
        axes.set_xlabel("classes, K")
        axes.set_ylabel("AUC")
        axes.set_xticks(sorted({k for k, _, _ in found}))
        axes.grid(True, axis="y")
        legend(axes)
        picture = png(drawn)
    return Figure(
        "cardinality",
        "Label cardinality and signal",
        wording.CARDINALITY,
        "Points by number of classes. " + "; ".join(said),
        picture,
    )


def _point(
    axes: Axes, x: float, y: float, low: object, high: object, colour: str, marker: str, label: str | None
) -> None:
    if is_number(low) and is_number(high):
        axes.plot([x, x], [low, high], color=colour, linewidth=1.8, alpha=0.5)
    style: dict[str, Any] = {"markersize": 6, "linestyle": "none"}
    axes.plot(x, y, marker, color=colour, label=label, **style)
