"""Supervised fine-tuning of a causal language model: the loss on the answers only, in a seeded, recorded order.

It exists so that an audit can be shown and studied. Rows are rendered by `data/chat.py`, as scoring renders them: the
tokens under the loss are the tokens that audits score.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, DataError, UserError
from indelible.models.causal import CausalModel, default_dtype
from indelible.progress import Progress, say
from indelible.runs import write_json

LOSS_CHUNK = 128
"""Supervised positions whose vocabulary-wide logits are held at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step as it happened: which rows, at what rate, with what mean loss (nats a supervised token)."""

    step: int
    epoch: int
    rows: tuple[int, ...]
    learning_rate: float
    loss: float
    n_target_tokens: int


def row_order(n_rows: int, epochs: int, seed: int, *, shuffle: bool = True) -> list[list[int]]:
    """The order of rows in each epoch; every row once an epoch."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(n_rows).tolist() if shuffle else list(range(n_rows)) for _ in range(epochs)]


def learning_rate(step: int, n_steps: int, peak: float, schedule: str, warmup: int) -> float:
    """Rate of step 1..n_steps: linear warm-up over `warmup` steps, then constant, or half a cosine towards 0."""
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant":
        return peak
    progress = (step - 1 - warmup) / max(1, n_steps - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


def encode_rows(model: CausalModel, records: Sequence[Record], max_tokens: int) -> tuple[list[Encoded], list[int]]:
    """Rows that fit, with their indices; longer ones are left out (and said so), never cut.

    Raises:
        DataError: none fits.
    """
    encoded = [model.encode(Query(r.messages, r.target)) for r in records]
    kept = [i for i, e in enumerate(encoded) if len(e) <= max_tokens and e.is_target.any()]
    if not kept:
        raise DataError(f"all {len(records)} training rows are longer than {max_tokens} tokens, or have no answer")
    if len(kept) < len(records):
        say(f"{len(records) - len(kept)} of {len(records)} rows are longer than {max_tokens} tokens and left out")
    return [encoded[i] for i in kept], kept


def token_loss(model: CausalModel, rows: Sequence[Encoded]) -> Tensor:
    """Sum of -log p over the supervised tokens of a few rows (nats), differentiable.

    The head runs on supervised positions only, in chunks that are recomputed in the backward pass, so that memory does
    not grow with the vocabulary.
    """
    network = model.network
    ids = np.zeros((len(rows), max(len(e) for e in rows)), dtype=np.int64)  # (B, T), padded on the right
    for row, e in zip(ids, rows, strict=True):
        row[: len(e)] = e.input_ids
    tokens = torch.from_numpy(ids).to(model.device)
    hidden = network.backbone(input_ids=tokens, use_cache=False).last_hidden_state  # (B, T, D)
    row_of = np.repeat(np.arange(len(rows)), [int(e.is_target.sum()) for e in rows])
    at = np.concatenate([e.target_positions for e in rows])
    states = hidden[row_of, at - 1]  # (N, D)
    targets = tokens[row_of, at]

    def chunk_loss(part: Tensor, wanted: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(network.head(part).float(), wanted, reduction="sum")

    total = torch.zeros((), device=model.device)
    for start in range(0, len(targets), LOSS_CHUNK):
        part = slice(start, start + LOSS_CHUNK)
        total = total + torch.utils.checkpoint.checkpoint(chunk_loss, states[part], targets[part], use_reentrant=False)
    return total


def micro_batches(rows: Sequence[int], encoded: Sequence[Encoded], max_tokens: int) -> list[list[int]]:
    """A step's rows cut into forward passes of at most `max_tokens` padded tokens, alike lengths together.

    The step's gradient is a sum over its tokens, so the cut changes nothing but memory and padding.
    """
    out: list[list[int]] = []
    for i in sorted(rows, key=lambda i: -len(encoded[i])):
        if out and (len(out[-1]) + 1) * len(encoded[out[-1][0]]) <= max_tokens:
            out[-1].append(i)
        else:
            out.append([i])
    return out


def fine_tune(model: CausalModel, records: Sequence[Record], config: TrainConfig, out: Path) -> list[Step]:
    """Train, and write `out`: the model folder, `training_log.parquet`, `training.json`, and `checkpoint-STEP` folders.

    Args:
        model: loaded in float32; its module is trained in place (or an adapter put on it, for LoRA).
        records: training rows, in file order.

    Raises:
        DataError: no row fits. ConfigError: a step to save at that does not come. UserError: the loss is not finite.
    """
    from indelible.training.ledger import save_checkpoint, write_log
    from indelible.training.peft import add_adapter

    torch.manual_seed(config.seed)
    if config.lora_rank:
        model = replace(model, module=add_adapter(model.module, config), adapter=True)
    encoded, kept = encode_rows(model, records, min(config.max_tokens, model.context_length))
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters, lr=config.learning_rate, betas=(0.9, 0.999), weight_decay=config.weight_decay
    )
    orders = row_order(len(encoded), config.epochs, config.seed, shuffle=config.shuffle)
    batches = [
        (epoch, order[i : i + config.batch_size])
        for epoch, order in enumerate(orders, start=1)
        for i in range(0, len(order), config.batch_size)
    ]
    late = [step for step in config.save_at if step > len(batches)]
    if late:
        raise ConfigError(f"--save-at {late[0]}: this training has only {len(batches)} steps")
    warmup = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_ratio * len(batches))
    steps: list[Step] = []
    autocast = use_autocast(config, model)
    started = time.monotonic()
    model.module.train()
    with Progress("training", total=sum(len(encoded[i]) for _, b in batches for i in b), unit="tokens") as progress:
        for number, (epoch, rows) in enumerate(batches, start=1):
            rate = learning_rate(number, len(batches), config.learning_rate, config.schedule, warmup)
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, n_tokens = _step(model, micro_batches(rows, encoded, config.micro_batch_tokens), encoded, autocast)
            torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            steps.append(Step(number, epoch, tuple(kept[i] for i in rows), rate, loss, n_tokens))
            if not math.isfinite(loss):
                raise UserError(f"training diverged at step {number}: the loss is not finite; lower --learning-rate")
            progress.advance(sum(len(encoded[i]) for i in rows))
            if number in config.save_at and number < len(batches):
                save_checkpoint(model, out / f"checkpoint-{number}", config, steps)
    model.module.eval()
    save_checkpoint(model, out, config, steps)
    write_log(out / "training_log.parquet", steps, records)
    facts = {
        "rows": len(encoded),
        "rows_left_out": len(records) - len(encoded),
        "steps": len(steps),
        "seconds": round(time.monotonic() - started, 1),
        "final_loss": steps[-1].loss,
        "template": model.chat.name,
        "system": model.chat.system,
        "loss_on": "answers and their end markers",
        "packing": False,
        **config.model_dump(mode="json"),
        "arithmetic": "bfloat16 autocast, float32 weights" if autocast else "float32",
    }
    write_json(out / "training.json", facts, nan_as_null=True)
    return steps


def use_autocast(config: TrainConfig, model: CausalModel) -> bool:
    """Whether forward and backward passes run in bfloat16; the weights and the optimiser stay float32."""
    if config.autocast == "auto":
        return default_dtype(model.device) == torch.bfloat16
    return config.autocast == "on"


def _step(model: CausalModel, parts: list[list[int]], encoded: Sequence[Encoded], autocast: bool) -> tuple[float, int]:
    """Accumulate the gradient of the mean loss over all supervised tokens of a step, as one large batch would."""
    n_tokens = sum(int(encoded[i].is_target.sum()) for part in parts for i in part)
    total = 0.0
    for part in parts:
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = token_loss(model, [encoded[i] for i in part])
        (loss / n_tokens).backward()
        total += float(loss.detach())
    return total / n_tokens, n_tokens
