"""What training leaves behind: folders that transformers loads, and a ledger of which record was seen when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.config import TrainConfig
from indelible.data.records import Record
from indelible.models.causal import CausalModel

if TYPE_CHECKING:
    from indelible.training.sft import Step


def save_checkpoint(model: CausalModel, folder: Path, config: TrainConfig, steps: Sequence[Step]) -> None:
    """Weights (safetensors; an adapter alone for LoRA), config, tokenizer and the chat template as trained."""
    folder.mkdir(parents=True, exist_ok=True)
    extra: dict[str, Any] = {}
    if config.lora_rank:
        for adapter in model.module.peft_config.values():
            adapter.base_model_name_or_path = config.model  # as audits resolve it, builtin: names too
        extra["save_embedding_layers"] = False  # never trained here; "auto" would look for the base on the hub
    model.module.save_pretrained(folder, safe_serialization=True, **extra)
    model.save_rendering(folder)
    (folder / "README.md").unlink(missing_ok=True)  # an unfilled model card with paths of this machine


def write_log(path: Path, steps: Sequence[Step], records: Sequence[Record]) -> None:
    """`training_log.parquet`: step, epoch, record_id, learning_rate, loss (the step's), one row a record seen.

    It says who was trained on: readable by its owner alone.
    """
    import pandas as pd

    rows = [(s.step, s.epoch, records[i].id, s.learning_rate, s.loss) for s in steps for i in s.rows]
    frame = pd.DataFrame(rows, columns=["step", "epoch", "record_id", "learning_rate", "loss"])
    path.touch(mode=0o600)
    path.chmod(0o600)
    frame.to_parquet(path, index=False)
