"""Supervised fine-tuning of a causal language model: the loss on the answers only, in a seeded, recorded order.

It exists so that an audit can be shown and studied. Rows are rendered by `data/chat.py`, as scoring renders them: the
tokens under the loss are the tokens that audits score.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.records import Query, Record
from indelible.distributed import agree, is_main, n_processes, process_index, sum_over_processes
from indelible.errors import ConfigError, DataError, UserError
from indelible.models.causal import CausalModel, default_dtype
from indelible.progress import Progress, say
from indelible.runs import write_json
from indelible.scoring.memory import EVERY_PASSES, give_back
from indelible.training.budget import Budget, poisson_plan, privacy_budget
from indelible.training.passes import add_gradient
from indelible.training.private import private_gradient


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step as it happened: which rows, at what rate, with what mean loss (nats a supervised token; NaN
    for a step of DP-SGD that drew no row)."""

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
    encoded = [model.encode(Query(r.messages, r.target, r.images)) for r in records]
    kept = [i for i, e in enumerate(encoded) if len(e) <= max_tokens and e.is_target.any()]
    if not kept:
        raise DataError(f"all {len(records)} training rows are longer than {max_tokens} tokens, or have no answer")
    if len(kept) < len(records):
        say(f"{len(records) - len(kept)} of {len(records)} rows are longer than {max_tokens} tokens and left out")
    return [encoded[i] for i in kept], kept


def micro_batches(
    rows: Sequence[int], encoded: Sequence[Encoded], max_tokens: int, *, packs: bool = True
) -> list[list[int]]:
    """A step's rows cut into forward passes of at most `max_tokens` tokens; a longer row passes alone.

    The step's gradient is a sum over its tokens, so the cut changes nothing but memory and padding. Packs have no
    padding and keep the rows in order; without them, padding counts, and rows of like length go together.
    """
    out: list[list[int]] = []
    n_tokens = 0
    for i in rows if packs else sorted(rows, key=lambda i: -len(encoded[i])):
        n_new = len(encoded[i]) if packs or not out else len(encoded[out[-1][0]])
        if out and n_tokens + n_new <= max_tokens:
            out[-1].append(i)
            n_tokens += n_new
        else:
            out.append([i])
            n_tokens = len(encoded[i])
    return out


def share_of(rows: Sequence[int], encoded: Sequence[Encoded], n_processes: int, process: int) -> list[int]:
    """The rows of a step that one of several processes takes: about as many tokens each, in the step's order.

    With fewer rows than processes some take none.
    """
    loads = [0] * n_processes
    mine = set()
    for at in sorted(range(len(rows)), key=lambda at: -len(encoded[rows[at]])):
        least = loads.index(min(loads))
        loads[least] += len(encoded[rows[at]])
        if least == process:
            mine.add(at)
    return [row for at, row in enumerate(rows) if at in mine]


def plan_steps(n_rows: int, config: TrainConfig) -> list[tuple[int, list[int]]]:
    """Epoch, from 1, and rows of every optimiser step."""
    if config.dp_epsilon is not None:
        return poisson_plan(n_rows, config)
    orders = row_order(n_rows, config.epochs, config.seed, shuffle=config.shuffle)
    return [
        (epoch, order[i : i + config.batch_size])
        for epoch, order in enumerate(orders, start=1)
        for i in range(0, len(order), config.batch_size)
    ]


def optimise(model: CausalModel, encoded: Sequence[Encoded], config: TrainConfig) -> Iterator[Step]:
    """Train in place, step by step; rows are indices into `encoded`.

    Raises:
        UserError: the loss is not finite.
    """
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(0.9, 0.999),
        weight_decay=config.weight_decay,
        fused=model.device.type in {"cpu", "cuda", "mps"},
    )
    plan = plan_steps(len(encoded), config)
    warmup = config.warmup_steps if config.warmup_steps is not None else round(config.warmup_ratio * len(plan))
    autocast, private = use_autocast(config, model), config.dp_epsilon is not None

    def plain(rows: Sequence[int]) -> tuple[float, int]:
        size = config.micro_batch_tokens
        return train_step(model, parameters, rows, encoded, micro_batch_tokens=size, autocast=autocast)

    dp = private_gradient(model, encoded, optimiser, config, autocast=autocast)
    model.module.train()
    with dp if private else contextlib.nullcontext(plain) as gradient:
        for number, (epoch, rows) in enumerate(plan, start=1):
            rate = learning_rate(number, len(plan), config.learning_rate, config.schedule, warmup)
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss, n_tokens = gradient(rows)
            if rows and not math.isfinite(loss):
                raise UserError(f"training diverged at step {number}: the loss is not finite; lower --learning-rate")
            if not private:  # there, each row's gradient is clipped
                torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if number % EVERY_PASSES == 0:
                give_back()
            yield Step(number, epoch, tuple(rows), rate, loss, n_tokens)
    model.module.eval()
    give_back()  # a run of many trainings would carry each one's leftovers along


