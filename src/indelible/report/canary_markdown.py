"""report.md of a canary run: the substance of report.html, for a repository, a ticket or a model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from indelible.report.format import Cell
from indelible.report.markdown import bullets, cell, closing, md, opening, pictures, table

if TYPE_CHECKING:
    from indelible.report.canary_comparisons import Conclusion
    from indelible.report.canary_tables import Line
    from indelible.report.canary_view import CanaryView, Table
    from indelible.report.figures import Figure


def render_markdown(view: CanaryView, figures: Sequence[Figure]) -> str:
    """The whole page."""
    lines = [*opening(view, _cell), md(view.exposure), "", "## Conclusions", "", *_conclusions(view)]
    lines += [*pictures(figures), "## Results by seed", ""]
    for block in view.results:
        lines += [f"**{md(block.title)}**", "", *_rows(view.results_head, block.lines)]
    lines += [] if view.results else ["No focal canary was measured.", ""]
    for one in (view.checkpoints, view.contrasts, view.within, view.others, view.utility):
        lines += _table(one)
    lines += ["## Controls", "", *bullets(f"{md(n)}: {md(s)}; {md(w)}" for n, s, w in view.control_words)]
    lines += [*_table(view.controls), "## Design", "", *_table(view.settings), *_table(view.extraction)]
    lines += bullets(f"Shown in training, {md(name)}: {md(value)}" for name, value in view.cues)
    for title, rows in (("Training file", view.design), ("Training", view.training), ("Threat model", view.threat)):
        lines += bullets(f"{title}, {md(name)}: {md(value)}" for name, value in rows)
    lines += [md(view.training_note), ""] if view.training_note else []
    lines += ["## Survival of the codes", "", *_table(view.survival)]
    lines += ["## Bound on epsilon", "", *_table(view.bounds), *bullets(map(md, view.bound_notes))]
    lines += ["## What this does not show", "", *bullets(map(md, view.limits))]
    lines += ["## Not run", "", *bullets(f"{md(what)}: {md(why)}" for what, why in view.not_run)]
    lines += [] if view.not_run else ["The run lists nothing that it left out.", ""]
    lines.append(closing(view, "The whole configuration stands in report.html and manifest.json."))
    return "\n".join(lines)


def _conclusions(view: CanaryView) -> list[str]:
    rows = ([md(one.word), md(one.axis), md(one.statement), _seeds(one)] for one in view.conclusions)
    lines = table(["Word", "Axis", "Conclusion", "By seed; why"], rows) if view.conclusions else ["None was drawn.", ""]
    lines += ["Not tested:", "", *bullets(f"{md(axis)}: {md(reason)}" for axis, reason in view.not_tested)]
    return lines if view.not_tested else [*lines, "The run lists no axis that it left out.", ""]


def _seeds(one: Conclusion) -> str:
    said = [f"{md(where)}: {md(words)}" if where else md(words) for where, words in one.by_seed]
    return "; ".join([*said, *map(md, one.reasons)])


def _table(one: Table) -> list[str]:
    if not one.lines:
        return [md(one.absent), ""]
    lines = [md(one.caption), "", *_rows(one.head, one.lines)]
    return [*lines, md(one.note), ""] if one.note else lines


def _rows(head: Sequence[str], lines: Sequence[Line]) -> list[str]:
    return table(list(map(md, head)), ([md(line.head), *map(_cell, line.cells)] for line in lines))


def _cell(value: Cell) -> str:
    """A cell on one line; one without a number is its words alone."""
    return cell(value) if value.text else md(value.detail)
