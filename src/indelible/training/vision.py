"""Fine-tuning of a vision-language model: its language model and connector, with the vision encoder as it was.

Rows are conversations with images; they come in the order that the settings say, as for text, and the loss is on the
answers alone: an image token is never under it (`data/chat.py`). Schedule, clipping, checkpoints, ledger, LoRA and
several processes are the text trainer's (`training/sft.py`).

After "Canary audits" C-A2, which trains language model and connector of four such models and freezes the encoder.
Differs from the paper: the loss of a step is the mean over its supervised tokens for every family; the paper keeps each
model's own normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from indelible.config import TrainConfig
from indelible.data.records import Record
from indelible.errors import ConfigError, DataError, ModelError
from indelible.models.causal import CausalModel
from indelible.models.vision import VisionModel
from indelible.progress import say
from indelible.training.sft import Step, fine_tune


def freeze_encoder(model: VisionModel) -> int:
    """Take the vision encoder's weights out of training; how many parameters those are.

    Raises:
        ModelError: the encoder is not found, or nothing but it is there.
    """
    pattern = model.sight.family.encoder
    encoder = [p for name, p in model.causal.named_parameters() if re.fullmatch(pattern, name)]
    if not encoder:
        raise ModelError(f"{model.name}: no part of it is named as a vision encoder of {model.sight.family.name} is")
    for p in encoder:
        p.requires_grad_(False)
    return sum(p.numel() for p in encoder)


def fine_tune_vision(
    model: CausalModel, records: Sequence[Record], config: TrainConfig, out: Path, *, train_sha256: str | None = None
) -> list[Step]:
    """Train language model and connector, and write `out` as `fine_tune` does, with the image processing beside it.

    Args:
        model: loaded with `LoadOptions(images=True, trainable=True)`, in float32 or quantised.
        records: training rows with their `images`; rows without are trained on as text.
        config: as for text; with a LoRA rank the adapter is on language model and connector.

    Raises:
        ModelError: a text model, or an image that the model does not take. ConfigError: DP-SGD, which is for text.
        DataError: no row fits, or none has an image.
    """
    if not isinstance(model, VisionModel):
        raise ModelError(f"{model.name} has no vision tower: load a vision-language model, with images")
    if config.dp_epsilon is not None:
        raise ConfigError("--dp-epsilon is for text models: rows with images are not clipped one by one")
    if not any(r.images for r in records):
        raise DataError(f"none of the {len(records)} training rows has an image: train it as a text model")
    n_frozen = freeze_encoder(model)
    say(f"{n_frozen:,} parameters of the vision encoder stay as they are")
    return fine_tune(model, records, config, out, train_sha256=train_sha256)
