"""Many configurations of one small model trained at once.

A step of a small network is in large part the cost of starting its some hundred operations. Here S configurations
stand side by side in one tensor (S, P): every operation serves all of them, and since no configuration's loss depends
on another's weights, one backward pass leaves each its own gradient. Each is clipped by its own norm and steps by its
own AdamW. Results equal those of `tabular.train_alone` up to the order of sums. AdamW makes a step of the learning rate
out of any gradient, however small: at 1e-2 and above, rounding alone sends two float32 trainings of one configuration
apart within some tens of steps, however they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indelible.models.tabular import TabularModel, TabularQueries
from indelible.progress import Progress, say
from indelible.training.tabular import TuneTask
from indelible.training.tabular_plan import Batch, Trial, asked, measured, repeated, shape_of

STACK_BYTES = 192 << 20
"""What a stack may keep for its backward pass and its steps."""
WEIGHT_BYTES = 5 * 4
MAX_STACK = 16
"""Configurations in a stack; beyond this the cost of starting an operation is spread thin enough."""
TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit, up to which a stacked forward is taken for equal."""

Forward = Callable[[Mapping[str, Tensor], TabularQueries], Tensor]
"""Weights (S, ...) by name, and S questions, one for each: logits (S, Q, n_classes)."""


class Flat:
    """The trainable parameters of a module as one vector of P numbers.

    Matrices lie transposed in it: that is how products with rows give their gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        entries: dict[str, Tensor] = module.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        self._alias = {name: first.setdefault(id(p), name) for name, p in entries.items() if p.requires_grad}
        self._trained = {name: entries[name] for name in first.values()}
        self._rest = {name: value.detach().clone() for name, value in entries.items() if name not in self._alias}
        self._sizes = [p.numel() for p in self._trained.values()]

    def row(self) -> Tensor:
        """(P,) the module's own."""
        return torch.cat([_turned(p.detach()).reshape(-1) for p in self._trained.values()])

    def weights(self, rows: Tensor) -> dict[str, Tensor]:
        """Parameters and buffers (S, ...) by name, of rows (S, P); differentiable views."""
        parts = zip(self._trained.items(), rows.split(self._sizes, dim=1), strict=True)
        found = {name: _turned(part.view(len(rows), *_turned(p).shape), p.dim()) for (name, p), part in parts}
        out = {name: found[of] for name, of in self._alias.items()}
        return out | {name: value.expand(len(rows), *value.shape) for name, value in self._rest.items()}

    def state(self, row: Tensor) -> dict[str, Tensor]:
        """What a module's `load_state_dict` takes, of a row (P,); a copy."""
        return {
            name: value[0].clone(memory_format=torch.contiguous_format) if name in self._alias else value[0]
            for name, value in self.weights(row.detach()[None]).items()
        }


def _turned(x: Tensor, dim: int | None = None) -> Tensor:
    """A matrix transposed, or a stack of matrices; anything else as it is."""
    return x.mT if (x.dim() if dim is None else dim) == 2 else x


def train_stacked(
    model: TabularModel, tasks: Sequence[TuneTask], trials: Sequence[Trial], progress: Progress
) -> list[Trial]:
    """Train, in stacks, the configurations that can be stacked.

    Returns:
        those that cannot: single ones of their shapes, or all, where the model has no forward pass for many weights.
    """
    queries, _ = asked(tasks, trials[0].batches(1)[:1])
    flat = Flat(model.module)
    forward = stacked_forward(model, flat, queries)
    if forward is None:
        say(f"{model.name} is trained one configuration at a time: it is large, or takes one set of weights only")
        return list(trials)
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: t.setting.epochs):
        groups.setdefault((trial.setting.profile, trial.setting.n_queries), []).append(trial)
    alone = []
    for group in groups.values():
        size = stack_size(flat, forward, tasks, group[0])
        for i in range(0, len(group), size):
            part = group[i : i + size]
            if len(part) > 1:
                _train(tasks, part, flat, forward, progress)
            else:
                alone += part
    return alone


