"""LoRA adapters, on a base in floating point or in 4 or 8 bits (QLoRA)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from indelible.config import TrainConfig
from indelible.errors import ConfigError, ModelError


def check_adapter_settings(config: TrainConfig) -> None:
    """Refuse, before anything is read, what does not go together.

    Raises:
        ConfigError: a quantised base without an adapter; its own weights cannot be trained.
    """
    if config.quantise != "none" and not config.lora_rank:
        raise ConfigError(f"--quantise {config.quantise} trains an adapter only: give --lora-rank with it")


def add_adapter(module: Any, config: TrainConfig, *, spare: str | None = None) -> Any:
    """Put a LoRA adapter on every linear layer but the head, and freeze the rest. Modules whose names match the pattern
    `spare` get none.

    A quantised base keeps its linear layers as they are; all else of it is cast to float32, as the adapter is
    (T. Dettmers et al., "QLoRA", NeurIPS 2023).

    Raises:
        ConfigError: the settings do not fit the model. ModelError: gradients would not pass through its layers.
    """
    from peft import LoraConfig, TaskType, get_peft_model, prepare_model_for_kbit_training

    if config.quantise != "none":
        module = prepare_model_for_kbit_training(module, use_gradient_checkpointing=False)
        if any(getattr(getattr(p, "quant_state", None), "packing_format_for_cpu", False) for p in module.parameters()):
            raise ModelError(f"{config.model}: its 4-bit weights are laid out for answering only; load it for training")
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        exclude_modules=spare,
    )
    try:
        with warnings.catch_warnings():  # GPT-2 keeps its weights transposed: peft sees that, and says so
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False", category=UserWarning)
            return get_peft_model(module, settings)
    except ValueError as error:
        raise ConfigError(f"LoRA does not fit this model: {str(error).splitlines()[0]}") from error


@contextmanager
def trainable_layout() -> Iterator[None]:
    """Within it, quantised models that are loaded keep a layout that gradients pass through.

    On processors with bfloat16 arithmetic bitsandbytes lays 4-bit weights out anew in the first pass of a model that
    answers, which the checks after loading are. A later backward pass then gives no gradient below those layers, with
    no more than a warning.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    def keep(layer: Any, _inputs: Any) -> None:
        if getattr(layer, "support_avx512bf16_for_cpu", False):
            layer.support_avx512bf16_for_cpu = False

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # else a line for every product of 8-bit weights
    hook = register_module_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()
