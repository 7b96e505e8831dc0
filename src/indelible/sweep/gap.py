"""The optimisation gap (ICP-MIA, Sec. IV-A): what a record's loss still has to give, by training on it once more."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.config import TrainConfig
from indelible.data.records import Record
from indelible.environment import run_facts
from indelible.models.causal import CausalModel, describe
from indelible.progress import Progress
from indelible.runs import RunDir
from indelible.stats.metrics import Metric
from indelible.sweep.config import GapOptions
from indelible.sweep.data import RowSet
from indelible.sweep.numbers import auc_row, mean_row
from indelible.sweep.plan import training_settings
from indelible.sweep.steps import fitting, load_trainable, log_likelihoods, restored
from indelible.training.sft import encode_rows, optimise

KIND = "sweep-gap"
DROPS = "drops.parquet"

MEANS = {"loss": "loss_before", "loss_after": "loss_after", "drop": "drop"}
"""Metric to the column whose mean it is, each of members and of non-members."""


def run_gap(
    options: GapOptions, model: str, members: RowSet, nonmembers: RowSet, *, seed: int, out: Path, level: float = 0.95
) -> Path:
    """Train a model further on members and non-members together, and write by how much each one's loss fell.

    The gap of a record is L(theta; x, y) - L(theta'; x, y), with L the mean loss over the answer's tokens (nats), theta
    the tuned model, and theta' the same after the further training. Its negative is the score of an attacker who could
    train: the signal that in-context probing stands for. The weights are put back afterwards.

    Differs from the paper: its training is called short and no more; ours is one epoch unless `training` says else.

    Raises:
        UserError: the training diverges, or no record fits.
    """
    started = time.monotonic()
    loaded, source = load_trainable(model, options.load)
    sides = {
        name: fitting(loaded, _some(rows.records, options.n, f"{seed}:gap:{name}"))
        for name, rows in (("member", members), ("nonmember", nonmembers))
    }
    records = [*sides["member"], *sides["nonmember"]]
    config = training_settings({"epochs": 1, "schedule": "constant", "warmup_ratio": 0.0, **options.training}, seed)
    before, after, n_tokens = further(loaded, records, config)
    member = np.arange(len(records)) < len(sides["member"])
    frame = pd.DataFrame(
        {
            "record_id": [r.id for r in records],
            "member": member,
            "group": [r.group for r in records],
            "n_target_tokens": n_tokens,
            "loss_before": before,
            "loss_after": after,
            "drop": before - after,
        }
    )
    run = RunDir.open(out)
    run.write_parquet(DROPS, frame)
    run.write_json("metrics.json", [m.to_dict() for m in _metrics(frame, level, seed)], nan_as_null=True)
    facts = run_facts(KIND, run.path, options, {}, [], device=str(loaded.device))
    timings = {"total": round(time.monotonic() - started, 2)}
    run.finish({**facts, "models": {"target": describe(loaded, source)}, "seeds": {"seed": seed}, "timings": timings})
    return run.path


def further(
    model: CausalModel, records: Sequence[Record], config: TrainConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Mean loss (nats a token) of each record before and after a training on all of them, and its number of tokens.

    The model is afterwards as it was.

    Raises:
        UserError: the training diverges.
    """
    encoded, _ = encode_rows(model, records, model.context_length)
    sums, n_tokens = log_likelihoods(model, records)
    with restored(model), Progress("further training", total=len(encoded) * config.epochs, unit="rows") as progress:
        for step in optimise(model, encoded, config):
            progress.advance(len(step.rows))
        later, _ = log_likelihoods(model, records)
    return -sums / n_tokens, -later / n_tokens, n_tokens


def _some(records: Sequence[Record], n: int, seed: str) -> list[Record]:
    return random.Random(seed).sample(list(records), min(n, len(records)))


def _metrics(frame: pd.DataFrame, level: float, seed: int) -> list[Metric]:
    rows = []
    for member, side in ((True, "members"), (False, "nonmembers")):
        part = frame[frame["member"] == member]
        for metric, column in MEANS.items():
            values, groups = part[column].tolist(), part["group"].tolist()
            rows.append(mean_row("gap", "target", f"{metric}_{side}", values, groups, level=level, member=member))
    scores = frame.assign(attack="gap", model="target", score=-frame["drop"], reason=None)
    return [*rows, auc_row("gap", frame, scores, level=level, seed=seed)]
