"""DP-SGD against a slow loop of one backward pass a row, and its noise against its distribution."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.records import Message, Query
from indelible.errors import UserError
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.training import private, sft
from indelible.training.budget import Budget, poisson_plan, privacy_budget
from indelible.training.peft import add_adapter

FLOAT32 = LoadOptions(device="cpu", dtype="float32", trainable=True)
QUIET = Budget(epsilon=8.0, delta=1e-3, clip=1.0, noise_multiplier=0.0, n_rows=40, expected_rows=8)


def settings(**changes: object) -> TrainConfig:
    return TrainConfig(
        **{"model": "builtin:toy", "train": "", "out": "", "dp_epsilon": 8.0, "device": "cpu", **changes}
    )


def toy_to_train(rank: int = 0) -> CausalModel:
    return adapted(load_model("builtin:toy", FLOAT32)[0], rank)


def adapted(model: CausalModel, rank: int) -> CausalModel:
    """With an adapter whose second half isn't zero, as it is after some steps."""
    if not rank:
        return model
    model = replace(model, module=add_adapter(model.module, settings(lora_rank=rank)), adapter=True)
    torch.manual_seed(3)
    for name, p in model.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    return model


@pytest.fixture(scope="module")
def texts(rows) -> list[Query]:
    """Rows of all lengths; some begin alike, one stands twice, one has two answers."""
    records = rows.members[:5]
    turns = (Message("user", "Hi"), Message("assistant", "Good day, Ada.", scored=True), Message("user", "And now?"))
    return [
        *(Query(r.messages, r.target) for r in records),
        Query(records[2].messages, records[2].target),
        Query(records[0].messages, records[0].target[:10]),
        Query(turns, "Nothing more."),
        Query((Message("text", records[3].target * 2),), records[4].target),
        Query((Message("user", "a"),), "a"),
    ]


def trainable(model: CausalModel) -> list[torch.nn.Parameter]:
    return [p for p in model.module.parameters() if p.requires_grad]


def stepper(
    model: CausalModel, encoded: Sequence[Encoded], budget: Budget, **changes: object
) -> Callable[[Sequence[int]], tuple[torch.Tensor, float, int]]:
    """`private_gradient` as a function from rows to the flat gradient, the loss and the tokens."""
    parameters = trainable(model)
    optimiser = torch.optim.SGD(parameters, lr=1.0)

    def run(rows: Sequence[int]) -> tuple[torch.Tensor, float, int]:
        model.module.train()
        with private.private_gradient(
            model, encoded, optimiser, settings(**changes), autocast=False, budget=budget
        ) as gradient:
            loss, n_tokens = gradient(rows)
            return torch.cat([p.grad.flatten() for p in parameters]), loss, n_tokens

    return run


def slow_rows(model: CausalModel, encoded: Sequence[Encoded]) -> torch.Tensor:
    """(R, P): the gradient of each row's mean loss, as transformers computes it for the row alone."""
    found = []
    for e in encoded:
        model.module.zero_grad()
        ids = torch.from_numpy(e.input_ids)[None]
        labels = torch.from_numpy(np.where(e.is_target, e.input_ids, -100))[None]
        model.module(input_ids=ids, labels=labels).loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in trainable(model)]))
    model.module.zero_grad()
    return torch.stack(found)


def slow_sum(each: torch.Tensor, clip: float) -> torch.Tensor:
    total = torch.zeros_like(each[0])
    for gradient in each:
        norm = math.sqrt(float((gradient.double() ** 2).sum()))
        total += gradient * min(1.0, clip / norm)
    return total


# The gradient.


