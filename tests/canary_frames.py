"""Synthetic canaries.parquet and utility.json for tests: ranks drawn from stated distributions, no model involved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

PROBES = ("redacted", "as-trained", "substituted")
NEW_CODES = ("unseen", "plain")
CENTRES = {"early": (0.02, 0.18), "middle": (0.42, 0.58), "late": (0.82, 0.98), "uniform": (0.04, 0.96)}

Bits = float | Mapping[tuple[int, str], float] | Callable[[int, str], float]


@dataclass(frozen=True)
class Condition:
    """A named condition and how well its model knows its codes when the cue is hidden.

    Attributes:
        bits: an assigned code has rank ceil(U * n * 2 ** -bits), U uniform on (0, 1]: the exposure of a code drawn by
            chance plus `bits`, cut at the ceiling. 0: baseline, median 1 bit. 30: always first. A number for all, or
            one for each (dose, placement).
        follows: probability that the model gives the code that a shown cue stands for (never in the arm `redacted`).
        unseen: the same for the cues of new codes.
        rotation: canary i gets combination (i + rotation) of dose x placement.
        protocol: digest of all settings that are no axis.
        draw: of codes; the same ids under another draw are other canaries.
    """

    name: str
    arm: str = "redacted"
    bits: Bits = 0.0
    dose: tuple[int, ...] = (8,)
    placement: tuple[str, ...] = ("uniform",)
    spacing: float = math.nan
    population: str = "alone"
    schedule: str = "constant"
    protocol: str = "p0"
    draw: str = ""
    rotation: int = 0
    follows: float = 1.0
    unseen: float = 0.0

    def known(self, dose: int, placement: str) -> float:
        if callable(self.bits):
            return self.bits(dose, placement)
        return self.bits[dose, placement] if isinstance(self.bits, Mapping) else self.bits


VISIBLE = Condition("visible", arm="visible", bits=0.0, unseen=1.0)
REDACTED = Condition("redacted", arm="redacted", bits=30.0)
BINARY = Condition("binary", arm="binary", bits=5.0)


def readings(
    conditions: Sequence[Condition] = (VISIBLE, REDACTED),
    seeds: Sequence[int] = (0, 1, 2),
    *,
    canaries: int = 16,
    controls: int = 16,
    probes: Sequence[str] = PROBES,
    base: bool = True,
    clean: bool = True,
    steps: Sequence[int] = (),
    n_steps: int = 50,
    n_candidates: int = 10_000,
    new_codes: int = 4,
    missing: int = 0,
    task: str = "support",
) -> pd.DataFrame:
    """All columns of the readings, one row a (condition, seed, checkpoint, model, canary, probe, repeat).

    `steps`: checkpoints before the last one, `n_steps`. `controls`: never-inserted canaries, at chance on every model;
    so is every canary on the base model (step 0) and the clean one (step `n_steps`) when its cue is hidden. `missing`:
    the first so many focal canaries have no rank in the `redacted` probe, and a reason. Every (condition, seed) draws
    from a stream of its own.
    """
    rows: list[dict[str, Any]] = []
    for condition in conditions:
        for seed in seeds:
            rng = np.random.default_rng([seed, *condition.name.encode()])
            models = [("target", step) for step in (*steps, n_steps)]
            models += [("base", 0)] * base + [("clean", n_steps)] * clean
            for model, step in models:
                for who in _canaries(condition, canaries, controls, n_steps):
                    for probe in probes:
                        for repeat in range(new_codes if probe in NEW_CODES else 1):
                            found = _answer(condition, who, model, probe, n_candidates, rng)
                            if who["role"] == "focal" and probe == "redacted" and int(who["canary_id"][1:]) < missing:
                                found |= _unranked("the code did not survive truncation")
                            rows.append(
                                {"condition": condition.name, "seed": seed, "step": step, "n_steps": n_steps}
                                | {"model": model, "task": task, "probe": probe, "repeat": repeat}
                                | {"canary_key": f"{condition.draw}{seed}:{who['canary_id']}"}
                                | who
                                | found
                            )
    return pd.DataFrame(rows).astype({"copied": "boolean", "reason": "object"})


def _canaries(condition: Condition, canaries: int, controls: int, n_steps: int) -> Iterator[dict[str, Any]]:
    shared = {"arm": condition.arm, "population": condition.population, "schedule": condition.schedule}
    shared |= {"protocol": condition.protocol}
    combinations = [(dose, placement) for dose in condition.dose for placement in condition.placement]
    for i in range(canaries):
        dose, placement = combinations[(i + condition.rotation) % len(combinations)]
        first, last = _steps(placement, condition.spacing, n_steps)
        yield shared | {
            "canary_id": f"c{i:03d}", "role": "focal", "dose": dose, "placement": placement,
            "spacing": condition.spacing, "first_step": first, "last_step": last,
        }  # fmt: skip
    for i in range(controls):
        yield shared | {
            "canary_id": f"n{i:03d}", "role": "control", "dose": 0, "placement": "none", "spacing": math.nan,
            "first_step": math.nan, "last_step": math.nan,
        }  # fmt: skip


def _steps(placement: str, spacing: float, n_steps: int) -> tuple[float, float]:
    if placement.startswith("final "):
        last = round(float(placement.removeprefix("final ")) / 313 * n_steps)
        return max(1.0, last - (0.0 if math.isnan(spacing) else spacing)), float(last)
    if placement.startswith("window "):
        low, high = (float(x) for x in placement.removeprefix("window ").split("-"))
    else:
        low, high = CENTRES[placement]
    return max(1.0, round(low * n_steps)), float(round(high * n_steps))


def _rank(bits: float, n: int, rng: np.random.Generator) -> float:
    return float(max(1, math.ceil((1.0 - rng.random()) * n * 2.0**-bits)))


def _answer(
    condition: Condition, who: Mapping[str, Any], model: str, probe: str, n: int, rng: np.random.Generator
) -> dict[str, Any]:
    """What a model says: it either follows the shown cue or falls back on what it knows with the cue hidden."""
    trained = model == "target" and who["role"] == "focal"
    bits = condition.known(who["dose"], who["placement"]) if trained else 0.0
    shows = probe != "redacted" and condition.arm != "redacted"
    share = {"plain": 1.0, "unseen": condition.unseen}.get(probe, condition.follows)
    if model != "target" and condition.arm not in ("visible", "redacted") and probe != "plain":
        share = 0.0  # nobody taught it the encoding
    follows = (shows or probe == "plain") and rng.random() < share
    own = _rank(bits, n, rng)
    copied: bool | None
    if probe in NEW_CODES:
        rank, supplied = (1.0 if follows else _rank(0.0, n, rng)), math.nan
        recovered, copied = False, follows
    elif probe == "substituted" and shows:
        rank, supplied = (_rank(0.0, n, rng), 1.0) if follows else (own, _rank(0.0, n, rng))
        recovered, copied = not follows and own == 1.0, follows
    else:
        rank, supplied = (1.0 if follows else own), math.nan
        recovered, copied = rank == 1.0, (follows if shows else None)
    right = 4 if (copied if probe in NEW_CODES else recovered) else int(rng.integers(0, 2))
    return {
        "rank": rank, "rank_optimistic": rank, "n_candidates": n, "exposure_bits": math.log2(n / rank),
        "exposure_optimistic_bits": math.log2(n / rank), "supplied_rank": supplied,
        "supplied_exposure_bits": math.log2(n / supplied), "logprob": -0.01 * math.log(n) - math.log(rank),
        "recovered": recovered, "copied": copied, "full_response": recovered, "positions_correct": right,
        "n_positions": 4, "reason": None,
    }  # fmt: skip


def _unranked(reason: str) -> dict[str, Any]:
    names = ("rank", "rank_optimistic", "exposure_bits", "exposure_optimistic_bits", "logprob")
    return dict.fromkeys(names, math.nan) | {"reason": reason}


def utility(
    frame: pd.DataFrame, *, accuracy: Mapping[str, float | None] | None = None, n: int = 64
) -> list[dict[str, Any]]:
    """utility.json for the models of a frame. `accuracy`: for each model; None says that the task has none."""
    shares = {"target": 0.75, "base": 0.25, "clean": 0.78} | dict(accuracy or {})
    loss = {"target": 0.40, "base": 1.90, "clean": 0.38}
    keys = ["condition", "seed", "step", "model"]
    return [
        {
            "condition": str(condition), "seed": int(seed), "step": int(step), "model": str(model), "n": n,
            "accuracy": (share := shares[str(model)]),
            "accuracy_low": None if share is None else max(0.0, share - 0.1),
            "accuracy_high": None if share is None else min(1.0, share + 0.1),
            "heldout_loss": loss[str(model)], "reason": "the task has no accuracy" if share is None else None,
        }
        for condition, seed, step, model in frame[keys].drop_duplicates().itertuples(index=False)
    ]  # fmt: skip
