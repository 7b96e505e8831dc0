"""A canary run as plain template data: what report.html and report.md both show, written out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indelible.report import background, canary_comparisons, canary_design, canary_summary, canary_tables
from indelible.report import canary_wording as wording
from indelible.report.background import Pairs
from indelible.report.canary_comparisons import Conclusion
from indelible.report.canary_facts import CanaryFacts
from indelible.report.canary_tables import Block, Line
from indelible.report.format import Cell, plain
from indelible.report.view import VerdictView

N_LINES = 80
"""Most lines of a table of comparisons; the rest stands in metrics.json."""


@dataclass(frozen=True)
class Table:
    """A table with its caption; `note` says what it leaves out, and `absent` why it is empty."""

    caption: str
    head: tuple[str, ...]
    lines: list[Line]
    absent: str
    note: str = ""


@dataclass(frozen=True)
class CanaryView:
    """Everything a canary report says, but the figures."""

    title: str
    identity: Pairs
    verdict: VerdictView
    summary: list[tuple[str, Cell]]
    exposure: str
    conclusions: list[Conclusion]
    not_tested: list[tuple[str, str]]
    results_head: tuple[str, ...]
    results: list[Block]
    checkpoints: Table
    others: Table
    contrasts: Table
    within: Table
    utility: Table
    control_words: list[tuple[str, str, str]]
    controls: Table
    settings: Table
    cues: Pairs
    extraction: Table
    design: Pairs
    training: Pairs
    training_note: str
    threat: Pairs
    survival: Table
    bounds: Table
    bound_notes: list[str]
    limits: list[str]
    not_run: list[tuple[str, str]]
    reproduction: list[tuple[str, Pairs]]
    command: str
    config: list[tuple[str, str]]
    model_card: str


def build(facts: CanaryFacts, file_hashes: Mapping[str, str]) -> CanaryView:
    """Turn a run into a view. `file_hashes` are those of the data files, without the report's own."""
    run = facts.run
    manifest = run.manifest
    verdict = _verdict(run.verdict)
    bounds, compared = canary_design.bounds(manifest, run.verdict)
    many = len(facts.conditions) > 1 and manifest.get("training") and manifest.get("kind") == "canary-run"
    return CanaryView(
        title=f"Canary audit: {plain(run.name)}",
        identity=canary_design.identity(manifest),
        verdict=verdict,
        summary=canary_summary.summary(facts),
        exposure=wording.EXPOSURE,
        conclusions=canary_comparisons.conclusions(run.verdict),
        not_tested=canary_summary.not_tested(run.verdict),
        results_head=canary_tables.RESULTS,
        results=canary_tables.results(facts),
        checkpoints=Table(
            "Each checkpoint, code hidden in the probe, over all seeds.",
            canary_tables.CHECKPOINTS,
            canary_tables.checkpoints(facts),
            "One checkpoint a training: exposure was not followed over time, and observation delays are not matched.",
        ),
        others=Table(
            "Other canaries in training, code hidden in the probe, over all seeds.",
            canary_tables.OTHERS,
            canary_tables.others(facts),
            "No other canary was probed.",
        ),
        contrasts=_cut(
            "Settings that differ on one axis alone, code hidden in the probe, over all seeds. A positive number means "
            "more under the first. p-values after Holm over all comparisons of their kind.",
            canary_comparisons.CONTRASTS,
            canary_comparisons.contrasts(facts),
            "No two settings of this run differ on one axis alone.",
        ),
        within=_cut(
            "One setting with itself under another probe.",
            canary_comparisons.WITHIN,
            canary_comparisons.within(facts),
            "No setting has two probes to compare.",
        ),
        utility=Table(
            "Task accuracy and loss on held-out rows, of each model at its last checkpoint. Differences: mean over "
            "seeds, with the lowest and the highest seed.",
            canary_tables.utility_head(facts),
            canary_tables.utility(facts),
            "Utility was not measured in this run.",
        ),
        control_words=canary_summary.control_words(run.verdict),
        controls=Table(
            "Canaries that the model cannot know, code hidden in the probe: medians near 1.0 bit are expected.",
            ("Control", "Exposure, bits", "By seed", "Recovered exactly", "p"),
            canary_summary.control_lines(facts),
            "No control was probed.",
        ),
        settings=Table(
            "Each setting of the focal canaries; updates are medians over canaries, and evaluation is at the last "
            "checkpoint.",
            canary_design.SETTINGS,
            canary_design.settings(facts),
            "No focal canary was measured.",
        ),
        cues=canary_design.cues(facts),
        extraction=Table(
            "What is supplied at extraction.",
            ("Probe", "Asked", "What the input shows"),
            canary_design.extraction(facts),
            "",
        ),
        design=canary_design.design(facts),
        training=canary_design.training(manifest),
        training_note="File and training of the first arm; what other arms change stands in the configuration."
        if many
        else "",
        threat=wording.ACCESS + background.pairs(manifest.get("threat_model")),
        survival=Table(
            "Canaries whose code was still whole after each step from file to loss.",
            canary_design.SURVIVAL,
            canary_design.survival(manifest),
            "Not checked: a code that was cut off or masked would look like one that is not memorised.",
        ),
        bounds=Table(wording.EPSILON, canary_design.BOUNDS, bounds, wording.NO_EPSILON),
        bound_notes=compared,
        limits=wording.LIMITS,
        not_run=[(plain(item.get("what")), plain(item.get("reason"))) for item in manifest.get("not_run") or []],
        reproduction=background.reproduction(manifest, file_hashes),
        command=background.command(manifest),
        config=background.config(manifest),
        model_card=canary_summary.model_card(facts, verdict.word),
    )


def _cut(caption: str, head: tuple[str, ...], lines: list[Line], absent: str) -> Table:
    left = len(lines) - N_LINES
    note = f"{left} more comparisons stand in metrics.json." if left > 0 else ""
    return Table(caption, head, lines[:N_LINES], absent, note)


def _verdict(verdict: Mapping[str, Any]) -> VerdictView:
    overall = verdict.get("overall") or {}
    word = plain(overall.get("word") or "no verdict")
    return VerdictView(
        word=word,
        slug=word.replace(" ", "-") if word in wording.MEANING else "unknown",
        meaning=wording.MEANING.get(word, wording.UNKNOWN_MEANING),
        rule=plain(overall.get("rule") or ""),
        reasons=_reasons(verdict, overall.get("reasons") or []),
        next_steps=wording.NEXT_STEPS.get(word, []),
    )


def _reasons(verdict: Mapping[str, Any], reasons: Sequence[object]) -> list[str]:
    """The reasons of the verdict for the head of the report.

    What only repeats the table of conclusions is shortened: lists of ids become counts, and a conclusion that flips is
    named without its settings.
    """
    found = verdict.get("conclusions") or []
    ids = {str(one.get("id")) for one in found}
    whole = {f"{one.get('id')}: {one.get('statement')}": str(one.get("statement")) for one in found}
    said = []
    for reason in map(str, reasons):
        word, _, rest = reason.partition(": ")
        named = rest.split(", ")
        if word in wording.WORDS and set(named) <= ids:
            said.append(f"{canary_summary.counted(word, len(named))} (controls apart)")
        elif reason in whole:
            said.append(whole[reason].split(". ")[0].split(" (")[0].rstrip(".") + ".")
        else:
            said.append(reason)
    return [plain(reason) for reason in said]
