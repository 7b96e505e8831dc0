"""The report of a tabular run: which configurations give members away, under which contexts, what was checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.report import tabular_tables as tables
from indelible.report import tabular_wording as wording
from indelible.report.background import Pairs, command, config, moment, pairs, reproduction
from indelible.report.canary_view import Table
from indelible.report.format import Cell, count, decimal, is_number, percent, plain, quantity
from indelible.report.tables import slug
from indelible.report.tabular_defences import defence_table, refusal_table
from indelible.report.tabular_facts import TabularRun, read_tabular
from indelible.report.view import VerdictView
from indelible.stats.evaluate import SIGNIFICANCE
from indelible.stats.tabular import CHOSEN, POSITIVE

if TYPE_CHECKING:
    from indelible.report.figures import Figure

_ELSEWHERE = ("notes", "duplicates")
"""Facts of a table that stand under what was checked."""


@dataclass(frozen=True)
class TabularView:
    """Everything a tabular report says, but the figures."""

    title: str
    identity: Pairs
    verdict: VerdictView
    summary: list[tuple[str, Cell]]
    labels: str
    level: str
    is_probe: bool
    grids: list[Table]
    suites: list[Table]
    more: list[Table]
    contexts: list[Table]
    cardinality: Table | None
    defences: list[Table]
    checks: list[Table]
    notes: list[tuple[str, list[str]]]
    probes: Pairs
    limits: list[str]
    not_run: list[tuple[str, str]]
    reproduction: list[tuple[str, Pairs]]
    command: str
    config: list[tuple[str, str]]
    with_text: bool


def render_tabular(path: Path | str, manifest: Mapping[str, Any] | None = None) -> None:
    """Write report.html, report.md and figures/*.png into a tabular run's directory.

    `manifest` is the draft of a run that is about to be finished; without it, the manifest of the finished run is read.

    Raises:
        UserError: the run is missing, unfinished, or of another kind. DataError: a file of it cannot be read.
    """
    from indelible.report import REPORT_HTML, REPORT_MARKDOWN
    from indelible.report.html import own_hashes, render_template, write_pages
    from indelible.report.tabular_figures import draw

    run = read_tabular(path, manifest)
    view = build(run, own_hashes(run.path, run.manifest, (REPORT_HTML, REPORT_MARKDOWN)))
    figures = draw(run)
    html = render_template("tabular.html.j2", view=view, figures=figures)
    write_pages(run.path, html, markdown(view, figures), figures)


def build(run: TabularRun, file_hashes: Mapping[str, str]) -> TabularView:
    """The view."""
    manifest = run.manifest
    shown = [place for table in run.tables if (place := run.reference(table)) is not None]
    others = [place for table in run.tables for place in run.places(table) if place not in shown]
    defended = [table for table in run.tables if run.defences(table)]
    return TabularView(
        title=f"Tabular {'probe' if run.is_probe else 'audit'}: {plain(run.name)}",
        identity=_identity(run),
        verdict=_verdict(run),
        summary=_summary(run),
        labels=wording.RANDOMISED if run.randomised else wording.TRUE_LABELS,
        level=_level(run),
        is_probe=run.is_probe,
        grids=[] if run.is_probe else [tables.grid_table(run, table) for table in run.tables],
        suites=[tables.suite_table(run, place) for place in shown],
        more=[tables.suite_table(run, place) for place in others],
        contexts=[tables.context_table(run, place) for place in shown],
        cardinality=tables.cardinality_table(run) if len(run.tables) > 1 else None,
        defences=[make(run, table) for table in defended for make in (defence_table, refusal_table)],
        checks=[tables.check_table(run), *([tables.file_table(run)] if run.is_probe else [])],
        notes=_notes(run),
        probes=[(plain(one.get("name")), _probe(one)) for one in manifest.get("probes") or []],
        limits=[*wording.LIMITS, *(wording.PROBE_LIMITS if run.is_probe else [])],
        not_run=[(plain(one.get("what")), plain(one.get("reason"))) for one in manifest.get("not_run") or []],
        reproduction=_reproduction(run, file_hashes),
        command=command(manifest),
        config=config(manifest),
        with_text="rows.parquet" in file_hashes,
    )


def _identity(run: TabularRun) -> Pairs:
    manifest = run.manifest
    models = manifest.get("models") or {}
    rows = [
        (f"{role.capitalize()} model", _model(entry, judged=role == "target" or not run.is_probe))
        for role, entry in models.items()
        if entry
    ]
    rows += [
        (
            "All files as one table" if run.is_probe else f"Table {plain(name)}",
            f"{count(one.get('n_rows'))} rows, {len(one.get('classes') or [])} classes",
        )
        for name, one in (manifest.get("data") or {}).items()
    ]
    return [
        *rows,
        ("Seeds", ", ".join(map(str, run.seeds))),
        ("Created", moment(manifest.get("created"))),
        ("Made by", f"Indelible {quantity(manifest.get('indelible_version'))}, {quantity(manifest.get('kind'))} run"),
    ]


def _model(entry: Mapping[str, Any], *, judged: bool) -> str:
    """A model's name; of the one that comes with the package its size, and where it is the one that the verdict is
    about, that this says nothing of another."""
    source = str(entry.get("source"))
    if not source.startswith("builtin:"):
        return plain(source)
    size = f"{count(entry.get('parameters'))} parameters" if is_number(entry.get("parameters")) else "a small network"
    about = "; the verdict is about it, and about no other model (--model)" if judged else ""
    return f"{plain(source)}: {size}, for trying out{about}"


def _verdict(run: TabularRun) -> VerdictView:
    overall = run.verdict.get("overall") or {}
    word = plain(overall.get("word") or "no verdict")
    return VerdictView(
        word=word,
        slug=slug(word),
        meaning=wording.MEANING.get(word, wording.UNKNOWN),
        rule=plain(overall.get("rule") or ""),
        reasons=[plain(reason) for reason in overall.get("reasons") or []],
        next_steps=(wording.PROBE_NEXT_STEPS if run.is_probe else wording.NEXT_STEPS).get(word, []),
    )


def _summary(run: TabularRun) -> list[tuple[str, Cell]]:
    """The few numbers at the head of the report."""
    n = len(run.manifest.get("configurations") or [])
    found = [] if run.is_probe else [("Configurations", Cell(count(n)))]
    grid = run.verdict.get("grid") or {}
    if is_number(grid.get("max_auc")):
        chance = grid.get("max_auc_by_chance")
        beside = f"the largest of so many by chance: about {decimal(chance)}" if is_number(chance) else ""
        found.append((f"Largest AUC, {CHOSEN}", Cell(decimal(grid["max_auc"]), beside)))
        n = int(grid.get("n_above") or 0) + int(grid.get("n_below") or 0)
        tested = f"of {count(grid.get('n_tested'))}, over their seeds, at {SIGNIFICANCE:g} after Holm"
        found.append((f"Cells significant under {CHOSEN}", Cell(count(n), tested)))
        expected = grid.get("n_rule_by_chance")
        chance = f"; about {decimal(expected, 1)} by chance" if is_number(expected) else ""
        by_chance = f"of {count(grid.get('n_ruled'))}{chance}"
        found.append(("Meet the paper's rule", Cell(count(grid.get("n_rule")), by_chance)))
    for table in run.tables[:3]:
        place = run.reference(table)
        if place is not None:
            shown = (CHOSEN, POSITIVE) if run.is_probe else (POSITIVE,)
            where = "" if run.is_probe else f": {plain(table)}, {plain(place.label)}"
            found += [(f"AUC, {name}{where}", tables.auc_cell(run.row(place, name, "auc"))) for name in shown]
    return found


def _level(run: TabularRun) -> str:
    levels = sorted({float(row["level"]) for row in run.metrics if is_number(row.get("level"))})
    return " or ".join(percent(level) for level in levels) or "95%"


def _notes(run: TabularRun) -> list[tuple[str, list[str]]]:
    """What was inferred, changed and removed, by table; notes of splits once each."""
    out = []
    for table in run.tables:
        own = list(((run.manifest.get("data") or {}).get(table) or {}).get("notes") or [])
        own += [note for split in run.splits(table) for note in split.get("notes") or []]
        out.append((plain(table), [plain(note) for note in dict.fromkeys(own)]))
    for role, entry in (run.manifest.get("models") or {}).items():
        if entry and entry.get("notes"):
            out.append((f"{role} model", [plain(note) for note in entry["notes"]]))
    return out


def _probe(one: Mapping[str, Any]) -> str:
    part = "control" if not one.get("in_suite") else "in the suite"
    settings = one.get("settings") or {}
    said = f"; {', '.join(f'{plain(k)} {quantity(v)}' for k, v in settings.items())}" if settings else ""
    return f"{plain(one.get('description'))} ({part}{said})"


def _reproduction(run: TabularRun, file_hashes: Mapping[str, str]) -> list[tuple[str, Pairs]]:
    manifest = run.manifest
    own = {key: value for key, value in manifest.items() if key != "data"}
    groups = reproduction(own, file_hashes)
    data = [
        (f"Data: {plain(name)}", pairs({key: value for key, value in entry.items() if key not in _ELSEWHERE}))
        for name, entry in (manifest.get("data") or {}).items()
    ]
    splits = [
        (
            f"Split: {plain(one['table'])}, {one['n_queries']} members, seed {one['seed']}"
            + ("" if one.get("randomised") else ", true labels"),
            pairs({key: one.get(key) for key in ("n_members", "n_nonmembers", "n_context", "n_reserve", "sha256")}),
        )
        for one in manifest.get("splits") or []
    ]
    return [*data, *splits, *groups]


def markdown(view: TabularView, figures: Sequence[Figure]) -> str:
    """report.md."""
    from indelible.report.markdown import bullets, cell, code_block, md, numbered, pictures, table

    def put(value: Cell) -> str:
        return cell(value) if value.text else md(value.detail)

    def grid(one: Table) -> list[str]:
        if not one.lines:
            return [f"**{md(one.caption)}**: {md(one.absent)}", ""]
        rows = ([md(line.head), *map(put, line.cells)] for line in one.lines)
        note = [md(one.note), ""] if one.note else []
        return [f"**{md(one.caption)}**", "", *table(list(map(md, one.head)), rows), *note]

    lines = [f"# {md(view.title)}", "", f"**Verdict: {md(view.verdict.word)}.** {md(view.verdict.meaning)}", ""]
    lines += bullets(md(reason) for reason in view.verdict.reasons)
    lines += [f"Rule applied: {md(view.verdict.rule)}", ""] if view.verdict.rule else []
    lines += ["What to do next:", "", *numbered(md(step) for step in view.verdict.next_steps)]
    lines += bullets(f"{md(name)}: {md(value)}" for name, value in view.identity)
    lines += ["## Numbers", "", *table(["", "Value"], ([md(name), put(value)] for name, value in view.summary))]
    lines += [f"{md(view.labels)} Brackets hold {view.level} intervals.", ""]
    if not view.is_probe:
        lines += ["## Grid", "", *(text for one in view.grids for text in grid(one)), *pictures(figures)]
    lines += ["## Probes", ""]
    for one in [*view.suites, *view.contexts]:
        lines += grid(one)
    if view.cardinality is not None:
        lines += ["## Label cardinality", "", *grid(view.cardinality)]
    if view.defences:
        lines += ["## Defences", "", *(text for one in view.defences for text in grid(one))]
    lines += ["## What was checked", "", *(text for one in view.checks for text in grid(one))]
    lines += ["## What this does not show", "", *bullets(map(md, view.limits))]
    lines += ["## Not run", "", *(bullets(f"{md(a)}: {md(b)}" for a, b in view.not_run) or ["Everything ran.", ""])]
    lines += ["## Reproduction", "", code_block(view.command or "not recorded"), ""]
    others = "Probes of the other cells, notes" if view.more else "Notes"
    lines += [f"{others} on the tables and the configuration stand in report.html.", ""]
    return "\n".join(lines)
