"""The tables of a canary report that compare: conclusions by seed, matched contrasts, one setting under two probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indelible.report import canary_wording as wording
from indelible.report.canary_facts import CanaryFacts, setting_of
from indelible.report.canary_tables import Line, dash, number_cell
from indelible.report.format import STYLES, Cell, MetricRow, count, is_number, p_value, plain, signed
from indelible.stats.cells import HIDDEN

CONTRASTS = (
    "Comparison",
    "Exposure, bits",
    "By seed",
    "p (Holm)",
    "Pairs",
    "Recovered exactly",
    "p of recovery (Holm)",
)
WITHIN = ("Comparison", "Difference", "By seed", "p (Holm)", "Canaries")


@dataclass(frozen=True)
class Conclusion:
    """One conclusion: its word, and by place the sign and value of every seed."""

    statement: str
    axis: str
    word: str
    slug: str
    by_seed: list[tuple[str, str]]
    reasons: list[str]


def conclusions(verdict: Mapping[str, Any], word: str | None = None) -> list[Conclusion]:
    """The conclusions with one word, or all of them, flips first."""
    found = [_conclusion(one) for one in verdict.get("conclusions") or []]
    order = {name: i for i, name in enumerate(wording.WORDS)}
    found = sorted(found, key=lambda one: order.get(one.word, len(order)))
    return found if word is None else [one for one in found if one.word == word]


def _conclusion(one: Mapping[str, Any]) -> Conclusion:
    places: dict[str, list[str]] = {}
    for entry in one.get("by_seed") or []:
        places.setdefault(plain(entry.get("where") or ""), []).append(_seed_words(entry))
    word = plain(one.get("word") or "no word")
    axis = str(one.get("axis") or "")
    settled = axis == "controls" and word == "holds"  # its readings stand under Controls
    return Conclusion(
        statement=plain(one.get("statement") or one.get("id") or ""),
        axis=wording.AXES.get(axis, plain(axis)),
        word=word,
        slug=word if word in wording.WORDS else "unknown",
        by_seed=[] if settled else [(where, "; ".join(words)) for where, words in places.items()],
        reasons=["see Controls"] if settled else [plain(reason) for reason in one.get("reasons") or []],
    )


def _seed_words(entry: Mapping[str, Any]) -> str:
    sign = {1: "+", -1: "−", 0: "0"}.get(entry.get("sign") or 0, "0")
    value, p = entry.get("value"), entry.get("p")
    text = signed(value, 2) if is_number(value) else "–"
    words = [] if text[0] == sign else [f"sign {sign}"]
    words += [f"p {p_value(p)}"] if is_number(p) else []
    return f"seed {plain(entry.get('seed'))}: {text}" + (f" ({', '.join(words)})" if words else "")


def contrasts(facts: CanaryFacts) -> list[Line]:
    """The matched comparisons, code hidden: two settings that differ on one axis alone."""
    last = {one.condition: facts.steps(one)[-1] for one in facts.settings if facts.steps(one)}
    lines = []
    for (setting, axis, against, other, probe, step, their_step), rows in _compared(facts).items():
        if probe != HIDDEN or axis == "probe":
            continue
        final = step == last.get(setting.condition) and their_step in (None, last.get(str(other)))
        at = "" if final else f", at the same delay (update {step} against {their_step})"
        where = f" in {plain(other)}" if other and other != setting.condition else ""
        head = f"{facts.named(setting)} minus {wording.AXES.get(str(axis), axis)} {against}{where}{at}"
        bits, share = (
            ("contrast_median", "contrast_p_holm", "gap"),
            ("contrast_recovery", "recovery_p_holm", "points"),
        )
        difference, seeds, p, pairs = _difference(facts, rows, *bits)
        method = (rows.get(("contrast_median", None)) or {}).get("method")
        pairs = pairs if pairs.missing or not method else Cell(pairs.text, plain(method))
        lines.append(Line(head, [difference, seeds, p, pairs, *_difference(facts, rows, *share)[:3:2]]))
    return lines


def within(facts: CanaryFacts) -> list[Line]:
    """The comparisons of one setting with itself under another probe."""
    lines = []
    for (setting, *_), rows in _compared(facts).items():
        for metric, (words, style) in wording.WITHIN.items():
            if (metric, None) in rows:
                head = f"{facts.named(setting)}: {words}"
                lines.append(Line(head, _difference(facts, rows, metric, f"{metric}_p_holm", style)))
    return lines


_Rows = dict[tuple[str, int | None], MetricRow]


def _compared(facts: CanaryFacts) -> dict[tuple[Any, ...], _Rows]:
    """The rows of each comparison, by metric and seed."""
    groups: dict[tuple[Any, ...], _Rows] = {}
    for row in facts.run.metrics:
        if row.get("against"):
            others = [
                row.get(name) for name in ("axis", "against", "against_condition", "probe", "step", "against_step")
            ]
            key = (setting_of(row), *(plain(one) if isinstance(one, str) else one for one in others))
            seed = row.get("seed")
            groups.setdefault(key, {})[str(row.get("metric")), int(seed) if is_number(seed) else None] = row
    return groups


def _difference(facts: CanaryFacts, rows: _Rows, metric: str, p: str, style: str) -> list[Cell]:
    """The difference over all seeds, that of every seed, the p-value after Holm, and the pairs."""
    pooled = rows.get((metric, None))
    write = STYLES[style]
    seeds = [
        f"seed {seed}: {write(value) if is_number(value) else '–'}"
        for seed in facts.seeds
        if (row := rows.get((metric, seed))) is not None
        for value in [row.get("value")]
    ]
    pairs = (pooled or {}).get("n")
    return [
        number_cell(pooled, style),
        Cell("", "; ".join(seeds)) if seeds else dash("not recorded by seed"),
        number_cell(rows.get((p, None)), "p"),
        Cell(count(pairs)) if is_number(pairs) else dash("not recorded"),
    ]
