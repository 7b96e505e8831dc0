"""The report of a canary run: report.html, report.md and the figures, beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indelible.report.canary_facts import CanaryRun

KINDS = ("canary-run", "canary-audit")
"""Kinds of runs that hold canary readings."""

READINGS = "canaries.parquet"
UTILITY = "utility.json"

_COLUMNS = (
    "condition",
    "seed",
    "model",
    "role",
    "arm",
    "dose",
    "placement",
    "spacing",
    "population",
    "schedule",
    "protocol",
    "first_step",
    "last_step",
    "n_candidates",
)
"""Of the readings, those that a report looks at; all else it takes from metrics.json."""


def render_canary(path: Path | str, manifest: Mapping[str, Any] | None = None) -> None:
    """Write report.html, report.md and figures/*.png into a canary run or canary audit.

    `manifest` is the draft of a run that is about to be finished; without it, the manifest of the finished run is
    read. The caller finishes the run afterwards (`RunDir.finish`), so that the report is hashed too. Old figures are
    removed first. The same tables and manifest give the same bytes.

    Raises:
        UserError: the run is missing, unfinished, or of another kind.
        DataError: a table of it is missing or cannot be read.
    """
    from indelible.report import FINDINGS, REPORT_HTML, REPORT_MARKDOWN
    from indelible.report.canary_facts import CanaryFacts
    from indelible.report.canary_figures import draw
    from indelible.report.canary_markdown import render_markdown
    from indelible.report.canary_view import build
    from indelible.report.html import own_hashes, render_template, write_pages

    run = read_canaries(path, manifest)
    facts = CanaryFacts(run)
    view = build(facts, own_hashes(run.path, run.manifest, (REPORT_HTML, REPORT_MARKDOWN, FINDINGS)))
    figures = draw(facts)
    html = render_template("canary.html.j2", view=view, figures={figure.name: figure for figure in figures})
    write_pages(run.path, html, render_markdown(view, figures), figures)


def read_canaries(path: Path | str, manifest: Mapping[str, Any] | None = None) -> CanaryRun:
    """Read a canary run or canary audit; `manifest` and the errors as for `render_canary`.

    A run without utility.json has no utility.
    """
    from indelible.errors import UserError
    from indelible.report.canary_facts import CanaryRun
    from indelible.runs import read_json, read_manifest, read_table

    path = Path(path)
    found = read_manifest(path) if manifest is None else dict(manifest)
    if found.get("kind") not in KINDS:
        raise UserError(
            f"{path} is a run of kind {found.get('kind')}, expected {' or '.join(KINDS)}: give the folder of "
            "such a run."
        )
    return CanaryRun(
        path,
        found,
        read_table(path / READINGS, _COLUMNS),
        read_json(path / UTILITY, list) if (path / UTILITY).exists() else [],
        read_json(path / "metrics.json", list),
        read_json(path / "verdict.json", dict),
    )
