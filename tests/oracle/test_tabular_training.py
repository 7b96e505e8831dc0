"""Stacked and private fine-tuning of TabICL against plain loops on the package's own module."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("tabicl", reason="TabICL's package (the extra 'tabular') is not installed")

from tabicl._model.layers import OneHotAndLinear

from indelible.errors import ConfigError
from indelible.models.tabular import TabularQueries
from indelible.models.tabular_tabicl import TabICLModel, build_tabicl
from indelible.progress import Progress
from indelible.training import tabular_private, tabular_stack
from indelible.training.budget import poisson_plan, privacy_budget, stream
from indelible.training.tabular import FineTune, TuneTask, fine_tune
from indelible.training.tabular_forward import is_supported
from indelible.training.tabular_plan import Trial
from indelible.training.tabular_stack import Flat, _candidates, stacked_forward

TINY: dict[str, Any] = {
    "max_classes": 4, "embed_dim": 16, "col_num_blocks": 2, "col_nhead": 2, "col_num_inds": 5, "row_num_blocks": 2,
    "row_nhead": 2, "row_num_cls": 2, "icl_num_blocks": 2, "icl_nhead": 4, "zero_init": False,
}  # fmt: skip
PLAIN = {"col_ssmax": "none", "icl_ssmax": "none", "col_feature_group": "valid", "col_feature_group_size": 2,
         "row_rope_interleaved": False}  # fmt: skip
LAYOUTS: list[dict[str, Any]] = [
    {},
    PLAIN,
    {**PLAIN, "row_num_blocks": 1},
    {"col_feature_group": False, "icl_ssmax": "qassmax-mlp", "bias_free_ln": True},
    {"col_num_blocks": 1, "row_num_blocks": 1, "icl_num_blocks": 1, "col_ssmax": "qassmax-mlp"},
]


def made(seed: int = 0, **changes: Any) -> TabICLModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_tabicl({**TINY, **changes})
        with torch.no_grad():  # scales, shifts and scaling networks away from where they begin
            for p in model.module.parameters():
                if p.requires_grad:
                    p.add_(0.05 * torch.randn_like(p))
    return model


def table(n_context: int = 12, n_queries: int = 15, n_features: int = 5, n_classes: int = 3, seed: int = 0) -> TuneTask:
    rng = np.random.default_rng(seed)

    def rows(n: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((n, n_features)).astype(np.float32))

    labels = torch.from_numpy(rng.integers(0, n_classes, n_queries))
    return TuneTask(rows(n_context), torch.arange(n_context) % n_classes, rows(n_queries), labels, n_classes)


def package_loss(module: torch.nn.Module, task: TuneTask, rows: Tensor) -> Tensor:
    """Mean cross-entropy of some query rows, as the package's module computes it for training."""
    x = torch.cat([task.context_x, task.query_x[rows]])[None]
    logits = module.train()(x, task.context_y[None].to(x.dtype))[0, :, : task.n_classes]
    return torch.nn.functional.cross_entropy(logits, task.query_y[rows])


# The forward pass.


@pytest.mark.parametrize("changes", LAYOUTS)
def test_each_set_of_weights_gives_its_own_logits_and_gradients(changes: dict[str, Any]) -> None:
    models = [made(seed, **changes) for seed in range(3)]
    for model in models:
        model.module.double()
    tasks = [table(seed=seed) for seed in range(3)]
    stack = [
        torch.stack(parts)
        for parts in zip(*((t.context_x.double(), t.context_y, t.query_x.double()) for t in tasks), strict=True)
    ]
    flat = Flat(models[0].module)
    rows = torch.stack([Flat(m.module).row() for m in models]).requires_grad_()
    forward, _ = _candidates(models[0])
    got = forward(flat.weights(rows), TabularQueries(*stack, 3))
    weights = torch.linspace(-1, 1, got.numel(), dtype=torch.float64).sin().view(got.shape)
    (got * weights).sum().backward()
    for i, model in enumerate(models):
        wanted = model.logits(TabularQueries(*(part[i : i + 1] for part in stack), 3))[0]
        torch.testing.assert_close(got[i], wanted, rtol=1e-9, atol=1e-10)
        (wanted * weights[i]).sum().backward()
        slopes = flat.weights(rows.grad[i : i + 1])
        for name, p in model.module.named_parameters():
            if p.requires_grad:
                torch.testing.assert_close(
                    slopes[name][0], p.grad, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
                )


