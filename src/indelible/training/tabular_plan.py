"""What a configuration asks in each step, what it is measured by, and when it ends: the same for every way to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.models.tabular import TabularQueries
from indelible.training.budget import stream
from indelible.training.tabular import Checkpoint, FineTune, TuneTask

MEASURED_ROWS = 256
"""Query rows in one pass when a configuration is measured."""


@dataclass(frozen=True)
class Batch:
    """One step's rows of one task.

    Attributes:
        task: which.
        queries: row numbers (Q,).
        context: row numbers (C,), or None for the task's own context. With them, numbers count the task's context rows
            first and its query rows after them; without, `queries` counts query rows.
    """

    task: int
    queries: NDArray[np.int64]
    context: NDArray[np.int64] | None = None


class Trial:
    """One configuration on its way.

    Attributes:
        checkpoints: so far.
        stopped: None while it goes on; then "done", "early" or "diverged".
    """

    def __init__(self, setting: FineTune, tasks: Sequence[TuneTask]) -> None:
        self.setting, self.checkpoints = setting, list[Checkpoint]()
        self.stopped: str | None = None
        self._tasks, self._probes = tasks, frozenset(setting.probe_epochs)
        self._lowest, self._best = float("inf"), 0
        self._fixed = [b for i, task in enumerate(tasks) for b in self._pairs(i, len(task.query_y))]

    def batches(self, epoch: int) -> list[Batch]:
        """The steps of an epoch, from 1; as many in every epoch and for every configuration with this `n_queries` and
        profile."""
        if self.setting.profile == "controlled" and len(self._tasks) == 1:
            return self._fixed
        out, rng = self._fixed, self._rng(f"tabular epoch {epoch}")
        if self.setting.profile == "resampled":
            out = [b for i, task in enumerate(self._tasks) for b in self._drawn(i, task, rng)]
        return [out[i] for i in rng.permutation(len(out))] if len(self._tasks) > 1 else out

    def wants(self, epoch: int) -> bool:
        """Whether a checkpoint is to be recorded now."""
        return epoch in self._probes and self.stopped is None

    def record(
        self,
        epoch: int,
        state: Mapping[str, Tensor],
        fit: tuple[NDArray[np.float64], NDArray[np.float64]],
        heldout: tuple[NDArray[np.float64], NDArray[np.float64]] | None,
        at: int = 0,
        epsilon: float | None = None,
    ) -> None:
        """Keep a checkpoint; entries `at` of what was measured are this configuration's."""
        loss, accuracy = float(fit[0][at]), float(fit[1][at])
        watched = loss if heldout is None else float(heldout[0][at])
        if not np.isfinite(loss + watched):
            self.diverge(epoch, state, epsilon)
            return
        self.checkpoints.append(Checkpoint(epoch, state, loss, accuracy, None, epsilon))
        patience = self.setting.patience
        if patience is not None and watched < self._lowest:
            self._lowest, self._best = watched, len(self.checkpoints)
        last = epoch == max(self._probes)
        if patience is not None and (last or len(self.checkpoints) - self._best >= patience):
            early = self._best < len(self.checkpoints) or not last
            del self.checkpoints[self._best :]
            self.checkpoints[-1] = replace(self.checkpoints[-1], stopped="early" if early else None)
            self.stopped = "early" if early else "done"
        elif last:
            self.stopped = "done"

    def diverge(self, epoch: int, state: Mapping[str, Tensor], epsilon: float | None = None) -> None:
        """End with a checkpoint that holds no number."""
        nan = float("nan")
        lost = {
            name: torch.full_like(value, nan) if value.is_floating_point() else value for name, value in state.items()
        }
        self.checkpoints.append(Checkpoint(epoch, lost, nan, nan, "diverged", epsilon))
        self.stopped = "diverged"

    def _rng(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(stream(self.setting.seed, purpose))

    def _pairs(self, task: int, n_rows: int) -> list[Batch]:
        order = self._rng(f"tabular pairs {task}").permutation(n_rows)
        return [Batch(task, part) for part in _parts(order, self.setting.n_queries)]

    def _drawn(self, index: int, task: TuneTask, rng: np.random.Generator) -> list[Batch]:
        labels = torch.cat([task.context_y, task.query_y]).cpu().numpy()
        wanted = np.bincount(task.context_y.cpu().numpy(), minlength=task.n_classes)
        order = rng.permutation(len(labels))
        context = np.concatenate([order[labels[order] == y][:n] for y, n in enumerate(wanted)])
        rest = order[~np.isin(order, context)]
        return [Batch(index, part, context) for part in _parts(rest, self.setting.n_queries)]


def _parts(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def asked(tasks: Sequence[TuneTask], batches: Sequence[Batch]) -> tuple[TabularQueries, Tensor]:
    """The questions of several steps of one shape, side by side, and the labels (B, Q) that answer them."""
    parts = [_tensors(tasks[b.task], b) for b in batches]
    context_x, context_y, query_x, query_y = (torch.stack(part) for part in zip(*parts, strict=True))
    return TabularQueries(context_x, context_y, query_x, tasks[batches[0].task].n_classes), query_y


def repeated(n: int, context_x: Tensor, context_y: Tensor, query_x: Tensor, n_classes: int) -> TabularQueries:
    """One question (C, F), (C,), (Q, F), asked n times."""
    x, y, asked = (t.expand(n, *t.shape) for t in (context_x, context_y, query_x))
    return TabularQueries(x, y, asked, n_classes)


def shape_of(tasks: Sequence[TuneTask], batch: Batch) -> tuple[int, ...]:
    """What batches that are asked together have in common."""
    task = tasks[batch.task]
    n_context = len(task.context_y) if batch.context is None else len(batch.context)
    return n_context, len(batch.queries), task.context_x.shape[1], task.n_classes


def _tensors(task: TuneTask, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    queries = torch.from_numpy(batch.queries).to(task.query_y.device)
    if batch.context is None:
        return task.context_x, task.context_y, task.query_x[queries], task.query_y[queries]
    context = torch.from_numpy(batch.context).to(queries.device)
    x, y = torch.cat([task.context_x, task.query_x]), torch.cat([task.context_y, task.query_y])
    return x[context], y[context], x[queries], y[queries]


def measured(
    logits: Callable[[TabularQueries], Tensor], tasks: Sequence[TuneTask], n_models: int, *, heldout: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean cross-entropy (nats) and accuracy of each of several models on query rows, or on held-out rows.

    Args:
        logits: (n_models, Q, classes) for questions that are the same for all of them, (n_models, ...).

    Returns:
        two arrays (n_models,). Rows count alike, whatever their task.
    """
    total, right, n_rows = np.zeros(n_models), np.zeros(n_models), 0
    for task in tasks:
        x, y = (task.heldout_x, task.heldout_y) if heldout else (task.query_x, task.query_y)
        assert x is not None
        assert y is not None
        n_rows += len(y)
        for part_x, part_y in zip(x.split(MEASURED_ROWS), y.split(MEASURED_ROWS), strict=True):
            with torch.no_grad():
                got = logits(repeated(n_models, task.context_x, task.context_y, part_x, task.n_classes)).float()
            labels = part_y.expand(n_models, -1)
            found = torch.nn.functional.cross_entropy(got.flatten(0, 1), labels.flatten(), reduction="none")
            total += found.view(n_models, -1).double().sum(1).cpu().numpy()
            right += (got.argmax(-1) == labels).sum(1).cpu().numpy()
    return total / n_rows, right / n_rows
