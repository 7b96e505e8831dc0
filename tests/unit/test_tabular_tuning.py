"""Fine-tuning tabular models: which rows each step asks, when a configuration ends, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from indelible.errors import ConfigError, DataError, ModelError
from indelible.models.tabular import TabularQueries
from indelible.training import tabular_stack
from indelible.training.tabular import Checkpoint, FineTune, TuneTask, fine_tune
from indelible.training.tabular_plan import Trial, asked


class Kernel:
    """A model of one attention layer: votes of context rows, weighted by learned similarity.

    Under `stubborn` it reads a number off its weights, which torch.func.vmap refuses.
    """

    name, max_classes, stackable = "kernel", 4, True

    def __init__(self, n_features: int = 3, *, stubborn: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.module = torch.nn.Module()
        self.module.look = torch.nn.Parameter(0.5 * torch.randn(n_features, 8, generator=generator))
        self.module.own = torch.nn.Parameter(0.1 * torch.randn(n_features, 4, generator=generator))
        self.module.fixed = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.module.register_buffer("scale", torch.tensor(0.5))
        self._stubborn = stubborn

    def clone(self) -> Kernel:
        other = Kernel(len(self.module.look), stubborn=self._stubborn)
        other.module = copy.deepcopy(self.module)
        return other

    def logits(self, queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        w = dict(self.module.state_dict(keep_vars=True)) | dict(state or {})
        if self._stubborn and float(w["look"].detach().sum()) > 1e30:
            raise AssertionError
        scores = (queries.query_x @ w["look"]) @ (queries.context_x @ w["look"]).mT
        votes = torch.nn.functional.one_hot(queries.context_y, 4).float()
        out = torch.softmax(scores, -1) @ votes + queries.query_x @ w["own"] * w["scale"]
        return (out * w["fixed"])[..., : queries.n_classes]


def table(n_context: int = 6, n_queries: int = 20, n_classes: int = 3, n_heldout: int = 0, seed: int = 0) -> TuneTask:
    rng = np.random.default_rng(seed)

    def rows(n: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rng.standard_normal((n, 3)).astype(np.float32)), torch.from_numpy(
            rng.integers(0, n_classes, n)
        )

    (cx, _), (qx, qy), heldout = rows(n_context), rows(n_queries), rows(n_heldout) if n_heldout else (None, None)
    return TuneTask(cx, torch.arange(n_context) % n_classes, qx, qy, n_classes, *heldout)


def setting(**changes: object) -> FineTune:
    given = {"learning_rate": 1e-2, "n_queries": 8, "epochs": 6, "probe_epochs": (2, 6), "seed": 0}
    return FineTune(**{**given, **changes})


def same(a: list[Checkpoint], b: list[Checkpoint]) -> None:
    assert [(c.epoch, c.stopped) for c in a] == [(c.epoch, c.stopped) for c in b]
    for x, y in zip(a, b, strict=True):
        assert x.loss == pytest.approx(y.loss, rel=1e-4, nan_ok=True)
        assert x.accuracy == pytest.approx(y.accuracy, nan_ok=True)
        assert x.state.keys() == y.state.keys()
        for name in x.state:
            torch.testing.assert_close(x.state[name], y.state[name], rtol=1e-3, atol=1e-4, equal_nan=True)


# Refusals.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"learning_rate": 0.0}, "learning_rate 0.0: expected a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate nan"),
        ({"clip": -1.0}, "clip -1.0"),
        ({"weight_decay": -0.1}, "weight_decay -0.1: expected a finite number, 0 or more"),
        ({"n_queries": 0}, "n_queries 0: expected at least 1"),
        ({"epochs": 501}, "epochs 501: expected 1 to 500"),
        ({"probe_epochs": ()}, "probe_epochs is empty"),
        ({"probe_epochs": (3, 7)}, "probe epoch 7: expected 1 to 6"),
        ({"profile": "free"}, "profile 'free': expected 'controlled' or 'resampled'"),
        ({"patience": 0}, "patience 0: expected at least 1"),
        ({"delta": 1e-3}, "delta is a setting of DP-SGD: give epsilon with it"),
        ({"epsilon": 0.0}, "epsilon 0.0: expected a finite number above 0"),
        ({"epsilon": 8.0, "profile": "resampled"}, "expected profile 'controlled'"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting(**changes)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tensors_that_are_no_table_are_refused() -> None:
    good = table()
    with pytest.raises(DataError, match=r"query rows \(20, 3\) with labels \(19,\)"):
        replace(good, query_y=good.query_y[:-1])
    with pytest.raises(DataError, match=r"held-out rows \(2, 4\).*and 3 columns"):
        replace(good, heldout_x=torch.zeros(2, 4), heldout_y=torch.zeros(2, dtype=torch.long))
    with pytest.raises(DataError, match="labels 0 to 2: expected 0 to 1"):
        replace(good, n_classes=2)
    with pytest.raises(DataError, match="held-out rows came without labels"):
        replace(good, heldout_x=torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("tasks", "changes", "kind", "expected"),
    [
        ([], {}, ConfigError, "0 tasks and 1 configurations"),
        ([table(n_queries=5)], {}, ConfigError, "n_queries 8: a table has only 5 member rows"),
        ([table()], {"patience": 1}, ConfigError, "patience asks for held-out rows"),
        ([table(), table()], {"epsilon": 8.0}, ConfigError, "epsilon with 2 tables: expected one"),
        ([table(n_classes=5)], {}, ModelError, "a table has 5 classes; kernel holds 4"),
    ],
)
def test_what_tasks_and_settings_do_not_allow_together(
    tasks: list[TuneTask], changes: dict[str, object], kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected):
        fine_tune(Kernel(), tasks, [setting(**changes)])


# The steps.


def test_controlled_batches_are_fixed_and_hold_every_query_row_once() -> None:
    trial = Trial(setting(), [table()])
    first = trial.batches(1)
    assert [len(b.queries) for b in first] == [8, 8, 4]
    assert sorted(np.concatenate([b.queries for b in first])) == list(range(20))
    assert all(b.context is None for b in first)
    for epoch in (2, 6):
        assert all(np.array_equal(a.queries, b.queries) for a, b in zip(first, trial.batches(epoch), strict=True))
    again, other = Trial(setting(), [table()]), Trial(setting(seed=1), [table()])
    assert np.array_equal(again.batches(1)[0].queries, first[0].queries)
    assert not np.array_equal(other.batches(1)[0].queries, first[0].queries)


def test_resampled_epochs_draw_context_and_queries_from_both() -> None:
    task = table(n_context=9)
    trial = Trial(setting(profile="resampled"), [task])
    labels = torch.cat([task.context_y, task.query_y])
    x = torch.cat([task.context_x, task.query_x])
    seen = np.zeros(29, dtype=bool)
    for epoch in range(1, 20):
        batches = trial.batches(epoch)
        context = batches[0].context
        assert all(b.context is context for b in batches)
        assert labels[torch.from_numpy(context)].bincount().tolist() == [3, 3, 3]
        rest = np.concatenate([b.queries for b in batches])
        assert sorted([*context, *rest]) == list(range(29))
        seen[context] = True
        queries, answers = asked([task], batches[1:2])
        assert torch.equal(queries.context_x[0], x[torch.from_numpy(context)])
        assert torch.equal(queries.query_x[0], x[torch.from_numpy(batches[1].queries)])
        assert torch.equal(answers[0], labels[torch.from_numpy(batches[1].queries)])
    assert seen.all()
    assert not np.array_equal(trial.batches(1)[0].context, trial.batches(2)[0].context)
    assert np.array_equal(trial.batches(3)[0].context, trial.batches(3)[0].context)


@pytest.mark.parametrize("profile", ["controlled", "resampled"])
def test_several_tables_are_drawn_step_by_step_until_an_epoch_has_asked_all(profile: str) -> None:
    tasks = [table(), table(n_queries=33, seed=1)]
    trial = Trial(setting(profile=profile), tasks)
    orders = [[b.task for b in trial.batches(epoch)] for epoch in range(1, 9)]
    assert all(sorted(order) == [0] * 3 + [1] * 5 for order in orders)
    assert len({tuple(order) for order in orders}) > 4
    for i, n in enumerate((20, 33)):
        assert sum(len(b.queries) for b in trial.batches(4) if b.task == i) == n


# The end.


def recorded(losses: list[float], heldout: list[float] | None, patience: int | None) -> Trial:
    epochs = tuple(range(1, len(losses) + 1))
    trial = Trial(setting(epochs=len(losses), probe_epochs=epochs, patience=patience), [table()])
    for i, epoch in enumerate(epochs):
        if trial.wants(epoch):
            fit = (np.array([losses[i]]), np.array([0.5]))
            watched = None if heldout is None else (np.array([heldout[i]]), np.array([0.5]))
            trial.record(epoch, {"w": torch.full((1,), float(epoch))}, fit, watched)
    return trial


def test_without_patience_every_probe_epoch_is_kept() -> None:
    trial = recorded([3.0, 2.0, 1.0], None, None)
    assert [(c.epoch, c.loss, c.stopped) for c in trial.checkpoints] == [(1, 3.0, None), (2, 2.0, None), (3, 1.0, None)]
    assert trial.stopped == "done"


@pytest.mark.parametrize(
    ("heldout", "patience", "epochs", "stopped"),
    [
        ([2.0, 1.0, 1.5, 1.2, 0.1], 2, [1, 2], "early"),  # the fifth epoch is never trained
        ([2.0, 1.0, 1.5, 0.9, 0.8], 2, [1, 2, 3, 4, 5], None),
        ([2.0, 1.0, 1.5, 0.9, 1.8], 3, [1, 2, 3, 4], "early"),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 4, [1], "early"),
    ],
)
def test_patience_ends_at_the_lowest_heldout_loss(
    heldout: list[float], patience: int, epochs: list[int], stopped: str | None
) -> None:
    trial = recorded([5.0, 4.0, 3.0, 2.0, 1.0], heldout, patience)
    assert [c.epoch for c in trial.checkpoints] == epochs
    assert [c.stopped for c in trial.checkpoints] == [None] * (len(epochs) - 1) + [stopped]
    assert float(trial.checkpoints[-1].state["w"]) == epochs[-1]
    assert trial.stopped == (stopped or "done")


def test_a_loss_that_is_not_finite_becomes_no_number() -> None:
    trial = recorded([1.0, float("nan"), 0.5], None, None)
    assert [c.epoch for c in trial.checkpoints] == [1, 2]
    last = trial.checkpoints[-1]
    assert last.stopped == "diverged"
    assert np.isnan([last.loss, last.accuracy]).all()
    assert last.state["w"].isnan().all()


@pytest.mark.parametrize("stacked", [True, False])
def test_a_configuration_that_diverges_leaves_its_neighbours_alone(
    stacked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Kernel()
    found = fine_tune(model, [table()], [setting(), setting(learning_rate=1e38), setting(seed=2)], stacked=stacked)
    assert [c.stopped for c in found[1]] == ["diverged"]
    assert found[1][0].epoch == 1
    assert found[1][0].state["look"].isnan().all()
    assert all(value.isnan().all() for value in found[1][0].state.values())  # nothing computed from them is a number
    assert "1 of 3 configurations diverged" in capsys.readouterr().err
    alone = fine_tune(model, [table()], [setting()]) + fine_tune(model, [table()], [setting(seed=2)])
    same(found[0], alone[0])
    same(found[2], alone[1])


# Stacks.


def mixed() -> list[FineTune]:
    return [
        setting(learning_rate=rate, n_queries=n, epochs=epochs, probe_epochs=(1, epochs), clip=clip, weight_decay=decay)
        for n in (8, 20)
        for rate, epochs, clip, decay in ((1e-2, 4, 1.0, 0.0), (1e-3, 6, 0.05, 0.1), (3e-3, 2, 1.0, 0.5))
    ]


@pytest.mark.parametrize("n_bytes", [1, 2000, 1 << 28])
@pytest.mark.parametrize("n_tables", [1, 2])
def test_stacks_of_any_size_give_what_training_one_by_one_gives(
    n_bytes: int, n_tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular_stack, "STACK_BYTES", n_bytes)
    model, tasks = Kernel(), [table(n_heldout=9), table(n_queries=23, n_classes=2, n_heldout=5, seed=1)][:n_tables]
    before = copy.deepcopy(model.module.state_dict())
    settings = [*mixed(), setting(profile="resampled"), setting(profile="resampled", seed=3, patience=1)]
    slow = fine_tune(model, tasks, settings, stacked=False)
    for fast, one in zip(fine_tune(model, tasks, settings), slow, strict=True):
        same(fast, one)
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())
    assert not any(c.state["look"].requires_grad for checkpoints in slow for c in checkpoints)
    assert len({round(c[-1].loss, 6) for c in slow}) == len(slow)  # they do differ


def test_a_model_that_takes_one_set_of_weights_is_trained_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [setting(), setting(learning_rate=1e-3)]
    found = fine_tune(Kernel(stubborn=True), [table()], settings)
    assert "kernel is trained one configuration at a time" in capsys.readouterr().err
    for a, b in zip(found, fine_tune(Kernel(), [table()], settings), strict=True):
        same(a, b)


def test_a_forward_pass_that_gives_other_logits_is_not_used() -> None:
    model, task = Kernel(), table()
    flat = tabular_stack.Flat(model.module)
    queries, _ = asked([task], Trial(setting(), [task]).batches(1)[:1])
    assert tabular_stack.stacked_forward(model, flat, queries) is not None
    alone = Kernel()
    alone.stackable = False
    assert tabular_stack.stacked_forward(alone, flat, queries) is None
    plain = model.logits

    def drifting(queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        wrong = 0.01 if torch._C._functorch.is_batchedtensor(queries.query_x) else 0.0
        return plain(queries, state) + wrong

    other = SimpleNamespace(name="drifting", stackable=True, module=model.module, logits=drifting)
    assert tabular_stack.stacked_forward(other, flat, queries) is None


def test_one_vector_holds_what_trains_and_a_state_all_there_is() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3))
    module[1].weight = module[0].weight  # tied
    module[1].bias.requires_grad_(False)
    flat = tabular_stack.Flat(module)
    assert flat.row().shape == (2 * 3 + 3,)
    state = flat.state(flat.row() + 1)
    assert state.keys() == module.state_dict().keys()
    assert torch.equal(state["0.weight"], module[0].weight + 1)
    assert torch.equal(state["1.weight"], state["0.weight"])
    assert torch.equal(state["0.bias"], module[0].bias + 1)
    assert torch.equal(state["1.bias"], module[1].bias)
    assert all(value.is_contiguous() for value in state.values())
