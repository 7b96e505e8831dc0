"""What a canary report says at a glance: the numbers at its head, the controls, the paragraph for a model card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from indelible.report import canary_wording as wording
from indelible.report.canary_comparisons import Conclusion, conclusions
from indelible.report.canary_design import target_name
from indelible.report.canary_facts import CanaryFacts, Setting
from indelible.report.canary_tables import Line, dash, exposure_cell, number_cell
from indelible.report.format import Cell, count, decimal, is_number, percent, plain
from indelible.stats.cells import HIDDEN


def not_tested(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The axes that the run did not test, each with the reason."""
    return [
        (
            wording.AXES.get(str(one.get("axis")), plain(one.get("axis"))),
            plain(one.get("reason") or "no reason recorded"),
        )
        for one in verdict.get("not_tested") or []
    ]


def summary(facts: CanaryFacts) -> list[tuple[str, Cell]]:
    """The few numbers at the head of the report."""
    words = Counter(one.word for one in conclusions(facts.run.verdict))
    said = ", ".join(counted(word, words[word]) for word in wording.WORDS if words[word])
    measured, never = facts.measured(), facts.of_role("control", "target")
    ceilings = " or ".join(decimal(ceiling, 2) for ceiling in facts.ceilings)
    cells = [
        ("Conclusions", Cell(str(sum(words.values())), said) if words else dash("none could be drawn")),
        ("Settings, training seeds", Cell(f"{len(facts.settings)} × {len(facts.seeds)}")),
        ("Ceiling and null median, bits", Cell(f"{ceilings or '–'} and 1.00")),
    ]
    ends = [("Lowest", measured[0]), ("Highest", measured[-1])] if len(measured) > 1 else []
    for name, (setting, _) in ends or [("Median", pair) for pair in measured]:
        cells.append((f"{name} exposure, code hidden, bits", _by_seed(facts, setting, facts.named(setting))))
    recovered = facts.measured("recovery")
    if recovered:
        setting = recovered[-1][0]
        cell = number_cell(facts.row(setting, "recovery"), "percent")
        cells.append(("Most recovered, code hidden", Cell(cell.text, f"{facts.named(setting)}; {cell.detail}")))
    if not measured:
        cells.append(("Exposure, code hidden, bits", dash("no focal canary has a rank")))
    if never:
        cells.append(("Never inserted, exposure, bits", exposure_cell(facts, never[0], HIDDEN, None, role="control")))
    else:
        cells.append(("Never inserted, exposure, bits", dash("no control was probed")))
    return cells


def counted(word: str, number: int) -> str:
    """A number of conclusions with one word: "5 flip", "1 unclear"."""
    return f"{number} {wording.PLURALS.get(word, word) if number > 1 else word}"


def _by_seed(facts: CanaryFacts, setting: Setting, name: str) -> Cell:
    cell = number_cell(facts.row(setting, "exposure_median"))
    return Cell(cell.text, f"{name}; {_medians(facts, setting)}")


