"""LoRA adapters."""

from __future__ import annotations

from typing import Any

from indelible.config import TrainConfig
from indelible.errors import ConfigError


def add_adapter(module: Any, config: TrainConfig) -> Any:
    """Put a LoRA adapter on every linear layer but the head, and freeze the rest.

    Raises:
        ConfigError: the settings do not fit the model.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
    )
    try:
        return get_peft_model(module, settings)
    except ValueError as error:
        raise ConfigError(f"LoRA does not fit this model: {str(error).splitlines()[0]}") from error
