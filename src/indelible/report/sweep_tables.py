"""The tables of a sweep's report: the study's own, the verdicts of its audits, its cells."""

from __future__ import annotations

from collections.abc import Sequence

from indelible.report.canary_tables import Line
from indelible.report.canary_view import Table
from indelible.report.format import NOT_AVAILABLE, STYLES, Cell, count, decimal, interval, is_number, missing, plain
from indelible.report.sweep_facts import SweepRun, written
from indelible.sweep.places import Place
from indelible.sweep.shown import PaperTable, TablePlan


def tables_of(run: SweepRun, plan: TablePlan) -> list[Table]:
    """One table a metric."""
    places = run.places
    heads = places.shown(plan.columns, plan.only) if plan.columns is not None else [None]
    columns: list[Place] = [
        {**({plan.columns: head} if plan.columns and head else {}), **rest}
        for head in heads
        for rest in places.left_over((plan.rows, plan.columns), plan.only)
    ]
    out = []
    for metric in plan.metrics:
        name, _ = written(metric)
        lines = []
        for label in places.shown(plan.rows, plan.only):
            cells = [number(run, {**column, plan.rows: label}, metric) for column in columns]
            lines.append(Line(plain(label), cells))
        named = [places.named(column, plan.only) or name for column in columns]
        known = [t for t in places.config.paper_values if t.metric == metric and t.rows in (plan.rows, plan.columns)]
        note = "Paper: " + "; ".join(map(_source, known)) if known else ""
        caption = f"{name[0].upper()}{name[1:]}"
        out.append(Table(caption, (plan.rows, *named), lines, "no number was measured", plain(note)))
    return out


def _source(table: PaperTable) -> str:
    """Which of the paper's numbers these are, and what it calls what is ours."""
    called = ", ".join(f"its {theirs} beside our {ours}" for ours, theirs in table.names.items())
    return f"{table.where} ({called})" if called else table.where


def number(run: SweepRun, place: Place, metric: str) -> Cell:
    """The number of a place: mean over seeds; interval over records; least and most of the seeds; the paper's. Of
    p-values the largest, and of how many seeds it is small."""
    row = run.places.row(place, metric)
    write = STYLES[written(metric)[1]]
    paper = run.places.paper(place, metric)
    beside = [] if paper is None else [f"paper {write(paper)}"]
    if row is None or not is_number(row.get("value")):
        reason = (row or {}).get("reason") or _why_absent(run, place)
        return Cell(NOT_AVAILABLE, "; ".join([plain(reason), *beside]), missing=True)
    style = written(metric)[1]
    details = [interval(row, style)] if style != "p" else []
    low, high = row.get("seed_low"), row.get("seed_high")
    if (row.get("n_seeds") or 0) > 1 and is_number(low) and is_number(high):
        details.append(f"{row['n_seeds']} seeds {write(low)} to {write(high)}")
    if style == "p" and (row.get("n_seeds") or 0) > 1 and row.get("n_small") is not None:
        limit = decimal(1 - run.places.config.level, 2)
        details.append(f"the largest is shown; {row['n_small']} of {row['n_seeds']} at most {limit}")
    if row.get("note"):
        details.append(plain(row["note"]))
    return Cell(write(float(row["value"])), "; ".join([d for d in details if d] + beside))


def _why_absent(run: SweepRun, place: Place) -> str:
    """Why a place has no row: its cell did not run, or its audit left the attack out."""
    for cell in run.manifest.get("cells") or []:
        if all(place.get(axis, label) == label for axis, label in cell["axes"].items()):
            if cell.get("reason"):
                return str(cell["reason"])
            for left in cell.get("not_run") or []:
                if left.get("what") == place.get("attack"):
                    return str(left.get("reason"))
    return "not measured"


def verdict_table(run: SweepRun) -> Table:
    """How often each attack's verdict was which word, by place on the axes."""
    axes = list(run.places.config.axes)
    found: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for one in run.verdicts:
        labels = tuple(one["axes"][axis] for axis in axes)
        found.setdefault(labels, {}).setdefault(one["attack"] or "whole audit", []).append(one["word"])
    attacks = list(dict.fromkeys(attack for words in found.values() for attack in words))
    lines = []
    for labels, words in found.items():
        cells = [_tally(words[attack]) if attack in words else missing("not in this audit") for attack in attacks]
        lines.append(Line(plain(", ".join(labels)) or "audit", cells))
    caption = (
        "Verdicts of the audits, by Holm over the attacks of each; with several seeds, how many came to each word."
    )
    return Table(caption, ("cell", *map(plain, attacks)), lines, "no cell is an audit")


def _tally(words: Sequence[str]) -> Cell:
    counts = {word: words.count(word) for word in dict.fromkeys(words)}
    if len(words) == 1:
        return Cell("", plain(words[0]))
    return Cell("", ", ".join(f"{plain(word)} {n} of {len(words)}" for word, n in counts.items()))


def cell_table(run: SweepRun) -> Table:
    lines = []
    for cell in run.manifest.get("cells") or []:
        name = plain(", ".join([*cell["axes"].values(), f"seed {cell['seed']}"]))
        if cell.get("reason"):
            lines.append(Line(name, [missing(cell["reason"]), Cell(""), Cell(""), Cell("")]))
            continue
        cohort, counts = cell.get("cohort") or {}, cell.get("counts") or {}
        sizes = f"{count(cohort.get('n_members'))} / {count(cohort.get('n_nonmembers'))}" if cohort else "–"
        seconds = f"{cell['seconds']:.0f} s" if is_number(cell.get("seconds")) else "–"
        lines.append(
            Line(name, [Cell("", plain(cell["run"])), Cell(sizes), Cell(count(counts.get("tokens"))), Cell(seconds)])
        )
    head = ("cell", "run", "members / non-members", "tokens", "time")
    return Table("Every cell and the run that it is; time without trainings.", head, lines, "no cell ran")