def fine_tune(
    model: CausalModel, records: Sequence[Record], config: TrainConfig, out: Path, *, train_sha256: str | None = None
) -> list[Step]:
    """Train, and write `out`: the model folder, `training_log.parquet`, `training.json`, and `checkpoint-STEP` folders.

    Args:
        model: loaded in float32, or quantised within `trainable_layout`; its module is trained in place (or an adapter
            put on it, for LoRA).
        records: training rows, in file order.
        train_sha256: of the file they come from, for `training.json`.

    Raises:
        DataError: no row fits. ConfigError: a step to save at that does not come. UserError: the loss is not finite.
    """
    from indelible.training.ledger import save_checkpoint
    from indelible.training.peft import add_adapter

    torch.manual_seed(config.seed)
    if config.lora_rank:
        model = replace(model, module=add_adapter(model.module, config, spare=model.untrained), adapter=True)
    encoded, kept = encode_rows(model, records, min(config.max_tokens, model.context_length))
    shown = "".join(image.sha256 for r in records for image in r.images)
    tokens = hashlib.sha256(b"".join(e.input_ids.tobytes() for e in encoded) + shown.encode()).digest()
    agree((tokens, model.weights_fingerprint, config.model_dump(exclude={"out"})), "rows, model or settings")
    if n_processes() > 1:
        torch.manual_seed(config.seed + process_index())  # what is dropped at random must differ between them
    privacy = privacy_budget(len(encoded), config) if config.dp_epsilon is not None else None
    if privacy is not None:
        say(f"DP-SGD to {privacy}")
    plan = plan_steps(len(encoded), config)
    late = [step for step in config.save_at if step > len(plan)]
    if late:
        raise ConfigError(f"--save-at {late[0]}: this training has only {len(plan)} steps")
    steps: list[Step] = []
    started = time.monotonic()
    with Progress("training", total=sum(len(encoded[i]) for _, rows in plan for i in rows), unit="tokens") as progress:
        for step in optimise(model, encoded, config):
            steps.append(replace(step, rows=tuple(kept[i] for i in step.rows)))
            if step.rows:
                progress.advance(sum(len(encoded[i]) for i in step.rows))
            if is_main() and step.step in config.save_at and step.step < len(plan):
                save_checkpoint(model, out / f"checkpoint-{step.step}", config, steps)
    if is_main():
        _write(model, records, config, out, steps, n_rows=len(encoded), seconds=time.monotonic() - started,
               train_sha256=train_sha256, privacy=privacy)  # fmt: skip
    return steps


def _write(
    model: CausalModel,
    records: Sequence[Record],
    config: TrainConfig,
    out: Path,
    steps: Sequence[Step],
    *,
    n_rows: int,
    seconds: float,
    train_sha256: str | None,
    privacy: Budget | None,
) -> None:
    from indelible.training.ledger import save_checkpoint, write_log

    save_checkpoint(model, out, config, steps)
    write_log(out / "training_log.parquet", steps, records)
    facts = {
        "rows": n_rows,
        "rows_left_out": len(records) - n_rows,
        "train_sha256": train_sha256,
        "steps": len(steps),
        "seconds": round(seconds, 1),
        "final_loss": next((s.loss for s in reversed(steps) if s.rows), None),
        "template": model.chat.name,
        "system": model.chat.system,
        "loss_on": "answers and their end markers",
        "untrained": model.untrained,
        **model.facts,
        "packing": False,  # no row sees another; side by side in one pass they may lie
        "processes": n_processes(),
        **config.model_dump(mode="json"),
        "arithmetic": ("bfloat16 autocast, float32 weights" if use_autocast(config, model) else "float32")
        + (f", but a {config.quantise} base" if config.quantise != "none" else ""),
    }
    if privacy is not None:  # rows are clipped, steps are not
        facts |= {"max_grad_norm": None, "privacy": privacy.facts([len(s.rows) for s in steps])}
    write_json(out / "training.json", facts, nan_as_null=True)


def use_autocast(config: TrainConfig, model: CausalModel) -> bool:
    """Whether forward and backward passes run in bfloat16; the weights and the optimiser stay float32."""
    if config.autocast == "auto":
        return default_dtype(model.device) == torch.bfloat16
    return config.autocast == "on"


def train_step(
    model: CausalModel,
    parameters: Sequence[Tensor],
    rows: Sequence[int],
    encoded: Sequence[Encoded],
    *,
    micro_batch_tokens: int,
    autocast: bool,
) -> tuple[float, int]:
    """Leave in `parameters` the gradient of the mean loss over all supervised tokens of a step, as one large batch
    would, whatever the passes and processes it is cut into.

    Gradients are summed here and not by `DistributedDataParallel`: that hooks one forward call of a whole module, and
    we call backbone and head by themselves, several times a step, for shares that may be empty.

    Returns:
        that mean loss (nats a token) and the number of tokens, over all processes.
    """
    n_tokens = sum(int(encoded[i].is_target.sum()) for i in rows)
    losses = torch.zeros((), device=model.device)
    mine = share_of(rows, encoded, n_processes(), process_index())
    for part in micro_batches(mine, encoded, micro_batch_tokens, packs=model.network.packs):
        losses += add_gradient(model, [encoded[i] for i in part], 1 / n_tokens, autocast=autocast)
    if n_processes() > 1:
        for p in parameters:
            if p.grad is None:  # in a process that had no row
                p.grad = torch.zeros_like(p)
        sum_over_processes([losses, *(p.grad for p in parameters if p.grad is not None)])
    return float(losses) / n_tokens, n_tokens
