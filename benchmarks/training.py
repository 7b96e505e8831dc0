"""Training speed: transformers' plain Trainer and ours on the same rows in the same order, in one run.

    python benchmarks/training.py [--data FILE.jsonl] [--rows 64] [--batch-size 16]

Both train all weights: AdamW (fused), gradients clipped to norm 1, the same rate at every step, the loss a mean over
the supervised tokens of a step. The Trainer pads each batch to its longest row, in float32 (its default) and in
bfloat16 autocast; ours runs in both, too, and in its default. `before` is how we trained at first: padded passes of
at most 1024 tokens, the head's chunks computed again in the backward pass. Loading and the first step are not timed.
Ratios are medians over the other steps, each step against the same rows of the other. The last line is JSON: `ratio`
and `max_abs_diff` compare our default with the Trainer's default (float32): seconds of a step, and the largest
difference between the losses of a step (nats a token). `by_arithmetic` has the same at equal arithmetic.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.files import fail
from indelible.data.formats import read_records
from indelible.data.records import Message, Query
from indelible.data.synthetic import synthetic_records
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.training import packing, passes, sft


@dataclass(frozen=True)
class Result:
    """Losses of the steps (nats a token), and seconds of each but the first."""

    losses: list[float]
    seconds: list[float]

    @property
    def typical(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self.seconds))

    def slower_than(self, other: Result) -> float:
        """Median over steps of this one's time over the other's for the same rows."""
        return round(float(np.median(np.divide(self.seconds, other.seconds))), 2)


def queries(args: argparse.Namespace) -> list[Query]:
    """Training rows."""
    if args.data:
        found = [Query(r.messages, r.target) for r in read_records(args.data).records[: args.rows]]
    else:
        made = synthetic_records(args.rows, seed=0)
        found = [Query((Message("user", f"{r['instruction']}\n{r['input']}"),), r["output"]) for r in made]
    if len(found) < 2 * args.batch_size:
        fail(f"{len(found)} rows: expected two steps of {args.batch_size} at least")
    return found[: len(found) // args.batch_size * args.batch_size]


def load(args: argparse.Namespace) -> CausalModel:
    """The model as training loads it."""
    return load_model(args.model, LoadOptions(device=args.device, dtype="float32", trainable=True))[0]


def padded(rows: Sequence[Encoded]) -> dict[str, Tensor]:
    """A collator as everybody writes it: padding on the right, labels of -100 where there is no loss."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for i, e in enumerate(rows):
        ids[i, : len(e)] = torch.from_numpy(e.input_ids)
        labels[i, : len(e)] = torch.from_numpy(np.where(e.is_target, e.input_ids, -100))
        mask[i, : len(e)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Clock(TrainerCallback):
    """Notes when steps end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:  # type: ignore[no-untyped-def]
        """A step of the Trainer's is over, its optimiser's included."""
        self.ends.append(time.perf_counter())


def trainer(model: CausalModel, encoded: Sequence[Encoded], config: TrainConfig, *, bf16: bool) -> Result:
    """transformers' Trainer, with our schedule."""
    plan = sft.plan_steps(len(encoded), config)
    rates = [
        sft.learning_rate(n, len(plan), 1.0, config.schedule, round(config.warmup_ratio * len(plan)))
        for n in range(1, len(plan) + 1)
    ]
    optimiser = torch.optim.AdamW(model.module.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: rates[min(n, len(rates) - 1)])
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=config.batch_size,
            num_train_epochs=1,
            max_grad_norm=config.max_grad_norm,
            bf16=bf16,
            logging_steps=1,
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to="none",
            use_cpu=model.device.type == "cpu",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        rows = [encoded[i] for _, rows in plan for i in rows]
        run = Trainer(
            model=model.module,
            args=arguments,
            train_dataset=rows,
            data_collator=padded,
            optimizers=(optimiser, schedule),
            callbacks=[clock],
        )
        run.train()
    losses = [line["loss"] for line in run.state.log_history if "loss" in line]
    return Result(losses, np.diff(clock.ends).tolist())


def ours(model: CausalModel, encoded: Sequence[Encoded], config: TrainConfig) -> Result:
    """`indelible train`, without its files."""
    losses, ends = [], []
    for step in sft.optimise(model, encoded, config):
        losses.append(step.loss)
        ends.append(time.perf_counter())
    return Result(losses, np.diff(ends).tolist())


def gradient_as_before(model: CausalModel, rows: Sequence[Encoded], scale: float, *, autocast: bool) -> Tensor:
    """What `passes.add_gradient` does, as we did it at first."""

    def chunk_loss(states: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(model.network.head(states).float(), targets, reduction="sum")

    total = torch.zeros((), device=model.device)
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast):
        states, targets = passes.predictions(model, rows)
        for part, wanted in zip(states.split(128), targets.split(128), strict=True):
            total = total + torch.utils.checkpoint.checkpoint(chunk_loss, part, wanted, use_reentrant=False)
    (total * scale).backward()
    return total.detach()


def before(model: CausalModel, encoded: Sequence[Encoded], config: TrainConfig) -> Result:
    """Our own first method."""
    now = sft.add_gradient
    sft.add_gradient = gradient_as_before
    try:
        return ours(replace(model, packs=False), encoded, config.model_copy(update={"micro_batch_tokens": 1024}))
    finally:
        sft.add_gradient = now


def main() -> None:
    parser = argparse.ArgumentParser(description="Training speed against transformers' Trainer.")
    parser.add_argument("--data")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    args = parser.parse_args()
    asked = queries(args)
    settings = {"epochs": 1, "batch_size": args.batch_size, "learning_rate": 1e-4, "device": args.device}
    config = TrainConfig(model=args.model, train="", out="", **settings)
    on, off = (config.model_copy(update={"autocast": word}) for word in ("on", "off"))
    model = load(args)
    encoded = [model.encode(q) for q in asked]
    plan = sft.plan_steps(len(encoded), config)
    batches = [[encoded[i] for i in rows] for _, rows in plan]
    n_tokens = sum(map(len, encoded))
    n_padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
    parts = [part for _, rows in plan for part in sft.micro_batches(rows, encoded, config.micro_batch_tokens)]
    n_distinct = sum(
        len(packing.pack_rows([encoded[i] for i in part], share=True, device=torch.device("cpu")).ids) for part in parts
    )
    print(
        f"{len(encoded)} rows of {min(map(len, encoded))} to {max(map(len, encoded))} tokens, {len(plan)} steps; "
        f"{n_tokens} tokens, {n_padded} padded, {n_distinct} computed by ours; {torch.get_num_threads()} threads"
    )
    default = "bfloat16" if sft.use_autocast(config, model) else "float32"
    runs = {
        "ours bfloat16": lambda m: ours(m, encoded, on),
        "ours float32": lambda m: ours(m, encoded, off),
        "before bfloat16": lambda m: before(m, encoded, on),
        "Trainer float32": lambda m: trainer(m, encoded, config, bf16=False),
        "Trainer bfloat16": lambda m: trainer(m, encoded, config, bf16=True),
    }
    found: dict[str, Result] = {}
    for name, run in runs.items():
        found[name] = run(load(args))
        rate = n_tokens / len(plan) / found[name].typical
        print(f"{name}: {found[name].typical:.2f} s a step, {rate:.0f} tokens/s, loss {found[name].losses}", flush=True)

    def apart(one: str, other: str) -> float:
        return float(np.max(np.abs(np.subtract(found[one].losses, found[other].losses))))

    reference = found["Trainer float32"]
    by_arithmetic = {
        kind: {
            "ratio_to_trainer_float32": reference.slower_than(found[f"ours {kind}"]),
            "ratio_equal_arithmetic": found[f"Trainer {kind}"].slower_than(found[f"ours {kind}"]),
            "max_abs_diff_to_trainer_float32": apart(f"ours {kind}", "Trainer float32"),
            "max_abs_diff_equal_arithmetic": apart(f"ours {kind}", f"Trainer {kind}"),
        }
        for kind in ("float32", "bfloat16")
    }
    summary = {
        "name": "training",
        "ratio": by_arithmetic[default]["ratio_to_trainer_float32"],
        "max_abs_diff": by_arithmetic[default]["max_abs_diff_to_trainer_float32"],
        "by_arithmetic": by_arithmetic,
        "default": default,
        "ratio_to_before": found["before bfloat16"].slower_than(found["ours bfloat16"]),
        "seconds_per_step": {name: round(result.typical, 3) for name, result in found.items()},
        "n_rows": len(encoded),
        "batch_size": args.batch_size,
        "tokens": n_tokens,
        "padded_tokens": n_padded,
        "computed_tokens": n_distinct,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
