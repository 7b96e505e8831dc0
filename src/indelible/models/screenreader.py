"""`builtin:screenreader`: the embedded SmolLM2 behind a small encoder that reads screens, as transformers has such
models.

A picture becomes a fixed number of image tokens. The encoder (`screenreader_nets.py`) reads its lines; the connector
makes of each language-model token of what was read that token's own embedding, moved by where it stands; slots that no
token fills are blank. Lines go one under the other, parted by line breaks. What does not fit is left out, the shortest
lines first, as a code or a cue is longer than the name of a button. The words that are read are tokens already, so the
language model need not learn to see before it can copy; it learns where things stand, and what is asked.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import ProcessorMixin

from indelible.errors import ModelError
from indelible.models.screenreader_nets import Line, Reader

Spell = Callable[[str], tuple[list[int], list[tuple[int, int]]]]
"""A text to token ids and the characters [start, stop) that each stands for."""

IMAGE_TOKEN = "<image>"
N_WAVES = 6
PLACE_SCALE = 0.1
"""Of what a place adds to a token: about as large as embeddings are, so that a step of training moves both alike."""
N_KEPT = 4096
"""Readings of pictures that are kept; each is some kilobytes."""


class ScreenReaderConfig(LlamaConfig):  # type: ignore[misc]
    """A Llama's config, with the id of the image token and the number of learned slots before what was read."""

    model_type = "screenreader"
    image_token_id: int = 16
    n_lead: int = 8
    place_width: int = 128


