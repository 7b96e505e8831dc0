"""The figures of a sweep: lines over an axis, score distributions, the two drops of a fidelity study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from indelible.report.canary_plots import Look, canvas, categories, legend, looks, png, shifts, short
from indelible.report.figures import BLUE, GREY, ORANGE, Figure
from indelible.report.format import decimal, plain
from indelible.report.sweep_facts import SweepRun, written
from indelible.sweep.places import Place, Row
from indelible.sweep.shown import FigurePlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_PANELS = 6
N_LINES = 12
_SHOWN = (0.005, 0.995)


def draw(run: SweepRun) -> list[Figure]:
    """Every figure that the study asks for and has numbers for."""
    out = []
    for number, plan in enumerate(run.places.config.show.figures, start=1):
        if plan.kind == "lines":
            out += [figure for i in range(_n_figures(plan)) if (figure := lines(run, plan, i, number)) is not None]
        else:
            make = distributions if plan.kind == "distributions" else scatter
            out += [figure for figure in [make(run, plan, number)] if figure is not None]
    return out


def _n_figures(plan: FigurePlan) -> int:
    return 1 if plan.lines == "metric" else len(plan.metrics)


def lines(run: SweepRun, plan: FigurePlan, which: int, number: int) -> Figure | None:
    """A metric over an axis: filled the mean over seeds with its interval over records, hollow each seed, dashed the
    paper's numbers."""
    places = run.places
    labels = places.shown(plan.x, plan.only)
    kinds = plan.metrics if plan.lines == "metric" else (plan.metrics[which],)
    series: list[tuple[str, str, Place]] = []
    for rest in places.left_over((plan.x, plan.lines), plan.only):
        for label in plan.metrics if plan.lines == "metric" else places.shown(plan.lines, plan.only):
            place: Place = rest if plan.lines == "metric" else {**rest, plan.lines: label}
            metric = label if plan.lines == "metric" else kinds[0]
            name = ", ".join(
                filter(None, (written(label)[0] if plan.lines == "metric" else label, places.named(rest, plan.only)))
            )
            if any(_value(places.row({**place, plan.x: x}, metric)) is not None for x in labels):
                series.append((name, metric, place))
    series = series[:N_LINES]
    if not series:
        return None
    numeric = _numbers(labels)
    said = []
    with canvas(6.8, 4.2) as (drawn, (axes,)):
        places_at = [x for x, _ in _at(labels, numeric)]
        width = 0.4 if not numeric else 0.2 * min(b - a for a, b in pairwise(sorted(places_at)))
        aside = [width * shift for shift in shifts(len(series), 1.0)]
        for (name, metric, place), look, shift in zip(series, looks([s[0] for s in series]), aside, strict=True):
            found = [(x, places.row({**place, plan.x: label}, metric)) for x, label in _at(labels, numeric)]
            _line(axes, [(x + shift, row) for x, row in found], look)
            for x, label in _at(labels, numeric):
                _seeds(axes, run, {**place, plan.x: label}, metric, x + shift, look)
            known = [(x, places.paper({**place, plan.x: label}, metric)) for x, label in _at(labels, numeric)]
            theirs = [(x + shift, value) for x, value in known if value is not None]
            if theirs:
                axes.plot(
                    *zip(*theirs, strict=True), look.marker, linestyle=":", color=look.colour, markersize=4, alpha=0.7
                )
            values = [f"{label} {decimal(v)}" for label, (_, row) in zip(labels, found, strict=True)
                      if (v := _value(row)) is not None]  # fmt: skip
            said.append(f"{plain(name)}: {', '.join(values)}")
        if kinds[0] == "auc":
            axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.2)
        if numeric:
            axes.set_xlabel(plan.x)
            axes.set_xticks(places_at, labels)
        else:
            categories(axes, labels, plan.x)
        axes.set_ylabel(written(kinds[0])[0] if plan.lines != "metric" else "nats a token")
        axes.grid(True, axis="y")
        legend(axes)
        picture = png(drawn)
    paper = " Dotted: the paper's numbers." if any(places.config.paper_values) else ""
    what = " and ".join(written(kind)[0] for kind in kinds)
    return Figure(
        f"{number}-{'-'.join(kinds)}".replace("@", "-at-"),
        f"{what[0].upper()}{what[1:]} over {plan.x}",
        f"Filled: mean over the seeds, the bar its interval over records; hollow: each seed.{paper}",
        f"{what} over {plan.x}. " + "; ".join(said),
        picture,
    )


def _value(row: Row | None) -> float | None:
    return None if row is None or row["value"] is None else float(row["value"])


def _numbers(labels: Sequence[str]) -> bool:
    """Whether an axis is one of numbers, with enough of them to be drawn to scale."""
    try:
        return len({float(label) for label in labels}) > 2
    except ValueError:
        return False


def _at(labels: Sequence[str], numeric: bool) -> list[tuple[float, str]]:
    return [(float(label) if numeric else float(i), label) for i, label in enumerate(labels)]


def _line(axes: Axes, found: Sequence[tuple[float, Row | None]], look: Look) -> None:
    known = [(x, row) for x, row in found if row is not None and row["value"] is not None]
    for x, row in known:
        if row.get("low") is not None and row.get("high") is not None:
            axes.plot([x, x], [row["low"], row["high"]], color=look.colour, linewidth=1.8, alpha=0.5)
    xs, ys = [x for x, _ in known], [float(row["value"]) for _, row in known]
    axes.plot(xs, ys, look.marker, linestyle="-", color=look.colour, markersize=6, label=look.label)


