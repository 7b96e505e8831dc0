"""One block of a run: tune its configurations, and ask each of them, and the base model, about every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from indelible.tabular.plan import Block
from indelible.tabular.worlds import World

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel
    from indelible.training.tabular import Checkpoint

CURVE = ("copy", "train-context")
"""What is asked after every probe epoch but the last: the paper's probe and the positive control."""

TRUE_LABELS = ("copy", "train-context", "fresh-context")
"""What is asked of a defence that was trained on true labels: accuracy, and leakage in passing."""

SCORES = ("score", "base_score", "margin", "base_margin")

COLUMNS = (
    "config_id", "table", "seed", "learning_rate", "n_queries", "epoch", "probe", "record_id", "group", *SCORES,
    "reason", "base_reason",
)  # fmt: skip
"""Of tabular.parquet. `score`, `base_score`: log-probability (nats) of the row's label under the tuned and the base
model; `margin`, `base_margin`: to the most probable other label. NaN where there is a `reason` or `base_reason`."""


def probes_of(block: Block) -> tuple[str, ...]:
    """What is asked after the last epoch."""
    from indelible.attacks.tabular import PROBES

    return TRUE_LABELS if block.kind == "defence" and not block.randomise else tuple(PROBES)


def run_block(block: Block, model: TabularModel, worlds: Mapping[str, World]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Tune and ask.

    Args:
        worlds: by table.

    Returns:
        rows of tabular.parquet, and the facts of every configuration's training.
    """
    from indelible.attacks.tabular_scores import score_rows
    from indelible.training.tabular import fine_tune

    device = device_of(model)
    tuned = fine_tune(model, [worlds[table].task(device) for table in block.tables], block.settings)
    frames, facts = [], []
    for table in block.tables:
        world = worlds[table]
        rows = np.sort(np.concatenate(list(world.groups.values())))
        names = probes_of(block)
        base = score_rows(model, world.probes, rows, names)
        for name, setting, checkpoints in zip(block.names, block.settings, tuned, strict=True):
            config_id = block.config_id(table, name)
            place = {
                "config_id": config_id, "table": table, "seed": block.seed, "learning_rate": setting.learning_rate,
                "n_queries": block.n_queries,
            }  # fmt: skip
            facts.append({"config_id": config_id, "table": table, "name": name, **training_facts(checkpoints)})
            for checkpoint in checkpoints:
                last = checkpoint is checkpoints[-1]
                if not last and block.kind == "defence":
                    continue
                asked = base if last else base[base["probe"].isin(CURVE) & ~base["row"].isin(world.groups["context"])]
                if checkpoint.stopped == "diverged":
                    after = _lost(asked, f"training diverged in epoch {checkpoint.epoch}")
                else:
                    questions = list(dict.fromkeys(asked["probe"]))
                    after = score_rows(model, world.probes, asked["row"].unique(), questions, checkpoint.state)
                frames.append(lines({**place, "epoch": checkpoint.epoch}, after, asked, world))
    return pd.concat(frames, ignore_index=True), {"configurations": facts}


def device_of(model: TabularModel) -> str:
    """Where the model's parameters are."""
    return str(next(model.module.parameters()).device)


def training_facts(checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """How a configuration's training went: loss (nats) and accuracy on its query rows after each probe epoch."""
    last = checkpoints[-1]
    return {
        "epoch": last.epoch,
        "stopped": last.stopped,
        "epsilon": last.epsilon,
        "curve": [{"epoch": c.epoch, "loss": c.loss, "accuracy": c.accuracy} for c in checkpoints],
    }


def lines(place: Mapping[str, Any], after: pd.DataFrame, base: pd.DataFrame | None, world: World) -> pd.DataFrame:
    """Rows of tabular.parquet from what `score_rows` gave for the tuned and for the base model on the same rows."""
    ids = np.array(world.prepared.table.row_ids, dtype=object)
    group = np.full(len(ids), "", dtype=object)
    for name, rows in world.groups.items():
        group[rows] = name
    row = after["row"].to_numpy()
    out = pd.DataFrame({**place, "probe": after["probe"].to_numpy(), "record_id": ids[row], "group": group[row]})
    if base is None:
        before = pd.DataFrame({"logprob": np.nan, "margin": np.nan, "reason": None}, index=range(len(after)))
    else:
        if list(base["row"]) != list(row) or list(base["probe"]) != list(after["probe"]):
            raise ValueError("the base model was asked about other rows")
        before = base
    out["score"], out["base_score"] = after["logprob"].to_numpy(float), before["logprob"].to_numpy(float)
    out["margin"], out["base_margin"] = after["margin"].to_numpy(float), before["margin"].to_numpy(float)
    out["reason"] = after["reason"].to_numpy(object)
    out["base_reason"] = before["reason"].to_numpy(object)
    return out[list(COLUMNS)]


def _lost(asked: pd.DataFrame, reason: str) -> pd.DataFrame:
    own = asked["reason"].where(asked["reason"].notna(), reason)
    return asked.assign(logprob=np.nan, margin=np.nan, reason=own)
