"""A run as plain template data: what report.html and report.md both show, written out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indelible.report import background, wording
from indelible.report.background import DefinitionView, Pairs
from indelible.report.facts import BLIND, COMBINED, FPRS, Facts
from indelible.report.findings import Finding, findings
from indelible.report.format import (
    Cell,
    count,
    decimal,
    is_number,
    metric_cell,
    passage,
    percent,
    plain,
    rate_cell,
)
from indelible.report.tables import RATES, AttackView, ControlView, attack_view, control_view, duels, slug, why_absent

if TYPE_CHECKING:
    from indelible.runs import Run


@dataclass(frozen=True)
class VerdictView:
    """The verdict in words. `slug` is a CSS class."""

    word: str
    slug: str
    meaning: str
    rule: str
    reasons: list[str]
    next_steps: list[str]


@dataclass(frozen=True)
class ExposedView:
    """One of the most exposed records; `prompt` and `target` are "" unless texts were kept."""

    record_id: str
    group: str
    n_tokens: str
    score: str
    above: str
    prompt: str
    target: str


@dataclass(frozen=True)
class View:
    """Everything a report says, but the figures."""

    title: str
    identity: Pairs
    verdict: VerdictView
    summary: list[tuple[str, Cell]]
    attacks: list[AttackView]
    attack_rules: list[str]
    duels: list[tuple[str, Cell, Cell]]
    best: str
    rate_names: list[str]
    fpr_heads: list[str]
    level: str
    exposed_by: str
    exposed: list[ExposedView]
    with_text: bool
    with_groups: bool
    cohort: Pairs
    sides: list[str]
    dropped: list[tuple[str, list[str]]]
    notes: list[str]
    unscorable: list[tuple[str, str, str]]
    controls: list[ControlView]
    not_run: list[tuple[str, str]]
    threat: Pairs
    findings: list[Finding]
    severity_rule: str
    limits: list[str]
    definitions: list[DefinitionView]
    training: Pairs
    reproduction: list[tuple[str, Pairs]]
    command: str
    config: list[tuple[str, str]]
    model_card: str


def build(run: Run, file_hashes: Mapping[str, str]) -> View:
    """Turn a run into a View. `file_hashes` are those of the data files, without the report's own."""
    facts = Facts(run)
    manifest = run.manifest
    leading = facts.drawable[0] if facts.drawable else ""
    cohort, sides, dropped = background.cohort(manifest)
    verdict = verdict_view(run)
    exposed = _exposed(facts, leading)
    attacks = [attack_view(facts, name) for name in facts.strongest_first]
    return View(
        title=f"Memorisation audit: {plain(run.name)}",
        identity=background.identity(manifest),
        verdict=verdict,
        summary=_summary(facts),
        attacks=attacks,
        attack_rules=list(dict.fromkeys(attack.rule for attack in attacks if attack.rule)),
        duels=duels(facts),
        best=plain(facts.ranked[0]) if facts.ranked else "",
        rate_names=list(RATES.values()),
        fpr_heads=[f"at {percent(fpr)} FPR" for fpr in FPRS],
        level=_level(run.metrics),
        exposed_by=plain(leading),
        exposed=exposed,
        with_text=run.texts is not None,
        with_groups=any(record.group not in {"", record.record_id} for record in exposed),
        cohort=cohort,
        sides=sides,
        dropped=dropped,
        notes=[plain(note) for note in (manifest.get("cohort") or {}).get("notes") or []],
        unscorable=background.unscorable(manifest),
        controls=[control_view(name, control) for name, control in (run.verdict.get("controls") or {}).items()],
        not_run=[(plain(item.get("what")), plain(item.get("reason"))) for item in manifest.get("not_run") or []],
        threat=background.pairs(manifest.get("threat_model")),
        findings=findings(facts),
        severity_rule=wording.SEVERITY_RULE,
        limits=wording.LIMITS,
        definitions=background.definitions(manifest),
        training=background.pairs(manifest.get("training")),
        reproduction=background.reproduction(manifest, file_hashes),
        command=background.command(manifest),
        config=background.config(manifest),
        model_card=background.model_card(facts, verdict.word),
    )


def verdict_view(run: Run) -> VerdictView:
    """The overall verdict with its meaning and what to do next."""
    overall, controls = run.verdict.get("overall") or {}, run.verdict.get("controls") or {}
    word = plain(overall.get("word") or "no verdict")
    meaning, next_steps = wording.MEANING.get(word, wording.UNKNOWN_MEANING), wording.NEXT_STEPS.get(word, [])
    if word == "detected" and not any(control.get("ran") for control in controls.values()):
        meaning, next_steps = wording.UNCONTROLLED_MEANING, wording.UNCONTROLLED_STEPS
    return VerdictView(
        word=word,
        slug=slug(word),
        meaning=meaning,
        rule=plain(overall.get("rule") or ""),
        reasons=[plain(reason) for reason in overall.get("reasons") or []],
        next_steps=next_steps,
    )


def _summary(facts: Facts) -> list[tuple[str, Cell]]:
    """The few numbers at the head of the report."""
    cohort = facts.run.manifest.get("cohort") or {}
    best = facts.ranked[0] if facts.ranked else ""
    no_base, no_blind = why_absent(facts, "base"), why_absent(facts, BLIND)
    cells = [
        ("Members / non-members", Cell(f"{count(cohort.get('n_members'))} / {count(cohort.get('n_nonmembers'))}")),
        (f"AUC, {plain(best)}", metric_cell(facts.row(best, "auc"))),
        (f"AUC on the base model, {plain(best)}", metric_cell(facts.row(best, "auc", "base"), absent=no_base)),
        ("AUC of the blind baseline", metric_cell(facts.row(BLIND, "auc"), absent=no_blind)),
        (f"Members caught at 1% FPR, {plain(best)}", rate_cell(facts.row(best, "tpr@0.01"))),
        ("Smallest AUC this could show", metric_cell(facts.row(best, "smallest_auc"))),
    ]
    if COMBINED in facts.attacks:
        cells.append(("AUC of all scores together, fitted", metric_cell(facts.row(COMBINED, "auc"))))
    return cells if best else cells[:1]


def _exposed(facts: Facts, attack: str) -> list[ExposedView]:
    texts = facts.run.texts or {}
    rows = []
    for record in facts.exposed(attack) if attack else []:
        text = texts.get(record.record_id) or {}
        rows.append(
            ExposedView(
                record_id=plain(record.record_id),
                group=plain(record.group),
                n_tokens=count(record.n_target_tokens),
                score=decimal(record.score, 4),
                above=percent(record.above),
                prompt=passage(text.get("prompt", "")),
                target=passage(text.get("target", "")),
            )
        )
    return rows


def _level(metrics: list[dict[str, Any]]) -> str:
    """The confidence level of the intervals, named once: "95%"."""
    levels = sorted({float(row["level"]) for row in metrics if is_number(row.get("level")) and row["metric"] == "auc"})
    return " or ".join(percent(level) for level in levels) or "95%"
