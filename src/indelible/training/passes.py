"""One forward and backward pass over a few rows: the loss on their supervised tokens, its gradient added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from indelible.data.chat import Encoded
from indelible.models.causal import CausalModel
from indelible.training.packing import pack_rows, row_attention

LOGITS_BYTES = 1 << 26
"""Memory of the float32 logits that are held at once; a few copies of them live beside each other. Between 1 << 25 and
1 << 28 the step's time is the same."""


def predictions(model: CausalModel, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Hidden states that predict the supervised tokens of a few rows, and those tokens' ids, row by row.

    Returns:
        (N, D) differentiable, and (N,).
    """
    network = model.network
    if network.packs:
        pack = pack_rows(rows, share=not _drops(model), device=model.device)
        places = network.position_ids([e.input_ids for e in rows], pack.stretches, pack.positions)
        with row_attention(network.config):
            hidden = network.backbone(
                input_ids=pack.ids[None], position_ids=places, use_cache=False, pack=pack
            ).last_hidden_state[0]  # (T, D)
        return hidden.index_select(0, pack.predicting), pack.targets
    ids = np.zeros((len(rows), max(len(e) for e in rows)), dtype=np.int64)  # (B, T), padded on the right
    for row, e in zip(ids, rows, strict=True):
        row[: len(e)] = e.input_ids
    tokens = torch.from_numpy(ids).to(model.device)
    hidden = network.backbone(input_ids=tokens, use_cache=False).last_hidden_state  # (B, T, D)
    row_of = np.repeat(np.arange(len(rows)), [int(e.is_target.sum()) for e in rows])
    at = np.concatenate([e.target_positions for e in rows])
    return hidden[row_of, at - 1], tokens[row_of, at]


def add_gradient(model: CausalModel, rows: Sequence[Encoded], scale: float, *, autocast: bool) -> Tensor:
    """Sum of -log p over the supervised tokens of a few rows (nats); `scale` times its gradient is added to the
    parameters' gradients.

    The head runs on supervised positions only, and forward and backward through it chunk by chunk before the network's
    own backward pass: memory does not grow with tokens times vocabulary, and nothing is computed twice.
    """
    total = torch.zeros((), device=model.device)
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast):
        states, targets = predictions(model, rows)
    leaf = states.detach().requires_grad_()
    for part, wanted in _chunks(model, leaf, targets):
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = _loss(model.network.head, part, wanted)
        (loss * scale).backward()
        total += loss.detach()
    if states.requires_grad:
        states.backward(leaf.grad)
    return total


def _loss(head: Callable[[Tensor], Tensor], states: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(head(states).float(), targets, reduction="sum")


def _chunks(model: CausalModel, states: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    n = max(1, LOGITS_BYTES // (4 * int(model.module.config.get_text_config().vocab_size)))
    return zip(states.split(n), targets.split(n), strict=True)


def _drops(model: CausalModel) -> bool:
    """Whether anything is dropped at random while training: then rows that begin alike still differ."""
    settings = model.module.config.get_text_config().to_dict()
    return model.module.training and (
        any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.module.modules())
        or any("drop" in name and isinstance(value, float) and value > 0 for name, value in settings.items())
    )
