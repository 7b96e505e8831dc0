"""Pretraining of a small tabular in-context model on made-up tables (`training.tabular_prior`).

Every step splits a few tables into context and queries and lowers the cross-entropy of the queries' labels. What a step
sees follows from the seed and its number alone, so that a stopped run goes on where it was and ends as if it had not
been stopped.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from indelible.errors import ConfigError, ModelError, UserError
from indelible.models.tabular import TabularModel, save_tabular
from indelible.models.tabular_store import CONFIG
from indelible.models.tabular_tabicl import TabICLModel, build_tabicl
from indelible.progress import Progress, say
from indelible.training.budget import stream
from indelible.training.tabular_prior import UNSEEN, Pool, Shapes, check_prior, seeded

PARTIAL = "partial.safetensors"
N_REPORTS, N_SAVES, N_HELD_OUT = 20, 20, 40
BETAS = (0.9, 0.98)

SMALL: dict[str, Any] = {
    "max_classes": 10,
    "embed_dim": 32,
    "col_num_blocks": 1,
    "col_nhead": 4,
    "col_num_inds": 16,
    "col_feature_group": False,
    "col_target_aware": True,
    "col_ssmax": "none",
    "row_num_blocks": 1,
    "row_nhead": 4,
    "row_num_cls": 2,
    "row_rope_interleaved": False,
    "icl_num_blocks": 4,
    "icl_nhead": 4,
    "icl_ssmax": "none",
    "ff_factor": 2,
    "zero_init": False,
}
"""The network of builtin:tabicl-small, as arguments of tabicl's TabICL. Cells of one column, one block of columns and
one of rows got further in a minute than cells of two columns, or two blocks, did."""

LABEL_SCALE = 5.0
"""How much larger labels enter the untrained network than tabicl starts with: as large as what they are added to."""


@dataclass(frozen=True)
class Pretraining:
    """How to pretrain.

    Attributes:
        steps: optimiser steps.
        seed: of weights and tables.
        learning_rate: at its highest, after `warmup` (a share of the steps); from there it falls to zero as a cosine.
        weight_decay, clip: of AdamW; the L2 norm a step's gradient is clipped to.
        shapes: how large tables are.
        pool, reuse: blocks of tables that steps draw from, and steps between two new ones.
        easy: share of the blocks, the first ones, whose tables are easy.
        network: arguments of tabicl's TabICL.
    """

    steps: int
    seed: int = 0
    learning_rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    clip: float = 1.0
    shapes: Shapes = field(default_factory=Shapes)
    pool: int = 32
    reuse: int = 48
    easy: float = 0.3
    network: Mapping[str, Any] = field(default_factory=lambda: dict(SMALL))

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"--steps {self.steps}: expected one at least")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"--learning-rate {self.learning_rate:g}: expected a number between 0 and 1")
        shapes = self.shapes
        if not 1 <= shapes.min_features <= shapes.max_features:
            raise ConfigError(f"--max-features {shapes.max_features}: expected {shapes.min_features} at least")
        if not 8 <= shapes.min_rows <= shapes.max_rows:
            raise ConfigError(f"--max-rows {shapes.max_rows}: expected {shapes.min_rows} at least")


def command_of(settings: Pretraining) -> str:
    """The command line that makes this model again, the network and what has no flag being the defaults."""
    flags = {
        "steps": settings.steps,
        "seed": settings.seed,
        "learning-rate": f"{settings.learning_rate:g}",
        "max-features": settings.shapes.max_features,
        "max-rows": settings.shapes.max_rows,
    }
    return " ".join(["indelible tabular pretrain --out DIR", *(f"--{name} {value}" for name, value in flags.items())])


def pretrain(settings: Pretraining, out: Path, *, force: bool = False) -> TabICLModel:
    """Pretrain, and write the model as a folder that `load_tabular("tabicl:FOLDER")` reads.

    Started again with the same settings after it was stopped, it goes on. On one machine with the same number of
    threads, the same settings give the same weights.

    Args:
        force: replace what is in the folder.

    Raises:
        ConfigError: a setting out of range, or a folder that holds something else. MissingExtra: a package is missing.
        UserError: the loss is no longer a number.
    """
    check_prior()
    model = untrained(settings)
    parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=settings.learning_rate, betas=BETAS, weight_decay=settings.weight_decay
    )
    done, seconds = 0, 0.0
    if out.exists() and any(out.iterdir()) and not force:
        done, seconds = _resume(out, settings, parameters, optimiser)
    out.mkdir(parents=True, exist_ok=True)
    n_easy = round(settings.easy * settings.steps / settings.reuse)
    pool = Pool(settings.shapes, settings.seed, "pretrain tables", settings.pool, settings.reuse, n_easy)
    began = time.monotonic() - seconds
    losses: list[float] = []
    with Progress("pretraining", total=settings.steps - done, unit="steps") as progress:
        for step in range(done, settings.steps):
            losses.append(_step(model, list(parameters.values()), optimiser, settings, pool, step))
            progress.advance(1)
            if (step + 1) % max(1, settings.steps // N_REPORTS) == 0:
                say(f"step {step + 1:,}: loss {np.nanmean(losses):.3f} nats a query")
                losses.clear()
            if (step + 1) % max(1, settings.steps // N_SAVES) == 0 and step + 1 < settings.steps:
                _save_partial(out, settings, parameters, optimiser, step + 1, time.monotonic() - began)
    facts = {
        "command": command_of(settings),
        **{name: value for name, value in asdict(settings).items() if name != "network"},
        "parameters": sum(p.numel() for p in parameters.values()),
        "seconds": round(time.monotonic() - began),
        "threads": torch.get_num_threads(),
        **held_out(model, settings),
        "versions": {name: importlib.metadata.version(name) for name in ("tabicl", "torch")},
    }
    model = replace(model, made=json.loads(json.dumps(facts)))
    save_tabular(model, out)
    (out / PARTIAL).unlink(missing_ok=True)
    return model


def untrained(settings: Pretraining) -> TabICLModel:
    """The network before its first step."""
    with seeded(stream(settings.seed, "pretrain weights")):
        model = build_tabicl(settings.network)
    with torch.no_grad():
        for name, p in model.module.named_parameters():
            if name.endswith("y_encoder.weight"):
                p.mul_(LABEL_SCALE)
    return model


def held_out(model: TabularModel, settings: Pretraining) -> dict[str, float]:
    """Loss and accuracy on fresh tables, beside the accuracy of always saying the context's most frequent class."""
    pool = Pool(settings.shapes, settings.seed, "held out tables", size=N_HELD_OUT, reuse=1)
    loss, right, usual, n = 0.0, 0, 0, 0
    for i in range(min(N_HELD_OUT, settings.steps)):
        queries, labels = pool.tables(i)
        asked = labels != UNSEEN
        answers = model.logprobs(queries)
        loss -= float(answers.gather(-1, labels.clamp(min=0)[..., None])[..., 0][asked].sum())
        right += int((answers.argmax(-1) == labels)[asked].sum())
        counts = F.one_hot(queries.context_y, queries.n_classes).sum(1)  # (B, classes)
        usual += int((counts.argmax(-1, keepdim=True) == labels)[asked].sum())
        n += int(asked.sum())
    return {
        "held_out_loss_nats": round(loss / n, 4),
        "held_out_accuracy": round(right / n, 4),
        "held_out_majority": round(usual / n, 4),
    }


