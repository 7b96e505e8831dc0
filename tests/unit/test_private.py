"""What private and quantised training refuses, and how it says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from indelible.config import TrainConfig, resolve
from indelible.errors import ConfigError, MissingExtra, ModelError, UserError
from indelible.training.budget import check_private
from indelible.training.peft import add_adapter, check_adapter_settings, trainable_layout
from indelible.training.run import run_train

GIVEN = {"model": "builtin:toy", "train": "no-such-file.jsonl", "out": "no-such-folder"}


def settings(**changes: object) -> TrainConfig:
    return resolve(TrainConfig, {**GIVEN, **changes})[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dp_epsilon": 0}, "setting 'dp_epsilon': expected more than 0"),
        ({"dp_epsilon": -1}, "setting 'dp_epsilon': expected more than 0"),
        ({"dp_epsilon": float("inf")}, "setting 'dp_epsilon': expected a finite number"),
        ({"dp_epsilon": 8, "dp_clip": 0}, "setting 'dp_clip': expected more than 0"),
        ({"dp_epsilon": 8, "dp_delta": 1.0}, "setting 'dp_delta': expected less than 1"),
        ({"dp_epsilon": 8, "shuffle": False}, "--no-shuffle cannot keep its order under --dp-epsilon"),
        ({"dp_epsilon": 8, "max_grad_norm": 0.5}, "give --dp-clip"),
        ({"dp_delta": 1e-5}, "--dp-delta is a setting of DP-SGD: give --dp-epsilon with it"),
        ({"dp_clip": 0.5}, "--dp-clip is a setting of DP-SGD: give --dp-epsilon with it"),
        ({"quantise": "4bit"}, "--quantise 4bit trains an adapter only: give --lora-rank with it"),
        ({"quantise": "3bit", "lora_rank": 4}, "setting 'quantise': expected 'none', '4bit' or '8bit'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line_before_anything_is_read(
    changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        run_train(settings(**changes))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--dp-epsilon trains in one process"):
        check_private(settings(dp_epsilon=8))
    check_private(settings())


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))


def test_a_missing_opacus_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "opacus")
    with pytest.raises(MissingExtra, match=r"^--dp-epsilon needs opacus: pip install 'indelible\[dp\]'$"):
        run_train(settings(dp_epsilon=8))


def test_a_missing_bitsandbytes_names_its_extra(rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "bitsandbytes")
    with pytest.raises(MissingExtra, match=r"--quantise 8bit needs bitsandbytes: pip install 'indelible\[quant\]'"):
        run_train(settings(quantise="8bit", lora_rank=4, train=str(rows.train), out=str(tmp_path / "out")))


def test_the_file_must_have_enough_rows_for_the_delta(rows, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(rows.train.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(UserError, match=r"--dp-delta 0\.25: with 4 rows it must be below 0\.25"):
        run_train(settings(dp_epsilon=8, dp_delta=0.25, train=str(few), out=str(tmp_path / "out"), device="cpu"))
    assert not (tmp_path / "out").exists()


def test_what_goes_together_is_not_refused() -> None:
    check_private(TrainConfig.model_validate(settings().model_dump()))  # every setting written out
    for changes in ({}, {"dp_epsilon": 8}, {"dp_epsilon": 8, "dp_delta": 1e-5, "dp_clip": 2, "lora_rank": 4}):
        check_private(settings(**changes))
    check_adapter_settings(settings(quantise="4bit", lora_rank=1))
    check_adapter_settings(settings())


class Layer(torch.nn.Linear):
    """As a 4-bit layer of bitsandbytes behaves on processors with bfloat16 arithmetic."""

    support_avx512bf16_for_cpu = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.support_avx512bf16_for_cpu:
            self.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True)
        return super().forward(x)


def test_quantised_weights_keep_a_layout_that_gradients_pass_through() -> None:
    with trainable_layout():
        layer = Layer(2, 2)
        layer(torch.ones(2))
    layer(torch.ones(2))  # as the first training pass is
    assert not hasattr(layer.weight, "quant_state")
    outside = Layer(2, 2)
    outside(torch.ones(2))
    assert outside.weight.quant_state.packing_format_for_cpu
    with pytest.raises(ModelError, match="laid out for answering only"):
        add_adapter(torch.nn.Sequential(outside), settings(quantise="4bit", lora_rank=1))
