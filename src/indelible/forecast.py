"""What a run will cost, said before it starts: a few records go through everything, and the rest is scaled.

Nothing is lost by it: what the few were asked is remembered, and the run goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from indelible.attacks.base import Attack, Resources, plain
from indelible.data.records import Record
from indelible.interview import Interview, prepare
from indelible.models.base import LanguageModel

N_PILOT = 6
WORTH_IT = 8 * N_PILOT
"""Fewer records are done before a forecast of them would be."""


@dataclass(frozen=True)
class Forecast:
    """What is still to come: tokens through all models, and seconds for it, preparation and control included."""

    tokens: int
    seconds: float
    n_pilot: int

    def __str__(self) -> str:
        took = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
        return f"expected: {self.tokens:,} tokens and {took}, going by {self.n_pilot} records"


def forecast(
    interview: Interview,
    attacks: Sequence[Attack],
    records: Sequence[Record],
    resources: Resources,
    *,
    n_control: int,
) -> Forecast | None:
    """Ask about a few records of all lengths and scale to the rest; None where there are too few for that.

    Time and tokens are taken to go with a record's length in the audited model's tokens (prompt and answer). What all
    records share, such as a constant prefix, is then counted once too often a pilot; the forecast errs on that side.

    Args:
        records: the audited ones, not prepared.
        n_control: how many of them go through the control on the base model; 0 for none.
    """
    if len(records) < WORTH_IT:
        return None
    model = interview.models["target"]
    lengths = {r.id: _length(model, r) for r in records}
    ordered = sorted(records, key=lambda r: (lengths[r.id], r.id))
    # the middle record of each of N_PILOT equal parts: their sum stands for the whole
    pilot = [ordered[(2 * i + 1) * len(ordered) // (2 * N_PILOT)] for i in range(N_PILOT)]
    scale = sum(lengths.values()) / sum(lengths[r.id] for r in pilot) - 1
    started, before = time.monotonic(), interview.counts.tokens_computed
    prepared = prepare(attacks, pilot, resources)
    interview.ask(attacks, prepared, stage="first records: the {model} model")
    seconds, tokens = time.monotonic() - started, interview.counts.tokens_computed - before
    total = Forecast(round(tokens * scale), seconds * scale, len(pilot))
    if not n_control:
        return total
    started, before = time.monotonic(), interview.counts.tokens_computed
    interview.ask(attacks, prepared, subject="base", stage="first records: control on the {model} model")
    seconds, tokens = time.monotonic() - started, interview.counts.tokens_computed - before
    share = scale * n_control / len(records)
    return Forecast(total.tokens + round(tokens * share), total.seconds + seconds * share, len(pilot))


def _length(model: LanguageModel, record: Record) -> int:
    return len(model.encode(plain(record)))