@pytest.mark.parametrize("changes", LAYOUTS)
def test_logits_are_those_of_the_package(changes: dict[str, Any]) -> None:
    model, task = made(**changes), table(n_features=6)
    flat, rows = Flat(model.module), torch.arange(15)
    queries = TabularQueries(task.context_x[None], task.context_y[None], task.query_x[None], 3)
    forward = stacked_forward(model, flat, queries)
    assert forward is not None
    assert forward.__name__ == "tabicl"
    loss = torch.nn.functional.cross_entropy(forward(flat.weights(flat.row()[None]), queries)[0], task.query_y[rows])
    assert loss.item() == pytest.approx(package_loss(model.module, task, rows).item(), rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_first": False},
        {"activation": "relu"},
        {"col_affine": True, "col_feature_group": False},
        {"icl_ssmax": "ssmax"},
    ],
)
def test_other_layouts_go_through_the_model_itself(changes: dict[str, Any]) -> None:
    model, task = made(**changes), table()
    assert not is_supported(model.layout, dict(model.module.named_parameters()))
    queries = TabularQueries(task.context_x[None], task.context_y[None], task.query_x[None], 3)
    forward = stacked_forward(model, Flat(model.module), queries)
    assert forward is not None
    assert forward.__name__ == "mapped"


# Training.


def one_hot_and_linear(layer: OneHotAndLinear, labels: Tensor) -> Tensor:
    """The package's embedding of labels, in the dtype of its weights."""
    one_hot = torch.nn.functional.one_hot(labels.long(), layer.num_classes).to(layer.weight.dtype)
    return torch.nn.functional.linear(one_hot, layer.weight, layer.bias)


def plain_loop(module: torch.nn.Module, task: TuneTask, setting: FineTune) -> tuple[list[float], torch.nn.Module]:
    """Full-batch training as anyone would write it; the loss before the first step and after each."""
    module, every = copy.deepcopy(module), torch.arange(len(task.query_y))
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=setting.learning_rate, weight_decay=setting.weight_decay)
    losses = []
    for _ in range(setting.epochs):
        optimiser.zero_grad()
        loss = package_loss(module, task, every)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, setting.clip)
        optimiser.step()
    return [*losses, package_loss(module, task, every).item()], module


