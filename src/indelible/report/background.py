"""The parts of the view that come from the manifest alone: cohort, definitions, reproduction, model card."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from indelible.data.splits import REASONS
from indelible.report.facts import BLIND, COMBINED, FITTED, Facts
from indelible.report.format import (
    count,
    decimal,
    interval,
    is_number,
    passage,
    percent,
    plain,
    pretty_json,
    quantity,
)

Pairs = list[tuple[str, str]]
"""Names and values, ready to print."""

_SIDES = {"member": "members", "nonmember": "non-members", "pool": "pool"}


@dataclass(frozen=True)
class DefinitionView:
    """What an attack is: formula, paper, deviation, access, settings."""

    name: str
    facts: Pairs


def pairs(values: Mapping[str, Any] | None) -> Pairs:
    """A flat mapping of the manifest as names and values; underscores become spaces."""
    return [
        (label(key), count(value) if str(key).startswith("n_") and is_number(value) else quantity(value))
        for key, value in (values or {}).items()
    ]


def label(key: object) -> str:
    """A manifest key for reading: n_rows as "rows", memory_gib as "memory gib"."""
    return plain(key).removeprefix("n_").replace("_", " ")


def identity(manifest: Mapping[str, Any]) -> Pairs:
    """Who, what and when: the lines under the title."""
    models = manifest.get("models") or {}
    rows = [
        ("Target model", _source(models.get("target"))),
        ("Base model", _source(models.get("base"))),
        ("Members", _source((manifest.get("data") or {}).get("members"))),
        ("Non-members", _source((manifest.get("data") or {}).get("nonmembers"))),
        ("Created", moment(manifest.get("created"))),
        ("Auditor", quantity(manifest.get("auditor") or "not stated")),
        ("Made by", f"Indelible {quantity(manifest.get('indelible_version'))}, {quantity(manifest.get('kind'))} run"),
    ]
    return [row for row in rows if row[1]]


def moment(value: object) -> str:
    """An ISO time to the minute, with its zone."""
    try:
        return datetime.fromisoformat(str(value)).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return quantity(value)


def _source(entry: Mapping[str, Any] | None) -> str:
    return plain(entry.get("source")) if entry and entry.get("source") else ""


def cohort(manifest: Mapping[str, Any]) -> tuple[Pairs, list[str], list[tuple[str, list[str]]]]:
    """Sizes; the sides of the table of dropped rows; that table: reason and one count a side."""
    facts = manifest.get("cohort") or {}
    names = {
        "n_members": "Members scored",
        "n_nonmembers": "Non-members scored",
        "n_pool": "Reference pool (never scored)",
        "n_groups": "Groups",
    }
    sizes = [(text, count(facts[key])) for key, text in names.items() if facts.get(key) is not None]
    counts = manifest.get("counts") or {}
    asked = {
        "asked": "Questions asked of models",
        "unique": "Different questions",
        "cached": "Answered from the cache",
        "tokens": "Tokens computed",
    }
    sizes += [(text, count(counts[key])) for key, text in asked.items() if is_number(counts.get(key))]
    dropped = facts.get("dropped") or {}
    found = {side for sides in dropped.values() for side in sides}
    sides = [side for side in _SIDES if side in found] + sorted(found - set(_SIDES))
    table = [
        (plain(REASONS.get(reason, reason)), [count(by.get(side, 0)) for side in sides])
        for reason, by in dropped.items()
    ]
    return sizes, [_SIDES.get(side, plain(side)) for side in sides], table


def unscorable(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Scores that could not be computed: attack, reason, how many."""
    counts = (manifest.get("counts") or {}).get("unscorable") or {}
    return [
        (plain(attack), plain(reason), count(number))
        for attack, reasons in counts.items()
        for reason, number in reasons.items()
    ]


def definitions(manifest: Mapping[str, Any]) -> list[DefinitionView]:
    """Formula, paper, deviation, access and settings of each attack."""
    keys = ("formula", "paper", "deviation", "access", "settings")
    rows = []
    for attack in manifest.get("attacks") or []:
        facts = [(key.capitalize(), quantity(attack.get(key))) for key in keys if attack.get(key)]
        if attack.get("fitted"):
            facts.append(("Fitted", "on the labels, scored out of fold"))
        rows.append(DefinitionView(plain(attack.get("name")), facts))
    return rows


