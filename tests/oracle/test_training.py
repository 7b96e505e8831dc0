"""Training against the slow obvious ways: autograd over whole logits of padded rows, and transformers' own Trainer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.records import Message, Query, Record
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import answer
from indelible.training import packing, passes, sft
from indelible.training.peft import add_adapter

FLOAT32 = LoadOptions(device="cpu", dtype="float32", trainable=True)
SIZES = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def plain(record: Record) -> Query:
    return Query(record.messages, record.target)


def padded(encoded: Sequence[Encoded]) -> dict[str, torch.Tensor]:
    """What a collator gives: ids padded on the right, a mask, and labels of -100 wherever there is no loss."""
    ids = torch.zeros(len(encoded), max(map(len, encoded)), dtype=torch.int64)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for i, e in enumerate(encoded):
        ids[i, : len(e)] = torch.from_numpy(e.input_ids)
        labels[i, : len(e)] = torch.from_numpy(np.where(e.is_target, e.input_ids, -100))
        mask[i, : len(e)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def own_toy() -> CausalModel:
    return load_model("builtin:toy", FLOAT32)[0]


@pytest.fixture(scope="module")
def texts(rows) -> list[Query]:
    """Rows of all lengths; some begin alike, one is the beginning of another, one stands twice, one has two answers."""
    records = rows.members[:6]
    turns = (Message("user", "Hi"), Message("assistant", "Good day, Ada.", scored=True), Message("user", "And now?"))
    return [
        *map(plain, records),
        plain(records[2]),
        Query(records[0].messages, records[0].target[:10]),
        Query(records[0].messages, records[0].target[:30]),
        Query(turns, "Nothing more."),
        Query((), records[1].target),
        Query((Message("text", records[3].target * 2),), records[4].target),
        Query((Message("user", "a"),), "a"),
    ]


def gradient(model: CausalModel) -> torch.Tensor:
    flat = torch.cat([p.grad.flatten() for p in model.module.parameters() if p.requires_grad])
    model.module.zero_grad()
    return flat


def slow_gradient(model: CausalModel, encoded: Sequence[Encoded]) -> tuple[float, torch.Tensor]:
    """transformers' own mean over all supervised tokens."""
    loss = model.module(**padded(encoded)).loss
    loss.backward()
    return float(loss.detach()), gradient(model)


def step(model: CausalModel, encoded: Sequence[Encoded], max_tokens: int = 100_000, *, autocast: bool = False):
    parameters = list(model.module.parameters())
    rows = range(len(encoded))
    loss, n = sft.train_step(model, parameters, rows, encoded, micro_batch_tokens=max_tokens, autocast=autocast)
    assert n == sum(int(e.is_target.sum()) for e in encoded)
    return loss, gradient(model)


# One step.


def test_the_training_loss_of_a_record_is_minus_the_sum_of_its_scored_log_probabilities(toy, texts) -> None:
    found, _ = answer(toy, texts)
    model = own_toy()
    for query in texts:
        loss = float(passes.add_gradient(model, [model.encode(query)], 1.0, autocast=False))
        assert loss == pytest.approx(-found[query].logprobs.sum(), abs=1e-3, rel=1e-5)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 300, 100_000])
def test_micro_batches_give_the_gradient_of_one_large_batch(texts, packs: bool, max_tokens: int) -> None:
    model = own_toy()
    assert model.packs
    encoded = [model.encode(q) for q in texts]
    mean, wanted = slow_gradient(model, encoded)
    loss, got = step(replace(model, packs=packs), encoded, max_tokens)
    assert loss == pytest.approx(mean, abs=1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("logits_bytes", [1, 512 * 4 * 7])
def test_the_head_in_chunks_changes_nothing(texts, monkeypatch: pytest.MonkeyPatch, logits_bytes: int) -> None:
    monkeypatch.setattr(passes, "LOGITS_BYTES", logits_bytes)
    model = own_toy()
    encoded = [model.encode(q) for q in texts]
    mean, wanted = slow_gradient(model, encoded)
    loss, got = step(model, encoded)
    assert loss == pytest.approx(mean, abs=1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-6)


def test_bfloat16_arithmetic_gives_about_the_same_gradient(texts) -> None:
    model = own_toy()
    encoded = [model.encode(q) for q in texts]
    mean, wanted = slow_gradient(model, encoded)
    loss, got = step(model, encoded, autocast=True)
    assert loss == pytest.approx(mean, rel=0.01)
    assert float(torch.nn.functional.cosine_similarity(got, wanted, dim=0)) > 0.99
    assert float((got - wanted).norm() / wanted.norm()) < 0.1


def test_a_beginning_that_rows_share_is_computed_once_unless_something_is_dropped_at_random(texts) -> None:
    model = own_toy()
    encoded = [model.encode(q) for q in texts]
    seen = []

    def count(_module, _args, kwargs) -> None:
        seen.append(kwargs["input_ids"].numel())

    model.network.backbone.register_forward_pre_hook(count, with_kwargs=True)
    model.module.train()
    passes.add_gradient(model, encoded, 1.0, autocast=False)
    model.module.config.attention_dropout = 0.5  # dropped by a function, not by a module
    passes.add_gradient(model, encoded, 1.0, autocast=False)
    model.module.eval()
    passes.add_gradient(model, encoded, 1.0, autocast=False)
    beginnings = {e.input_ids[: t + 1].tobytes() for e in encoded for t in range(len(e))}
    assert seen == [len(beginnings), sum(map(len, encoded)), len(beginnings)]


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 512, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=2, **sizes))