def _seeds(axes: Axes, run: SweepRun, place: Place, metric: str, x: float, look: Look) -> None:
    seeds = run.places.config.seeds
    if len(seeds) < 2:
        return
    for seed in seeds:
        value = _value(run.places.row(place, metric, seed))
        if value is not None:
            hollow: dict[str, Any] = {"markerfacecolor": "white", "markersize": 4, "linestyle": "none", "zorder": 1.5}
            axes.plot(x, value, look.marker, color=look.colour, **hollow)


def distributions(run: SweepRun, plan: FigurePlan, number: int) -> Figure | None:
    """Histograms of members and non-members, a panel for each label of an axis; first seed."""
    path = run.path / "scores.parquet"
    if not path.exists():
        return None
    scores = pd.read_parquet(path)
    panels: list[tuple[str, pd.DataFrame]] = []
    for attack in plan.only.get("attack") or [str(a) for a in dict.fromkeys(scores["attack"])]:
        for name, cells in _by_label(run, plan):
            part = scores[scores["cell"].isin(cells) & (scores["attack"] == attack) & scores["score"].notna()]
            if part["member"].nunique() == 2:
                panels.append((f"{attack}, {plan.x} {name}", part))
    panels = panels[:N_PANELS]
    if not panels:
        return None
    said = []
    with canvas(6.8, 0.6 + 1.6 * len(panels), rows=len(panels)) as (drawn, rows):
        for (name, part), axes in zip(panels, rows, strict=True):
            low, high = _range([p for _, p in panels], str(part["attack"].iloc[0]))
            means = []
            for member, side, colour in ((False, "non-members", ORANGE), (True, "members", BLUE)):
                values = part.loc[part["member"] == member, "score"].to_numpy(dtype=float)
                style: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.45} if member else {"histtype": "step"}
                weights = np.full(len(values), 100 / len(values))
                bins = np.linspace(low, high, 41).tolist()
                axes.hist(np.clip(values, low, high), bins=bins, weights=weights, color=colour, label=side, **style)
                means.append(f"{side} {decimal(float(values.mean()))}")
            axes.set_title(short(name, 60), loc="left", fontsize=10, fontweight="bold")
            axes.set_ylabel("% of records")
            axes.grid(True, axis="y")
            said.append(f"{plain(name)}: mean of {', of '.join(means)}")
        rows[0].legend(loc="upper right", bbox_to_anchor=(1, 1.3), ncols=2, borderaxespad=0)
        rows[-1].set_xlabel("drop of the loss, nats a token" if set(panels[0][1]["attack"]) == {"gap"} else "score")
        picture = png(drawn)
    return Figure(
        f"{number}-distributions",
        f"Members and non-members by {plan.x}",
        "First seed, one scale for all panels of an attack; scores outside the middle 99% are in the outermost bars.",
        "Histograms. " + "; ".join(said),
        picture,
    )


def _range(parts: Sequence[pd.DataFrame], attack: str) -> tuple[float, float]:
    """The middle 99% of an attack's scores over all panels; attacks have scales of their own."""
    own = pd.concat([part["score"] for part in parts if part["attack"].iloc[0] == attack]).astype(float)
    low, high = (float(value) for value in np.quantile(own, _SHOWN))
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def scatter(run: SweepRun, plan: FigurePlan, number: int) -> Figure | None:
    """The drop by a gradient step against that by a probe, a panel for each label of an axis; first seed."""
    path = run.path / "drops.parquet"
    if not path.exists():
        return None
    drops = pd.read_parquet(path)
    drops = drops[drops["seed"] == run.places.config.seeds[0]]
    panels = [(name, drops[drops["cell"].isin(cells)]) for name, cells in _by_label(run, plan)]
    panels = [(name, part) for name, part in panels if len(part)][:N_PANELS]
    if not panels:
        return None
    said = []
    with canvas(5.4, 0.8 + 2.8 * len(panels), rows=len(panels)) as (drawn, rows):
        for (name, part), axes in zip(panels, rows, strict=True):
            axes.plot(part["step_drop"], part["icp_drop"], "o", color=BLUE, markersize=4, alpha=0.6, linestyle="none")
            rho = float(part["step_drop"].corr(part["icp_drop"], method="spearman"))
            axes.set_title(f"{short(name, 40)}: Spearman {decimal(rho)}", loc="left", fontsize=10)
            axes.set_ylabel("drop by the best probe, nats")
            axes.grid(True)
            said.append(f"{plain(name)} {decimal(rho)}")
        rows[-1].set_xlabel("drop of the loss by one gradient step, nats")
        picture = png(drawn)
    return Figure(
        f"{number}-drops",
        "Drop of the loss by a gradient step and by a probe",
        "One point a record, first seed: the loss of the whole answer before less after.",
        "Scatter plots; Spearman correlations: " + ", ".join(said),
        picture,
    )


def _by_label(run: SweepRun, plan: FigurePlan) -> list[tuple[str, list[int]]]:
    """Cells of each label of the figure's axis, the other axes as `only` lets them."""
    cells = run.manifest.get("cells") or []
    kept = [c for c in cells if all(c["axes"].get(k) in v for k, v in plan.only.items() if k in c["axes"])]
    return [
        (label, [int(c["cell"]) for c in kept if c["axes"].get(plan.x) == label])
        for label in run.places.shown(plan.x, plan.only)
    ]
