"""DP-SGD: training after which the weights tell little of any one row.

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1. In each step every row comes in by a
toss of its own coin (`budget.poisson_plan`), each row's gradient is clipped, and Gaussian noise is added to their sum.
Clipping and noise are Opacus's; what is here is how the gradient of a single row comes about.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.errors import UserError
from indelible.models.causal import CausalModel
from indelible.progress import say
from indelible.training.budget import Budget, privacy_budget, stream
from indelible.training.passes import add_gradient

PROOF_ROWS = 3
"""Rows whose gradients are computed both ways before a training relies on the faster one."""


@contextmanager
def private_gradient(
    model: CausalModel,
    encoded: Sequence[Encoded],
    optimiser: torch.optim.Optimizer,
    config: TrainConfig,
    *,
    autocast: bool,
    budget: Budget | None = None,
) -> Iterator[Callable[[Sequence[int]], tuple[float, int]]]:
    """A function that leaves in the optimiser's parameters the gradient of one step of DP-SGD,

        (sum over the step's rows of g_i * min(1, C / |g_i|)  +  Normal(0, (sigma C)^2)) / expected_rows

    where g_i is the gradient of row i's mean loss over its supervised tokens, over all parameters at once. A step
    without a row has noise alone.

    Differs from the paper: rows are taken by AdamW, which follows from the same noisy gradients.

    Args:
        encoded: the training rows.
        optimiser: of the parameters that train; it steps by what `gradient` leaves.
        budget: that of these settings unless given.

    Yields:
        `gradient(rows)`, rows as indices into `encoded`; it returns the mean loss (nats a supervised token; NaN without
        a row) and the number of supervised tokens.
    """
    from opacus.optimizers import DPOptimizer

    from indelible.training.sft import micro_batches

    budget = budget or privacy_budget(len(encoded), config)
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    noise = torch.Generator(model.device).manual_seed(stream(config.seed, "dp noise"))
    clipping = DPOptimizer(
        optimiser,
        noise_multiplier=budget.noise_multiplier,
        max_grad_norm=budget.clip,
        expected_batch_size=budget.expected_rows,
        generator=noise,
    )
    clipping.zero_grad(set_to_none=True)
    with _together(model, encoded, parameters, config) as together:

        def gradient(rows: Sequence[int]) -> tuple[float, int]:
            clipping.zero_grad(set_to_none=True)
            loss, n_tokens = torch.zeros((), device=model.device), sum(int(encoded[i].is_target.sum()) for i in rows)
            each = [[i] for i in rows]
            for part in micro_batches(rows, encoded, config.micro_batch_tokens, packs=False) if together else each:
                of_rows = _of_rows if together else _of_row
                loss += of_rows(model, [encoded[i] for i in part], parameters, autocast=autocast)
                clipping.signal_skip_step(True)  # clip and add up only
                clipping.pre_step()
                clipping.zero_grad(set_to_none=True)
            if rows and not all(bool(p.summed_grad.isfinite().all()) for p in parameters):
                raise UserError("training diverged: the gradient of a row is not finite; lower --learning-rate")
            for p in parameters:
                p.grad_sample = p.new_zeros((0, *p.shape))  # nothing more comes
            clipping.pre_step()
            return (float(loss) / n_tokens if rows else float("nan")), n_tokens

        yield gradient
    for p in parameters:
        p.grad_sample = p.summed_grad = None


def _of_row(model: CausalModel, rows: Sequence[Encoded], parameters: Sequence[Any], *, autocast: bool) -> Tensor:
    """Leave one row's gradient in `grad_sample` (1, ...) of each parameter; correct for every model."""
    (row,) = rows
    loss = add_gradient(model, rows, 1 / int(row.is_target.sum()), autocast=autocast)
    for p in parameters:
        p.grad_sample = (torch.zeros_like(p) if p.grad is None else p.grad)[None]
        p.grad = None
    return loss


def _of_rows(model: CausalModel, rows: Sequence[Encoded], parameters: Sequence[Any], *, autocast: bool) -> Tensor:
    """Leave the rows' gradients in `grad_sample` (R, ...) of each parameter, from one pass with Opacus's hooks on.

    Rows lie side by side with padding, not in a pack: the hooks take the first dimension for the rows.
    """
    with warnings.catch_warnings():  # the adapters of the first layer: what comes in there needs no gradient
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        loss = add_gradient(replace(model, packs=False), rows, 1.0, autocast=autocast)
    weights = 1 / torch.tensor([int(e.is_target.sum()) for e in rows], device=model.device)
    for p in parameters:
        if not isinstance(p.grad_sample, Tensor) or p.grad_sample.shape != (len(rows), *p.shape):
            raise NotImplementedError("a trainable layer does not see rows side by side")
        p.grad_sample = p.grad_sample.float() * weights.view(-1, *[1] * p.dim())
        p.grad = None
    return loss


@contextmanager
def _together(
    model: CausalModel, encoded: Sequence[Encoded], parameters: Sequence[Any], config: TrainConfig
) -> Iterator[bool]:
    """Whether `_of_rows` serves for this model, with its hooks on. Where it might, it is proved on a few rows."""
    layers = [
        m for m in model.module.modules()
        if type(m) is torch.nn.Linear and getattr(m, "bias", None) is None and m.weight.requires_grad
    ]  # fmt: skip
    if (
        len(encoded) < 2
        or {id(layer.weight) for layer in layers} != {id(p) for p in parameters}  # a tied or other kind of weight
        or config.quantise == "8bit"  # how a row is rounded there depends on the rows beside it
        or max(map(len, encoded)) > model.rotary_limit
    ):
        say("DP-SGD: every row's gradient by a pass of its own")
        yield False
        return
    from opacus import GradSampleModule

    model.module.eval()  # nothing is dropped at random meanwhile; the hooks ask for layers that train
    for layer in layers:
        layer.train()
    wanted = []
    for row in encoded[:PROOF_ROWS]:
        _of_row(model, [row], parameters, autocast=False)
        wanted.append(torch.cat([p.grad_sample.flatten() for p in parameters]))
    hooks = GradSampleModule(model.module, loss_reduction="sum")
    try:
        holds = _error(model, encoded[:PROOF_ROWS], parameters, wanted) < (
            1e-3 if model.dtype == torch.float32 else 0.05
        )
        if not holds:
            say("DP-SGD: every row's gradient by a pass of its own, for a common pass does not give them")
            hooks.remove_hooks()
        model.module.train()
        yield holds
    finally:
        hooks.remove_hooks()


def _error(model: CausalModel, rows: Sequence[Encoded], parameters: Sequence[Any], wanted: Sequence[Tensor]) -> float:
    """The largest relative error of a row's gradient from a common pass; infinite where rows cannot be told apart."""
    try:
        _of_rows(model, rows, parameters, autocast=False)
    except NotImplementedError:
        return float("inf")
    finally:
        got = [p.grad_sample for p in parameters]
        for p in parameters:
            p.grad = p.grad_sample = None
    each = torch.cat([g.flatten(1) for g in got], dim=1)  # (R, all parameters)
    return max(float((a - b).norm() / b.norm()) for a, b in zip(each, wanted, strict=True))