class Connector(nn.Module):
    """From what was read, and where, to embeddings of the language model."""

    def __init__(self, config: ScreenReaderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.lead = nn.Parameter(0.1 * torch.randn(config.n_lead, width))
        self.blank = nn.Parameter(0.1 * torch.randn(width))
        self.place = nn.Sequential(
            nn.Linear(4 * (1 + 2 * N_WAVES), config.place_width), nn.GELU(), nn.Linear(config.place_width, width)
        )

    def forward(self, embeddings: Tensor, places: Tensor, n_slots: int) -> Tensor:
        """Embeddings of read tokens (T, D) and their places (T, 4) -> image tokens (n_slots, D)."""
        dtype = self.blank.dtype
        moved = embeddings + PLACE_SCALE * self.place(_waves(places).to(dtype))
        n_blank = n_slots - len(self.lead) - len(moved)
        return torch.cat([self.lead, moved.to(dtype), self.blank.expand(n_blank, -1)])


def _waves(places: Tensor) -> Tensor:
    """Middle and size in 0 to 1 (T, 4) as sines and cosines of several periods besides (T, 52)."""
    angles = places[..., None] * (torch.pi * 2.0 ** torch.arange(N_WAVES, device=places.device))  # (T, 4, W)
    return torch.cat([places, angles.sin().flatten(1), angles.cos().flatten(1)], dim=1)


class ScreenReaderModel(LlamaModel):  # type: ignore[misc]
    """A Llama with the encoder and the connector beside its layers; its forward pass is the Llama's own."""

    config_class = ScreenReaderConfig
    _keep_in_fp32_modules_strict = ("reader",)

    def __init__(self, config: ScreenReaderConfig) -> None:
        super().__init__(config)
        self.reader = Reader()
        self.connector = Connector(config)
        self.spell: Spell | None = None
        self._readings: OrderedDict[bytes, list[Line]] = OrderedDict()
        self.post_init()

    def see(self, image: Tensor, n_slots: int) -> Tensor:
        """Image tokens (n_slots, D) of a picture (H, W, 3), levels 0 to 1.

        Raises:
            ModelError: no tokenizer was given.
        """
        if self.spell is None:
            raise ModelError("this screenreader was loaded without its tokenizer: load it with images asked for")
        line_break, _ = self.spell("\n")
        room = n_slots - self.config.n_lead
        ids, places = as_tokens(self.readings(image), self.spell, line_break, image.shape, room)
        where = torch.tensor(places, dtype=torch.float32, device=image.device).reshape(-1, 4)
        known = torch.tensor(ids, dtype=torch.int64, device=image.device)
        seen: Tensor = self.connector(self.embed_tokens(known), where, n_slots)
        return seen

    def readings(self, image: Tensor) -> list[Line]:
        """What the encoder reads on a picture. It is never trained behind a picture, so its readings are kept."""
        key = _digest(image)
        if key not in self._readings:
            with torch.autocast(image.device.type, enabled=False):
                self.tell(image, self.reader.read(image.float()))
        return self._readings[key]

    def tell(self, image: Tensor, lines: list[Line]) -> None:
        """Take these lines for what stands on a picture."""
        self._readings[_digest(image)] = lines
        while len(self._readings) > N_KEPT:
            self._readings.popitem(last=False)


def _digest(image: Tensor) -> bytes:
    return hashlib.sha256(repr(tuple(image.shape)).encode() + image.cpu().float().numpy().tobytes()).digest()


def as_tokens(
    lines: Sequence[Line], spell: Spell, line_break: list[int], shape: Sequence[int], room: int
) -> tuple[list[int], list[tuple[float, float, float, float]]]:
    """Lines in reading order as at most `room` token ids, and each one's place: middle x, middle y, width, height, in
    shares of a picture (H, W, ...)."""
    parts: list[tuple[list[int], list[tuple[float, float, float, float]]]] = []
    height, width = shape[0], shape[1]
    for line in lines:
        ids, spans = spell(line.text)
        edges = [line.left, *((a + b) / 2 for a, b in zip(line.at, line.at[1:], strict=False)), line.right]
        y, tall = (line.top + line.bottom) / 2 / height, (line.bottom - line.top) / height
        places = [((edges[a] + edges[b]) / 2 / width, y, (edges[b] - edges[a]) / width, tall) for a, b in spans]
        end = (line.right / width, y, 0.0, tall)
        parts.append(([*ids, *line_break], [*places, *([end] * len(line_break))]))
    kept: set[int] = set()
    for i in sorted(range(len(parts)), key=lambda i: -len(parts[i][0])):
        if len(parts[i][0]) <= room:
            room -= len(parts[i][0])
            kept.add(i)
    ids_kept = [token for i, (ids, _) in enumerate(parts) if i in kept for token in ids]
    return ids_kept, [place for i, (_, places) in enumerate(parts) if i in kept for place in places]


class ScreenReaderForConditionalGeneration(LlamaForCausalLM):  # type: ignore[misc]
    """The whole model: input ids with placeholders, and the pictures that they stand for."""

    config_class = ScreenReaderConfig
    _keep_in_fp32_modules_strict = ("reader",)

    def __init__(self, config: ScreenReaderConfig) -> None:
        super().__init__(config)
        self.model = ScreenReaderModel(config)
        self.post_init()

    def take_tokenizer(self, tokenizer: Any) -> None:
        """The tokenizer that the language model's text is written in, for what is read on pictures."""

        def spell(text: str) -> tuple[list[int], list[tuple[int, int]]]:
            found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return list(found["input_ids"]), [tuple(span) for span in found["offset_mapping"]]

        self.model.spell = spell

    def get_image_features(
        self, pixel_values: Tensor, image_grid_thw: Tensor, n_image_tokens: Tensor, **_: Any
    ) -> BaseModelOutputWithPooling:
        """Image tokens (N, D) of pictures one after the other.

        Args:
            pixel_values: (P, 3), rows of pixels of all pictures, levels 0 to 1.
            image_grid_thw: (B, 3), for each picture 1, its height and its width.
            n_image_tokens: (B,).
        """
        seen, start = [], 0
        for (_, height, width), n_slots in zip(image_grid_thw.tolist(), n_image_tokens.tolist(), strict=True):
            image = pixel_values[start : start + height * width].reshape(height, width, 3)
            seen.append(self.model.see(image, n_slots))
            start += height * width
        return BaseModelOutputWithPooling(pooler_output=torch.cat(seen))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        n_image_tokens: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As a Llama's, with pictures besides: see `get_image_features`."""
        if pixel_values is not None:
            if input_ids is None or image_grid_thw is None or n_image_tokens is None:
                raise ValueError("pictures need input ids, their sizes and their numbers of image tokens")
            inputs_embeds = self.get_input_embeddings()(input_ids)
            seen = self.get_image_features(pixel_values, image_grid_thw, n_image_tokens).pooler_output
            is_image = (input_ids == self.config.image_token_id)[..., None]
            inputs_embeds = inputs_embeds.masked_scatter(is_image, seen.to(inputs_embeds.dtype))
            input_ids = None
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )

    def prepare_inputs_for_generation(self, input_ids: Tensor, is_first_iteration: bool = False, **kwargs: Any) -> Any:
        """Pictures go in with the prompt alone."""
        inputs = super().prepare_inputs_for_generation(input_ids, is_first_iteration=is_first_iteration, **kwargs)
        if not is_first_iteration:
            for name in ("pixel_values", "image_grid_thw", "n_image_tokens"):
                inputs.pop(name, None)
        return inputs


class ScreenReaderImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """Pictures as they are, made smaller where they are larger than `max_pixels`.

    The number of image tokens is one for every `pixels_per_token` pixels, between `min_tokens` and `max_tokens`.
    """

    def __init__(
        self,
        max_pixels: int = 1280 * 960,
        pixels_per_token: int = 800,
        min_tokens: int = 16,
        max_tokens: int = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_pixels = max_pixels
        self.pixels_per_token = pixels_per_token
        self.min_tokens = min_tokens
        self.max_tokens = max_tokens
        self.image_mean = [0.0, 0.0, 0.0]
        self.image_std = [1.0, 1.0, 1.0]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Height and width after resizing."""
        by = min(1.0, (self.max_pixels / (height * width)) ** 0.5)
        return max(1, round(by * height)), max(1, round(by * width))

    def shape_of(self, height: int, width: int) -> dict[str, Any]:
        """What a picture of so many pixels becomes."""
        height, width = self.resized(height, width)
        n = min(max(height * width // self.pixels_per_token, self.min_tokens), self.max_tokens)
        return {"image_grid_thw": np.array([[1, height, width]]), "n_image_tokens": np.array([n])}

    def __call__(self, images: Any, return_tensors: str | None = None, **_: Any) -> BatchFeature:
        """Pictures, in lists or not, as `get_image_features` takes them."""
        from PIL import Image
        from transformers.image_utils import make_flat_list_of_images

        rows, shapes = [], []
        for image in make_flat_list_of_images(images):
            shape = self.shape_of(image.height, image.width)
            _, height, width = shape["image_grid_thw"][0]
            rgb = image.convert("RGB")
            if rgb.size != (width, height):
                rgb = rgb.resize((int(width), int(height)), Image.Resampling.LANCZOS)
            rows.append(np.asarray(rgb, dtype=np.float32).reshape(-1, 3) / 255)
            shapes.append(shape)
        data = {name: np.concatenate([shape[name] for shape in shapes]) for name in shapes[0]}
        return BatchFeature({"pixel_values": np.concatenate(rows), **data}, tensor_type=return_tensors)


class ScreenReaderProcessor(ProcessorMixin):  # type: ignore[misc]
    """Image processing and tokenizer together."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = IMAGE_TOKEN

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        """The placeholders of a picture."""
        return self.image_token * int(image_inputs["n_image_tokens"][image_idx])


AutoConfig.register("screenreader", ScreenReaderConfig, exist_ok=True)
for _auto in (AutoModelForImageTextToText, AutoModelForCausalLM):
    _auto.register(ScreenReaderConfig, ScreenReaderForConditionalGeneration, exist_ok=True)
AutoImageProcessor.register(
    ScreenReaderConfig, image_processor_classes={"pil": ScreenReaderImageProcessor}, exist_ok=True
)