@pytest.mark.parametrize("changes", [{}, PLAIN])
def test_stacked_training_is_the_plain_loop(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # In float64: in float32 rounding, which differs by processor, reaches some 1e-4 of the loss in 21 updates. The
    # package casts its one-hot labels to float32, whatever its weights are.
    monkeypatch.setattr(OneHotAndLinear, "forward", one_hot_and_linear)
    model, task, every = made(**changes), table(), tuple(range(1, 22))
    model.module.double()
    task = replace(task, context_x=task.context_x.double(), query_x=task.query_x.double())
    settings = [
        FineTune(1e-3, 15, 21, every, 0),
        FineTune(3e-4, 15, 21, every, 1, clip=0.1),
        FineTune(1e-4, 15, 21, every, 2, weight_decay=1.0),
    ]
    for setting, checkpoints in zip(settings, fine_tune(model, [task], settings), strict=True):
        losses, module = plain_loop(model.module, task, setting)
        assert [c.loss for c in checkpoints] == pytest.approx(losses[1:], rel=1e-7)
        assert checkpoints[-1].loss < losses[0] - 0.002
        moved = dict(module.named_parameters())
        for name, start in model.module.named_parameters():
            got = checkpoints[-1].state[name]
            if name.endswith("in_proj_bias"):  # of a key's bias nothing depends: in the plain loop it follows rounding
                got, wanted, start = (
                    torch.cat([v[: len(v) // 3], v[2 * len(v) // 3 :]]) for v in (got, moved[name], start)
                )
            else:
                wanted = moved[name]
            assert (got - wanted).abs().max().item() <= 1e-4 * setting.learning_rate * setting.epochs, name
            if start.requires_grad:
                assert not torch.equal(got, start)


def test_float64_training_agrees_far_beyond_float32_at_high_learning_rates_too() -> None:
    """What differs in float32 at these rates is rounding, made large by training itself."""
    model, every = made(), tuple(range(1, 11))
    model.module.double()
    task = table()
    task = replace(task, context_x=task.context_x.double(), query_x=task.query_x.double())
    settings = [FineTune(1e-2, 8, 10, every, seed, profile=p) for seed, p in enumerate(("controlled", "resampled"))]
    slow = fine_tune(model, [task], settings, stacked=False)
    for fast, one in zip(fine_tune(model, [task], settings), slow, strict=True):
        assert [c.loss for c in fast] == pytest.approx([c.loss for c in one], rel=1e-6)
        assert [c.accuracy for c in fast] == pytest.approx([c.accuracy for c in one])


def test_random_labels_are_fitted() -> None:
    model, task = made(**PLAIN), table(n_queries=12, n_classes=2)
    settings = [FineTune(3e-3, 12, 90, (90,), seed) for seed in (0, 1)] + [FineTune(1e-6, 12, 90, (90,), 0)]
    accuracies = [c[-1].accuracy for c in fine_tune(model, [task], settings)]
    assert accuracies[0] >= 0.95
    assert accuracies[0] == accuracies[1]  # one batch of all rows: a seed has nothing to decide
    assert accuracies[2] < 0.8


# DP-SGD.


def row_slopes(module: torch.nn.Module, flat: Flat, task: TuneTask, rows: Sequence[int]) -> Tensor:
    """Gradients (n, P) of query rows, each asked alone, through the package's module."""
    out = []
    slopes = copy.deepcopy(module)
    for i in rows:
        module.zero_grad()
        package_loss(module, task, torch.tensor([i])).backward()
        for p, q in zip(slopes.parameters(), module.parameters(), strict=True):
            p.data = torch.zeros_like(p) if q.grad is None else q.grad.clone()
        out.append(Flat(slopes).row())
    return torch.stack(out) if out else torch.zeros(0, len(flat.row()))


@pytest.mark.parametrize("stacks", [True, False])
def test_row_gradients_are_those_of_rows_asked_alone(stacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = made(), table(n_queries=7)
    flat = Flat(model.module)
    if not stacks:
        monkeypatch.setattr(tabular_private, "stacked_forward", lambda *_: None)
    gradients = tabular_private.RowGradients(model, flat, task)
    parts = list(gradients(flat.row(), torch.arange(7)))
    assert len(parts) == (1 if stacks else 7)
    wanted = row_slopes(model.module, flat, task, range(7))
    torch.testing.assert_close(torch.cat(parts), wanted, rtol=1e-3, atol=1e-5)
    assert list(gradients(flat.row(), torch.arange(0))) == []
    monkeypatch.setattr(tabular_private, "STACK_BYTES", 1)
    assert len(list(tabular_private.RowGradients(model, flat, task)(flat.row(), torch.arange(7)))) == 7


def test_private_training_is_clipped_rows_noise_and_adamw_written_out() -> None:
    model, task = made(**PLAIN), table(n_queries=6)
    setting = FineTune(1e-3, 2, 2, (1, 2), 5, epsilon=20.0, delta=1e-3, dp_clip=0.3)
    (checkpoints,) = fine_tune(model, [task], [setting])

    config = tabular_private.as_config(setting)
    plan, budget = poisson_plan(6, config), privacy_budget(6, config)
    flat, module = Flat(model.module), copy.deepcopy(model.module)
    noise = torch.Generator().manual_seed(stream(5, "dp noise"))
    weights = flat.row()
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    clipped, sizes = 0, []
    for number, (_, rows) in enumerate(plan, start=1):
        module.load_state_dict(flat.state(weights))
        total = torch.zeros_like(weights)
        for slope in row_slopes(module, flat, task, rows):
            clipped += float(slope.norm()) > 0.3
            total += slope * min(1.0, 0.3 / float(slope.norm()))
        total += torch.normal(0.0, budget.noise_multiplier * 0.3, weights.shape, generator=noise)
        slope = total / 2
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        weights = weights - 1e-3 * (mean / (1 - 0.9**number)) / ((square / (1 - 0.999**number)).sqrt() + 1e-8)
        sizes.append(len(rows))
    assert len(plan) == 6
    assert clipped > 3
    assert len(set(sizes)) > 1
    got = checkpoints[-1].state
    for name, wanted in flat.state(weights).items():
        torch.testing.assert_close(got[name], wanted, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert [c.epoch for c in checkpoints] == [1, 2]
    assert [c.epsilon for c in checkpoints] == pytest.approx([budget.spent(3), budget.spent(6)])
    assert checkpoints[0].epsilon < checkpoints[1].epsilon <= 20


def test_much_noise_keeps_labels_from_being_fitted_and_little_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    model, task = made(**PLAIN), table(n_queries=12, n_classes=2)
    common: dict[str, Any] = {"learning_rate": 3e-3, "n_queries": 12, "epochs": 25, "probe_epochs": (25,), "seed": 0}
    settings = [FineTune(**common), FineTune(**common, epsilon=1e5, dp_clip=10.0), FineTune(**common, epsilon=0.5)]
    free, loose, tight = (c[-1] for c in fine_tune(model, [task], settings))
    assert (free.epsilon is None, tight.epsilon <= 0.5) == (True, True)
    assert loose.loss == pytest.approx(free.loss, abs=0.25)
    assert loose.accuracy > 0.8
    assert tight.loss > loose.loss + 0.1
    assert "12 of 12 rows a step on average: every row in every step" in capsys.readouterr().err


def test_noise_that_breaks_training_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = made(**PLAIN), table(n_queries=4)
    setting = FineTune(1e38, 4, 5, (5,), 0, epsilon=1.0)
    (checkpoints,) = fine_tune(model, [task], [setting])
    assert [c.stopped for c in checkpoints] == ["diverged"]
    assert math.isnan(checkpoints[0].loss)
    assert 0 < checkpoints[0].epsilon < 1


def test_a_delta_of_one_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"with 15 rows it must be below 0\.0667"):
        fine_tune(made(**PLAIN), [table()], [FineTune(1e-3, 5, 2, (2,), 0, epsilon=8.0, delta=0.1)])


def test_a_stack_fits_its_memory() -> None:
    model, task = made(), table()
    flat, trial = Flat(model.module), Trial(FineTune(1e-3, 5, 2, (2,), 0), [task])
    queries = TabularQueries(task.context_x[None], task.context_y[None], task.query_x[None, :5], 3)
    forward = stacked_forward(model, flat, queries)
    assert forward is not None
    one = tabular_stack.saved_bytes(flat, forward, queries)
    assert one == tabular_stack.saved_bytes(flat, forward, queries)
    assert one > 4 * 2 * 17 * 16 * 5  # two blocks over 17 rows and 5 columns, 16 numbers each, kept at the very least
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabular_stack, "STACK_BYTES", 3 * one + 5)
        assert tabular_stack.stack_size(flat, forward, [task], trial) == 3
        patch.setattr(tabular_stack, "STACK_BYTES", one - 1)
        assert tabular_stack.stack_size(flat, forward, [task], trial) == 1
    with Progress("none", total=0, unit="epochs") as progress:
        assert tabular_stack.train_stacked(model, [task], [trial], progress) == [trial]  # one is no stack
