"""Was a model trained on a design, and as the design says? What its trainer left beside it tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indelible.canaries.design import Design
from indelible.environment import training_facts
from indelible.errors import ConfigError

TRUST = "order of training"
"""Of the manifest's `not_run`: what a trainer left unsaid."""


def training_of(folder: Path) -> dict[str, Any] | None:
    """What is known of a model's training: beside it, or beside the folder of a checkpoint."""
    return training_facts(folder) or training_facts(folder.parent)


def check_provenance(
    name: str, training: Mapping[str, Any] | None, design: Design, train_sha256: str
) -> list[dict[str, str]]:
    """Compare what is known with the design.

    Args:
        train_sha256: of the design's training file.

    Returns:
        what is not known, for the manifest's `not_run`.

    Raises:
        ConfigError: the model was trained on another file, in another order, or more than once.
    """
    facts = dict(training or {})
    trained_on = facts.get("train_sha256")
    if trained_on is not None and trained_on != train_sha256:
        raise ConfigError(
            f"{name} was trained on another file than this design's, says its training.json: give its own"
        )
    config = design.config
    odd = []
    if facts.get("shuffle"):
        odd.append("its rows were shuffled (--no-shuffle keeps the order)")
    epochs = facts.get("epochs", facts.get("num_train_epochs"))
    if epochs is not None and float(epochs) != 1:
        odd.append(f"{float(epochs):g} epochs, so that every dose is {float(epochs):g} times what the ledger says")
    if facts.get("rows_left_out"):
        odd.append(f"{facts['rows_left_out']} rows were left out")
    batch_size = facts.get("batch_size")
    if batch_size is not None and int(batch_size) != config.batch_size:
        odd.append(f"{batch_size} rows an update, the design has {config.batch_size}")
    steps = facts.get("steps", facts.get("max_steps"))
    if steps is not None and not odd and int(steps) != design.n_steps:
        odd.append(f"{steps} updates, the design has {design.n_steps}")
    if odd:
        raise ConfigError(f"{name} was not trained as the design says: {'; '.join(odd)}; train it anew")
    if trained_on is not None:
        return []
    known = "how many updates it took" if steps is not None else "nothing"
    reason = f"{name}'s trainer left {known} beside it: that it saw this file, once and in order, is taken on trust"
    return [{"what": TRUST, "reason": reason}]
