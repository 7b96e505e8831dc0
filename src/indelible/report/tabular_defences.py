"""The tables of defences in a tabular report: leakage beside accuracy, and which contexts the guard refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from indelible.attacks.tabular import PROBES
from indelible.report import tabular_wording as wording
from indelible.report.canary_tables import Line
from indelible.report.canary_view import Table
from indelible.report.format import Cell, MetricRow, count, decimal, is_number, metric_cell, missing, plain
from indelible.report.tabular_facts import TabularRun
from indelible.report.tabular_tables import auc_cell
from indelible.stats.tabular import CHOSEN, DEPLOYMENT, POSITIVE


def defence_table(run: TabularRun, table: str) -> Table:
    """Leakage and accuracy of every defence, side by side."""
    lines = []
    for facts, place in run.defences(table):
        seeds = list((facts.get("seeds") or {}).values())
        spent = [float(one["epsilon"]) for one in seeds if is_number(one.get("epsilon"))]
        epochs = sorted({int(one["epoch"]) for one in seeds if is_number(one.get("epoch"))})
        details = [plain(facts.get("what"))]
        details += [f"epsilon spent {decimal(max(spent), 2)}"] if spent else []
        details += _private(facts.get("private") or {})
        n_lost = sum(one.get("stopped") == "diverged" for one in seeds)
        details += [f"diverged in {n_lost} seeds"] if n_lost else []
        ended = f"after epoch {' to '.join(map(str, dict.fromkeys([epochs[0], epochs[-1]])))}" if epochs else ""
        refused = run.row(place, "honest", "refused")
        if refused is not None:
            details.append(f"honest contexts refused: {metric_cell(refused, 'percent').text}")
        cells = [
            Cell("", "; ".join(details)),
            _both_sides(run.row(place, CHOSEN, "auc")),
            Cell("", ended),
            auc_cell(run.row(place, "training", "accuracy"), "percent"),
            auc_cell(run.row(place, POSITIVE, "auc")),
            auc_cell(run.row(place, CHOSEN, "auc")),
            auc_cell(run.row(place, "suite:mean", "auc")),
            auc_cell(run.row(place, CHOSEN, "auc_true_labels")),
            auc_cell(run.row(place, DEPLOYMENT, "accuracy"), "percent"),
        ]
        lines.append(Line(plain(facts["defence"]), cells))
    if lines:
        first = run.defences(table)[0][1]
        base = auc_cell(run.row(first, DEPLOYMENT, "accuracy", model="base"), "percent")
        blank = Cell("–")
        lines.append(Line("base model", [Cell("", "before any tuning"), *[blank] * 7, base]))
    head = (
        "Defence", "What", "Members / non-members", "Ended", "Labels fitted", f"Leakage: {POSITIVE}",
        f"Leakage: {CHOSEN}", "Leakage: suite mean", f"{CHOSEN}, true labels", "Accuracy, held-out rows",
    )  # fmt: skip
    return Table(f"{plain(table)}: defences", head, lines, "no defence ran on this table", wording.DEFENCES)


def _private(facts: Mapping[str, Any]) -> list[str]:
    """What a private training promises, and at what noise."""
    if not facts:
        return []
    rows, rate = facts.get("rows"), facts.get("sampling_rate")
    return [
        f"delta {facts.get('delta'):.2g}",
        f"noise {facts.get('noise_multiplier'):.2f} of a clip of {facts.get('clip_norm'):g}",
        f"{count(facts.get('expected_rows_a_step'))} of {count(rows)} rows a step (rate {rate:g})",
        f"neighbours: {plain(facts.get('adjacency'))}",
        "noise is seeded: for study",
    ]


def _both_sides(row: MetricRow | None) -> Cell:
    """Rows on both sides of a comparison, the fewest of any seed."""
    return missing("not computed") if row is None else Cell(f"{count(row['n_members'])} / {count(row['n_nonmembers'])}")


def refusal_table(run: TabularRun, table: str) -> Table:
    """Which probes' contexts the guard refuses."""
    lines = []
    for facts, place in run.defences(table):
        for name in (*PROBES, "honest") if facts.get("guard") else ():
            row = run.row(place, name, "refused")
            if row is not None:
                said = [str(of.get("method") or "") for _, of in run.by_seed(place, name, "refused")]
                why = "; ".join(dict.fromkeys(said))
                lines.append(Line(plain(name), [metric_cell(row, "percent"), Cell("", plain(why) or "answered")]))
    head = ("Contexts of", "Refused", "Why")
    return Table(f"{plain(table)}: what the guard refuses", head, lines, "the guard was not tried", wording.GUARD)
