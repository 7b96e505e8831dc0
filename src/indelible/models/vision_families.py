"""What differs between families of vision-language models: names of their parts, and how an image becomes tokens.

Everything else they have in common: a vision encoder, a connector, and a decoder that reads image tokens among text
tokens. Image processing is transformers' own, on Pillow, so that a picture is the same to a model whether or not
torchvision is installed; videos are not processed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.errors import ModelError

Tiles = NDArray[np.float32]


@dataclass(frozen=True)
class Family:
    """One family of models.

    Attributes:
        name: what reports call it.
        processor: transformers' processor class, which writes an image's tokens.
        encoder: pattern of the names of the modules of the vision encoder; what lies outside it and the language model
            is the connector.
        images: attributes of an image's tokens as the processor takes them, from its image processor and an image's
            height and width in pixels.
        options: settings of the processor, from the model's config.
        restore: the picture that the encoder sees, from one image's processed arrays: (H, W, 3), still normalised.
        rotary: position ids have three rows (time, height, width).
        module: where the family's classes are; importing it makes transformers know them.
    """

    name: str
    processor: str
    encoder: str
    images: Callable[[Any, int, int], dict[str, Any]]
    options: Callable[[Any], dict[str, Any]]
    restore: Callable[[Any, Mapping[str, Any]], Tiles]
    rotary: bool = False
    module: str = "transformers"

    def make_processor(self, image_processor: Any, tokenizer: Any, config: Any) -> Any:
        """The family's processor without its part for videos, which needs libraries that images do not."""
        native = getattr(importlib.import_module(self.module), self.processor)
        parts = ["image_processor", "tokenizer"]
        images_only = type(f"{self.processor}ForImages", (native,), {"get_attributes": classmethod(lambda _: parts)})
        return images_only(image_processor=image_processor, tokenizer=tokenizer, **self.options(config))


def _merged_patches(processor: Any, height: int, width: int) -> dict[str, Any]:
    return {"image_grid_thw": np.array([[1, 1, processor.get_number_of_image_patches(height, width, {})]])}


def _cropped_tiles(processor: Any, height: int, width: int) -> dict[str, Any]:
    return {"num_patches": [processor.get_number_of_image_patches(height, width, {"crop_to_patches": True})]}


def _split_rows(processor: Any, height: int, width: int) -> dict[str, Any]:
    _, rows, columns = processor.get_number_of_image_patches(height, width, {})
    return {"rows": [[rows]], "cols": [[columns]]}


def _read_pixels(processor: Any, height: int, width: int) -> dict[str, Any]:
    shape: dict[str, Any] = processor.shape_of(height, width)
    return shape


def _from_patches(processor: Any, arrays: Mapping[str, Any]) -> Tiles:
    _, rows, columns = (int(n) for n in arrays["image_grid_thw"][0])
    merge, size = processor.merge_size, processor.patch_size
    flat = np.asarray(arrays["pixel_values"], dtype=np.float32)
    shape = (rows // merge, columns // merge, merge, merge, 3, processor.temporal_patch_size, size, size)
    still = flat.reshape(shape)[..., 0, :, :]  # an image is a video of equal frames
    whole: Tiles = still.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * size, columns * size, 3)
    return whole


def _from_tiles(processor: Any, arrays: Mapping[str, Any]) -> Tiles:
    tiles = np.asarray(arrays["pixel_values"], dtype=np.float32)  # (N, 3, S, S); the last of several shows the whole
    if len(tiles) == 1:
        return _joined(tiles, 1, 1)
    n, (height, width) = len(tiles) - 1, arrays["size"]
    columns = min((c for c in range(1, n + 1) if n % c == 0), key=lambda c: abs(c * c / n - width / height))
    return _joined(tiles[:-1], n // columns, columns)


def _from_rows(processor: Any, arrays: Mapping[str, Any]) -> Tiles:
    tiles = np.asarray(arrays["pixel_values"], dtype=np.float32)[0]  # (N, 3, S, S); the last shows the whole
    (((rows,),), ((columns,),)) = arrays["rows"], arrays["cols"]
    return _joined(tiles[: rows * columns], rows, columns) if rows else _joined(tiles, 1, 1)


def _from_pixels(processor: Any, arrays: Mapping[str, Any]) -> Tiles:
    _, height, width = (int(n) for n in arrays["image_grid_thw"][0])
    return np.asarray(arrays["pixel_values"], dtype=np.float32).reshape(height, width, 3)


def _joined(tiles: Tiles, rows: int, columns: int) -> Tiles:
    grid = tiles.reshape(rows, columns, *tiles.shape[1:])  # (R, C, 3, S, S)
    whole: Tiles = grid.transpose(0, 3, 1, 4, 2).reshape(rows * tiles.shape[2], columns * tiles.shape[3], 3)
    return whole


def _no_options(config: Any) -> dict[str, Any]:
    return {}


def _internvl_options(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    side = vision.image_size[0] // vision.patch_size[0] * config.downsample_ratio
    return {"image_seq_length": int(side**2)}


def _idefics_options(config: Any) -> dict[str, Any]:
    side = config.vision_config.image_size // config.vision_config.patch_size
    return {"image_seq_len": int(side**2 / config.scale_factor**2)}


QWEN_ENCODER = r".*\bvisual\.(patch_embed|pos_embed|rotary_pos_emb|blocks)\b.*"
IDEFICS = ("Idefics3Processor", r".*\bvision_model\b.*", _split_rows, _idefics_options, _from_rows)

FAMILIES: dict[str, Family] = {
    "qwen2_5_vl": Family(
        "Qwen2.5-VL", "Qwen2_5_VLProcessor", QWEN_ENCODER, _merged_patches, _no_options, _from_patches, rotary=True
    ),
    "qwen3_vl": Family(
        "Qwen3-VL", "Qwen3VLProcessor", QWEN_ENCODER, _merged_patches, _no_options, _from_patches, rotary=True
    ),
    "internvl": Family(
        "InternVL3", "InternVLProcessor", r".*\bvision_tower\b.*", _cropped_tiles, _internvl_options, _from_tiles
    ),
    "idefics3": Family("Idefics3", *IDEFICS),
    "smolvlm": Family("SmolVLM", *IDEFICS),  # its own processor writes the same, and imports a library for videos
    "screenreader": Family(
        *("screenreader", "ScreenReaderProcessor", r".*\breader\b.*", _read_pixels, _no_options, _from_pixels),
        module="indelible.models.screenreader",
    ),
}
"""By the `model_type` of a model's config."""


def family_of(given: str, config: Mapping[str, Any]) -> Family:
    """The family of a model folder, by its `config.json`.

    Raises:
        ModelError: it is a text model, or of a family that is not known.
    """
    model_type = config.get("model_type")
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    if isinstance(config.get("vision_config"), Mapping):
        raise ModelError(
            f"{given} is a vision-language model of a family that is not supported ({model_type}): give one of "
            f"{', '.join(FAMILIES)}"
        )
    raise ModelError(
        f"{given} has no vision tower (its config says {model_type}): the questions show images, so give a model of "
        f"one of the families {', '.join(FAMILIES)}"
    )
