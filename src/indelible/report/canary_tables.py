"""The tables of a canary report that show readings: results by seed, other canaries, checkpoints, utility."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indelible.report import canary_wording as wording
from indelible.report.canary_facts import CanaryFacts, Setting
from indelible.report.format import (
    STYLES,
    Cell,
    MetricRow,
    count,
    decimal,
    is_number,
    metric_cell,
    missing,
    percent,
    plain,
)
from indelible.stats.cells import HIDDEN
from indelible.stats.utility_rows import of_source

RESULTS = (
    "Probe, seed",
    "Exposure, bits",
    "At the ceiling",
    "Exposure of the code shown",
    "Recovered exactly",
    "Shown code copied",
    "Whole answer",
    "Positions right",
    "p",
)
UTILITY = (
    "Condition, model",
    "Accuracy",
    "Held-out loss, nats a token",
    "Accuracy less that without canaries",
    "Loss less that without canaries",
    "Rows",
)
PARSED = "Answers in the asked format"
OTHERS = ("Canaries", "Exposure, bits", "At the ceiling", "Recovered exactly")
CHECKPOINTS = ("Setting", "Update", "Since last appearance", "Exposure, bits", "Recovered exactly")

_NO_CODE = "the probe shows no code"
_OWN_CODE = "the code shown is the assigned one"
_NEW_CODE = "the code asked for is new"


@dataclass(frozen=True)
class Line:
    """One line of a table: its head and its cells. `strong`: over all seeds."""

    head: str
    cells: list[Cell]
    strong: bool = False


@dataclass(frozen=True)
class Block:
    """A table about one setting."""

    title: str
    lines: list[Line]


def dash(reason: object) -> Cell:
    """A number that does not exist, with its reason."""
    return missing(reason, "–")


def number_cell(row: MetricRow | None, style: str = "bits", absent: str = "not measured in this run") -> Cell:
    """`metric_cell` with a dash where the value does not exist, and the count behind a share, where it is whole."""
    cell = metric_cell(row, style, absent, mark="–")
    if row is None or cell.missing or style != "percent":
        return cell
    value, n = row["value"], row.get("n")
    if is_number(n) and abs(value * n - round(value * n)) < 1e-6:
        return Cell(cell.text, f"{count(round(value * n))} of {count(n)} {cell.detail}".strip())
    return cell


def exposure_cell(facts: CanaryFacts, setting: Setting, probe: str, seed: int | None, **more: Any) -> Cell:
    """Median exposure with its quartiles, and that with ties in the code's favour where it is another number."""
    row = facts.row(setting, "exposure_median", probe, seed, **more)
    cell = number_cell(row)
    ends = [facts.value(setting, f"exposure_{end}", probe, seed, **more) for end in ("q1", "q3")]
    if cell.missing or row is None:
        return cell
    middle = [decimal(end, 2) for end in ends if end is not None]
    half = f"middle half {middle[0]} to {middle[1]}" if len(middle) == 2 else ""
    best = facts.value(setting, "exposure_median_optimistic", probe, seed, **more)
    ties = "" if best is None or decimal(best, 2) == cell.text else f"{decimal(best, 2)} with ties in the code's favour"
    size = f"n\u00a0{count(row['n'])}" if is_number(row.get("n")) else ""
    return Cell(cell.text, "; ".join(filter(None, (cell.detail, half, ties, size, plain(row.get("reason") or "")))))


def results(facts: CanaryFacts) -> list[Block]:
    """Every focal setting at the last checkpoint: the hidden code line by line, the other probes with seeds inside."""
    blocks = []
    for setting in facts.of_role("focal"):
        lines = [
            _result(facts, setting, probe, seed)
            for probe in wording.PROBES
            for seed in (None, *(facts.seeds if probe == HIDDEN else ()))
            if facts.steps(setting, probe, seed)
        ]
        if lines:
            blocks.append(Block(facts.title(setting), lines))
    return blocks


def _result(facts: CanaryFacts, setting: Setting, probe: str, seed: int | None) -> Line:
    def cell(metric: str, style: str = "percent", none: str = "") -> Cell:
        row = facts.row(setting, metric, probe, seed)
        if none and not is_number((row or {}).get("value")):
            return dash(none)
        return _with_seeds(facts, setting, probe, number_cell(row, style), metric, style, inside=inside)

    inside = probe != HIDDEN
    exposure = exposure_cell(facts, setting, probe, seed)
    exposure = _with_seeds(facts, setting, probe, exposure, "exposure_median", "bits", inside=inside)
    shows_none = probe in (HIDDEN, "absent") or (setting.arm == HIDDEN and probe not in ("plain", "visible"))
    if probe in ("unseen", "plain"):  # ranks are those of the new code there
        assigned, supplied = dash(_NEW_CODE), exposure
    else:
        assigned = exposure
        none = _NO_CODE if shows_none else _OWN_CODE if probe in ("as-trained", "visible") else ""
        supplied = cell("supplied_exposure_median", "bits", none)
    who = "all seeds" if seed is None else f"seed {seed}"
    return Line(
        f"{wording.probe(probe)}, {who}",
        [
            assigned,
            cell("share_at_ceiling"),
            supplied,
            cell("recovery"),
            cell("copy", none=_NO_CODE if shows_none else ""),
            cell("full_response"),
            cell("position_accuracy", "share"),
            cell("uniformity_p", "p"),
        ],
        strong=seed is None,
    )


