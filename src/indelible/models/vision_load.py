"""What loading a vision-language model needs besides a text model: its family, its image processing, and a proof that
it sees."""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indelible.data.pictures import picture
from indelible.data.records import Message, Query
from indelible.errors import MissingExtra, ModelError
from indelible.models.causal import CausalModel
from indelible.models.sight import Sight
from indelible.models.sources import Source
from indelible.models.vision import VisionChat, VisionModel
from indelible.models.vision_families import Family, family_of

IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
"""Where transformers writes a model's image processing."""


def check_vision(source: Source) -> Family:
    """The family of a full model's folder, before its weights are read.

    Raises:
        ModelError: it has no vision tower, or no image processing. MissingExtra: Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtra("questions with images need Pillow: pip install 'indelible[vision]'")
    config = _read(source.folder / "config.json", source.given)
    family = family_of(source.given, config)
    importlib.import_module(family.module)  # before its weights are read: transformers must know its classes
    return family


def with_vision(model: CausalModel, source: Source, under: Source) -> VisionModel:
    """A loaded vision-language module as a `VisionModel`.

    Args:
        model: the same module as a text model.
        source, under: where it came from, and its base where it is an adapter.

    Raises:
        ModelError: no image processing can be loaded, or tokenizer and image processing do not fit the model.
    """
    sight = load_sight(model.causal.config, model.chat.tokenizer, source, under)
    if hasattr(model.causal, "take_tokenizer"):  # what ours reads on a picture it writes in tokens
        model.causal.take_tokenizer(model.chat.tokenizer)
    chat = VisionChat(**_values(model.chat), marker=sight.processor.image_token)
    return VisionModel(**{**_values(model), "chat": chat}, sight=sight)


def load_sight(config: Any, tokenizer: Any, source: Source, under: Source) -> Sight:
    """What a model makes of pictures, from its config, tokenizer and image processing, without its weights.

    Raises:
        ModelError: as for `with_vision`.
    """
    family = check_vision(under)
    folder = source.folder if any((source.folder / f).exists() for f in IMAGE_FILES) else under.folder
    try:
        processor = family.make_processor(_image_processor(folder, source.given), tokenizer, config)
    except (AttributeError, TypeError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{source.given}: its tokenizer and image processing are not {family.name}'s: {line}"
        ) from error
    told = _read(source.folder / "vision.json", source.given).get("image_tokens", {})
    token_id = int(config.image_token_id)
    if tokenizer.convert_tokens_to_ids(processor.image_token) != token_id:
        raise ModelError(f"{source.given}: its tokenizer and its config disagree on the id of {processor.image_token}")
    above = max(int(config.get_text_config().vocab_size), len(tokenizer))
    return Sight(family, processor, token_id=token_id, first_id=above, trained=told)


def _values(made: Any) -> dict[str, Any]:
    return {f.name: getattr(made, f.name) for f in fields(made)}


def _image_processor(folder: Path, given: str) -> Any:
    from transformers import AutoImageProcessor

    if not any((folder / f).exists() for f in IMAGE_FILES):
        raise ModelError(f"{given} has no image processing: expected {' or '.join(IMAGE_FILES)} in its folder")
    try:
        return AutoImageProcessor.from_pretrained(folder, backend="pil")
    except (OSError, ValueError, KeyError, ImportError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{given}: its image processing cannot be loaded: {line}") from error


def take_processor_template(tokenizer: Any, source: Source, under: Source) -> None:
    """Give the tokenizer the chat template that older folders keep for the processor, in a file that tokenizers do not
    read; where there is one it is the one that knows images."""
    folder = source.folder if (source.folder / "tokenizer_config.json").exists() else under.folder
    template = _read(folder / "chat_template.json", source.given).get("chat_template")
    if isinstance(template, str) and not (folder / "chat_template.jinja").exists():
        tokenizer.chat_template = template


def _read(path: Path, given: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ModelError(f"{given}: {path.name} is not a JSON object") from error
    if not isinstance(found, dict):
        raise ModelError(f"{given}: {path.name} is not a JSON object")
    return found


@torch.inference_mode()
def check_seeing(model: VisionModel) -> None:
    """Prove on one small picture that the decoder behind our embeddings computes what the model itself computes from
    pixels: image tokens in the right places, at the right positions.

    Raises:
        ModelError: it does not.
    """
    from PIL import Image

    ramp = np.add.outer(np.arange(64), np.arange(96))[..., None] * np.array([1, 2, 3])  # no two places alike
    shown = picture(Image.fromarray((ramp % 256).astype(np.uint8)))
    query = Query((Message("user", "What is it?"),), "A ramp.", (shown,))
    encoded = model.encode(query)
    ids = encoded.input_ids[None]
    network = model.network
    with network.context():
        whole = model.module(**model.generation_inputs(ids, np.ones_like(ids)), use_cache=False).logits[0].float()
        tokens = torch.from_numpy(ids).to(model.device)
        parts = network.head(network.backbone(input_ids=tokens, use_cache=False).last_hidden_state)[0].float()
    at = torch.from_numpy(encoded.target_positions - 1).to(model.device)
    whole, parts = whole[at].log_softmax(-1), parts[at].log_softmax(-1)
    if not whole.isfinite().all():
        raise ModelError(f"{model.name}: its logits behind a picture are not finite; use --dtype float32")
    if not torch.allclose(whole, parts, atol=1e-3 if model.dtype == torch.float32 else 0.1):
        raise ModelError(
            f"{model.name}: behind a picture it answers otherwise than its parts do; it cannot be scored yet"
        )
