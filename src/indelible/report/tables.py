"""The rows of the tables of attacks and of controls, each number as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indelible.report import wording
from indelible.report.facts import BLIND, COMBINED, FITTED, FPRS, Facts
from indelible.report.format import (
    Cell,
    count,
    interval,
    is_number,
    metric_cell,
    missing,
    p_value,
    percent,
    plain,
    rate_cell,
    signed,
)

RATES = {
    **{f"tpr@{fpr:g}": f"at {percent(fpr)} FPR" for fpr in FPRS},
    "tpr_bounded@0.01": "at 1% FPR, assured",
}
"""Metrics of the table of rates, with the heading of each. Assured: the bound on the FPR, too, is at most 1%."""


@dataclass(frozen=True)
class AttackView:
    """One line of the tables of attacks."""

    name: str
    word: str
    slug: str
    rule: str
    reasons: list[str]
    reversed: bool
    control: bool
    fitted: bool
    auc: Cell
    auc_base: Cell
    minus_base: Cell
    minus_blind: Cell
    p_holm: Cell
    size: str
    rates: list[Cell]
    flagged: list[Cell]
    smallest: Cell


@dataclass(frozen=True)
class ControlView:
    """One control: did it run, and what it reached or why it did not."""

    name: str
    state: str
    result: Cell


def slug(word: str) -> str:
    """A verdict word as a CSS class; words this version does not know share one."""
    return word.replace(" ", "-") if word in wording.MEANING else "unknown"


def attack_view(facts: Facts, name: str) -> AttackView:
    """All numbers of one attack."""
    verdict = facts.verdict(name)
    blind, combined = name == BLIND, name == COMBINED
    word = plain(facts.word(name) or ("control" if blind else "upper view" if combined else "no verdict"))
    auc = facts.row(name, "auc") or {}
    no_base = "the blind baseline asks no model" if blind else why_absent(facts, "base")
    no_blind = "this is the blind baseline" if blind else wording.NO_EVIDENCE if combined else why_absent(facts, BLIND)
    n_members, n_nonmembers = auc.get("n_members"), auc.get("n_nonmembers")
    return AttackView(
        name=plain(name),
        word=word,
        slug=slug(word),
        rule=plain(verdict.get("rule") or ""),
        reasons=_upper_view(facts) if combined else [plain(reason) for reason in verdict.get("reasons") or []],
        reversed=facts.reversed(name),
        control=blind,
        fitted=name in FITTED,
        auc=metric_cell(facts.row(name, "auc")),
        auc_base=metric_cell(facts.row(name, "auc", "base"), absent=no_base),
        minus_base=metric_cell(facts.row(name, "auc_minus_base", "target", "none", "base"), "signed", absent=no_base),
        minus_blind=metric_cell(
            facts.row(name, "auc_minus_blind", "target", "none", "base"), "signed", absent=no_blind
        ),
        # A fitted score has its own permutation test and is never corrected with the attacks.
        p_holm=metric_cell(facts.row(name, "p_value" if name in FITTED else "p_holm"), "p"),
        size=f"{count(n_members)} / {count(n_nonmembers)}",
        rates=[rate_cell(facts.row(name, metric)) for metric in RATES],
        flagged=[_flagged(facts, name, fpr) for fpr in FPRS],
        smallest=metric_cell(facts.row(name, "smallest_auc")),
    )


def why_absent(facts: Facts, name: str) -> str:
    """The recorded reason for which a control ("base" or the blind one) did not run."""
    control = (facts.run.verdict.get("controls") or {}).get(name) or {"ran": True}
    return "not computed" if control.get("ran") else plain(control.get("reason") or "it did not run")


def control_view(name: str, control: Mapping[str, Any]) -> ControlView:
    title = {"base": "base model: the same attacks before fine-tuning", BLIND: f"{BLIND}: the words alone, no model"}
    ran = bool(control.get("ran"))
    result = (
        metric_cell({**control, "value": control.get("auc")})
        if is_number(control.get("auc"))
        else Cell("see the table of attacks")
    )
    if not ran:
        result = missing(control.get("reason"))
    return ControlView(title.get(name, plain(name)), "ran" if ran else "did not run", result)


def duels(facts: Facts) -> list[tuple[str, Cell, Cell]]:
    """The strongest attack against each other: difference of AUC, and its p-value after Holm over all pairs."""
    best, *others = facts.ranked or [""]
    rows = []
    for other in others:
        there, back = facts.row(best, f"auc_minus:{other}"), facts.row(other, f"auc_minus:{best}")
        p_row = facts.row(best, f"p_minus:{other}") or facts.row(other, f"p_minus:{best}")
        if there or back:
            difference = metric_cell(there or _negated(back or {}), "signed")
            rows.append((plain(other), difference, metric_cell(p_row, "p")))
    return rows


def _negated(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A difference the other way round."""
    value, low, high = ((-row[key] if is_number(row.get(key)) else None) for key in ("value", "low", "high"))
    return {**row, "value": value, "low": high, "high": low}


def _upper_view(facts: Facts) -> list[str]:
    """What to know of the fitted combination: what it is for, how it was made, what it gains."""
    row, gain = facts.row(COMBINED, "auc") or {}, facts.row(COMBINED, "auc_minus_best") or {}
    said = [wording.UPPER_VIEW, plain(row.get("reason") or row.get("method") or "")]
    if is_number(gain.get("value")):
        p_row = facts.row(COMBINED, "p_minus_best") or {}
        p = f", p {p_value(p_row['value'])}" if is_number(p_row.get("value")) else ""
        said.append(f"{signed(gain['value'])} {interval(gain)} over the attack that leads in the training folds{p}")
    return [text for text in said if text]


def _flagged(facts: Facts, name: str, fpr: float) -> Cell:
    row = facts.row(name, f"tpr@{fpr:g}") or {}
    flagged = facts.flagged(name, fpr)
    if flagged is None:
        return missing(row.get("reason") or "no threshold or no scores for this rate")
    hits, n_members, false_hits, n_nonmembers = flagged
    chance = f"{fpr * n_members:.1f}".removesuffix(".0")
    return Cell(
        f"{count(hits)} of {count(n_members)}",
        f"{chance} expected by chance; {count(false_hits)} of {count(n_nonmembers)} non-members",
    )