def _with_seeds(
    facts: CanaryFacts, setting: Setting, probe: str, cell: Cell, metric: str, style: str, *, inside: bool
) -> Cell:
    """The cell with the value of each seed in its second line."""
    if not inside or cell.missing or len(facts.seeds) < 2:
        return cell
    found = [facts.value(setting, metric, probe, seed) for seed in facts.seeds]
    seeds = ", ".join("–" if value is None else STYLES[style](value) for value in found)
    return Cell(cell.text, "; ".join(filter(None, (cell.detail, f"seeds {seeds}"))))


def others(facts: CanaryFacts) -> list[Line]:
    """Canaries that are not focal but in training: exposure with the cue hidden, over all seeds."""
    lines = []
    for role in ("auxiliary", "support", "coin"):
        for setting in facts.of_role(role):
            head = f"{wording.ROLES[role]}, {plain(setting.condition)}, {plain(setting.arm)}, dose {setting.dose}"
            cells = [exposure_cell(facts, setting, HIDDEN, None, role=role)]
            cells += [
                number_cell(facts.row(setting, metric, HIDDEN, role=role), "percent")
                for metric in ("share_at_ceiling", "recovery")
            ]
            lines.append(Line(head, cells))
    return lines


def checkpoints(facts: CanaryFacts) -> list[Line]:
    """Every checkpoint of every setting that has more than one, with the code hidden, over all seeds."""
    lines = []
    for setting in facts.settings:
        steps = facts.steps(setting)
        last = facts.appearances(setting).last
        for step in steps if len(steps) > 1 else []:
            delay = Cell(f"{step - last:g}") if last is not None else dash("no appearance recorded")
            if last is not None and step < last:
                delay = dash("before its last appearance")
            exposure = exposure_cell(facts, setting, HIDDEN, None, step=step)
            row = facts.row(setting, "recovery", HIDDEN, step=step)
            lines.append(Line(facts.title(setting), [Cell(count(step)), delay, exposure, number_cell(row, "percent")]))
    return lines


def utility(facts: CanaryFacts) -> list[Line]:
    """utility.json by condition and model, at the last checkpoint; what canaries changed, where that can be said. Rows
    of several sets have a line of their own for each, below that of all."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in facts.last_utility:
        for source, part in {"": row, **(row.get("sources") or {})}.items():
            key = (str(row.get("condition") or ""), str(row.get("model") or ""), source)
            groups.setdefault(key, []).append({**part, "seed": row.get("seed")})
    lines = []
    for (condition, model, source), rows in groups.items():
        why = next((row["reason"] for row in rows if row.get("reason")), None)
        sizes = sorted({int(row["n"]) for row in rows if is_number(row.get("n"))})
        gaps = [dash("not trained with canaries")] * 2
        if model == "target":
            names = (("accuracy_minus_clean", "points"), ("heldout_loss_minus_clean", "gap"))
            gaps = [number_cell(facts.of_model(condition, of_source(name, source)), style) for name, style in names]
        cells = [
            _utility_seeds(rows, "accuracy", percent, why),
            _utility_seeds(rows, "heldout_loss", decimal, why),
            *gaps,
            Cell(" or ".join(map(count, sizes))) if sizes else dash("not recorded"),
            *([_utility_seeds(rows, "parse_rate", percent, why)] if facts.on_screens else []),
        ]
        words = [plain(condition) or "all conditions", wording.MODELS.get(model, plain(model)), plain(source)]
        lines.append(Line(", ".join(filter(None, words)), cells))
    return lines


def utility_head(facts: CanaryFacts) -> tuple[str, ...]:
    """The columns of `utility`."""
    return (*UTILITY, PARSED) if facts.on_screens else UTILITY


def _utility_seeds(rows: Sequence[Mapping[str, Any]], name: str, write: Callable[[float], str], why: object) -> Cell:
    """The value of every seed, with its interval where it has one."""
    found = []
    for row in rows:
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        ends = f" [{write(low)},\u00a0{write(high)}]" if is_number(low) and is_number(high) else ""
        value = row.get(name)
        found += [f"seed {plain(row.get('seed'))}: {write(value)}{ends}"] if is_number(value) else []
    return Cell("", "; ".join(found)) if found else dash(why)