def stack_size(flat: Flat, forward: Forward, tasks: Sequence[TuneTask], trial: Trial) -> int:
    """Configurations that fit into `STACK_BYTES`, by what the largest step of one keeps for its backward pass."""
    largest = max(trial.batches(1), key=lambda b: (tasks[b.task].context_x.shape[1], len(b.queries)))
    n_bytes = saved_bytes(flat, forward, asked(tasks, [largest])[0])
    return max(1, min(MAX_STACK, STACK_BYTES // n_bytes))


def saved_bytes(flat: Flat, forward: Forward, queries: TabularQueries) -> int:
    """Bytes that one configuration takes: what its forward pass keeps (shared storage counts as often as it is kept),
    and its weights in five copies (they, their gradient as it comes and as it is clipped, and AdamW's two moments)."""
    total = WEIGHT_BYTES * len(flat.row())

    def count(kept: Tensor) -> Tensor:
        nonlocal total
        total += kept.numel() * kept.element_size()
        return kept

    with torch.autograd.graph.saved_tensors_hooks(count, lambda kept: kept):
        forward(flat.weights(flat.row()[None].requires_grad_()), queries)
    return total


class _Stack:
    """Configurations side by side: weights (S, P), and an optimiser group for each."""

    def __init__(self, rows: Tensor, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.weights = rows.detach().clone().requires_grad_()
        self.each = [row.requires_grad_() for row in self.weights.detach()]  # the same storage
        self.clip = torch.tensor([t.setting.clip for t in trials], device=rows.device)
        groups = [
            {"params": [row], "lr": t.setting.learning_rate, "weight_decay": t.setting.weight_decay}
            for row, t in zip(self.each, trials, strict=True)
        ]
        self.optimiser = torch.optim.AdamW(groups, fused=rows.device.type in {"cpu", "cuda", "mps"})

    def kept(self, places: Sequence[int]) -> _Stack:
        """A stack of some of them, as they are."""
        if len(places) == len(self.trials):
            return self
        new = _Stack(self.weights[list(places)], [self.trials[i] for i in places])
        for row, i in zip(new.each, places, strict=True):
            new.optimiser.state[row] = self.optimiser.state[self.each[i]]
        return new

    def step(self, losses: Tensor) -> list[int]:
        """One step by the gradient of the losses (S,).

        Returns:
            places of configurations whose loss or gradient is not finite; they did not step.
        """
        (gradient,) = torch.autograd.grad(losses.sum(), self.weights)
        norms = torch.linalg.vector_norm(gradient, dim=1)
        gradient *= (self.clip / (norms + 1e-6)).clamp(max=1.0)[:, None]
        finite = (losses.detach().isfinite() & norms.isfinite()).tolist()
        for row, own, good in zip(self.each, gradient, finite, strict=True):
            row.grad = own if good else None
        self.optimiser.step()
        return [i for i, good in enumerate(finite) if not good]


def _train(
    tasks: Sequence[TuneTask], trials: Sequence[Trial], flat: Flat, forward: Forward, progress: Progress
) -> None:
    stack = _Stack(flat.row().repeat(len(trials), 1), trials)
    for epoch in range(1, max(t.setting.epochs for t in trials) + 1):
        progress.advance(len(stack.trials))
        plans = {id(t): t.batches(epoch) for t in stack.trials}
        for number in range(len(plans[id(stack.trials[0])])):
            batches = [plans[id(t)][number] for t in stack.trials]
            for i in stack.step(_losses(tasks, batches, stack.weights, flat, forward)):
                stack.trials[i].diverge(epoch, flat.state(stack.weights[i]))
            going = [i for i, t in enumerate(stack.trials) if t.stopped is None]
            if not going:
                return
            stack = stack.kept(going)
        _probe(tasks, stack, epoch, flat, forward)
        going = [i for i, t in enumerate(stack.trials) if t.stopped is None]
        if not going:
            return
        stack = stack.kept(going)


def _losses(tasks: Sequence[TuneTask], batches: Sequence[Batch], rows: Tensor, flat: Flat, forward: Forward) -> Tensor:
    """Mean cross-entropy (S,) of each configuration's own step, those of one shape together."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, batch in enumerate(batches):
        by_shape.setdefault(shape_of(tasks, batch), []).append(i)
    losses = []
    for places in by_shape.values():
        queries, labels = asked(tasks, [batches[i] for i in places])
        logits = forward(flat.weights(rows if len(by_shape) == 1 else rows[places]), queries)
        found = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses.append(found.view(labels.shape).mean(dim=1))
    if len(losses) == 1:
        return losses[0]
    order = torch.tensor([i for places in by_shape.values() for i in places], device=rows.device)
    return torch.cat(losses)[order.argsort()]


def _probe(tasks: Sequence[TuneTask], stack: _Stack, epoch: int, flat: Flat, forward: Forward) -> None:
    """Record the configurations that want a checkpoint after this epoch."""
    places = [i for i, t in enumerate(stack.trials) if t.wants(epoch)]
    if not places:
        return
    rows = stack.weights.detach()[places]
    weights = flat.weights(rows)

    def logits(queries: TabularQueries) -> Tensor:
        return forward(weights, queries)

    fit = measured(logits, tasks, len(places))
    watch = any(stack.trials[i].setting.patience for i in places)
    heldout = measured(logits, tasks, len(places), heldout=True) if watch else None
    for at, i in enumerate(places):
        trial = stack.trials[i]
        trial.record(epoch, flat.state(rows[at]), fit, heldout if trial.setting.patience else None, at)


def stacked_forward(model: TabularModel, flat: Flat, queries: TabularQueries) -> Forward | None:
    """The fastest forward pass for many weights that gives the model's own logits, as two sets of weights show: its
    own, and those with noise (a freshly made network may hide half of itself behind zeros). None where none does, for a
    model that says it cannot, and for a network so large that two do not fit into `STACK_BYTES`.
    """
    row, noise = flat.row(), torch.Generator().manual_seed(0)
    if not model.stackable or 2 * WEIGHT_BYTES * len(row) > STACK_BYTES:  # a large network gains nothing
        return None
    moved = row + 0.02 * torch.randn(row.shape, generator=noise).to(row.device)
    rows = torch.stack([row, moved])
    both = repeated(2, queries.context_x[0], queries.context_y[0], queries.query_x[0], queries.n_classes)
    with torch.no_grad():
        wanted = torch.cat([model.logits(both.part(slice(1)), flat.state(r)) for r in rows])
        for forward in _candidates(model):
            try:
                got = forward(flat.weights(rows), both)
            except (RuntimeError, TypeError, ValueError):  # torch.func refuses data-dependent branches, and more
                continue
            if bool((got - wanted).abs().max() <= TOLERANCE * (1 + wanted.abs().max())):
                return forward
    return None


def _candidates(model: TabularModel) -> list[Forward]:
    from indelible.models.tabular_network import Layout
    from indelible.training.tabular_forward import is_supported, stacked_logits

    out: list[Forward] = []
    layout = getattr(model, "layout", None)
    if isinstance(layout, Layout) and is_supported(layout, dict(model.module.named_parameters())):

        def tabicl(weights: Mapping[str, Tensor], queries: TabularQueries) -> Tensor:
            x, y, asked = queries.context_x, queries.context_y, queries.query_x
            return stacked_logits(weights, layout, x, y, asked)[..., : queries.n_classes]

        out.append(tabicl)

    def mapped(weights: Mapping[str, Tensor], queries: TabularQueries) -> Tensor:
        def one(state: dict[str, Tensor], x: Tensor, y: Tensor, asked: Tensor) -> Tensor:
            return model.logits(TabularQueries(x[None], y[None], asked[None], queries.n_classes), state)[0]

        each = torch.func.vmap(one)
        out: Tensor = each(dict(weights), queries.context_x, queries.context_y, queries.query_x)
        return out

    return [*out, mapped]
