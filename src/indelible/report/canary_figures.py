"""The figures of a canary report. Each is drawn only where the run has its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from indelible.report import canary_wording as wording
from indelible.report.canary_facts import CanaryFacts, Setting, written
from indelible.report.canary_panels import copying, recovery, utility
from indelible.report.canary_plots import (
    COLOURS,
    N_LINES,
    N_SERIES,
    Look,
    canvas,
    categories,
    exposure_axis,
    legend,
    looks,
    marks,
    png,
    point,
    shifts,
    short,
)
from indelible.report.figures import Figure
from indelible.report.format import decimal, plain
from indelible.stats.cells import AXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = (
    "Filled: median over the canaries of all seeds, with the middle half of them as a bar; hollow: the median of each "
    "seed. Code hidden in the probe, last checkpoint."
)
_STYLES = ("-", "--", ":")
_N_PANELS = 6


def draw(facts: CanaryFacts) -> list[Figure]:
    """Every figure for which the run has data, in the order of the report."""
    makers: tuple[Callable[[CanaryFacts], Figure | None], ...] = (
        by_dose, by_cue, by_placement, checkpoints, by_population, recovery, copying, utility,
    )  # fmt: skip
    return [figure for make in (*makers, screens) if (figure := make(facts)) is not None]


def screens(facts: CanaryFacts) -> Figure | None:
    """A few screens of canaries, where the run keeps a picture of them."""
    kept = facts.run.path / wording.SCREENS
    if not kept.exists():
        return None
    alt = "Screens of canaries with a code in the source region, with the region masked, and without the pane."
    return Figure("screens", "Screens of canaries", wording.THUMBNAILS, alt, kept.read_bytes())


def by_dose(facts: CanaryFacts) -> Figure | None:
    """Exposure against the number of appearances, one line for all else alike."""
    return _by_axis(
        facts, "dose", "dose", "Exposure by dose", "Appearances of a canary in training",
        "More appearances mean more memorisation only where the line rises; at the ceiling it can rise no further.",
        joined=True,
    )  # fmt: skip


def by_cue(facts: CanaryFacts) -> Figure | None:
    """Exposure by what the training input showed of the code, all else alike."""
    return _by_axis(
        facts, "arm", "cue", "Exposure by cue", "What the training input showed of the code",
        "All arms are asked the same: the code hidden.", order=_cue_order(facts),
    )  # fmt: skip


def by_placement(facts: CanaryFacts) -> Figure | None:
    """Exposure by where in training the appearances stood, one line a schedule (and gap)."""
    return _by_axis(
        facts, "placement", "placement", "Exposure by placement and schedule", "Where in training the canary appeared",
        "Read the direction of each schedule by itself: with a falling learning rate late rows move the model less.",
        order=facts.placements, joined=True,
    )  # fmt: skip


def by_population(facts: CanaryFacts) -> Figure | None:
    """Exposure of the same canaries with other canaries beside them."""
    groups = facts.series("population")
    if not groups:
        return None
    populations = list(dict.fromkeys(one.population for group in groups for one in group))
    names = _series_names(groups, "population")
    series = [[one for group in groups for one in group if one.population == name] for name in populations]
    places = {one: i for i, group in enumerate(groups) for one in group}
    return _draw_series(
        facts, series, populations, lambda one: places[one], names, "population", "Exposure by population",
        "Focal canaries, otherwise treated alike",
        "The same canaries with and without others beside them: a difference is the others' doing, and that of the "
        "background rows they replace.",
    )  # fmt: skip


def _by_axis(
    facts: CanaryFacts,
    axis: str,
    name: str,
    title: str,
    label: str,
    caption: str,
    *,
    order: Sequence[str] = (),
    joined: bool = False,
) -> Figure | None:
    groups = facts.series(axis)
    if not groups:
        return None
    found = list(dict.fromkeys(getattr(one, axis) for group in groups for one in group))
    values = sorted(found, key=lambda value: order.index(value) if value in order else -1) if order else sorted(found)
    names = [str(value) if axis == "dose" else written(axis, value) for value in values]
    labels = _series_names(groups, axis)
    return _draw_series(
        facts, groups, labels, lambda one: values.index(getattr(one, axis)), names, name, title, label, caption,
        joined=joined,
    )  # fmt: skip


def _series_names(groups: Sequence[Sequence[Setting]], axis: str) -> list[str]:
    """The places of each group on the axes on which the groups differ; "" for a single group."""
    differ = [name for name in AXES if name != axis and len({getattr(group[0], name) for group in groups}) > 1]
    return [", ".join(written(name, getattr(group[0], name)) for name in differ) for group in groups]


def _draw_series(
    facts: CanaryFacts,
    groups: Sequence[Sequence[Setting]],
    labels: Sequence[str],
    place: Callable[[Setting], int],
    names: Sequence[str],
    name: str,
    title: str,
    label: str,
    caption: str,
    *,
    joined: bool = False,
) -> Figure:
    shown, left = groups[:N_SERIES], max(0, len(groups) - N_SERIES)
    with canvas(6.8, 4.3 + 0.2 * (len(shown) > 3)) as (drawn, (axes,)):
        categories(axes, names, label)
        exposure_axis(axes, facts)
        offsets = shifts(len(shown))
        room = min(0.17, offsets[1] - offsets[0]) if len(offsets) > 1 else min(0.5, max(0.2, 0.07 * len(names)))
        for group, look, shift in zip(shown, looks(labels), offsets, strict=False):
            if joined:
                _join(
                    axes,
                    facts,
                    [one for one in group if name == "dose" or one.placement != "uniform"],
                    place,
                    shift,
                    look,
                )
            for number, one in enumerate(group):
                point(axes, facts, one, place(one) + shift, look, room=room, label=number == 0 and bool(look.label))
        legend(axes)
        image = png(drawn)
    left_out = f" {left} more series stand in the tables." if left else ""
    values = "; ".join(
        f"{facts.named(one)}: {decimal(value, 2)}"
        for group in shown
        for one in group
        if (value := facts.value(one, "exposure_median")) is not None
    )
    alt = f"{title}, medians in bits: {values or 'none'}.{marks(facts)}"
    return Figure(name, title, f"{caption} {_SPREAD}{left_out}", alt, image)


def _join(
    axes: Axes, facts: CanaryFacts, group: Sequence[Setting], place: Callable[[Setting], int], shift: float, look: Look
) -> None:
    """A line through the medians of a series, unless two of them share a place."""
    found = [(place(one), facts.value(one, "exposure_median")) for one in group]
    path = sorted((x, y) for x, y in found if y is not None)
    if len({x for x, _ in path}) == len(path):
        axes.plot([x + shift for x, _ in path], [y for _, y in path], color=look.colour, linewidth=1.3, alpha=0.8)


def checkpoints(facts: CanaryFacts) -> Figure | None:
    """Exposure at every checkpoint, with the last appearance marked: a panel a condition, one for all small ones."""
    measured = [one for one in facts.settings if len(facts.steps(one)) > 1]
    panels_of = _panels(measured)
    left = max(0, len(panels_of) - _N_PANELS)
    if not panels_of:
        return None
    panels_of = panels_of[:_N_PANELS]
    with canvas(6.8, 0.5 + 2.8 * len(panels_of), rows=len(panels_of)) as (drawn, panels):
        for (title, own), axes in zip(panels_of, panels, strict=True):
            exposure_axis(axes, facts)
            for number, one in enumerate(own[:N_LINES]):
                style = _STYLES[number // N_SERIES % len(_STYLES)]
                name = facts.named(one).removeprefix(f"{plain(title)}: ")
                _curve(axes, facts, one, Look(COLOURS[number % N_SERIES], style, short(name, 44)))
            axes.margins(x=0.08)
            legend(axes, title=short(title, 60))
        panels[-1].set_xlabel("Update of the checkpoint (triangle: median last appearance)")
        image = png(drawn)
    values = "; ".join(
        f"{facts.named(one)} at update {step}: {decimal(value, 2)}"
        for _, own in panels_of
        for one in own
        for step in facts.steps(one)
        if (value := facts.value(one, "exposure_median", step=step)) is not None
    )
    return Figure(
        "checkpoints",
        "Exposure at checkpoints",
        "Medians over all seeds, code hidden in the probe. Compare placements at the same distance from their "
        "triangle: only then was each observed after the same delay."
        + (f" {left} more conditions: see the tables." if left else ""),
        f"Exposure by checkpoint, medians in bits: {values}.{marks(facts)}",
        image,
    )


def _panels(measured: Sequence[Setting]) -> list[tuple[str, list[Setting]]]:
    """Settings by condition; those alone in their condition share the first panel."""
    found: dict[str, list[Setting]] = {}
    for one in measured:
        found.setdefault(one.condition, []).append(one)
    alone = [own[0] for own in found.values() if len(own) == 1]
    together = [(name, own) for name, own in found.items() if len(own) > 1]
    return [("Conditions of one setting", alone), *together] if alone else together


def _curve(axes: Axes, facts: CanaryFacts, one: Setting, look: Look) -> None:
    """One setting over the checkpoints, and a triangle at its last appearance."""
    found = [(step, facts.value(one, "exposure_median", step=step)) for step in facts.steps(one)]
    kept = [(step, value) for step, value in found if value is not None]
    x, y = [step for step, _ in kept], [value for _, value in kept]
    axes.plot(x, y, look.marker, marker="o", markersize=5, color=look.colour, label=look.label)
    last = facts.appearances(one).last
    if last is not None:
        axes.plot(last, -0.1, "^", color=look.colour, markersize=7, clip_on=False, markeredgecolor="white")


def _cue_order(facts: CanaryFacts) -> list[str]:
    """The cues, from the one that shows the code to the one that hides it; between them by median exposure."""
    middle: dict[str, float] = {}
    for setting, value in facts.measured():
        middle.setdefault(setting.arm, value)
    arms = {one.arm for one in facts.settings}
    return sorted(arms, key=lambda arm: (arm == "redacted", arm != "visible", middle.get(arm, 0.0), arm))