def _mixed_windows():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers = ["full_attention", "sliding_attention", "full_attention"]
    windows = {"layer_types": layers, "use_sliding_window": True, "sliding_window": 12}
    return Qwen3ForCausalLM(Qwen3Config(**windows, **SIZES, **HEADS, **IDS))


def _capped():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(attn_logit_softcapping=5.0, sliding_window=16, **SIZES, **HEADS, **IDS))


@pytest.mark.parametrize("explicit_length", [0, 60, 512])
@pytest.mark.parametrize(("make", "packs"), [(_gpt2, True), (_mixed_windows, True), (_capped, False)])
def test_other_architectures_and_both_ways_of_attention(
    tokenizer, texts, tmp_path, monkeypatch, make: Callable[[], torch.nn.Module], packs: bool, explicit_length: int
) -> None:
    monkeypatch.setattr(packing, "EXPLICIT_LENGTH", explicit_length)
    torch.manual_seed(1)
    make().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, _ = load_model(str(tmp_path), FLOAT32)
    assert model.packs is packs
    encoded = [model.encode(q) for q in texts]
    mean, wanted = slow_gradient(model, encoded)
    loss, got = step(model, encoded, 400)
    assert loss == pytest.approx(mean, abs=1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


# Which rows go together.


def test_passes_keep_the_order_of_rows_or_go_by_length_where_there_is_padding(toy, texts) -> None:
    encoded = [toy.encode(q) for q in texts]
    rows = list(np.random.default_rng(0).permutation(len(encoded)))
    for max_tokens in (1, 200, 500, 100_000):
        parts = sft.micro_batches(rows, encoded, max_tokens)
        assert [i for part in parts for i in part] == rows
        sizes = [sum(len(encoded[i]) for i in part) for part in parts]
        assert all(len(p) == 1 or n <= max_tokens for p, n in zip(parts, sizes, strict=True))
        for part, n, after in zip(parts, sizes, parts[1:], strict=False):
            assert n + len(encoded[after[0]]) > max_tokens, f"{part} has room"
        parts = sft.micro_batches(rows, encoded, max_tokens, packs=False)
        assert sorted(i for part in parts for i in part) == sorted(rows)
        assert all(len(p) == 1 or len(p) * max(len(encoded[i]) for i in p) <= max_tokens for p in parts)


@pytest.mark.parametrize("n_processes", [1, 2, 3, 50])
def test_processes_share_the_rows_of_a_step(toy, texts, n_processes: int) -> None:
    encoded = [toy.encode(q) for q in texts]
    rows = [5, 3, 3, 0, 11, 8, 2]  # a row may come twice
    shares = [sft.share_of(rows, encoded, n_processes, process) for process in range(n_processes)]
    assert sorted(i for share in shares for i in share) == sorted(rows)
    loads = [sum(len(encoded[i]) for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(len(encoded[i]) for i in rows)
    assert sft.share_of(rows, encoded, 1, 0) == rows


# Many steps.


def trainer_losses(
    model: CausalModel, records: Sequence[Record], config: TrainConfig, folder: Path
) -> tuple[list[float], torch.Tensor]:
    """Loss of every step, and the weights at the end, as transformers' Trainer has them on the same rows in order."""
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(config.seed)
    if config.lora_rank:
        model = replace(model, module=add_adapter(model.module, config), adapter=True)
    encoded = [model.encode(plain(r)) for r in records]
    order = [i for epoch in sft.row_order(len(encoded), config.epochs, config.seed) for i in epoch]
    n_steps = len(order) // config.batch_size
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=config.learning_rate, betas=(0.9, 0.999), weight_decay=0.0)
    warmup = round(config.warmup_ratio * n_steps)
    rates = [sft.learning_rate(n, n_steps, 1.0, config.schedule, warmup) for n in range(1, n_steps + 1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: rates[min(n, n_steps - 1)])
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=config.batch_size,
        num_train_epochs=1,
        max_grad_norm=1.0,
        logging_steps=1,
        train_sampling_strategy="sequential",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model.module,
        args=arguments,
        train_dataset=[encoded[i] for i in order],
        data_collator=padded,
        optimizers=(optimiser, schedule),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize(
    ("changes", "packs"),
    [({}, True), ({"micro_batch_tokens": 300}, True), ({"micro_batch_tokens": 300}, False), ({"lora_rank": 4}, True)],
)
def test_the_loss_curve_is_that_of_the_plain_trainer(rows, tmp_path, changes: dict[str, int], packs: bool) -> None:
    """Within 1e-4 of each loss over 15 steps of all weights at a rate of 3e-3, in float32."""
    settings = {"epochs": 3, "batch_size": 8, "learning_rate": 3e-3, "autocast": "off", "device": "cpu", **changes}
    config = TrainConfig(model="builtin:toy", train="", out="", **settings)
    wanted, weights = trainer_losses(own_toy(), rows.members, config, tmp_path)
    model = replace(own_toy(), packs=packs)
    steps = sft.fine_tune(model, rows.members, config, tmp_path / "ours")
    assert len(steps) == len(wanted) == 15
    assert [s.loss for s in steps] == pytest.approx(wanted, rel=1e-4)
    assert wanted[-1] < wanted[0] - 0.1
    trained = torch.cat([p.detach().flatten() for p in model.module.parameters() if p.requires_grad])
    assert float((trained - weights).norm() / weights.norm()) < 1e-3


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, {1: 2.0, 5: 2.0, 10: 2.0}),
        ("constant", 4, {1: 0.5, 2: 1.0, 4: 2.0, 5: 2.0, 10: 2.0}),
        ("cosine", 0, {1: 2.0, 6: 1.0, 10: 1 - np.cos(np.pi / 10)}),
        ("cosine", 2, {1: 1.0, 2: 2.0, 3: 2.0, 7: 1.0, 10: 1 - np.cos(np.pi / 8)}),
    ],
)
def test_learning_rates(schedule: str, warmup: int, expected: dict[int, float]) -> None:
    assert {s: sft.learning_rate(s, 10, 2.0, schedule, warmup) for s in expected} == pytest.approx(expected)


