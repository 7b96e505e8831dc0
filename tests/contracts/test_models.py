"""What every local language model promises, and what a model folder that cannot be used says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.data.records import Message, Query
from indelible.errors import ConfigError, ModelError
from indelible.models.base import LanguageModel
from indelible.models.builtin import builtin_folder
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.models.sources import locate
from indelible.training.peft import add_adapter

FLOAT32 = LoadOptions(device="cpu", dtype="float32")
QUERY = Query((Message("user", "When is my hearing test?"),), "It is on Monday.")


@pytest.fixture(scope="module")
def models(toy, lora_toy: Path) -> dict[str, CausalModel]:
    adapted = load_model(str(lora_toy), FLOAT32)[0]
    return {"toy": toy, "adapted": adapted, "base of adapted": adapted.as_base()}


@pytest.mark.parametrize("name", ["toy", "adapted", "base of adapted"])
def test_a_model_answers_as_the_protocol_says(models, name: str) -> None:
    model = models[name]
    assert isinstance(model, LanguageModel)
    assert model.name
    assert model.context_length == 1024
    encoded = [model.encode(q) for q in (QUERY, Query((), "Text."), replace(QUERY, target="No."))]
    assert all(isinstance(e, Encoded) for e in encoded)
    answers = dict(model.stream(encoded))
    assert sorted(answers) == [0, 1, 2]
    for i, answer in answers.items():
        n = int(encoded[i].is_target.sum())
        for part, dtype in zip(("logprobs", "mean", "std", "argmax"), ("f4", "f4", "f4", "i4"), strict=True):
            assert getattr(answer, part).shape == (n,)
            assert getattr(answer, part).dtype == np.dtype(dtype)
        assert (answer.logprobs <= 0).all()
        assert (answer.std >= 0).all()
    costs = list(model.costs(encoded))
    assert costs[:2] == [len(e) for e in encoded[:2]]
    assert 0 < costs[2] < len(encoded[2]), "the prompt is the first one's"
    assert list(model.stream([])) == []
    together = model.logprobs([QUERY])[0].logprobs
    np.testing.assert_allclose(together, answers[0].logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["toy", "adapted", "base of adapted"])
def test_generation_is_the_greedy_continuation_of_the_prompt(models, name: str) -> None:
    model = models[name]
    ids = model.encode(QUERY).input_ids[: model.encode(QUERY).target_positions[0]].tolist()
    start = len(ids)
    with torch.inference_mode(), model.network.context():
        for _ in range(8):
            ids.append(int(model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if ids[-1] == model.chat.tokenizer.eos_token_id:
                break
    expected = model.chat.tokenizer.decode(ids[start:], skip_special_tokens=True)
    assert model.generate([QUERY, replace(QUERY, target="ignored")], 8) == [expected, expected]
    assert expected.strip()


def test_a_fingerprint_is_stable_over_reloads_and_unlike_any_other(models, lora_toy, tuned_toy, tmp_path) -> None:
    different = {
        **models,
        "tuned": load_model(str(tuned_toy), FLOAT32)[0],
        "bfloat16": load_model("builtin:toy", replace(FLOAT32, dtype="bfloat16"))[0],
        "template": load_model("builtin:toy", replace(FLOAT32, template="alpaca"))[0],
        "system": load_model("builtin:toy", replace(FLOAT32, system="Be kind."))[0],
    }
    assert len({m.fingerprint for m in different.values()}) == len(different)
    assert load_model("builtin:toy", FLOAT32)[0].fingerprint == models["toy"].fingerprint
    moved = shutil.copytree(builtin_folder("toy"), tmp_path / "moved")
    again = load_model(str(moved), replace(FLOAT32, batch_tokens=77))[0]
    assert again.fingerprint == models["toy"].fingerprint, "neither the place nor the batch size moves an answer"
    reloaded = load_model(str(lora_toy), FLOAT32)[0]
    assert reloaded.fingerprint == models["adapted"].fingerprint
    assert reloaded.as_base().fingerprint == models["base of adapted"].fingerprint


def test_equal_weights_are_one_model_whatever_their_training_says_of_itself(models, lora_toy: Path, tmp_path) -> None:
    again = shutil.copytree(lora_toy, tmp_path / "again")
    told = json.loads((again / "training.json").read_text())
    (again / "training.json").write_text(json.dumps({**told, "seconds": 9e9}))
    assert load_model(str(again), FLOAT32)[0].fingerprint == models["adapted"].fingerprint
    (again / "training.json").write_text(json.dumps({**told, "system": "Be kind."}))
    assert locate(str(again)).fingerprint() != locate(str(lora_toy)).fingerprint()
    # another adapter over the same base: the base is one model
    (again / "training.json").write_text(json.dumps(told))
    weights = again / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    other = load_model(str(again), FLOAT32)[0]
    assert other.fingerprint != models["adapted"].fingerprint
    assert other.as_base().fingerprint == models["base of adapted"].fingerprint


def test_the_base_view_shares_its_weights_with_the_adapted_model(models) -> None:
    assert models["base of adapted"].module is models["adapted"].module
    with pytest.raises(ModelError, match="--base"):
        models["toy"].as_base()


def test_training_an_adapter_of_a_builtin_model_looks_for_nothing_on_a_hub(lora_toy: Path) -> None:
    assert "Could not find a config file" not in (lora_toy.parent / "warnings.txt").read_text()


def test_the_tuned_folder_carries_the_template_it_was_trained_with(tuned_toy: Path, toy) -> None:
    model, source = load_model(str(tuned_toy), replace(FLOAT32, chat_data=True))
    assert source.kind == "folder"
    assert model.encode(QUERY).input_ids.tolist() == toy.encode(QUERY).input_ids.tolist()
    assert list(tuned_toy.glob("*.safetensors"))
    assert not [*tuned_toy.rglob("*.bin"), *tuned_toy.rglob("*.pt")]


def test_an_adapter_that_changes_no_logit_is_refused(tmp_path: Path) -> None:
    base = load_model("builtin:toy", replace(FLOAT32, trainable=True))[0]
    config = TrainConfig(model="builtin:toy", train="-", out="-", lora_rank=2)
    module = add_adapter(base.module, config)  # B is zero until it is trained
    base_folder = str(shutil.copytree(builtin_folder("toy"), tmp_path / "base"))
    for adapter in module.peft_config.values():
        adapter.base_model_name_or_path = base_folder
    module.save_pretrained(tmp_path / "untrained")
    with pytest.raises(ModelError, match="changes no logit") as caught:
        load_model(str(tmp_path / "untrained"), FLOAT32)
    assert "\n" not in str(caught.value)


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(builtin_folder("toy"), folder / "model"))


def _no_weights(folder: Path) -> Path:
    (_copy(folder) / "model.safetensors").unlink()
    return folder / "model"


def _pickles(folder: Path) -> Path:
    _no_weights(folder)
    torch.save({}, folder / "model" / "pytorch_model.bin")
    return folder / "model"


def _no_config(folder: Path) -> Path:
    (_copy(folder) / "config.json").unlink()
    return folder / "model"


def _broken_config(folder: Path) -> Path:
    (_copy(folder) / "config.json").write_text("{")
    return folder / "model"


def _unknown_architecture(folder: Path) -> Path:
    (_copy(folder) / "config.json").write_text(json.dumps({"model_type": "abacus"}))
    return folder / "model"


def _broken_weights(folder: Path) -> Path:
    (_copy(folder) / "model.safetensors").write_bytes(b"not tensors")
    return folder / "model"


def _weights_of_another_shape(folder: Path) -> Path:
    path = _copy(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 48, "head_dim": 12}))
    return folder / "model"


def _weights_missing_a_layer(folder: Path) -> Path:
    path = _copy(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 3}))
    return folder / "model"


def _no_tokenizer(folder: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (_copy(folder) if not (folder / "model").exists() else folder / "model").joinpath(name).unlink()
    return folder / "model"


def _no_template(folder: Path) -> Path:
    (_copy(folder) / "chat_template.jinja").unlink()
    return folder / "model"


def _file(folder: Path) -> Path:
    (folder / "model.safetensors").write_bytes(b"")
    return folder / "model.safetensors"


def _broken_gguf(folder: Path) -> Path:
    (folder / "model.gguf").write_bytes(b"GGUF and nothing more")
    return folder / "model.gguf"


def _adapter(text: str, weights: str = "adapter_model.safetensors") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "adapter_config.json").write_text(text)
        (folder / weights).write_bytes(b"")
        return folder

    make.__name__ = f"_adapter_{text[:12]}_{weights}"
    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "no model folder at"),
        (_file, "is a file"),
        (_no_weights, "no weights"),
        (_pickles, "only pickled weights"),
        (_no_config, "no config.json"),
        (_broken_config, "model"),
        (_unknown_architecture, "abacus"),
        (_broken_weights, "cannot be loaded"),
        (_weights_of_another_shape, "cannot be loaded"),
        (_weights_missing_a_layer, "cannot be loaded whole"),
        (_no_tokenizer, "no tokenizer"),
        (_no_template, "no chat template"),
        (_broken_gguf, "GGUF"),
        (_adapter("{}"), "names no base model"),
        (_adapter("{}", "adapter_model.bin"), "no adapter_model.safetensors"),
        (_adapter("{"), "adapter_config.json"),
    ],
    ids=lambda x: getattr(x, "__name__", None) if callable(x) else "",
)
def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(str(make(tmp_path)), replace(FLOAT32, chat_data=True))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("builtin:toyy", {}, "Did you mean 'toy'"),
        ("builtin:toy", {"dtype": "float8"}, "--dtype float8"),
        ("builtin:toy", {"device": "abacus"}, "--device abacus"),
        ("builtin:toy", {"template": "alpacca"}, "Did you mean 'alpaca'"),
    ],
)
def test_a_wrong_name_is_one_clear_line(given: str, options: dict[str, str], message: str) -> None:
    with pytest.raises((ModelError, ConfigError)) as caught:
        load_model(given, replace(FLOAT32, **options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_base_is_rendered_as_the_target_is(tmp_path: Path) -> None:
    """A base without a template of its own, tuned with one, must be asked about the same text."""
    from indelible.config import AuditConfig, resolve
    from indelible.data.templates import TEMPLATES
    from indelible.subjects import load_subjects

    tuned, base = tmp_path / "tuned", tmp_path / "base"
    for folder, template in ((tuned, TEMPLATES["alpaca"]), (base, None)):
        shutil.copytree(builtin_folder("toy"), folder)
        (folder / "chat_template.jinja").unlink()
        if template:
            (folder / "chat_template.jinja").write_text(template)
    weights = load_file(tuned / "model.safetensors")
    save_file({k: v * 1.01 for k, v in weights.items()}, tuned / "model.safetensors", metadata={"format": "pt"})
    flags = {"model": str(tuned), "base": str(base), "members": "m", "nonmembers": "n"}
    subjects = load_subjects(resolve(AuditConfig, flags)[0], chat_data=True)
    query = Query((Message("user", "Hello"),), "Hi")
    one, two = (subjects.models[role].encode(query).input_ids.tolist() for role in ("target", "base"))
    assert one == two
