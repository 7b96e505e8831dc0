"""The gate: an expression such as `icp-sp:tpr@0.01>0.05` that stops a pipeline when it holds."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from indelible.errors import ConfigError, did_you_mean

from .metrics import Metric
from .verdict import WORDS, Verdict

_OPS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_SHAPE = re.compile(r"^\s*(?:(?P<attack>[^:<>=!\s]+):)?(?P<metric>[^<>=!\s]+)\s*(?P<op>[<>=!]+)\s*(?P<value>.*?)\s*$")
_EXAMPLE = "expected e.g. 'icp-sp:tpr@0.01>0.05', 'any:auc.low>0.6' or 'verdict==detected'"

Part = Literal["value", "low", "high"]


@dataclass(frozen=True)
class Gate:
    """One parsed expression.

    Attributes:
        text: as the user wrote it.
        attack: an attack's name, or "any"; None for the overall verdict.
        metric: a metric's name, or "verdict". part: the value itself or an end of its interval.
        op: one of > >= < <= == !=. value: the number, or the verdict's word.
    """

    text: str
    attack: str | None
    metric: str
    part: Part
    op: str
    value: float | str

    def tripped(self, metrics: Sequence[Metric], verdict: Verdict) -> list[str]:
        """Why the gate trips, one sentence a cause; an empty list means it holds back nothing.

        What is missing never passes in silence: a null number, or a verdict of "not evaluable" compared with another
        word by ==, gives a sentence with "could not be evaluated" and so counts as tripped. `any` looks at every
        attack on the target model, and trips for each whose number is null. An attack is read on the target model, the
        blind control on none. Raises ConfigError for an attack or metric that is not there.
        """
        if self.metric == "verdict":
            return self._word(verdict)
        rows = [m for m in metrics if m.model in ("target", "none")]
        if self.attack == "any":
            rows = [m for m in rows if m.model == "target"]
        else:
            attacks = sorted({m.attack for m in rows})
            if self.attack not in attacks:
                raise ConfigError(f"gate '{self.text}': {did_you_mean(str(self.attack), [*attacks, 'any'], 'attack')}")
            rows = [m for m in rows if m.attack == self.attack]
        chosen = [m for m in rows if m.metric == self.metric]
        if not chosen:
            known = sorted({m.metric for m in rows})
            raise ConfigError(f"gate '{self.text}': {did_you_mean(self.metric, known, 'metric')}")
        return [cause for row in chosen for cause in self._number(row)]

    def _number(self, row: Metric) -> list[str]:
        found: float | None = getattr(row, self.part)
        name = row.metric if self.part == "value" else f"{row.metric}.{self.part}"
        if found is None or found != found:
            return [f"{self.text}: {row.attack} {name} could not be evaluated ({row.reason or 'no interval'})"]
        if _OPS[self.op](found, float(self.value)):
            return [f"{self.text}: {row.attack} {name} is {found:.6g}"]
        return []

    def _word(self, verdict: Verdict) -> list[str]:
        if self.attack is None:
            words = {"overall": verdict.word}
        elif self.attack == "any":
            words = {name: v.word for name, v in verdict.attacks.items()}
        elif self.attack in verdict.attacks:
            words = {self.attack: verdict.attacks[self.attack].word}
        else:
            known = [*verdict.attacks, "any"]
            raise ConfigError(f"gate '{self.text}': {did_you_mean(self.attack, known, 'attack')}")
        causes = []
        for name, word in words.items():
            if (word == self.value) == (self.op == "=="):
                causes.append(f"{self.text}: {name} verdict is '{word}'")
            elif word == "not evaluable" and self.op == "==":
                causes.append(f"{self.text}: {name} verdict could not be evaluated")
        return causes or ([] if words else [f"{self.text}: could not be evaluated (no attack was judged)"])


def check_gates(gates: Sequence[Gate], attacks: Sequence[str], fprs: Sequence[float]) -> None:
    """Find a gate that names an attack or metric which this run will not have, before the run.

    Raises:
        ConfigError: with the closest known name.
    """
    single = {"auc", "p_value", "p_holm", "smallest_auc", "auc_minus_base", "auc_minus_blind"}
    single |= {"auc_minus_best", "p_minus_best"}  # of the fitted combination
    rates = {f"{name}@{fpr:g}" for name in ("tpr", "tpr_bounded") for fpr in fprs}
    pairs = {f"{name}:{attack}" for name in ("auc_minus", "p_minus") for attack in attacks}
    for gate in gates:
        if gate.attack not in (None, "any", *attacks):
            known = [*attacks, "any"]
            raise ConfigError(f"gate '{gate.text}': {did_you_mean(str(gate.attack), known, 'attack')}")
        if gate.metric != "verdict" and gate.metric not in single | rates | pairs:
            raise ConfigError(f"gate '{gate.text}': {did_you_mean(gate.metric, sorted(single | rates), 'metric')}")


def _canonical(metric: str) -> str:
    """'tpr@1e-2' and 'tpr@0.010' are both 'tpr@0.01', as metric rows are named."""
    head, at, rate = metric.partition("@")
    if not at:
        return metric
    try:
        return f"{head}@{float(rate):g}"
    except ValueError as error:
        raise ConfigError(f"'{rate}' in '{metric}' is not a rate; {_EXAMPLE}") from error


def parse_gate(text: str) -> Gate:
    """Parses `[attack:]metric[.low|.high] op number` or `[attack:]verdict ==|!= word`.

    Operators: > >= < <= == !=. `any:` stands for every attack on the target model. Words of the verdict as they are
    printed, quotes and underscores allowed. Raises ConfigError, in one line, for anything else.
    """
    match = _SHAPE.match(text)
    if match is None:
        raise ConfigError(f"gate '{text}' cannot be read; {_EXAMPLE}")
    attack, metric, op, raw = (match.group(name) for name in ("attack", "metric", "op", "value"))
    if op not in _OPS:
        raise ConfigError(f"gate '{text}': {did_you_mean(op, list(_OPS), 'operator')}")
    raw = raw.strip("'\"")
    if metric == "verdict":
        word = raw.replace("_", " ")
        if op not in ("==", "!="):
            raise ConfigError(f"gate '{text}': a verdict is compared with == or !=, not {op}")
        if word not in WORDS:
            raise ConfigError(f"gate '{text}': {did_you_mean(word, list(WORDS), 'verdict')}")
        return Gate(text, attack, metric, "value", op, word)
    if attack is None:
        raise ConfigError(f"gate '{text}' names no attack; {_EXAMPLE}")
    part: Part = "value"
    ends: tuple[Part, ...] = ("low", "high")
    for end in ends:
        if metric.endswith(f".{end}"):
            metric, part = metric.removesuffix(f".{end}"), end
    try:
        value = float(raw)
    except ValueError as error:
        raise ConfigError(f"gate '{text}': '{raw}' is not a number; {_EXAMPLE}") from error
    if value != value:
        raise ConfigError(f"gate '{text}': nothing compares with NaN; {_EXAMPLE}")
    return Gate(text, attack, _canonical(metric), part, op, value)
