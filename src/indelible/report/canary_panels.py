"""Figures of a canary report that set two readings side by side: recovery, copying, utility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from indelible.report import canary_wording as wording
from indelible.report.canary_facts import CanaryFacts, Setting
from indelible.report.canary_plots import (
    N_LINES,
    canvas,
    exposure_axis,
    legend,
    lines,
    looks,
    marks,
    png,
    rate,
)
from indelible.report.figures import Figure
from indelible.report.format import decimal, is_number, percent, plain
from indelible.stats.cells import HIDDEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COPY = ("copy", "substituted", "shown code, cue replaced")
_RATES = (
    _COPY,
    ("recovery", "substituted", "trained code, cue replaced"),
    ("recovery", HIDDEN, "trained code, cue hidden"),
)
_BITS = (
    ("supplied_exposure_median", "substituted", "shown code, cue replaced"),
    ("exposure_median", "substituted", "trained code, cue replaced"),
    ("exposure_median", HIDDEN, "trained code, cue hidden"),
)
_SHIFTS = (-0.2, 0.0, 0.2)
_UTILITY = (
    ("accuracy", "Task accuracy, %", 100.0),
    ("parse_rate", "Answers in the asked format, %", 100.0),
    ("heldout_loss", "Held-out loss, nats a token", 1.0),
)


def recovery(facts: CanaryFacts) -> Figure | None:
    """Exact recovery against median exposure, one mark a setting and seed."""
    arms = list(dict.fromkeys(one.arm for one in facts.settings))
    points = [
        (one, x, row)
        for one in facts.settings
        for seed in facts.seeds
        if (x := facts.value(one, "exposure_median", HIDDEN, seed)) is not None
        and (row := facts.row(one, "recovery", HIDDEN, seed)) is not None
        and is_number(row.get("value"))
    ]
    if not points:
        return None
    arms = [arm for arm in arms if any(one.arm == arm for one, _, _ in points)]
    with canvas(6.8, 4.3) as (drawn, (axes,)):
        exposure_axis(axes, facts, along="x", name="Median exposure of a setting and seed, bits")
        for arm, look in zip(arms, looks(arms), strict=True):
            for number, (_, x, row) in enumerate(entry for entry in points if entry[0].arm == arm):
                value = float(row["value"])
                low, high = (float(row[end]) if is_number(row.get(end)) else value for end in ("low", "high"))
                axes.plot([x, x], [100 * low, 100 * high], color=look.colour, linewidth=1.2, alpha=0.45)
                axes.plot(
                    x, 100 * value, look.marker, color=look.colour, markersize=6, alpha=0.85, linestyle="none",
                    label=look.label if number == 0 else None,
                )  # fmt: skip
        axes.set_ylim(-4, 104)
        axes.set_ylabel("Codes recovered exactly, %")
        axes.grid(True)
        legend(axes)
        image = png(drawn)
    values = "; ".join(
        f"{facts.named(one)}: {decimal(x, 2)} bits, {percent(float(row['value']))}" for one, x, row in points
    )
    return Figure(
        "recovery", "Recovery beside exposure",
        "Exposure sees what greedy decoding does not: marks right of the null line with no recovery are memorisation "
        "that generation alone would have missed. Bars: exact intervals of recovery. Code hidden in the probe.",
        f"Recovery and exposure of each setting and seed: {values}.{marks(facts)}", image,
    )  # fmt: skip


def copying(facts: CanaryFacts) -> Figure | None:
    """Copying of the code that a probe shows against recall of the trained one; rates, and exposures of both codes."""

    def has(one: Setting, metric: str, probe: str) -> bool:
        return facts.value(one, metric, probe) is not None

    found = [one for one in facts.settings if any(has(one, *kind[:2]) for kind in _RATES)]
    shown, left = found[:N_LINES], max(0, len(found) - N_LINES)
    if not any(has(one, *_COPY[:2]) for one in shown):
        return None
    names = [facts.named(one) for one in shown]
    with_bits = any(has(one, "supplied_exposure_median", "substituted") for one in shown)
    height = 0.7 + 0.45 * len(shown)
    with canvas(6.8, 0.4 + height * (1 + with_bits), rows=1 + with_bits) as (drawn, panels):
        _rows(panels[0], facts, shown, _RATES, 100.0)
        lines(panels[0], names)
        panels[0].set(xlim=(-3, 103), xlabel="Code comes out, % of answers")
        panels[0].grid(True, axis="x")
        legend(panels[0])
        if with_bits:
            exposure_axis(panels[1], facts, along="x", name="Median exposure, bits")
            _rows(panels[1], facts, shown, _BITS, 1.0)
            lines(panels[1], names)
        image = png(drawn)
    values = "; ".join(_copying_words(facts, one, name) for one, name in zip(shown, names, strict=True))
    return Figure(
        "copying",
        "Copying against recall",
        "A model that copies gives out whatever code it is shown and has nothing to say when the code is hidden; a "
        "model that remembers gives out the trained code. Where training showed nothing of the code, there is nothing "
        "to replace." + (f" {left} more settings: see the tables." if left else ""),
        f"Copying and recall: {values}.{marks(facts) if with_bits else ''}",
        image,
    )


def _copying_words(facts: CanaryFacts, one: Setting, name: str) -> str:
    copied, recalled = facts.value(one, *_COPY[:2]), facts.value(one, "recovery")
    words = [] if copied is None else [f"shown code {percent(copied)}"]
    words += [] if recalled is None else [f"trained code with the cue hidden {percent(recalled)}"]
    return f"{name}: {', '.join(words) or 'neither measured'}"


def _rows(
    axes: Axes, facts: CanaryFacts, shown: Sequence[Setting], wanted: Sequence[tuple[str, str, str]], scale: float
) -> None:
    """One line a setting, one mark a reading."""
    names = looks([text for *_, text in wanted])
    for (metric, probe, _), look, shift in zip(wanted, names, _SHIFTS, strict=False):
        rows = [(y, facts.row(one, metric, probe)) for y, one in enumerate(shown)]
        rows = [(y, row) for y, row in rows if is_number((row or {}).get("value"))]
        for number, (y, row) in enumerate(rows):
            rate(axes, row, y + shift, look, scale=scale, label=number == 0)


def utility(facts: CanaryFacts) -> Figure | None:
    """Task accuracy and held-out loss of every condition, beside the base model and the training without canaries."""
    rows = facts.last_utility
    kinds = [kind for kind in _UTILITY if any(is_number(row.get(kind[0])) for row in rows)]
    if not kinds:
        return None
    found = list(dict.fromkeys(_condition(row) for row in rows))
    places, left = found[:N_LINES], max(0, len(found) - N_LINES)
    rows = [row for row in rows if _condition(row) in places]
    models = [model for model in wording.MODELS if any(row.get("model") == model for row in rows)]
    with canvas(6.8, (1.0 + 0.42 * len(places)) * len(kinds) + 0.3, rows=len(kinds)) as (drawn, panels):
        for (key, name, scale), axes in zip(kinds, panels, strict=True):
            names = looks([wording.MODELS[model] for model in models])
            for model, look, shift in zip(models, names, _SHIFTS, strict=False):
                own = [row for row in rows if row.get("model") == model and is_number(row.get(key))]
                for number, row in enumerate(own):
                    ends = {"value": row[key], "low": row.get(f"{key}_low"), "high": row.get(f"{key}_high")}
                    height = places.index(_condition(row)) + shift
                    rate(axes, ends, height, look, scale=scale, label=number == 0)
            lines(axes, [plain(place) or "all conditions" for place in places])
            axes.set_xlabel(name)
            axes.margins(x=0.08)
            axes.grid(True, axis="x")
        legend(panels[0])
        image = png(drawn)
    values = "; ".join(
        f"{plain(_condition(row)) or 'all conditions'}, {plain(row.get('model'))}, seed {plain(row.get('seed'))}: "
        + ", ".join(f"{key.replace('_', ' ')} {decimal(row[key])}" for key, *_ in kinds if is_number(row.get(key)))
        for row in rows
    )
    return Figure(
        "utility",
        "Utility",
        "One mark a seed. Where utility differs from the training without canaries, the canaries changed the model "
        "that they measure." + (f" {left} more conditions: see the table." if left else ""),
        f"Utility: {values}.",
        image,
    )


def _condition(row: Mapping[str, Any]) -> str:
    return str(row.get("condition") or "")
