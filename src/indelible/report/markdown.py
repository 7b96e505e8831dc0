"""report.md: the substance of report.html in short form, for a repository, a ticket or a model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from indelible.report.format import Cell

if TYPE_CHECKING:
    from indelible.report.canary_view import CanaryView
    from indelible.report.figures import Figure
    from indelible.report.view import View

_N_EXPOSED = 10
_SPECIAL = re.compile(r"[\\`*<>|~&$]|(?<=\])[(\[]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_ITEM_START = re.compile(r"^([-+#=]|\d+(?=[.)]))")


def md(value: object) -> str:
    """Text from data with Markdown and HTML switched off: no markup, no link, no picture, no table break.

    Brackets stay, so that intervals read well: without a "(" right behind, and with no definitions, they link nothing.
    """
    text = " ".join(str(value).split())
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], "\\" + match[0]), text)


def alt_text(text: str) -> str:
    """Text between the brackets of a picture."""
    return re.sub(r"([\[\]])", r"\\\1", md(text))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table of escaped cells."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def cell(value: Cell, *, short: bool = False) -> str:
    """A cell on one line; `short` leaves out everything after the interval."""
    detail = value.detail.split("; ")[0] if short and not value.missing else value.detail
    between = " " if detail.startswith("[") else ": " if value.missing else "; "
    return md(value.text) + (between + md(detail) if detail else "")


def opening(view: View | CanaryView, write: Callable[[Cell], str]) -> list[str]:
    """Title, verdict, next steps, what was audited, and the numbers at a glance, each as `write` puts it."""
    lines = [f"# {md(view.title)}", "", f"**Verdict: {md(view.verdict.word)}.** {md(view.verdict.meaning)}", ""]
    lines += bullets(md(reason) for reason in view.verdict.reasons)
    if view.verdict.rule:
        lines += [f"Rule applied: {md(view.verdict.rule)}", ""]
    lines += ["What to do next:", "", *numbered(md(step) for step in view.verdict.next_steps)]
    lines += bullets(f"{md(name)}: {md(value)}" for name, value in view.identity)
    return [*lines, "## Numbers", "", *table(["", "Value"], ([md(name), write(value)] for name, value in view.summary))]


def pictures(figures: Sequence[Figure]) -> list[str]:
    """Every figure with its title and caption."""
    lines = []
    for figure in figures:
        lines += [f"![{alt_text(figure.alt)}](figures/{figure.name}.png)", ""]
        lines += [f"*{md(figure.title)}.* {md(figure.caption)}", ""]
    return lines


def closing(view: View | CanaryView, elsewhere: str) -> str:
    """The paragraph for a model card, and how to repeat the run; `elsewhere` says what this page leaves out."""
    lines = ["## Paragraph for a model card", "", "> " + md(view.model_card), ""]
    lines += ["## Reproduction", "", code_block(view.command or "not recorded"), ""]
    lines += bullets(
        f"{md(title)}: " + "; ".join(f"{md(name)} {md(value)}" for name, value in rows)
        for title, rows in view.reproduction
    )
    return "\n".join([*lines, elsewhere, ""])


def render_markdown(view: View, figures: Sequence[Figure]) -> str:
    """The whole page."""
    lines = [*opening(view, cell), *_attacks(view), *pictures(figures), *_exposed(view)]
    lines += ["## Findings", ""]
    for finding in view.findings:
        lines += [
            (
                f"- **{finding.severity}: {md(finding.title)}.** {md(finding.evidence)} "
                f"Mitigation: {md(finding.mitigation)} Retest: {md(finding.retest)}"
            )
        ]
    lines += ["", md(view.severity_rule), ""]
    lines += _cohort(view)
    lines += ["## What this does not show", "", *bullets(md(limit) for limit in view.limits)]
    lines.append(
        closing(view, "Attack definitions and the whole configuration stand in report.html and manifest.json.")
    )
    return "\n".join(lines)


def _attacks(view: View) -> list[str]:
    head = [
        "Attack",
        "Verdict",
        "AUC, target",
        "AUC, base",
        "Target − base",
        "Target − blind",
        "p (Holm)",
        "Smallest AUC",
    ]
    rows = (
        [
            md(attack.name),
            md(attack.word),
            cell(attack.auc) + ("; members score lower" if attack.reversed else ""),
            cell(attack.auc_base),
            cell(attack.minus_base),
            cell(attack.minus_blind),
            cell(attack.p_holm),
            cell(attack.smallest),
        ]
        for attack in view.attacks
    )
    lines = ["## Attacks", "", f"Brackets hold {view.level} intervals; AUC 0.5 is chance.", "", *table(head, rows)]
    views = [attack for attack in view.attacks if attack.fitted and attack.reasons]
    lines += bullets(f"{md(attack.name)}: {md('; '.join(attack.reasons))}" for attack in views)
    tested = [attack for attack in view.attacks if not attack.control]
    rates = ([md(attack.name), *(cell(rate) for rate in attack.rates)] for attack in tested)
    lines += ["Members caught (true-positive rate):", "", *table(["Attack", *view.rate_names], rates)]
    single = [attack for attack in tested if not attack.fitted]
    flagged = ([md(attack.name), *(cell(number) for number in attack.flagged)] for attack in single)
    return [
        *lines,
        "Members flagged, with the number expected by chance:",
        "",
        *table(["Attack", *view.fpr_heads], flagged),
    ]


def _exposed(view: View) -> list[str]:
    lines = ["## Most exposed records", ""]
    if not view.exposed:
        return [*lines, "None to show.", ""]
    rows = ([md(record.record_id), record.score, record.above] for record in view.exposed[:_N_EXPOSED])
    note = "" if view.verdict.word == "detected" else " The verdict is not “detected”, so this order may be noise."
    lines += [
        f"The first {min(_N_EXPOSED, len(view.exposed))} members by {md(view.exposed_by)}; no text here.{note}",
        "",
    ]
    return lines + table(["Record", "Score", "Beyond this share of non-members"], rows)


def _cohort(view: View) -> list[str]:
    lines = ["## Cohort, controls and threat model", ""]
    lines += bullets(f"{md(name)}: {md(value)}" for name, value in view.cohort)
    if view.dropped:
        rows = ([md(reason), *counts] for reason, counts in view.dropped)
        lines += ["Rows kept out:", "", *table(["Reason", *map(md, view.sides)], rows)]
    lines += bullets(md(note) for note in view.notes)
    lines += bullets(f"Unscorable, {md(attack)}: {number} ({md(why)})" for attack, why, number in view.unscorable)
    lines += bullets(
        f"Control {md(control.name)}: {control.state}, {cell(control.result)}" for control in view.controls
    )
    lines += bullets(f"Not run: {md(what)}: {md(why)}" for what, why in view.not_run)
    lines += bullets(f"Threat model, {md(name)}: {md(value)}" for name, value in view.threat)
    return lines + bullets(f"Training, {md(name)}: {md(value)}" for name, value in view.training)


def _item(text: str) -> str:
    """An item of a list, kept from starting a list or heading of its own."""
    return _ITEM_START.sub(lambda match: match[0] + "\\" if match[0].isdigit() else "\\" + match[0], text)


def bullets(items: Iterable[str]) -> list[str]:
    """A list and the empty line behind it; nothing for no items."""
    lines = [f"- {_item(item)}" for item in items]
    return [*lines, ""] if lines else []


def numbered(items: Iterable[str]) -> list[str]:
    """The same with numbers."""
    lines = [f"{number}. {_item(item)}" for number, item in enumerate(items, 1)]
    return [*lines, ""] if lines else []


def code_block(text: str) -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