def _step(
    model: TabularModel,
    parameters: list[Any],
    optimiser: torch.optim.Optimizer,
    settings: Pretraining,
    pool: Pool,
    step: int,
) -> float:
    queries, labels = pool.tables(step)
    loss = F.cross_entropy(model.logits(queries).flatten(0, 1), labels.flatten(), ignore_index=UNSEEN)
    value = float(loss.detach())
    if not math.isfinite(value):
        if bool((labels == UNSEEN).all()):  # no query had a class that its context shows
            return float("nan")
        raise UserError(f"pretraining diverged at step {step + 1}: lower --learning-rate")
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
    for group in optimiser.param_groups:
        group["lr"] = settings.learning_rate * schedule(step, settings.steps, settings.warmup)
    optimiser.step()
    return value


def schedule(step: int, steps: int, warmup: float) -> float:
    """The share of the highest learning rate at a step (from 0): up in a line, then down as half a cosine."""
    rising = max(1, round(steps * warmup))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _identity(settings: Pretraining) -> str:
    return json.dumps(asdict(settings), sort_keys=True)


def _save_partial(
    out: Path,
    settings: Pretraining,
    parameters: Mapping[str, Any],
    optimiser: torch.optim.Optimizer,
    step: int,
    seconds: float,
) -> None:
    from safetensors.torch import save_file

    held: dict[str, Tensor] = {}
    for name, p in parameters.items():
        state = optimiser.state[p]
        held |= {f"weight {name}": p.detach(), f"m {name}": state["exp_avg"], f"v {name}": state["exp_avg_sq"]}
    n_updates = float(next(iter(optimiser.state.values()))["step"])
    facts = {
        "settings": _identity(settings),
        "step": str(step),
        "updates": str(n_updates),
        "seconds": str(round(seconds)),
    }
    new = out / f"{PARTIAL}.new"
    save_file({name: value.contiguous() for name, value in held.items()}, new, metadata=facts)
    new.replace(out / PARTIAL)


def _resume(
    out: Path, settings: Pretraining, parameters: Mapping[str, Any], optimiser: torch.optim.Optimizer
) -> tuple[int, float]:
    """Steps and seconds that an earlier run of the same settings got to, with its weights and moments put back."""
    from safetensors import SafetensorError, safe_open

    if not (out / PARTIAL).exists():
        what = "a finished model" if (out / CONFIG).exists() else "other files"
        raise ConfigError(f"--out {out} holds {what}: give another folder, or --force")
    try:
        with safe_open(out / PARTIAL, framework="pt") as file:
            facts = file.metadata()
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{out / PARTIAL} cannot be read ({error}): start again with --force") from error
    if facts.get("settings") != _identity(settings):
        raise ConfigError(f"--out {out} holds a stopped run with other settings: give another folder, or --force")
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(held[f"weight {name}"])
            optimiser.state[p] = {
                "step": torch.tensor(float(facts["updates"])),
                "exp_avg": held[f"m {name}"],
                "exp_avg_sq": held[f"v {name}"],
            }
    say(f"going on after step {int(facts['step']):,}")
    return int(facts["step"]), float(facts["seconds"])
