"""Findings derived from the verdicts and the numbers of a run, each with severity, mitigation and retest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from indelible.report import wording
from indelible.report.facts import BLIND, Facts
from indelible.report.format import count, decimal, interval, is_number, percent, plain


@dataclass(frozen=True)
class Finding:
    """One finding. `severity` is high, medium, low or info."""

    severity: str
    title: str
    evidence: str
    mitigation: str
    retest: str = wording.RETEST


def findings(facts: Facts) -> list[Finding]:
    """All findings of a run, gravest first."""
    order = ("high", "medium", "low", "info")
    found = [*_memorisation(facts), *_split(facts), *_audit_quality(facts)]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _memorisation(facts: Facts) -> Iterator[Finding]:
    detected = [attack for attack in facts.ranked if facts.word(attack) == "detected"]
    unclear = [attack for attack in facts.ranked if facts.word(attack) == "not attributable"]
    if detected:
        controlled = any(c.get("ran") for c in (facts.run.verdict.get("controls") or {}).values())
        strong = controlled and any(_strong(facts, attack) for attack in detected)
        yield Finding(
            "high" if strong else "medium",
            "Membership of training records can be inferred",
            "Detected by " + "; ".join(_auc(facts, attack) for attack in detected) + ".",
            wording.MITIGATE_MEMORISATION,
            wording.RETEST + _gate(detected[0]),
        )
    for attack in detected:
        row = facts.row(attack, "tpr_bounded@0.01") or {}
        low, upper, value = row.get("low"), row.get("fpr_upper"), row.get("value")
        if is_number(low) and is_number(upper) and is_number(value) and low > 0.01 and upper <= 0.01:
            yield Finding(
                "high" if low > 0.05 else "medium",
                "Single records can be pointed at with few false alarms",
                f"{plain(attack)} flags {percent(value)} of the members {interval(row, 'percent')} at a false-positive "
                f"rate of at most {percent(upper, 2)}.",
                wording.MITIGATE_FLAGGED,
            )
            break
    if unclear:
        yield Finding(
            "medium",
            "A difference that cannot be laid at the model's door",
            "Significant, but not beyond the controls: " + "; ".join(_auc(facts, attack) for attack in unclear) + ".",
            wording.MITIGATE_UNCLEAR,
        )
    reversed_ = [attack for attack in (*detected, *unclear) if facts.reversed(attack)]
    if reversed_:
        yield Finding(
            "medium",
            "Members score lower than non-members",
            "; ".join(_auc(facts, attack) for attack in reversed_) + ".",
            wording.MITIGATE_REVERSED,
        )
    if not detected and not unclear and any(facts.word(attack) == "not detected" for attack in facts.ranked):
        yield Finding(
            "info",
            "No attack separated members from non-members",
            "See “Smallest effect” for what this cohort could have missed.",
            "None follows from this audit. Keep the safeguards that the data calls for.",
            "Repeat the audit whenever the data, the recipe or the number of epochs changes.",
        )


def _split(facts: Facts) -> Iterator[Finding]:
    blind = facts.row(BLIND, "auc") or {}
    if _excludes_half(blind.get("low"), blind.get("high")):
        yield Finding(
            "medium",
            "The split can be told apart without the model",
            f"The blind baseline, which never asks a model, reaches {_auc(facts, BLIND)}.",
            wording.MITIGATE_SPLIT,
        )
    base = [
        f"{plain(attack)} {decimal(row['value'])} {interval(row)}"
        for attack in facts.ranked
        if (row := facts.row(attack, "auc", "base")) is not None
        and is_number(row.get("value"))
        and _excludes_half(row.get("low"), row.get("high"))
    ]
    if base:
        yield Finding(
            "low",
            "The base model separates the two sides as well",
            "AUC on the model before fine-tuning: " + "; ".join(base) + ". The difference to the target counts.",
            wording.MITIGATE_SPLIT,
        )


def _audit_quality(facts: Facts) -> Iterator[Finding]:
    manifest = facts.run.manifest
    for name, control in (facts.run.verdict.get("controls") or {}).items():
        if not control.get("ran"):
            yield Finding(
                "low",
                f"Control not run: {plain(name)}",
                plain(control.get("reason") or "no reason recorded") + ".",
                wording.MITIGATE_CONTROL,
            )
    dropped = (manifest.get("cohort") or {}).get("dropped") or {}
    repeats = {
        reason: sum(sides.values())
        for reason, sides in dropped.items()
        if ("dup" in reason.lower() or "member" in reason.lower()) and sum(sides.values())
    }
    if repeats:
        listed = "; ".join(f"{plain(reason)}: {count(number)}" for reason, number in repeats.items())
        yield Finding(
            "low",
            "Repeated records in the files given",
            f"Kept out of the audit: {listed}.",
            wording.MITIGATE_DROPPED,
        )
    unscorable = (manifest.get("counts") or {}).get("unscorable") or {}
    failed = {attack: sum(reasons.values()) for attack, reasons in unscorable.items() if sum(reasons.values())}
    if failed:
        listed = "; ".join(f"{plain(attack)}: {count(number)}" for attack, number in failed.items())
        yield Finding(
            "info", "Scores that do not exist", f"Left out, by attack: {listed}.", wording.MITIGATE_UNSCORABLE
        )


def _strong(facts: Facts, attack: str) -> bool:
    auc = facts.value(attack, "auc")
    low = (facts.row(attack, "tpr@0.01") or {}).get("low")
    return (auc is not None and abs(auc - 0.5) >= 0.25) or (is_number(low) and low > 0.05)


def _excludes_half(low: object, high: object) -> bool:
    return is_number(low) and is_number(high) and (low > 0.5 or high < 0.5)


def _auc(facts: Facts, attack: str) -> str:
    row = facts.row(attack, "auc") or {}
    value = row.get("value")
    if not is_number(value):
        return f"{plain(attack)} (no AUC)"
    note = ", members score lower" if value < 0.5 else ""
    return f"{plain(attack)} (AUC {decimal(value)} {interval(row)}{note})"


def _gate(attack: str) -> str:
    return f" In a pipeline, --fail-if '{plain(attack)}:tpr@0.01>0.05' makes the audit exit with 1."