def control_words(verdict: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the verdict says on each control: name, its word or that it did not run, the numbers behind it."""
    rows = []
    for name, control in (verdict.get("controls") or {}).items():
        control = control if isinstance(control, Mapping) else {"ran": False, "reason": control}
        word = plain(control.get("word") or "ran") if control.get("ran") else "did not run"
        said = plain(control.get("reason") or "") if not control.get("ran") else _baseline(control)
        rule = f"Rule: {plain(control['rule'])}." if control.get("rule") else ""
        rows.append(
            (wording.CONTROLS.get(name, plain(name)), word, f"{said} {rule}".strip() or "– (no reason recorded)")
        )
    return rows


def _baseline(control: Mapping[str, Any]) -> str:
    """The median farthest from chance among the conditions, and what chance gives."""
    median, low, high = (control.get(key) for key in ("median", "low", "high"))
    if not is_number(median):
        return "– (no median recorded)"
    where = (
        f", in {plain(control['condition'])}, of all conditions the farthest out" if control.get("condition") else ""
    )
    n = f" of {count(control['n'])} canaries" if is_number(control.get("n")) else ""
    text = f"Median {decimal(median, 2)} bits{n}{where}"
    chance = f"; chance gives {decimal(low, 2)} to {decimal(high, 2)}" if is_number(low) and is_number(high) else ""
    return f"{text}{chance}."


def control_lines(facts: CanaryFacts) -> list[Line]:
    """The readings of every control, code hidden in the probe."""
    kinds = (
        ("control", "target", "never inserted, model with canaries"),
        ("focal", "base", "focal canaries, base model"),
        ("control", "base", "never inserted, base model"),
        ("focal", "clean", "focal canaries, clean model"),
        ("control", "clean", "never inserted, clean model"),
    )
    lines = []
    for role, model, words in kinds:
        for setting in facts.of_role(role, model):
            if not facts.steps(setting, model=model, role=role):
                continue
            where: dict[str, Any] = {"model": model, "role": role}
            cells = [
                exposure_cell(facts, setting, HIDDEN, None, **where),
                Cell("", _medians(facts, setting, **where)),
                number_cell(facts.row(setting, "recovery", **where), "percent"),
                number_cell(facts.row(setting, "uniformity_p", **where), "p"),
            ]
            label = facts.named(setting) if role == "focal" else plain(setting.condition)
            lines.append(Line(f"{words}, {label}", cells, strong=True))
    return lines


def _medians(facts: CanaryFacts, setting: Setting, **where: Any) -> str:
    """The median exposure of every seed."""
    found = [(seed, facts.value(setting, "exposure_median", HIDDEN, seed, **where)) for seed in facts.seeds]
    return ", ".join(f"seed {seed}: {'–' if value is None else decimal(value, 2)}" for seed, value in found)


def model_card(facts: CanaryFacts, word: str) -> str:
    """One paragraph for a model card."""
    manifest = facts.run.manifest
    design = manifest.get("design") or {}
    target = target_name(manifest) or "The model"
    created = plain(str(manifest.get("created") or "")[:10])
    code = design.get("code") or {}
    bits = f" ({decimal(code['entropy_bits'], 2)} bits)" if is_number(code.get("entropy_bits")) else ""
    text = (
        f"Canary audit. {target} was audited{' on ' + created if created else ''} with Indelible "
        f"{plain(manifest.get('indelible_version') or '–')} for unintended memorisation of synthetic secrets: "
        f"{plain(code.get('name') or 'made-up')} codes{bits} in {len(facts.settings)} setting(s), "
        f"{len(facts.seeds)} training seed(s). Verdict: {word}. "
    )
    measured, recovered = facts.measured(), facts.measured("recovery")
    ceiling = f" of at most {decimal(facts.ceilings[-1], 2)}" if facts.ceilings else ""
    if measured:
        (first, low), (last, high) = measured[0], measured[-1]
        spread = f"{decimal(low, 2)} ({facts.named(first)})"
        spread += f" to {decimal(high, 2)} ({facts.named(last)})" if len(measured) > 1 else ""
        text += f"With the code hidden, median exposure was {spread} bits{ceiling}; 1.0 is chance. "
    else:
        text += "No exposure could be measured. "
    if recovered:
        setting, share = recovered[-1]
        text += f"Greedy decoding recovered at most {percent(share)} of codes ({facts.named(setting)}). "
    text += _concluded(conclusions(facts.run.verdict))
    never = facts.of_role("control", "target")
    value = facts.value(never[0], "exposure_median", role="control") if never else None
    text += f"Never-inserted canaries: {decimal(value, 2)} bits. " if value is not None else "No control was measured. "
    untested = [axis for axis, _ in not_tested(facts.run.verdict)]
    text += f"Not tested: {', '.join(dict.fromkeys(untested))}. " if untested else ""
    return text + "Low exposure under one protocol is no evidence for low exposure under another."


def _concluded(found: Sequence[Conclusion]) -> str:
    text = ""
    for word, verb in (("flips", "Changes with the protocol"), ("holds", "Holds in every arm tested")):
        said = [one.statement.rstrip(".") for one in found if one.word == word]
        text += f"{verb}: {'; '.join(said)}. " if said else ""
    return text
