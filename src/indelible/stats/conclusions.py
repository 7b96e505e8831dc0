"""The protocol-sensitivity verdict of a canary run: which conclusions hold, which flip, and what was not tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd

from .answers import DECIDED, Numbers, flips
from .canary_controls import control_checks
from .cells import AXIS_WORDS, Cell, cells, check_readings, pairs
from .metrics import json_number
from .questions import Question, questions
from .untested import not_tested
from .utility_rows import utility_of

Word = Literal["protocol-sensitive", "stable", "not settled", "one protocol only", "not evaluable"]

NO_CONTROL = (
    "no control ran: no never-inserted canary, base model or clean model shows that codes nobody taught rank as chance "
    "would have it, so exposures are taken on trust"
)


def verdict_rule(alpha: float) -> str:
    """The rule of the verdict in a few sentences."""
    return (
        "A conclusion holds when every setting it was asked in gives the same answer, and a setting answers when every "
        f"training seed has the same sign and the test over all seeds is at or below {alpha:g} after Holm, or when the "
        "interval over all seeds lies within 1 bit of no difference, or of chance. It flips when settings that differ "
        "on one axis (cue, dose, placement, spacing, population, schedule) alone answer differently and the difference "
        "between them passes the same test. Everything else, seeds of opposite sign included, is unclear. not "
        "evaluable: no group of 5 canaries could be ranked, a control is off baseline, or nothing could be decided. "
        "one protocol only: no two groups differ on one axis alone. protocol-sensitive: a conclusion flips. stable: "
        "none flips or is unclear across protocols, and one holds. not settled: none flips and one holds, but another "
        "is unclear."
    )


def verdict(
    frame: pd.DataFrame,
    utility: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    *,
    alpha: float = 0.05,
) -> dict[str, Any]:
    """The verdict of a canary run for JSON.

    Args:
        frame: the readings. utility: the list of utility.json. metrics: what `canary_metrics` gave for both, or the
            same read back; every number of the verdict but those of the controls is one of these. alpha: of every test.

    Returns:
        {"overall": {word, rule, reasons}, "conclusions": [{id, axis, statement, word, by_seed: [{where, seed, value,
        sign, p}], reasons, depends_on}], "not_tested": [{axis, reason}], "controls": {never_inserted, base, clean}}.
        Only focal canaries on target models are judged, at the last checkpoint unless a conclusion says otherwise.
        `value` is a median or a typical difference in bits, or a share; `p` is that of the seed alone, uncorrected.
        depends_on: of a conclusion that flips, the axes of the protocol that change the answer; only these make a run
        protocol-sensitive. Without any control the first reason says so.

    Nothing is concluded from a group with fewer than 5 canaries in a seed. With one seed, conclusions speak of that
    training alone, and the reasons say so. Raises DataError for a missing column or a reading that is there twice.
    Source: canary paper, sections III-C and VI-D. Differs from the paper: it states its comparisons without tests; here
    a sign shared by all seeds is not enough, because three seeds agree by chance one time in four.
    """
    check_readings(frame)
    found, notes = cells(frame)
    numbers = Numbers(metrics)
    asked = questions(found, numbers, alpha=alpha) if found else []
    conclusions = [made for question in asked if (made := conclude(question, alpha)) is not None]
    controls = control_checks(frame)
    conclusions += _controls(controls)
    reasons = [f"{one['id']}: {one['statement']}" for one in conclusions if one["word"] == "flips"]
    word, why = _overall(found, conclusions, controls)
    uncontrolled = [] if any(check["ran"] for check in controls.values()) else [NO_CONTROL]
    never = controls["never_inserted"]
    if not uncontrolled and not never["ran"]:
        uncontrolled = [f"the control on never-inserted canaries did not run: {never['reason']}"]
    return {
        "overall": {
            "word": word,
            "rule": verdict_rule(alpha),
            "reasons": [*uncontrolled, *why, *reasons, *_remarks(frame, found, utility), *notes],
        },
        "conclusions": conclusions,
        "not_tested": not_tested(frame, found, asked, notes, controls),
        "controls": controls,
    }


def conclude(question: Question, alpha: float) -> dict[str, Any] | None:
    """One line of the verdict; None where no setting could be judged."""
    decided = [answer for answer in question.answers if answer.call in DECIDED]
    unclear = [answer for answer in question.answers if answer.call == "unclear"]
    if not decided and not unclear:
        return None
    said = {"yes": question.yes, "opposite": question.opposite, "flat": question.flat}
    turned = flips(decided, alpha=alpha, axes=question.flips_on)
    calls = {answer.call for answer in decided}
    reasons = [answer.why for answer in (*decided, *unclear)]
    depends_on = list(dict.fromkeys(AXIS_WORDS[axis] for axis, _, _ in turned))
    if turned:
        word = "flips"
        sides = {
            call: "; ".join(dict.fromkeys(a.where for _, *both in turned for a in both if a.call == call))
            for call in calls
        }
        parts = [f"{said[call]} ({where})" for call, where in sorted(sides.items(), key=_by_call) if where]
        statement = f"{_capital(question.asks)} depends on the {' and '.join(depends_on)}. " + ". ".join(parts) + "."
    elif len(calls) == 1 and not unclear:
        word = "holds"
        where = decided[0].where if len(decided) == 1 else f"in each of {len(decided)} settings compared"
        statement = f"{said[decided[0].call]} ({where})."
    else:
        word = "unclear"
        parts = [
            f"{said[call]} ({'; '.join(a.where for a in decided if a.call == call)})"
            for call in DECIDED
            if call in calls
        ]
        if unclear:
            parts.append(f"Undecided: {'; '.join(answer.where for answer in unclear)}")
        statement = f"Not settled: {question.asks}. " + ". ".join(parts) + "."
    seeds = sorted({one.seed for answer in question.answers for one in answer.by_seed})
    if len(seeds) == 1:
        reasons.append(f"one training seed ({seeds[0]}): nothing is said about another training")
    left = [answer for answer in question.answers if answer.call in ("untested", "saturated")]
    if left:
        reasons.append(f"left out: {'; '.join(answer.why for answer in left)}")
    by_seed = [
        {"where": s.where, "seed": s.seed, "value": json_number(s.value), "sign": s.sign, "p": json_number(s.p)}
        for answer in question.answers
        for s in answer.by_seed
    ]
    return {
        "id": question.id, "axis": question.axis, "statement": statement, "word": word, "by_seed": by_seed,
        "reasons": reasons, "depends_on": depends_on,
    }  # fmt: skip


def _by_call(side: tuple[Any, str]) -> int:
    return DECIDED.index(side[0])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _controls(controls: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for name, what in (
        ("never_inserted", "Codes that were never inserted"),
        ("base", "The canaries' codes on the base model"),
        ("clean", "The canaries' codes on the model trained without them"),
    ):
        check = controls[name]
        if not check["ran"]:
            continue
        rows = check["by_condition"]
        at_chance = check["word"] == "at baseline"
        end = "ranked as chance would have it" if at_chance else "did not rank as chance would have it"
        reasons = [
            f"{row['condition']}: median {row['median']:.2f} bits of {row['n']} canaries, "
            f"chance gives {row['low']:.2f} to {row['high']:.2f}"
            for row in rows
        ]
        if not at_chance:
            reasons.append("codes, candidates or probes are at fault: no exposure of this run can be relied on")
        made.append(
            {
                "id": f"control-{name.replace('_', '-')}", "axis": "controls",
                "statement": f"{what} {end}, with the cue hidden.", "word": "holds" if at_chance else "unclear",
                "by_seed": [one for row in rows for one in row["by_seed"]], "reasons": reasons, "depends_on": [],
            }
        )  # fmt: skip
    return made


def _overall(
    found: Sequence[Cell], conclusions: Sequence[Mapping[str, Any]], controls: Mapping[str, Mapping[str, Any]]
) -> tuple[Word, list[str]]:
    judged = [one for one in conclusions if one["axis"] != "controls"]
    off = [name for name, check in controls.items() if check["word"] == "off baseline"]
    if not found:
        return "not evaluable", ["no focal canaries on a trained model were read"]
    if not judged:
        return "not evaluable", ["no group of focal canaries could be judged; what was missing is listed as not tested"]
    if off:
        return "not evaluable", [f"control off baseline: {', '.join(off)}; exposures cannot be relied on"]
    holding = [one["id"] for one in judged if one["word"] == "holds"]
    turned = [one["id"] for one in judged if one["depends_on"]]
    unclear = [one["id"] for one in judged if one["word"] == "unclear"]
    counts = [
        f"{word}: {', '.join(ids)}"
        for word, ids in (("flips", turned), ("holds", holding), ("unclear", unclear))
        if ids
    ]
    if not pairs(found):
        return "one protocol only", ["no two groups of focal canaries differ on one axis alone", *counts]
    if turned:
        return "protocol-sensitive", counts
    words = {one["word"] for one in judged if one["axis"] != "probe"}
    if "holds" in words:
        return "not settled" if "unclear" in words else "stable", counts
    return "not evaluable", ["protocols were compared, but no comparison could be decided", *counts]


def _remarks(frame: pd.DataFrame, found: Sequence[Cell], utility: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know beside the word: seeds, missing ranks, utility."""
    remarks = []
    seeds = sorted({seed for cell in found for seed in cell.seeds})
    if len(seeds) == 1:
        remarks.append(f"one training seed ({seeds[0]}): no conclusion was replicated")
    focal = frame[(frame["model"] == "target") & (frame["role"] == "focal")]
    missing = focal[focal["rank"].isna()]
    if len(missing):
        named = missing["reason"].dropna()
        why = str(named.mode().iloc[0]) if len(named) else "no reason recorded"
        remarks.append(f"{len(missing)} of {len(focal)} readings of focal canaries have no rank, most often: {why}")
    for condition in dict.fromkeys(str(e["condition"]) for e in utility if e["model"] == "target"):
        for seed in sorted({int(e["seed"]) for e in utility if e["condition"] == condition}):
            ours, base = (utility_of(utility, model, condition, seed) for model in ("target", "base"))
            losses = [None if e is None else json_number(e.get("heldout_loss")) for e in (ours, base)]
            if losses[0] is not None and losses[1] is not None and losses[0] >= losses[1]:
                remarks.append(
                    f"{condition}, seed {seed}: training did not lower the held-out loss ({losses[0]:.3f} against "
                    f"{losses[1]:.3f} nats a token of the base model), so its canaries stood beside no useful task"
                )
    return remarks
