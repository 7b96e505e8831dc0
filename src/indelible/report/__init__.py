"""Reports of a run: one self-contained HTML page, a short Markdown page, the findings as JSON, the figures as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.report.compare import compare

if TYPE_CHECKING:
    from indelible.runs import Run

REPORT_HTML = "report.html"
REPORT_MARKDOWN = "report.md"
FINDINGS = "findings.json"
FIGURES = "figures"

__all__ = ["FIGURES", "FINDINGS", "REPORT_HTML", "REPORT_MARKDOWN", "compare", "render", "rerender"]


def render(path: Path | str, manifest: Mapping[str, Any] | None = None) -> None:
    """Write report.html, report.md, findings.json and figures/*.png into a run.

    `manifest` is the draft of a run that is about to be finished; without it, the manifest of the finished run is
    read. The caller finishes the run afterwards (`RunDir.finish`), so that the report is hashed too.

    Raises:
        UserError: see `indelible.runs.read_run`.
    """
    from indelible.runs import read_run, read_tables

    path = Path(path)
    _write(read_run(path) if manifest is None else read_tables(path, manifest))


def rerender(path: Path | str) -> None:
    """Write the report of a finished run anew, and its new hashes into the manifest.

    Raises:
        UserError: a file other than the report differs from its hash; see also `indelible.runs.read_run`.
    """
    from indelible.errors import UserError
    from indelible.report.canary import KINDS, render_canary
    from indelible.report.sweep import render_sweep
    from indelible.report.tabular import render_tabular
    from indelible.report.tabular_facts import KINDS as TABULAR
    from indelible.runs import MANIFEST, hash_files, read_manifest, read_run, write_json

    path = Path(path)
    manifest = read_manifest(path)
    listed = {name: digest for name, digest in manifest.get("files", {}).items() if not _is_report(name)}
    found = hash_files(path)
    changed = [name for name, digest in listed.items() if found.get(name) != digest]
    if changed:
        raise UserError(
            f"{path} was changed after it was finished ({', '.join(changed)}): its numbers are not reported."
        )
    if manifest.get("kind") in KINDS:
        render_canary(path)
    elif manifest.get("kind") == "sweep":
        render_sweep(path)
    elif manifest.get("kind") in TABULAR:
        render_tabular(path)
    else:
        _write(read_run(path))
    hashes = listed | {name: digest for name, digest in hash_files(path).items() if _is_report(name)}
    write_json(path / MANIFEST, {**manifest, "files": dict(sorted(hashes.items()))})


def _is_report(name: str) -> bool:
    return name in {REPORT_HTML, REPORT_MARKDOWN, FINDINGS} or (
        name.startswith(FIGURES + "/") and name.endswith(".png")
    )


def _write(run: Run) -> None:
    from dataclasses import asdict

    from indelible.report.facts import Facts
    from indelible.report.figures import draw
    from indelible.report.findings import findings
    from indelible.report.html import render_html, write_pages
    from indelible.report.markdown import render_markdown
    from indelible.report.view import build
    from indelible.runs import hash_files, write_json

    hashes = run.manifest.get("files") or hash_files(run.path)
    view = build(run, {name: digest for name, digest in hashes.items() if not _is_report(name)})
    facts = Facts(run)
    figures = draw(facts)
    write_json(run.path / FINDINGS, [asdict(finding) for finding in findings(facts)])
    write_pages(run.path, render_html(view, figures), render_markdown(view, figures), figures)