def test_every_epoch_has_every_row_once_in_a_seeded_order() -> None:
    order = sft.row_order(30, 3, seed=5)
    assert [sorted(epoch) for epoch in order] == [list(range(30))] * 3
    assert order[0] != order[1] != order[2]
    assert sft.row_order(30, 3, seed=5) == order
    assert sft.row_order(30, 3, seed=6) != order
    assert sft.row_order(4, 2, seed=5, shuffle=False) == [[0, 1, 2, 3]] * 2


def test_the_training_log_says_what_was_seen_when(tuned_toy: Path, rows) -> None:
    assert (tuned_toy / "training_log.parquet").stat().st_mode & 0o077 == 0  # it says who was trained on
    log = pd.read_parquet(tuned_toy / "training_log.parquet")
    ids = [r.id for r in rows.members]
    order = [ids[i] for epoch in sft.row_order(40, 12, seed=0) for i in epoch]
    assert log["record_id"].tolist() == order
    assert log["step"].tolist() == [1 + i // 8 for i in range(480)]
    assert log["epoch"].tolist() == [1 + i // 40 for i in range(480)]
    rates = log.groupby("step")["learning_rate"].first()
    assert rates.tolist() == pytest.approx([sft.learning_rate(s, 60, 3e-3, "cosine", 6) for s in range(1, 61)])


def test_rows_longer_than_the_limit_are_left_out_and_never_cut(toy, rows) -> None:
    lengths = [len(toy.encode(plain(r))) for r in rows.members[:5]]
    encoded, kept = sft.encode_rows(toy, rows.members[:5], max_tokens=sorted(lengths)[2])
    assert kept == [i for i, n in enumerate(lengths) if n <= sorted(lengths)[2]]
    assert [len(e) for e in encoded] == [lengths[i] for i in kept]


def test_a_tuned_folder_is_scored_with_the_weights_training_ended_with(tuned_toy: Path, rows, tmp_path: Path) -> None:
    """The last logged loss is over the last step's rows before its update; the saved model must do better on them."""
    log = pd.read_parquet(tuned_toy / "training_log.parquet")
    last = log[log["step"] == log["step"].max()]
    copied = shutil.copytree(tuned_toy, tmp_path / "copy")
    model, _ = load_model(str(copied), FLOAT32)
    asked = [plain(r) for r in rows.members if r.id in set(last["record_id"])]
    found, _ = answer(model, asked)
    mean = -np.concatenate([found[q].logprobs for q in asked]).mean()
    assert mean < last["loss"].iloc[0]
    assert mean == pytest.approx(last["loss"].iloc[0], abs=0.1)
