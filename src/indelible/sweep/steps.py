"""Real gradient steps that are taken back: the weights after are, bit for bit, the weights before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from indelible.config import ModelOptions
from indelible.data.chat import Encoded
from indelible.data.records import Query, Record
from indelible.errors import DataError
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.models.sources import Source
from indelible.training.sft import train_step

Optimiser = Literal["sgd", "adamw"]

MICRO_BATCH_TOKENS = 2048


def load_trainable(path: str, options: ModelOptions) -> tuple[CausalModel, Source]:
    """A model whose weights may be changed for a while."""
    return load_model(path, LoadOptions(**options.model_dump(), trainable=True))


@contextmanager
def restored(model: CausalModel) -> Iterator[list[torch.nn.Parameter]]:
    """The trainable parameters: all of a full model, of an adapted one the adapter's. However the block ends, weights,
    gradients and mode are as they were."""
    module = model.module
    everything = dict(module.named_parameters())
    asked = {name: p.requires_grad for name, p in everything.items()}
    trained = {name: p for name, p in everything.items() if model.adapter is None or "lora_" in name}
    trained = {name: p for name, p in trained.items() if p.is_floating_point()}
    before = {name: p.detach().clone() for name, p in trained.items()}
    was_training = module.training
    for name, p in everything.items():
        p.requires_grad_(name in trained)
    try:
        yield list(trained.values())
    finally:
        with torch.no_grad():
            for name, p in trained.items():
                p.copy_(before[name])
        for name, p in everything.items():
            p.grad = None
            p.requires_grad_(asked[name])
        module.train(was_training)


def fitting(model: CausalModel, records: Sequence[Record]) -> list[Record]:
    """The records that fit the context and have a scored token.

    Raises:
        DataError: none does.
    """
    encoded = [model.encode(Query(r.messages, r.target)) for r in records]
    out = [
        r
        for r, e in zip(records, encoded, strict=True)
        if len(e) <= model.context_length and bool(e.is_target.any())
    ]  # fmt: skip
    if not out:
        raise DataError(f"none of {len(records)} records fits the context of {model.context_length} tokens")
    return out


def log_likelihoods(model: CausalModel, records: Sequence[Record]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum of the target tokens' log-probabilities (nats) of each record, and the number of those tokens."""
    answers = model.logprobs([Query(r.messages, r.target) for r in records])
    sums = [float(np.sum(a.logprobs, dtype=np.float64)) for a in answers]
    return np.array(sums), np.array([len(a.logprobs) for a in answers])


def one_step(
    model: CausalModel,
    parameters: Sequence[torch.nn.Parameter],
    encoded: Sequence[Encoded],
    *,
    optimiser: Optimiser,
    learning_rate: float,
    max_grad_norm: float,
) -> float:
    """One optimiser step on the mean loss over the supervised tokens of all rows, as the trainer's first step.

    Returns:
        that loss before the step, nats a token.
    """
    loss, _ = train_step(
        model, parameters, range(len(encoded)), encoded, micro_batch_tokens=MICRO_BATCH_TOKENS, autocast=False
    )
    torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    made: Any = (
        torch.optim.SGD(parameters, lr=learning_rate)
        if optimiser == "sgd"
        else torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)
    )
    made.step()
    made.zero_grad(set_to_none=True)
    return loss
