"""How a tabular run ends: the outcome, and `--fail-if` over many configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from indelible.errors import ConfigError, did_you_mean
from indelible.stats.gate import Gate, parse_gate
from indelible.stats.metrics import Metric
from indelible.stats.tabular import ORDER, PRIMARY
from indelible.stats.tabular_rows import Row
from indelible.stats.verdict import Verdict

METRICS = (
    "auc", "p_value", "p_holm", "auc_over_line", "auc_minus_base", "smallest_auc", "tpr@0.01", "tpr@0.1", "paper_rule",
    "verdict", "largest_difference",
)  # fmt: skip

_PRIMARY_ONLY = ("p_holm", "auc_minus_base", "smallest_auc", "verdict")

SEPARATION = ("auc", "p_value")
"""What metrics.json holds of every score; the other metrics exist for calibrated log-probabilities."""


def is_calibrated(attack: str) -> bool:
    """Whether a score is a log-probability minus the base's, or the suite's mean or minimum of those."""
    return ":" not in attack or attack in ("suite:mean", "suite:min")


@dataclass(frozen=True)
class Outcome:
    """What a command needs to know of a finished tabular run; `table` is for the terminal, its head first."""

    path: Path
    verdict: Verdict
    tripped: tuple[str, ...]
    not_run: tuple[Mapping[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


def gates_of(texts: Sequence[str]) -> list[Gate]:
    """Gates, read. A score's own colon belongs to its name: `suite:mean:auc>0.6` is the AUC of `suite:mean`.

    Raises:
        ConfigError: one that cannot be read, or that names a score or metric no tabular run has.
    """
    from indelible.attacks.tabular import PROBES

    names = score_names(tuple(PROBES))
    gates = []
    for text in texts:
        try:
            gate = parse_gate(text)
        except ConfigError as error:  # the parser's own example is of an audit of texts
            raise ConfigError(str(error).replace("icp-sp:tpr@0.01>0.05", "copy:auc>0.6")) from error
        head, colon, metric = gate.metric.rpartition(":")
        if colon:
            gate = replace(gate, attack=f"{gate.attack}:{head}" if gate.attack else head, metric=metric)
        if gate.attack not in (None, "any", *names):
            said, _, _ = did_you_mean(str(gate.attack), [*names, "any"], "score").partition(" Known: ")
            raise ConfigError(f"gate '{text}': {said} Scores: any, suite:mean, suite:min, and what `list probes` names")
        if gate.metric not in METRICS:
            raise ConfigError(f"gate '{text}': {did_you_mean(gate.metric, list(METRICS), 'metric')}")
        if gate.metric in _PRIMARY_ONLY and gate.attack not in (None, "any", *PRIMARY):
            raise ConfigError(
                f"gate '{text}': {gate.metric} exists for scores that may decide a verdict: {', '.join(PRIMARY)}, any"
            )
        if gate.attack not in (None, "any") and not is_calibrated(str(gate.attack)) and gate.metric not in SEPARATION:
            raise ConfigError(f"gate '{text}': of {gate.attack} there is {' and '.join(SEPARATION)} alone")
        if (gate.metric == "largest_difference") != (str(gate.attack).split(":")[0] == ORDER):
            raise ConfigError(f"gate '{text}': {ORDER} is a check and has largest_difference alone")
        gates.append(gate)
    return gates


def score_names(probes: Sequence[str]) -> list[str]:
    """Names under which scores stand in metrics.json."""
    out = [name + suffix for name in probes for suffix in ("", ":raw", ":margin", ":margin-raw")]
    return [*out, *(f"suite:{what}{raw}" for what in ("mean", "min") for raw in ("", "-raw"))]


def tripped(
    gates: Sequence[Gate], configurations: Mapping[str, tuple[Sequence[Row], Verdict]], verdict: Verdict
) -> tuple[str, ...]:
    """Why gates trip, a sentence each: a number in any configuration of the grid, or the word of the whole run.

    Args:
        configurations: rows and verdict of each configuration, by name.
    """
    causes: list[str] = []
    for gate in gates:
        if gate.metric == "verdict" and gate.attack is None:
            causes += gate.tripped([], verdict)
            continue
        for name, (rows, own) in configurations.items():
            said = gate.tripped([_metric(row) for row in rows if row.get("part", "members") == "members"], own)
            causes += [f"{name}: {line}" if name else line for line in said]
    return tuple(causes)


def _metric(row: Row) -> Metric:
    names = {field.name for field in fields(Metric)}
    known: dict[str, Any] = {key: value for key, value in row.items() if key in names}
    return Metric(**known)


def summary(outcome: Outcome) -> str:
    """What a finished tabular run says on the terminal."""
    verdict = outcome.verdict
    lines = [f"verdict: {verdict.word}", *(f"  {reason}" for reason in verdict.reasons), ""]
    widths = [max(map(len, column)) + 2 for column in zip(*outcome.table, strict=True)]
    lines += [
        "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in outcome.table
    ]
    lines += ["", f"report: {outcome.path / 'report.html'}"]
    lines += [f"not run: {one['what']} ({one['reason']})" for one in outcome.not_run]
    lines += [f"gate: {line}" for line in outcome.tripped]
    return "\n".join(lines)