def command(manifest: Mapping[str, Any]) -> str:
    """The command line as it can be typed again."""
    return plain(shlex.join(str(word) for word in manifest.get("command") or []))


def config(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The configuration as given and as resolved, as JSON text."""
    both = manifest.get("config") or {}
    titles = {"given": "Configuration as given", "resolved": "Configuration as resolved"}
    return [(title, pretty_json(both[key])) for key, title in titles.items() if both.get(key)]


def reproduction(manifest: Mapping[str, Any], file_hashes: Mapping[str, str]) -> list[tuple[str, Pairs]]:
    """Groups of facts needed to run this again and to check that it is the same."""
    models = manifest.get("models") or {}
    data = manifest.get("data") or {}
    timings = manifest.get("timings") or {}
    groups = [
        *((f"Model: {role}", pairs(entry)) for role, entry in models.items() if entry),
        *((f"Data: {role}", pairs(entry)) for role, entry in data.items() if entry),
        ("Seeds and precision", [*pairs(manifest.get("seeds")), ("dtype", quantity(manifest.get("dtype")))]),
        ("Answers checked against plain arithmetic", pairs(manifest.get("drift"))),
        ("Hardware", pairs(manifest.get("hardware"))),
        ("Versions", pairs(manifest.get("versions"))),
        ("Time by stage", [(label(stage), f"{float(seconds):.1f} s") for stage, seconds in timings.items()]),
        ("sha256 of the run's files", [(plain(name), plain(digest)) for name, digest in file_hashes.items()]),
    ]
    return [(passage(title), rows) for title, rows in groups if rows]


def model_card(facts: Facts, word: str) -> str:
    """One paragraph for a model card."""
    manifest = facts.run.manifest
    cohort_facts = manifest.get("cohort") or {}
    target = _source((manifest.get("models") or {}).get("target")) or "The model"
    created = str(manifest.get("created") or "")[:10]
    attacks = [attack for attack in facts.attacks if attack not in FITTED]
    text = (
        f"Memorisation audit. {target} was audited{' on ' + plain(created) if created else ''} with Indelible "
        f"{quantity(manifest.get('indelible_version'))} for membership of its training records: {len(attacks)} "
        f"attack{'s' * (len(attacks) != 1)} ({', '.join(plain(attack) for attack in attacks)}) on "
        f"{count(cohort_facts.get('n_members'))} training and {count(cohort_facts.get('n_nonmembers'))} held-out "
        f"records. Verdict: {word}. "
    )
    best = facts.ranked[0] if facts.ranked else ""
    auc, rate = facts.row(best, "auc") or {}, facts.row(best, "tpr@0.01") or {}
    if is_number(auc.get("value")):
        text += f"The strongest attack, {plain(best)}, has AUC {decimal(auc['value'])} {interval(auc)}"
        if facts.reversed(best):
            text += ", members scoring lower"
        elif is_number(rate.get("value")):
            text += (
                f" and catches {percent(rate['value'])} of members at 1% false positives {interval(rate, 'percent')}"
            )
        text += ". "
    base, blind = facts.row(best, "auc", "base") or {}, facts.row(BLIND, "auc") or {}
    controls = [
        f"{name} AUC {decimal(row['value'])} {interval(row)}"
        for name, row in (("base model", base), ("blind baseline", blind))
        if is_number(row.get("value"))
    ]
    text += f"Controls: {'; '.join(controls)}. " if controls else "No control has a result. "
    fitted = facts.row(COMBINED, "auc") or {}
    if is_number(fitted.get("value")):
        reached = f"AUC {decimal(fitted['value'])} {interval(fitted)}"
        text += (
            f"All scores together, fitted on known members, reach {reached}: an upper view, no part of the verdict. "
        )
    smallest = facts.value(best, "smallest_auc")
    if smallest is not None:
        text += f"The smallest AUC this cohort could have shown is {decimal(smallest)}. "
    return text + "The result is evidence about these attacks, records and this model file only."
