"""Readings as a table: one row a checkpoint, canary, probe and repeat, with everything that tells the arms apart."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from indelible.canaries.base import Canary, Row
from indelible.canaries.design import Design
from indelible.canaries.exposure import ENUMERATED, Reading
from indelible.canaries.probes import Probe
from indelible.canaries.screen_rows import grounding_reply
from indelible.canaries.tasks import correct_reply
from indelible.data.records import Query
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.scoring.engine import answer
from indelible.stats.exposure import exposure_bits, exposure_interval
from indelible.stats.intervals import clopper_pearson

COLUMNS = (
    "condition", "canary_id", "seed", "step", "n_steps", "model", "role", "task", "arm", "dose", "placement",
    "spacing", "population", "schedule", "first_step", "last_step", "probe", "repeat", "rank", "rank_optimistic",
    "n_candidates", "exposure_bits", "exposure_optimistic_bits",
    "exposure_low_bits", "exposure_high_bits", "supplied_rank", "supplied_exposure_bits", "logprob",
    "recovered", "copied", "full_response", "positions_correct", "n_positions", "included", "protocol", "canary_key",
    "reason",
)  # fmt: skip
"""Of `canaries.parquet`."""


@dataclass(frozen=True)
class Checkpoint:
    """Which model was asked: target, base or clean; the updates behind it; the schedule of its training, and the digest
    of all settings that are no axis (`plan.protocol_of`)."""

    condition: str
    model: str
    step: int
    n_steps: int
    schedule: str
    protocol: str


def readings_frame(
    design: Design, checkpoint: Checkpoint, asked: Sequence[Probe], readings: Sequence[Reading], *, level: float
) -> pd.DataFrame:
    """Rows of `canaries.parquet` for one model.

    Where codes were ranked in a bank of decoys, `exposure_low_bits` and `exposure_high_bits` are the ends of the
    interval for a ranking among all codes (the upper one does not exist at rank 1); a complete ranking has none.
    """
    sampled = design.codes.size > ENUMERATED
    by_id = {c.id: c for c in design.canaries}
    steps: dict[str, list[int]] = {}
    for insertion in design.insertions:
        steps.setdefault(insertion.canary_id, []).append(insertion.update)
    rows = []
    for probe, r in zip(asked, readings, strict=True):
        canary = by_id[probe.canary_id]
        seen = steps.get(canary.id)
        low, high = _interval(r, level, sampled=sampled)
        rows.append(
            {
                "condition": checkpoint.condition,
                "canary_id": canary.id,
                "seed": design.config.seed,
                "step": checkpoint.step,
                "n_steps": checkpoint.n_steps,
                "model": checkpoint.model,
                "role": canary.role,
                "task": design.config.task.name,
                "arm": canary.cue,
                "dose": canary.dose,
                "placement": canary.placement,
                "spacing": math.nan if canary.spacing is None else float(canary.spacing),
                "population": design.population,
                "schedule": checkpoint.schedule,
                "first_step": float(min(seen)) if seen else math.nan,
                "last_step": float(max(seen)) if seen else math.nan,
                "probe": probe.probe,
                "repeat": probe.repeat,
                "rank": r.rank,
                "rank_optimistic": r.rank_optimistic,
                "n_candidates": r.n_candidates,
                "exposure_bits": _bits(r.rank, r.n_candidates),
                "exposure_optimistic_bits": _bits(r.rank_optimistic, r.n_candidates),
                "exposure_low_bits": low,
                "exposure_high_bits": high,
                "supplied_rank": r.supplied_rank,
                "supplied_exposure_bits": _bits(r.supplied_rank, r.n_candidates),
                "logprob": r.logprob,
                "recovered": r.recovered,
                "copied": r.copied,
                "full_response": r.full_response,
                "positions_correct": r.positions_correct,
                "n_positions": r.n_positions,
                "included": canary.included,
                "protocol": checkpoint.protocol,
                "canary_key": canary_key(canary),
                "reason": r.reason,
            }
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"copied": "boolean", "included": "boolean", "reason": "string"})


def canary_key(canary: Canary) -> str:
    """The same for canaries of one code in one context, whatever the run calls them.

    On screens the context is the screen (C-A3): the instruction may say how an arm's own cue is read.
    """
    identity = canary.identity
    if identity.screen is None:
        turns: list[Any] = [[[m.role, m.content] for m in identity.messages]]
        told = [canary.code, *turns, identity.before, identity.after]
    else:
        shown = [identity.screen.picture.sha256, list(identity.screen.source)]
        told = [canary.code, identity.before, identity.after, *shown]
    facts = json.dumps(told)
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _interval(reading: Reading, level: float, *, sampled: bool) -> tuple[float, float]:
    if not sampled or math.isnan(reading.rank):
        return math.nan, math.nan
    ends = exposure_interval(reading.rank, reading.n_candidates, level)
    return ends.low, ends.high if math.isfinite(ends.high) else math.nan


def _bits(rank: float, n_candidates: int) -> float:
    return math.nan if math.isnan(rank) else exposure_bits(int(rank), n_candidates)


def measure_utility(
    model: LanguageModel,
    design: Design,
    rows: Sequence[Row],
    checkpoint: Checkpoint,
    *,
    level: float,
    accuracy: bool = True,
) -> tuple[dict[str, object], Mapping[Query, TokenLogprobs]]:
    """Loss on held-out rows (nats a token of the answer), and the task's accuracy where it has one: on screens that of
    grounding, and the share of replies that could be parsed (C-A4).

    Returns:
        a row of `utility.json`, and the answers it rests on. Where the rows are of several sets, `sources` has the same
        numbers for each of them.
    """
    row: dict[str, object] = {
        "condition": checkpoint.condition,
        "seed": design.config.seed,
        "step": checkpoint.step,
        "model": checkpoint.model,
    }
    if not rows:
        return row | _utility(design, [], [], None, level=level), {}
    queries = [Query(design.turns(r.messages), r.answer, r.images) for r in rows]
    answers, _ = answer(model, queries, stage="held-out loss")
    scored = [None if q in answers.failed else answers[q] for q in queries]
    asked = accuracy and rows[0].expected is not None
    replies = model.generate(queries, design.max_new_tokens) if asked else None
    row |= _utility(design, rows, scored, replies, level=level)
    if answers.failed:
        row["reason"] = f"{len(answers.failed)} of {len(rows)} held-out rows could not be scored"
    elif accuracy and not asked:
        row["reason"] = f"task {design.config.task.name} has no accuracy"
    of_source: dict[str, list[int]] = {}
    for i, one in enumerate(rows if design.on_screens else ()):
        of_source.setdefault(str(one.expected.get("source", "")), []).append(i)
    if len(of_source) > 1:
        row["sources"] = {
            name: _utility(
                design,
                [rows[i] for i in places],
                [scored[i] for i in places],
                None if replies is None else [replies[i] for i in places],
                level=level,
            )
            for name, places in of_source.items()
        }
    return row, answers.found


def _utility(
    design: Design,
    rows: Sequence[Row],
    scored: Sequence[TokenLogprobs | None],
    replies: Sequence[str] | None,
    *,
    level: float,
) -> dict[str, object]:
    """The numbers of some rows, from their scored answers (None: could not be scored) and, where asked for, replies."""
    found: dict[str, object] = {
        "n": len(rows),
        "accuracy": None,
        "accuracy_low": None,
        "accuracy_high": None,
        "heldout_loss": None,
        "reason": None if rows else "no held-out rows",
    }
    logprobs = [one.logprobs for one in scored if one is not None]
    if n_tokens := sum(map(len, logprobs)):
        found["heldout_loss"] = -float(sum(float(s.sum()) for s in logprobs)) / n_tokens
    if replies is None:
        return found
    right = sum(correct_reply(design.config.task.name, reply, r) for reply, r in zip(replies, rows, strict=True))
    interval = clopper_pearson(right, len(rows), level)
    found |= {"accuracy": right / len(rows), "accuracy_low": interval.low, "accuracy_high": interval.high}
    if design.on_screens:
        parsed = sum(grounding_reply(reply, r.expected)[1] for reply, r in zip(replies, rows, strict=True))
        found |= {"parse_rate": parsed / len(rows)}
    return found
