"""The report of a sweep: the study's tables and figures, the paper's numbers beside ours, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.report.background import Pairs, command, config, moment, reproduction
from indelible.report.canary_view import Table
from indelible.report.format import Cell, count, plain, quantity
from indelible.report.sweep_facts import SweepRun, read_sweep
from indelible.report.sweep_tables import cell_table, tables_of, verdict_table

if TYPE_CHECKING:
    from indelible.report.figures import Figure

NOT_ASKED = "not among the attacks asked for"
"""What an audit says of a control that the study leaves out on purpose."""


@dataclass(frozen=True)
class SweepView:
    """Everything a sweep's report says, but the figures."""

    title: str
    identity: Pairs
    beside: str
    agreement: list[tuple[str, str, str]]
    tables: list[Table]
    verdicts: Table
    cells: Table
    not_run: list[tuple[str, str]]
    limits: list[str]
    command: str
    reproduction: list[tuple[str, Pairs]]
    config: list[tuple[str, str]]


def render_sweep(path: Path | str, manifest: Mapping[str, Any] | None = None) -> None:
    """Write report.html, report.md and figures/*.png into a sweep's run directory.

    `manifest` is the draft of a run that is about to be finished; without it, the manifest of the finished run is read.

    Raises:
        UserError: the run is missing, unfinished, or of another kind. DataError: a file of it cannot be read.
    """
    from indelible.report import REPORT_HTML, REPORT_MARKDOWN
    from indelible.report.html import own_hashes, render_template, write_pages
    from indelible.report.sweep_figures import draw

    run = read_sweep(path, manifest)
    view = build(run, own_hashes(run.path, run.manifest, (REPORT_HTML, REPORT_MARKDOWN)))
    figures = draw(run)
    html = render_template("sweep.html.j2", view=view, figures=figures)
    write_pages(run.path, html, markdown(view, figures), figures)


def build(run: SweepRun, file_hashes: Mapping[str, str]) -> SweepView:
    """The view."""
    manifest, settings = run.manifest, run.places.config
    seeds = ", ".join(map(str, settings.seeds))
    identity = [
        ("Repeats", plain(settings.paper or "no paper's study")),
        ("Rows", ", ".join(f"{plain(name)} {count(n)}" for name, n in (manifest.get("rows") or {}).items())),
        ("Data", ", ".join(plain(source) for source in manifest.get("data") or {})),
        ("Seeds", seeds),
        ("Created", moment(manifest.get("created"))),
        ("Made by", f"Indelible {quantity(manifest.get('indelible_version'))}, sweep"),
    ]
    tables = [table for plan in settings.show.tables for table in tables_of(run, plan)]
    own = {key: value for key, value in manifest.items() if key != "data"}
    data = {f"Data: {source}": entry for source, entry in (manifest.get("data") or {}).items()}
    groups = reproduction(own, file_hashes)
    groups[:0] = [(plain(name), [(plain(k), quantity(v)) for k, v in entry.items()]) for name, entry in data.items()]
    groups += [
        (f"Training {plain(key)}", [(plain(k), quantity(v)) for k, v in facts.items()])
        for key, facts in (manifest.get("trainings") or {}).items()
    ]
    return SweepView(
        title=f"Study: {plain(settings.name)}",
        identity=identity,
        beside="Beside the paper" if settings.paper else "Beside what was expected",
        agreement=[(plain(one["where"]), plain(one["word"]), plain(one["line"])) for one in run.agreement],
        tables=tables,
        verdicts=verdict_table(run),
        cells=cell_table(run),
        not_run=_not_run(manifest),
        limits=_limits(len(settings.seeds), bool(settings.paper)),
        command=command(manifest),
        reproduction=groups,
        config=config(manifest),
    )


def _not_run(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Cells that did not run, and what audits left out, each reason once with how often it came up."""
    found: dict[tuple[str, str], int] = {}
    for left in manifest.get("not_run") or []:
        found[plain(left["what"]), plain(left["reason"])] = 1
    for cell in manifest.get("cells") or []:
        for left in cell.get("not_run") or []:
            if left.get("reason") == NOT_ASKED:
                continue
            key = plain(left.get("what")), plain(left.get("reason"))
            found[key] = found.get(key, 0) + 1
    return [(what, why if n == 1 else f"{why} (in {n} cells)") for (what, why), n in found.items()]


def _limits(n_seeds: int, of_a_paper: bool) -> list[str]:
    one = "One seed: the interval is over records alone; another split and training would move every number by more."
    several = (
        f"Brackets are intervals over the records of a seed, averaged over {n_seeds} seeds; beside them the least "
        "and the most of the seeds, which also draw split and training anew. The two spreads are different things."
    )
    test = (
        "Whether a number lies above another goes by the interval of their difference, each by itself: among many "
        "pairs some come out clear by chance. With two or three seeds it may be too narrow where trainings differ by "
        "more than records do."
    )
    scale = (
        "The paper's models have some billions of parameters, and its data are other ones: orders and directions can "
        "agree, values need not."
    )
    return [one if n_seeds == 1 else several, test, *([scale] if of_a_paper else [])]


def markdown(view: SweepView, figures: Sequence[Figure]) -> str:
    """report.md."""
    from indelible.report.markdown import bullets, cell, code_block, md, pictures, table

    def put(value: Cell) -> str:
        return cell(value) if value.text else md(value.detail)

    def grid(one: Table) -> list[str]:
        if not one.lines:
            return [md(one.absent), ""]
        rows = ([md(line.head), *map(put, line.cells)] for line in one.lines)
        return [
            f"**{md(one.caption)}**",
            "",
            *table(list(map(md, one.head)), rows),
            *([md(one.note), ""] if one.note else []),
        ]

    lines = [f"# {md(view.title)}", "", *bullets(f"{md(name)}: {md(value)}" for name, value in view.identity)]
    lines += [f"## {view.beside}", ""]
    lines += bullets(f"**{md(word)}**: {md(line)}" for _, word, line in view.agreement) or ["Nothing to compare.", ""]
    lines += ["## Results", "", *(text for one in view.tables for text in grid(one)), *pictures(figures)]
    lines += ["## Verdicts", "", *grid(view.verdicts), "## What this does not show", "", *bullets(map(md, view.limits))]
    lines += ["## Not run", "", *(bullets(f"{md(a)}: {md(b)}" for a, b in view.not_run) or ["Everything ran.", ""])]
    lines += ["## Cells", "", *grid(view.cells), "## Reproduction", "", code_block(view.command or "not recorded"), ""]
    lines += ["The whole configuration stands in report.html and manifest.json.", ""]
    return "\n".join(lines)
