"""The verdict: four words, the rule that gave each, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .metrics import json_number
from .paired import Paired

Word = Literal["detected", "not attributable", "not detected", "not evaluable"]
WORDS: tuple[Word, ...] = ("detected", "not attributable", "not detected", "not evaluable")
Direction = Literal["above", "below"]


@dataclass(frozen=True)
class Control:
    """A control of the whole audit: did it run, if not why, and its numbers where it has any."""

    ran: bool
    reason: str | None = None
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What is known about one attack on the target model, before judgement.

    Attributes:
        unusable: why the attack cannot be judged; the other fields are then unset.
        p_holm: p-value of AUC = 1/2 after Holm over the judged attacks.
        minus_base: AUC target minus AUC base, paired, signs as they are; None with `base_reason`.
        minus_blind: distance of the target's AUC from 1/2 minus that of the blind control; None with `blind_reason`.
        smallest_auc: smallest AUC the cohort could have shown; None if it could have shown none.
        support, notes: sentences for the reader, which do not change the word.
    """

    attack: str
    unusable: str | None = None
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_holm: float | None = None
    minus_base: Paired | None = None
    base_reason: str | None = None
    minus_blind: Paired | None = None
    blind_reason: str | None = None
    smallest_auc: float | None = None
    support: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttackVerdict:
    """The word for one attack, the rule applied, the reasons, and the numbers they rest on."""

    word: Word
    rule: str
    reasons: tuple[str, ...]
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_holm: float | None = None
    direction: Direction | None = None
    minus_base_low: float | None = None
    minus_blind_low: float | None = None
    smallest_auc: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        numbers = {
            name: json_number(getattr(self, name))
            for name in ("auc", "low", "high", "p_value", "p_holm", "minus_base_low", "minus_blind_low", "smallest_auc")
        }
        reasons = list(self.reasons)
        return {"word": self.word, "rule": self.rule, "reasons": reasons, "direction": self.direction, **numbers}


@dataclass(frozen=True)
class Verdict:
    """The word for the audit, its reasons, and the same for every attack and control."""

    word: Word
    rule: str
    reasons: tuple[str, ...]
    attacks: Mapping[str, AttackVerdict] = field(default_factory=dict)
    controls: Mapping[str, Control] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """{"overall": {word, rule, reasons}, "attacks": {name: ...}, "controls": {name: {ran, reason, ...}}}."""
        controls = {
            name: {
                "ran": c.ran,
                "reason": c.reason,
                **{k: json_number(getattr(c, k)) for k in ("auc", "low", "high", "p_value")},
            }
            for name, c in self.controls.items()
        }
        return {
            "overall": {"word": self.word, "rule": self.rule, "reasons": list(self.reasons)},
            "attacks": {name: verdict.to_dict() for name, verdict in self.attacks.items()},
            "controls": controls,
        }


def attack_rule(alpha: float) -> str:
    """The rule for one attack in one sentence."""
    return (
        f"detected: AUC differs from 0.5, two-sided, at {alpha:.0%} after Holm over the attacks, and the lower bounds "
        "of target minus base and of target minus blind baseline lie above 0 in the direction of the departure; "
        "a control that could not run is named and does not block. not attributable: significant, but a control "
        "explains it. not detected: not significant. not evaluable: no test was possible."
    )


OVERALL_RULE = (
    "detected if any attack is; else not attributable if any is; else not detected if any attack could be judged; "
    "else not evaluable."
)


def _direction(area: float) -> Direction:
    return "above" if area >= 0.5 else "below"


def lower_bound_of_departure(minus_base: Paired, direction: Direction) -> float:
    """Lower end of the interval of target minus base, counted in the direction the target departs from one half."""
    return minus_base.interval.low if direction == "above" else -minus_base.interval.high


def judge_attack(evidence: Evidence, alpha: float) -> AttackVerdict:
    """The word for one attack. `alpha` is the significance level after Holm."""
    rule = attack_rule(alpha)
    e = evidence
    if e.unusable is not None or e.auc is None or e.p_holm is None or e.p_value is None:
        return AttackVerdict("not evaluable", rule, (e.unusable or "no test was possible", *e.notes))
    direction = _direction(e.auc)
    interval = "" if e.low is None or e.high is None else f" (interval {e.low:.3f} to {e.high:.3f})"
    leaning = "members score higher" if direction == "above" else "members score lower, which separates them as well"
    reasons = [f"AUC {e.auc:.3f}{interval}, {direction} one half: {leaning}"]
    if e.auc == 0.5:
        reasons = [f"AUC {e.auc:.3f}{interval}"]
    reasons.append(f"p = {e.p_value:.2g}, {e.p_holm:.2g} after Holm")
    base_low = None if e.minus_base is None else lower_bound_of_departure(e.minus_base, direction)
    blind_low = None if e.minus_blind is None else e.minus_blind.interval.low
    word: Word
    if e.p_holm > alpha:
        if e.smallest_auc is None:
            word = "not evaluable"
            reasons.append("too few records: not even complete separation could have been significant")
        else:
            word = "not detected"
            reasons.append(
                f"the smallest AUC this cohort would have shown with 80% power is {e.smallest_auc:.3f} "
                f"(or {1.0 - e.smallest_auc:.3f} on the other side); weaker leakage is not excluded"
            )
    else:
        failed = False
        for name, low, why in (
            ("base model", base_low, e.base_reason),
            ("blind baseline", blind_low, e.blind_reason),
        ):
            if low is None:
                reasons.append(f"control not run, {name}: {why or 'no reason recorded'}")
            elif low > 0.0:
                reasons.append(f"exceeds the {name}: lower bound of the difference {low:+.3f}")
            else:
                failed = True
                reasons.append(f"does not exceed the {name}: lower bound of the difference {low:+.3f}")
        word = "not attributable" if failed else "detected"
        reasons.extend(e.support)
    return AttackVerdict(
        word, rule, (*reasons, *e.notes), e.auc, e.low, e.high, e.p_value, e.p_holm, direction, base_low, blind_low,
        e.smallest_auc,
    )  # fmt: skip


def judge(evidence: Sequence[Evidence], controls: Mapping[str, Control], alpha: float = 0.05) -> Verdict:
    """The verdict over all attacks. Controls (the base model, the blind baseline) are never attacks here."""
    attacks = {e.attack: judge_attack(e, alpha) for e in evidence}
    by_word: dict[Word, list[str]] = {w: [name for name, v in attacks.items() if v.word == w] for w in WORDS}
    found: list[Word] = [w for w in WORDS if by_word[w]]
    word: Word = found[0] if found else "not evaluable"
    reasons = [f"{w}: {', '.join(names)}" for w, names in by_word.items() if names]
    if not attacks:
        reasons.append("no attack was scored on the target model")
    if word == "not detected":
        shown = [e.smallest_auc for e in evidence if e.attack in by_word[word] and e.smallest_auc is not None]
        reasons.append(f"the smallest AUC the cohort would have shown with 80% power is {min(shown):.3f}")
    if word == "not evaluable":
        reasons.extend(f"{name}: {'; '.join(v.reasons)}" for name, v in attacks.items())
    reasons.extend(f"control not run, {name}: {c.reason}" for name, c in controls.items() if not c.ran)
    return Verdict(word, OVERALL_RULE, tuple(reasons), attacks, dict(controls))
