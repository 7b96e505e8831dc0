"""Two or more runs side by side: verdict and main metrics of each attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from indelible.report.format import Cell, count, missing, plain

if TYPE_CHECKING:
    from indelible.report.tables import AttackView
    from indelible.runs import Run

_METRICS = ("Verdict", "AUC, target", "AUC, base", "Target − base", "Members caught at 1% FPR", "Smallest AUC")


@dataclass(frozen=True)
class Column:
    """One run of a comparison."""

    name: str
    word: str
    slug: str
    facts: list[tuple[str, str]]


@dataclass(frozen=True)
class Comparison:
    """Template data: one column a run; per attack, per metric, one cell a run.

    `warnings` says where the runs do not rest on the same data, so that their numbers are not alike.
    """

    columns: list[Column]
    attacks: list[tuple[str, list[tuple[str, list[Cell]]]]]
    warnings: list[str]


def compare(runs: Sequence[Run], form: Literal["html", "markdown"] = "html") -> str:
    """A page that sets runs side by side, in the order given.

    Raises:
        ValueError: fewer than two runs.
    """
    if len(runs) < 2:
        raise ValueError(f"a comparison needs two runs or more, got {len(runs)}")
    comparison = _build(runs)
    if form == "html":
        from indelible.report.html import render_template

        return render_template("compare.html.j2", comparison=comparison)
    return _markdown(comparison)


def _build(runs: Sequence[Run]) -> Comparison:
    from indelible.report.facts import Facts
    from indelible.report.tables import attack_view
    from indelible.report.view import verdict_view

    facts = [Facts(run) for run in runs]
    names = list(dict.fromkeys(name for one in facts for name in one.attacks))
    attacks = []
    for name in names:
        views = [attack_view(one, name) if name in one.attacks else None for one in facts]
        cells = [_cells(view) for view in views]
        attacks.append((plain(name), [(metric, [column[i] for column in cells]) for i, metric in enumerate(_METRICS)]))
    columns = []
    folders = len({run.name for run in runs}) < len(runs)  # equal names are told apart by their folders
    for run in runs:
        verdict = verdict_view(run)
        columns.append(Column(plain(str(run.path) if folders else run.name), verdict.word, verdict.slug, _facts(run)))
    return Comparison(columns, attacks, _warnings(runs))


def _cells(view: AttackView | None) -> list[Cell]:
    if view is None:
        return [missing("the attack is not in this run")] * len(_METRICS)
    return [Cell(view.word), view.auc, view.auc_base, view.minus_base, view.rates[1], view.smallest]


def _facts(run: Run) -> list[tuple[str, str]]:
    from indelible.report.background import moment

    models, cohort = run.manifest.get("models") or {}, run.manifest.get("cohort") or {}
    return [
        ("Target model", plain((models.get("target") or {}).get("source") or "not stated")),
        ("Base model", plain((models.get("base") or {}).get("source") or "none")),
        ("Members / non-members", f"{count(cohort.get('n_members'))} / {count(cohort.get('n_nonmembers'))}"),
        ("Created", moment(run.manifest.get("created"))),
    ]


def _warnings(runs: Sequence[Run]) -> list[str]:
    warnings = []
    for side, words in (("members", "members"), ("nonmembers", "non-members")):
        hashes = {((run.manifest.get("data") or {}).get(side) or {}).get("sha256") for run in runs}
        if len(hashes) > 1 or None in hashes:
            warnings.append(
                f"The runs do not state one and the same file of {words}: differences may come from the data."
            )
    if len({frozenset(run.records["record_id"].astype(str)) for run in runs}) > 1:
        warnings.append("The runs did not score the same records.")
    seeds = [run.manifest.get("seeds") for run in runs]
    if any(seed != seeds[0] for seed in seeds):
        warnings.append("The runs used different seeds.")
    return warnings


def _markdown(comparison: Comparison) -> str:
    from indelible.report.markdown import cell, md, table

    head = ["", *(md(column.name) for column in comparison.columns)]
    overall = [["Verdict", *(f"**{md(column.word)}**" for column in comparison.columns)]]
    overall += [
        [name, *(md(column.facts[i][1]) for column in comparison.columns)]
        for i, (name, _) in enumerate(comparison.columns[0].facts)
    ]
    lines = ["# Comparison of audits", "", *table(head, overall)]
    lines += [f"- {warning}" for warning in comparison.warnings]
    lines += ["", "An overlap of two intervals is no test of the difference between two runs.", ""]
    for name, metrics in comparison.attacks:
        rows = ([metric, *(cell(value, short=True) for value in cells)] for metric, cells in metrics)
        lines += [f"## {md(name)}", "", *table(head, rows)]
    return "\n".join(lines)
