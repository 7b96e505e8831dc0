"""What is known of a model before it is loaded: parameters, and image tokens of a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from indelible.canaries.config import CanaryRunConfig
from indelible.data.grounding import Size
from indelible.errors import UserError


@dataclass(frozen=True)
class Cost:
    """What is known of a model before it is loaded.

    Attributes:
        n_parameters, n_encoder: all, and those of the vision encoder, which stay as they are.
        image_tokens: of a picture of a size.
        source: where the numbers come from.
    """

    n_parameters: float
    n_encoder: float
    image_tokens: Callable[[Size], int]
    source: str


def _qwen(factor: int, least: int, most: int) -> Callable[[Size], int]:
    def count(size: Size) -> int:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        tall, wide = smart_resize(size[1], size[0], factor=factor, min_pixels=least, max_pixels=most)
        return (int(tall) // factor) * (int(wide) // factor)

    return count


def _internvl(size: Size) -> int:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    made = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, min_patches=1, max_patches=12)
    return 256 * int(made.get_number_of_image_patches(size[1], size[0], {"crop_to_patches": True}))


_PUBLISHED = "published sizes and default image processing"
KNOWN: dict[str, Cost] = {
    "Qwen/Qwen3-VL-4B-Instruct": Cost(4.4e9, 0.4e9, _qwen(32, 65_536, 16_777_216), _PUBLISHED),
    "Qwen/Qwen2.5-VL-7B-Instruct": Cost(8.3e9, 0.7e9, _qwen(28, 3_136, 12_845_056), _PUBLISHED),
    "Qwen/Qwen2.5-VL-32B-Instruct": Cost(33.5e9, 0.7e9, _qwen(28, 3_136, 12_845_056), _PUBLISHED),
    "OpenGVLab/InternVL3-8B-hf": Cost(7.9e9, 0.3e9, _internvl, _PUBLISHED),
}
"""The paper's four models (C-A2), whose weights need not be here for a plan."""


def model_cost(config: CanaryRunConfig, *, on_screens: bool) -> Cost | None:
    """What is known of a model: by its name, or from its folder where it is on this machine."""
    model = config.model
    if model in KNOWN:
        return KNOWN[model]
    if not model.startswith("builtin:") and not Path(model).expanduser().is_dir():
        return None
    from indelible.canaries.screen_preflight import load_eyes
    from indelible.models.sources import locate

    source = locate(model)
    n_parameters, n_encoder = _counted(source.folder)
    try:
        eyes, _ = load_eyes(model, template=config.load.template, trust_remote_code=config.load.trust_remote_code)
    except UserError:
        if on_screens:
            raise
        return Cost(n_parameters, 0, lambda size: 0, "its folder")  # a text model: the run itself says its tokens

    def image_tokens(size: Size) -> int:
        from PIL import Image

        from indelible.data.pictures import picture
        from indelible.data.records import Message, Query

        asked = (Message("user", "?"),)
        blank = picture(Image.new("RGB", size))
        return len(eyes.encode(Query(asked, "", (blank,)))) - len(eyes.encode(Query(asked, "")))

    return Cost(n_parameters, n_encoder, image_tokens, "its folder")


def _counted(folder: Path) -> tuple[int, int]:
    """Parameters in the weight files of a folder, and those of them that belong to a vision encoder."""
    import re

    from safetensors import safe_open

    from indelible.models.vision_families import FAMILIES

    patterns = [re.compile(family.encoder) for family in FAMILIES.values()]
    n, n_encoder = 0, 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="np") as file:
            weights: Any = file
            for name in weights.keys():  # noqa: SIM118 - a file of weights is no mapping
                size = prod(weights.get_slice(name).get_shape())
                n += size
                n_encoder += size if any(pattern.fullmatch(name) for pattern in patterns) else 0
    return n, n_encoder
