"""DP-SGD on query rows: what a tuned tabular model may tell of any one of them.

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1; noise and accounting as in
`training.budget`. A defence, not part of the paper's method (its section 1 names differential privacy).

The promise, precisely. Two trainings are neighbours if one has one query row (features and label) more than the other,
while everything else is the same: context rows and their labels, the encoding, held-out rows, the model to begin with,
the settings, and the number of rows that the sampling rate and each step's divisor are taken from. The weights after
any step are (epsilon, delta)-indistinguishable between neighbours. What is not covered:
- context rows: each is part of every query's gradient, and clipping bounds no row's share in many gradients;
- a row that is asked twice, or stands in the context too: rows are counted, not people;
- losses and accuracies of checkpoints, which are exact, choices made by looking at them, and that a training diverged;
- whatever of the rows went into choosing the split, such as matching class counts.
Nothing is won by sampling where n_queries is the number of query rows: every step then has every row (rate 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from indelible.config import TrainConfig
from indelible.models.tabular import TabularModel, TabularQueries
from indelible.progress import Progress, say
from indelible.training.budget import check_private, poisson_plan, privacy_budget, stream
from indelible.training.tabular import FineTune, TuneTask
from indelible.training.tabular_plan import Trial, measured
from indelible.training.tabular_stack import STACK_BYTES, Flat, saved_bytes, stacked_forward


class RowGradients:
    """Gradients of single query rows, each asked alone with the task's context, so that no other row can be in them."""

    def __init__(self, model: TabularModel, flat: Flat, task: TuneTask) -> None:
        self._model, self._flat, self._task = model, flat, task
        one = self._questions(torch.zeros(1, dtype=torch.long, device=task.query_y.device))
        self._forward = stacked_forward(model, flat, one)
        self._size = max(1, STACK_BYTES // saved_bytes(flat, self._forward, one)) if self._forward else 1

    def __call__(self, weights: Tensor, rows: Tensor) -> Iterator[Tensor]:
        """Of weights (P,) and row numbers (n,), gradients (n, P) in parts of bounded size."""
        for part in rows.split(self._size) if len(rows) else ():
            copies = weights.detach().expand(len(part), -1).clone().requires_grad_()  # one for each row
            questions, state = self._questions(part), self._flat.weights(copies)
            if self._forward is not None:
                logits = self._forward(state, questions)
            else:
                logits = self._model.logits(questions, {name: value[0] for name, value in state.items()})
            loss = F.cross_entropy(logits[:, 0], self._task.query_y[part], reduction="sum")
            yield torch.autograd.grad(loss, copies)[0]

    def _questions(self, rows: Tensor) -> TabularQueries:
        task, n = self._task, len(rows)
        context = (task.context_x.expand(n, -1, -1), task.context_y.expand(n, -1))
        return TabularQueries(*context, task.query_x[rows][:, None], task.n_classes)


def train_private(model: TabularModel, task: TuneTask, trial: Trial, progress: Progress) -> None:
    """Train one configuration; its checkpoints say what they spent.

    Each step takes every query row by a toss of its own coin (rate n_queries / M), and follows

        (sum over its rows of g_i * min(1, C / |g_i|)  +  Normal(0, (sigma C)^2)) / n_queries

    by AdamW, with g_i the gradient of row i's cross-entropy, asked alone with the task's context, and C = `dp_clip`.
    There are as many steps as fixed batches would make: epochs * M / n_queries. A step without a row has noise alone.

    Raises:
        ConfigError: delta is not below 1 / M, or no noise is enough. MissingExtra: Opacus is not installed.
    """
    setting, n_rows = trial.setting, len(task.query_y)
    config = as_config(setting)
    check_private(config)
    from opacus.optimizers import DPOptimizer

    budget = privacy_budget(n_rows, config)
    say(f"DP-SGD on query rows to {budget}" + (": every row in every step" if budget.sampling_rate == 1 else ""))
    flat = Flat(model.module)
    weights = torch.nn.Parameter(flat.row())
    gradients = RowGradients(model, flat, task)
    fused = weights.device.type in {"cpu", "cuda", "mps"}
    optimiser = torch.optim.AdamW(
        [weights],
        lr=setting.learning_rate,
        weight_decay=setting.weight_decay,
        fused=fused,
    )
    clipping: Any = DPOptimizer(
        optimiser,
        noise_multiplier=budget.noise_multiplier,
        max_grad_norm=budget.clip,
        expected_batch_size=budget.expected_rows,
        generator=torch.Generator(weights.device).manual_seed(stream(setting.seed, "dp noise")),
    )
    plan = poisson_plan(n_rows, config)
    for number, (epoch, drawn) in enumerate(plan, start=1):
        if not private_step(clipping, weights, gradients, torch.tensor(drawn, dtype=torch.long, device=weights.device)):
            trial.diverge(epoch, flat.state(weights), budget.spent(number))
            return
        if number < len(plan) and plan[number][0] == epoch:
            continue
        progress.advance(1)
        if trial.wants(epoch):
            state = flat.state(weights)

            def logits(queries: TabularQueries, state: dict[str, Tensor] = state) -> Tensor:
                return model.logits(queries, state)

            heldout = measured(logits, [task], 1, heldout=True) if setting.patience else None
            trial.record(epoch, state, measured(logits, [task], 1), heldout, epsilon=budget.spent(number))
        if trial.stopped:
            return


def private_facts(setting: FineTune, n_rows: int) -> dict[str, Any]:
    """What a private training of `n_rows` query rows promises and does, for the manifest; the epsilon that was spent
    is its checkpoints'.

    Raises:
        ConfigError: as `tune_privately`.
    """
    budget = privacy_budget(n_rows, as_config(setting))
    return {
        "target_epsilon": budget.epsilon,
        "delta": budget.delta,
        "noise_multiplier": budget.noise_multiplier,
        "clip_norm": budget.clip,
        "sampling_rate": budget.sampling_rate,
        "rows": budget.n_rows,
        "expected_rows_a_step": budget.expected_rows,
        "adjacency": "add or remove one query row, its features and its label",
        "covers": "weights, as far as query rows go; not context rows, losses, accuracies or choices made by them",
        "randomness": "seeded, so that it can be repeated: for study. Whoever knows the seed can take the noise off",
    }


def as_config(setting: FineTune) -> TrainConfig:
    """The settings of DP-SGD as `training.budget` takes them."""
    return TrainConfig(
        model="", train="", out="", epochs=setting.epochs, batch_size=setting.n_queries, seed=setting.seed,
        dp_epsilon=setting.epsilon, dp_delta=setting.delta, dp_clip=setting.dp_clip,
    )  # fmt: skip


def private_step(clipping: Any, weights: torch.nn.Parameter, gradients: RowGradients, rows: Tensor) -> bool:
    """One step of DP-SGD by these rows; False, and no step, where a row's gradient is not finite.

    Args:
        clipping: Opacus's DPOptimizer around the optimiser of `weights`; clipping and noise are its own.
    """
    clipping.zero_grad(set_to_none=True)
    holder: Any = weights
    for each in gradients(weights, rows):
        if not bool(each.isfinite().all()):
            return False
        holder.grad_sample = each
        clipping.signal_skip_step(True)  # clip and add up only
        clipping.pre_step()
        clipping.zero_grad(set_to_none=True)
    holder.grad_sample = weights.new_zeros((0, *weights.shape))  # nothing more comes
    clipping.pre_step()
    clipping.original_optimizer.step()
    return True
