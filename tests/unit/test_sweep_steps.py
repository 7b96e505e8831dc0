"""Real gradient steps taken back, what they and probes do to losses, and counting without a model."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sweep_fakes import RECORDS

from indelible.attacks import context, make_attack
from indelible.attacks.base import Resources, plain, probed
from indelible.config import AuditConfig, ModelOptions
from indelible.data.pools import demonstration
from indelible.data.records import Message, Query
from indelible.interview import Interview, prepare
from indelible.sweep import fidelity
from indelible.sweep.config import FidelityOptions
from indelible.sweep.dry import Dry, count
from indelible.sweep.gap import further
from indelible.sweep.plan import training_settings
from indelible.sweep.steps import load_trainable, log_likelihoods, one_step, restored


@pytest.fixture(scope="module")
def free() -> Any:
    """The toy as a trainer has it: weights that can be changed."""
    return load_trainable("builtin:toy", ModelOptions(device="cpu", dtype="float32"))[0]


def slow_likelihood(module: Any, model: Any, messages: tuple[Message, ...], target: str) -> torch.Tensor:
    """Sum of log p over the target tokens, by one whole forward pass."""
    encoded = model.encode(Query(messages, target))
    ids = torch.from_numpy(encoded.input_ids)[None]
    logp = module(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    at = torch.from_numpy(encoded.target_positions)
    return logp[at - 1, ids[0, at]].sum()


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_step_is_the_slow_one_and_taken_back_exactly(free: Any, optimiser: Any) -> None:
    records = RECORDS[:3]
    rate, limit = (0.05, 0.7) if optimiser == "sgd" else (1e-3, 0.7)
    other = copy.deepcopy(free.module)
    n = sum(int(free.encode(plain(r)).is_target.sum()) for r in records)
    before = [slow_likelihood(other, free, r.messages, r.target).item() for r in records]
    loss = -sum(slow_likelihood(other, free, r.messages, r.target) for r in records) / n
    loss.backward()
    parameters = list(other.parameters())
    norm = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in parameters))
    with torch.no_grad():
        for p in parameters:
            g = p.grad * min(1.0, limit / norm)
            p -= rate * (g if optimiser == "sgd" else g / (g.abs() + 1e-8))
        slow = [
            float(slow_likelihood(other, free, r.messages, r.target)) - b for r, b in zip(records, before, strict=True)
        ]
    options = FidelityOptions(
        kind="fidelity", records="a", pool="b", optimiser=optimiser, learning_rate=rate, max_grad_norm=limit
    )
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    drops, n_tokens = fidelity.step_drops(free, records, options)
    assert drops == pytest.approx(slow, abs=1e-4)
    assert max(abs(d) for d in slow) > 0.01
    assert n_tokens.sum() == n
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
    assert all(p.grad is None for p in free.module.parameters())


def test_steps_on_single_records_do_not_see_each_other(free: Any) -> None:
    options = FidelityOptions(kind="fidelity", records="a", pool="b", step="record", learning_rate=1e-4)
    alone = [fidelity.step_drops(free, [r], options)[0][0] for r in RECORDS[:3]]
    together = fidelity.step_drops(free, RECORDS[:3], options)[0]
    assert together == pytest.approx(alone, abs=1e-4)
    assert min(alone) > 0  # a step on a record itself helps it


def test_weights_come_back_when_a_step_fails(free: Any) -> None:
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    encoded = [free.encode(plain(r)) for r in RECORDS[:2]]

    def fail() -> None:
        with restored(free) as parameters:
            one_step(free, parameters, encoded, optimiser="sgd", learning_rate=1.0, max_grad_norm=1.0)
            assert not all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())


def test_of_an_adapted_model_the_adapter_steps(lora_toy: Path) -> None:
    model, _ = load_trainable(str(lora_toy), ModelOptions(device="cpu", dtype="float32"))
    weights = {name: p.detach().clone() for name, p in model.module.state_dict().items()}
    with restored(model) as parameters:
        encoded = [model.encode(plain(r)) for r in RECORDS[:2]]
        one_step(model, parameters, encoded, optimiser="sgd", learning_rate=1.0, max_grad_norm=1.0)
        moved = {name for name, p in model.module.state_dict().items() if not torch.equal(p, weights[name])}
        assert moved
        assert all("lora_" in name for name in moved)
    assert all(torch.equal(p, weights[name]) for name, p in model.module.state_dict().items())


def test_probe_drops_are_the_slow_ones(free: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "embed", lambda texts, embedder: np.ones((len(texts), 1), dtype=np.float32))
    records, pool = RECORDS[:2], [*RECORDS[10:13], RECORDS[0]]
    options = FidelityOptions(kind="fidelity", records="a", pool="b", top=5)
    found = fidelity.probe_drops(free, records, pool, options, 0)
    with torch.no_grad():
        for r in records:
            alone = slow_likelihood(free.module, free, r.messages, r.target)
            probes = [probed(r, demonstration(p)).messages for p in pool if p.id != r.id]
            best = max(float(slow_likelihood(free.module, free, m, r.target) - alone) for m in probes)
            assert found[r.id] == pytest.approx(best, abs=1e-4)


def test_batches_are_drawn_without_repetition_while_there_are_enough() -> None:
    batches = fidelity.draw_batches(RECORDS, 3, 8, 0)
    assert [len(b) for b in batches] == [8, 8, 8]
    assert len({r.id for b in batches for r in b}) == 24
    many = fidelity.draw_batches(RECORDS, 10, 16, 0)
    assert all(len({r.id for r in b}) == 16 for b in many)
    assert fidelity.draw_batches(RECORDS[::-1], 3, 8, 0) == batches


def test_the_gap_is_the_loss_before_less_after_a_training(free: Any) -> None:
    config = training_settings(
        {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "autocast": "off", "schedule": "constant"}, 0
    )
    weights = {name: p.detach().clone() for name, p in free.module.state_dict().items()}
    before, after, n_tokens = further(free, RECORDS[:8], config)
    assert all(torch.equal(p, weights[name]) for name, p in free.module.state_dict().items())
    assert not free.module.training
    with torch.no_grad():
        slow = [-float(slow_likelihood(free.module, free, r.messages, r.target)) for r in RECORDS[:8]]
    assert before * n_tokens == pytest.approx(slow, abs=1e-3)
    assert (after < before).all()


def test_likelihoods_are_sums_over_the_answer(toy: Any) -> None:
    sums, n_tokens = log_likelihoods(toy, RECORDS[:2])
    with torch.no_grad():
        slow = [float(slow_likelihood(toy.module, toy, r.messages, r.target)) for r in RECORDS[:2]]
    assert sums == pytest.approx(slow, abs=1e-4)
    assert n_tokens.tolist() == [int(toy.encode(plain(r)).is_target.sum()) for r in RECORDS[:2]]


def test_counting_without_a_model_counts_what_a_model_computes(toy: Any) -> None:
    attacks = [make_attack("loss"), make_attack("icp-sp", {"k": 3}), make_attack("icp-sp-lowest")]
    records = RECORDS[:4]
    spans = lambda q: toy.encode(q).spans  # noqa: E731
    interview = Interview({"target": toy})
    interview.ask(attacks, prepare(attacks, records, Resources(spans=spans)))
    dry = Dry("x", toy.chat, toy.context_length)
    config = AuditConfig(model="m", members="a", nonmembers="b")
    assert count(attacks, records, RECORDS[10:], {"target": dry}, config, {}, subject="target") == []
    # likelihood masks depend on answers, which are made up here: about, not exactly
    assert dry.tokens == pytest.approx(interview.counts.tokens_computed, rel=0.1)
    before = dry.tokens
    count(attacks[:1], records, RECORDS[10:], {"target": dry}, config, {}, subject="target")
    assert dry.tokens == before  # asked before
