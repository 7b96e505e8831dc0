"""Fine-tuning tabular in-context models: one configuration, or a grid of them at once.

Capano and Boehler, IclMem ("probing memorisation in tabular in-context learning"), 2026, section 4.1: a context and
batches of Q query rows, fixed over the epochs, so that a model that can memorise is made to. The realistic settings
they are compared with (their appendix D) draw contexts and queries anew, mix tables, or ask many queries a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from indelible.errors import ConfigError, DataError, ModelError
from indelible.progress import Progress, say

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel
    from indelible.training.tabular_plan import Trial

MAX_EPOCHS = 500


@dataclass(frozen=True)
class FineTune:
    """One configuration.

    Attributes:
        learning_rate: of AdamW, constant.
        n_queries: query rows of a step, Q; the last step of an epoch asks what is left.
        epochs: passes over the query rows of all tasks, at most 500. With as many query rows as Q, an epoch is a step.
        probe_epochs: after which of them a checkpoint is kept; training ends with the last of these.
        seed: of which rows make a batch, and of everything drawn later.
        profile: "controlled": every task's own context and fixed batches of its query rows, over all epochs.
            "resampled": each epoch draws, from context and query rows together, a context with as many rows of each
            label as the task's own has, and asks the rows that are left in batches. With several tasks each step
            draws one of them, until an epoch has asked all.
        weight_decay: of AdamW, decoupled.
        clip: L2 norm that a step's gradient is scaled down to.
        patience: early stopping: how many probe epochs in a row the loss on held-out rows may fail to fall. Epochs
            after the best are then not kept.
        epsilon: of differential privacy for query rows (`tabular_private`); None trains without.
        delta: None takes 1 / (10 query rows).
        dp_clip: L2 norm that a query row's gradient is clipped to under `epsilon`; `clip` is not applied there.

    Raises:
        ConfigError: a value out of range, or two that do not go together.

    Our reading: the paper names no optimiser, no clipping, and no order of batches.
    """

    learning_rate: float
    n_queries: int
    epochs: int
    probe_epochs: tuple[int, ...]
    seed: int
    profile: Literal["controlled", "resampled"] = "controlled"
    weight_decay: float = 0.0
    clip: float = 1.0
    patience: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    dp_clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "dp_clip", "epsilon", "delta"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} {value}: expected a finite number above 0")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay {self.weight_decay}: expected a finite number, 0 or more")
        if self.n_queries < 1:
            raise ConfigError(f"n_queries {self.n_queries}: expected at least 1 query row a step")
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise ConfigError(f"epochs {self.epochs}: expected 1 to {MAX_EPOCHS}")
        if not self.probe_epochs:
            raise ConfigError("probe_epochs is empty: expected at least one epoch to keep a checkpoint of")
        for epoch in self.probe_epochs:
            if not 1 <= epoch <= self.epochs:
                raise ConfigError(f"probe epoch {epoch}: expected 1 to {self.epochs}, the epochs of this configuration")
        if self.profile not in ("controlled", "resampled"):
            raise ConfigError(f"profile {self.profile!r}: expected 'controlled' or 'resampled'")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience {self.patience}: expected at least 1 probe epoch")
        if self.epsilon is None and self.delta is not None:
            raise ConfigError("delta is a setting of DP-SGD: give epsilon with it")
        if self.epsilon is not None and self.profile == "resampled":
            raise ConfigError(
                "epsilon covers query rows, and profile 'resampled' puts them into contexts too, where each is in "
                "every gradient: expected profile 'controlled'"
            )


@dataclass(frozen=True)
class TuneTask:
    """One table, encoded, with the labels its rows are trained with.

    Attributes:
        context_x: (C, F) float32.
        context_y: (C,) int64 codes below `n_classes`.
        query_x: (M, F): the members.
        query_y: (M,).
        n_classes: of the table.
        heldout_x, heldout_y: rows kept out of training, for `FineTune.patience`.

    Raises:
        DataError: tensors of different lengths or widths, no row, or a code that is no class.
    """

    context_x: Tensor
    context_y: Tensor
    query_x: Tensor
    query_y: Tensor
    n_classes: int
    heldout_x: Tensor | None = None
    heldout_y: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.heldout_x is None) != (self.heldout_y is None):
            raise DataError("held-out rows came without labels, or labels without rows: expected both")
        for what, x, y in (
            ("context", self.context_x, self.context_y),
            ("query", self.query_x, self.query_y),
            ("held-out", self.heldout_x, self.heldout_y),
        ):
            if x is None or y is None:
                continue
            if x.dim() != 2 or y.shape != x.shape[:1] or x.shape[1] != self.context_x.shape[-1] or not len(x):
                raise DataError(
                    f"{what} rows {tuple(x.shape)} with labels {tuple(y.shape)}: expected (rows, columns) with one "
                    f"label a row, at least one row, and {self.context_x.shape[-1]} columns"
                )
            if int(y.min()) < 0 or int(y.max()) >= self.n_classes:
                raise DataError(f"{what} labels {int(y.min())} to {int(y.max())}: expected 0 to {self.n_classes - 1}")


@dataclass(frozen=True)
class Checkpoint:
    """A configuration after one of its probe epochs.

    Attributes:
        epoch: that epoch, or the one in which training diverged.
        state: all the module's parameters and buffers by name, detached. Of a configuration that diverged they are
            NaN, so that nothing computed from them is taken for a finding.
        loss: mean cross-entropy (nats) of the query rows of all tasks, each asked with its task's own context; NaN
            after divergence.
        accuracy: share of those whose label is the most probable one; NaN after divergence.
        stopped: "diverged": a loss, gradient or logit was not finite. "early": epochs after this one were left out
            by `patience`. None otherwise.
        epsilon: spent up to here, under DP-SGD. It covers `state`, not `loss` and `accuracy`, which are exact.
    """

    epoch: int
    state: Mapping[str, Tensor]
    loss: float
    accuracy: float
    stopped: str | None
    epsilon: float | None


def fine_tune(
    model: TabularModel, tasks: Sequence[TuneTask], settings: Sequence[FineTune], *, stacked: bool = True
) -> list[list[Checkpoint]]:
    """Train a copy of the model under each configuration.

    Args:
        model: left as it is.
        tasks: one table, or several to train on together.
        settings: the configurations.
        stacked: train configurations of the same shapes at once (`tabular_stack`), where the model allows it; equal to
            one by one up to rounding.

    Returns:
        for each configuration, in order, its checkpoints: those of its probe epochs up to where it ended. The last is
        what this training yields: the one of the last probe epoch, or of the lowest held-out loss (`stopped` "early"),
        or a note that it diverged (`stopped` "diverged").

    Raises:
        ConfigError: no configuration or task, more queries a step than rows, or a setting that these tasks don't serve.
        ModelError: a task with more classes than the model holds. MissingExtra: `epsilon` without Opacus.
    """
    from indelible.training.tabular_plan import Trial

    _check(model, tasks, settings)
    trials = [Trial(setting, tasks) for setting in settings]
    private = [t for t in trials if t.setting.epsilon is not None]
    with Progress("fine-tuning", total=sum(max(s.probe_epochs) for s in settings), unit="epochs") as progress:
        together = [t for t in trials if t.setting.epsilon is None]
        if stacked and len(together) > 1:
            from indelible.training.tabular_stack import train_stacked

            together = train_stacked(model, tasks, together, progress)
        for trial in together:
            train_alone(model, tasks, trial, progress)
        if private:
            from indelible.training.tabular_private import train_private

            for trial in private:
                train_private(model, tasks[0], trial, progress)
    gone = sum(t.stopped == "diverged" for t in trials)
    if gone:
        say(f"{gone} of {len(trials)} configurations diverged and were stopped")
    return [t.checkpoints for t in trials]


def train_alone(model: TabularModel, tasks: Sequence[TuneTask], trial: Trial, progress: Progress) -> None:
    """Train one configuration by the plain loop: the reference for everything faster."""
    from indelible.training.tabular_plan import asked, measured

    copy = model.clone()
    parameters = [p for p in copy.module.parameters() if p.requires_grad]
    setting = trial.setting
    optimiser = torch.optim.AdamW(
        parameters,
        lr=setting.learning_rate,
        weight_decay=setting.weight_decay,
        fused=parameters[0].device.type in {"cpu", "cuda", "mps"},
    )
    for epoch in range(1, setting.epochs + 1):
        for batch in trial.batches(epoch):
            queries, labels = asked(tasks, [batch])
            loss = torch.nn.functional.cross_entropy(copy.logits(queries)[0], labels[0])
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, setting.clip)
            if not bool(torch.isfinite(loss) & torch.isfinite(norm)):
                trial.diverge(epoch, copied(copy.module))
                break
            optimiser.step()
        if trial.wants(epoch):
            fit = measured(copy.logits, tasks, 1)
            heldout = measured(copy.logits, tasks, 1, heldout=True) if setting.patience else None
            trial.record(epoch, copied(copy.module), fit, heldout)
        progress.advance(1)
        if trial.stopped:
            return


def copied(module: torch.nn.Module) -> dict[str, Tensor]:
    """A module's parameters and buffers, detached."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _check(model: TabularModel, tasks: Sequence[TuneTask], settings: Sequence[FineTune]) -> None:
    if not tasks or not settings:
        raise ConfigError(f"{len(tasks)} tasks and {len(settings)} configurations: expected at least one of each")
    most = max(t.n_classes for t in tasks)
    if most > model.max_classes:
        raise ModelError(f"a table has {most} classes; {model.name} holds {model.max_classes}")
    if not any(p.requires_grad for p in model.module.parameters()):
        raise ModelError(f"{model.name} has no parameter that trains")
    least = min(len(t.query_y) for t in tasks)
    for setting in settings:
        if setting.n_queries > least:
            raise ConfigError(
                f"n_queries {setting.n_queries}: a table has only {least} member rows; expected at most that"
            )
        if setting.patience and any(t.heldout_x is None for t in tasks):
            raise ConfigError(
                "patience asks for held-out rows, and a table has none: set reserve rows aside, or leave it out"
            )
        if setting.epsilon is not None and len(tasks) > 1:
            raise ConfigError(f"epsilon with {len(tasks)} tables: expected one, whose query rows it covers")