@pytest.mark.parametrize(
    ("rank", "packs", "micro_batch_tokens"),
    [(4, True, 1), (4, True, 300), (4, False, 300), (4, True, 100_000), (0, True, 300), (0, False, 300)],
)
def test_without_noise_it_is_the_sum_of_clipped_gradients_of_rows(
    texts, rank: int, packs: bool, micro_batch_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = replace(toy_to_train(rank), packs=packs)
    encoded = [model.encode(q) for q in texts]
    each = slow_rows(model, encoded)
    clip = float(each.norm(dim=1).median())  # some rows are clipped, some are not
    drawn = [0, 1, 2, 3, 5, 6, 7, 8, 9]
    got, loss, n_tokens = stepper(model, encoded, replace(QUIET, clip=clip), micro_batch_tokens=micro_batch_tokens)(
        drawn
    )
    wanted = slow_sum(each[drawn], clip) / QUIET.expected_rows
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    assert n_tokens == sum(int(encoded[i].is_target.sum()) for i in drawn)
    assert loss == pytest.approx(sft.train_step(  # the loss that other trainings log
        model, trainable(model), drawn, encoded, micro_batch_tokens=10_000, autocast=False)[0], rel=1e-5)  # fmt: skip
    assert ("a pass of its own" in capsys.readouterr().err) == (rank == 0)


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    return GPT2LMHeadModel(
        GPT2Config(bos_token_id=1, eos_token_id=2, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, **sizes)
    )


def _experts():
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    return MixtralForCausalLM(MixtralConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2, **sizes, **heads))


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("make", [_gpt2, _experts])
def test_other_architectures(tokenizer, texts, tmp_path: Path, make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(1)
    make().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = adapted(load_model(str(tmp_path), FLOAT32)[0], 4)
    encoded = [model.encode(q) for q in texts]
    each = slow_rows(model, encoded)
    clip = float(each.norm(dim=1).median())
    got, _, _ = stepper(model, encoded, replace(QUIET, clip=clip))(range(len(texts)))
    wanted = slow_sum(each, clip) / QUIET.expected_rows
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5


def test_with_neither_noise_nor_clip_it_is_the_plain_gradient_scaled(rows, texts) -> None:
    """Rows whose answers have as many tokens: then the mean over tokens is the mean over rows."""
    model = toy_to_train(4)
    encoded = [model.encode(Query(r.messages, texts[0].target)) for r in rows.members[:6]]
    got, _, _ = stepper(model, encoded, replace(QUIET, clip=1e9))(range(6))
    model.module.zero_grad()
    sft.train_step(model, trainable(model), range(6), encoded, micro_batch_tokens=10_000, autocast=False)
    plain = torch.cat([p.grad.flatten() for p in trainable(model)])
    torch.testing.assert_close(got * QUIET.expected_rows, plain * 6, rtol=1e-4, atol=1e-6)


def test_no_row_moves_the_sum_by_more_than_the_clip(texts) -> None:
    model = toy_to_train(4)
    encoded = [model.encode(q) for q in texts]
    budget = replace(QUIET, clip=0.01)
    whole = stepper(model, encoded, budget)(range(len(texts)))[0]
    for left_out in (0, 6, 9):
        others = [i for i in range(len(texts)) if i != left_out]
        moved = (whole - stepper(model, encoded, budget)(others)[0]) * QUIET.expected_rows
        assert float(moved.norm()) == pytest.approx(0.01, rel=1e-2)  # each row's gradient is longer than that


def test_rows_are_told_apart_one_by_one_where_a_common_pass_does_not_serve(texts, monkeypatch, capsys) -> None:
    together = private._of_rows

    def mixed_up(model, rows, parameters, *, autocast):
        loss = together(model, rows, parameters, autocast=autocast)
        for p in parameters:
            p.grad_sample = p.grad_sample.flip(0)
        return loss

    monkeypatch.setattr(private, "_of_rows", mixed_up)
    model = toy_to_train(4)
    encoded = [model.encode(q) for q in texts]
    each = slow_rows(model, encoded)
    got, _, _ = stepper(model, encoded, replace(QUIET, clip=0.5))([0, 7, 8])
    wanted = slow_sum(each[[0, 7, 8]], 0.5) / QUIET.expected_rows
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    assert "a pass of its own" in capsys.readouterr().err


def test_a_row_without_a_finite_gradient_ends_training_before_it_can_spoil_the_weights(texts) -> None:
    model = toy_to_train(4)
    encoded = [model.encode(q) for q in texts]
    with torch.no_grad():
        trainable(model)[0].fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        stepper(model, encoded, QUIET)([0])


# The noise.


def noise_of(model: CausalModel, encoded: Sequence[Encoded], budget: Budget, *, steps: int, seed: int) -> torch.Tensor:
    """(steps, P) of steps that drew no row."""
    parameters = trainable(model)
    optimiser = torch.optim.SGD(parameters, lr=1.0)
    found = []
    with private.private_gradient(
        model, encoded, optimiser, settings(seed=seed), autocast=False, budget=budget
    ) as gradient:
        for _ in range(steps):
            loss, n_tokens = gradient([])
            assert math.isnan(loss)
            assert n_tokens == 0
            found.append(torch.cat([p.grad.flatten() for p in parameters]))
            optimiser.zero_grad()
    return torch.stack(found)


def test_noise_is_normal_of_the_right_width_fresh_in_every_step_and_repeats_with_the_seed(texts) -> None:
    model = toy_to_train(2)
    encoded = [model.encode(q) for q in texts]
    budget = replace(QUIET, clip=0.5, noise_multiplier=3.0)
    found = noise_of(model, encoded, budget, steps=3, seed=1)
    n = found.shape[1]
    standard = found * QUIET.expected_rows / (3.0 * 0.5)
    for step in standard:
        assert float(step.mean()) == pytest.approx(0, abs=4 / math.sqrt(n))
        assert float(step.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * n))
        assert stats.kstest(step.numpy(), "norm").pvalue > 1e-3
    correlations = np.corrcoef(standard.numpy())[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(n)
    torch.testing.assert_close(noise_of(model, encoded, budget, steps=3, seed=1), found, rtol=0, atol=0)
    assert not torch.isclose(noise_of(model, encoded, budget, steps=1, seed=2)[0], found[0]).any()


def test_noise_comes_on_top_of_the_rows(texts) -> None:
    model = toy_to_train(2)
    encoded = [model.encode(q) for q in texts]
    noisy = stepper(model, encoded, replace(QUIET, noise_multiplier=1.5), seed=5)([0, 3, 8])[0]
    bare = stepper(model, encoded, QUIET, seed=5)([0, 3, 8])[0]
    alone = noise_of(model, encoded, replace(QUIET, noise_multiplier=1.5), steps=1, seed=5)[0]
    torch.testing.assert_close(noisy - bare, alone, rtol=1e-4, atol=1e-6)


# A whole training.


def trained(rows, out: Path, **changes: object) -> tuple[list[sft.Step], dict[str, torch.Tensor], dict]:
    config = settings(
        **{"epochs": 1, "batch_size": 1, "learning_rate": 3e-3, "autocast": "off", "lora_rank": 2, **changes}
    )
    steps = sft.fine_tune(load_model("builtin:toy", FLOAT32)[0], rows.members, config, out)
    return steps, load_file(out / "adapter_model.safetensors"), json.loads((out / "training.json").read_text())


def test_a_training_with_empty_steps_is_logged_accounted_for_and_repeats(rows, tmp_path: Path) -> None:
    steps, weights, facts = trained(rows, tmp_path / "a")
    config = settings(batch_size=1, epochs=1)
    plan = poisson_plan(40, config)
    assert [s.rows for s in steps] == [tuple(drawn) for _, drawn in plan]
    empty = [s.step for s in steps if not s.rows]
    assert 5 < len(empty) < 25
    log = pd.read_parquet(tmp_path / "a" / "training_log.parquet")
    logged = {step: part["record_id"].tolist() for step, part in log.groupby("step")}
    assert logged == {s.step: [rows.members[i].id for i in s.rows] for s in steps if s.rows}
    budget = privacy_budget(40, config)
    told = facts["privacy"]
    assert told["epsilon"] == pytest.approx(budget.spent(40))
    assert told["target_epsilon"] == 8
    assert told["noise_multiplier"] == budget.noise_multiplier
    assert (told["steps"], told["empty_steps"], told["rows"]) == (40, len(empty), 40)
    assert (told["sampling_rate"], told["delta"], told["clip_norm"]) == (1 / 40, 1 / 400, 1.0)
    assert told["secure_generator"] is False
    assert facts["max_grad_norm"] is None
    _, again, _ = trained(rows, tmp_path / "b")
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_a_step_without_a_row_moves_the_weights(rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sft, "poisson_plan", lambda _n, _config: [(1, []), (1, [])])
    model = toy_to_train(2)
    encoded = [model.encode(Query(r.messages, r.target)) for r in rows.members]
    before = [p.detach().clone() for p in trainable(model)]
    for step in sft.optimise(model, encoded, settings(warmup_steps=0)):
        assert step.rows == ()
        assert all(not torch.equal(p, q) for p, q in zip(trainable(model), before, strict=True))


def test_little_noise_trains_and_much_does_not(rows, tmp_path: Path) -> None:
    same = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "lora_rank": 4}
    gains = {}
    for epsilon in (1e6, 0.5):
        steps, _, _ = trained(rows, tmp_path / str(epsilon), dp_epsilon=epsilon, **same)
        losses = [s.loss for s in steps]
        gains[epsilon] = losses[0] - np.mean(losses[-3:])
    assert gains[1e6] > 0.08
    assert gains[0.5] < 0.3 * gains[1e6]
