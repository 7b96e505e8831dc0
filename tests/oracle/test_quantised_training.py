"""LoRA on a 4- or 8-bit base against the same adapter on that base written out in float32, and through to an audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from indelible.config import AuditConfig, TrainConfig, resolve
from indelible.data.chat import Encoded
from indelible.data.records import Query
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.training import sft
from indelible.training.peft import add_adapter, trainable_layout
from indelible.training.run import run_train

pytest.importorskip("bitsandbytes", reason="4- and 8-bit weights need bitsandbytes: pip install 'indelible[quant]'")

BOTH = pytest.mark.parametrize("quantise", ["4bit", "8bit"])


@pytest.fixture(scope="module")
def base(tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose layers are as wide as 4-bit blocks are long."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2, initializer_range=0.1, **sizes, **heads)
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(base: Path, **changes: object) -> TrainConfig:
    given = {"model": str(base), "train": "", "out": "", "lora_rank": 4, "device": "cpu", "autocast": "off", **changes}
    return TrainConfig(**given)


def quantised(base: Path, quantise: str) -> CausalModel:
    options = LoadOptions(device="cpu", dtype="float32", quantise=quantise, trainable=True)
    with trainable_layout():
        return load_model(str(base), options)[0]


def written_out(model: CausalModel, base: Path) -> CausalModel:
    """The model with its quantised layers as plain ones of the same weights."""
    import bitsandbytes as bnb

    plain = load_model(str(base), LoadOptions(device="cpu", dtype="float32", trainable=True))[0]
    layers = dict(plain.module.named_modules())
    n = 0
    for name, layer in model.module.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            weights = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            weights = layer.weight.data.float() * layer.state.SCB[:, None] / 127
        else:
            continue
        n += 1
        before = layers[name].weight.detach().clone()
        layers[name].weight.data.copy_(weights)
        assert 1e-3 < float((weights - before).norm() / before.norm()) < 0.2
    assert n == 14
    return plain


def adapted(model: CausalModel, config: TrainConfig) -> CausalModel:
    torch.manual_seed(5)
    model = replace(model, module=add_adapter(model.module, config), adapter=True)
    for name, p in sorted(model.module.named_parameters()):
        if "lora_" in name:
            torch.nn.init.normal_(p, std=0.05, generator=torch.Generator().manual_seed(len(name)))
    return model


def gradient(model: CausalModel, encoded: Sequence[Encoded], *, autocast: bool = False) -> tuple[float, torch.Tensor]:
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    model.module.train()
    loss, _ = sft.train_step(model, parameters, range(len(encoded)), encoded, micro_batch_tokens=500, autocast=autocast)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    model.module.zero_grad()
    return loss, flat


@BOTH
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_pass_through_the_quantised_base(rows, base: Path, quantise: str, autocast: bool) -> None:
    config = settings(base, quantise=quantise)
    model = quantised(base, quantise)
    plain = adapted(written_out(model, base), settings(base))
    model = adapted(model, config)
    encoded = [plain.encode(Query(r.messages, r.target)) for r in rows.members[:6]]
    wanted_loss, wanted = gradient(plain, encoded)
    loss, got = gradient(model, encoded, autocast=autocast)
    exact = quantise == "4bit" and not autocast  # 8 bits also round what comes into a layer
    assert loss == pytest.approx(wanted_loss, rel=1e-4 if exact else 0.02)
    error = float((got - wanted).norm() / wanted.norm())
    assert error < (1e-3 if exact else 0.1)


@pytest.mark.parametrize(
    ("quantise", "dp"),
    [("4bit", {}), ("8bit", {}), ("4bit", {"dp_epsilon": 1e6})],
    ids=["4bit", "8bit", "private-4bit"],
)
def test_an_adapter_is_trained_saved_and_audited_on_its_quantised_base(
    rows, base: Path, tmp_path: Path, quantise: str, dp: dict[str, float]
) -> None:
    from indelible.audit import run_audit
    from indelible.data.synthetic import synthetic_records, write_jsonl

    out = tmp_path / "tuned"
    config = settings(
        base, quantise=quantise, train=str(rows.train), out=str(out), epochs=10, batch_size=8, learning_rate=1e-2,
        lora_rank=8, **dp,
    )  # fmt: skip
    run_train(config)
    log = pd.read_parquet(out / "training_log.parquet")
    losses = log.groupby("step")["loss"].first().to_numpy()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
    assert all(t.dtype == torch.float32 for t in load_file(out / "adapter_model.safetensors").values())
    facts = json.loads((out / "training.json").read_text())
    assert facts["quantise"] == quantise
    assert quantise in facts["arithmetic"]
    write_jsonl(tmp_path / "heldout.jsonl", synthetic_records(60, seed=78))
    flags = {
        "model": str(out), "members": str(rows.train), "nonmembers": str(tmp_path / "heldout.jsonl"),
        "attacks": ["loss", "reference-base"], "out": str(tmp_path / "run"), "drift_records": 0,
        "load": {"quantise": quantise, "device": "cpu", "dtype": "float32"},
    }  # fmt: skip
    run_audit(resolve(AuditConfig, flags)[0], flags, command=[])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["models"]["target"]["quantised"] == quantise
    scores = pd.read_parquet(tmp_path / "run" / "scores.parquet").pivot_table(
        index="record_id", columns=["model", "attack"], values="score"
    )
    assert scores["target", "loss"].mean() > scores["base", "loss"].mean()
