"""Tiny vision-language models of every family, with random weights and a tokenizer made here: nothing is downloaded."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from indelible.data.pictures import Picture, picture, pixels
from indelible.data.records import Message
from indelible.models.load import LoadOptions, load_model
from indelible.models.vision import VisionModel

FLOAT32 = LoadOptions(device="cpu", dtype="float32", images=True, trainable=True)
FAMILIES = ("qwen2_5_vl", "qwen3_vl", "internvl", "idefics3", "smolvlm", "screenreader")

CHAT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TILES = (f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
SPECIAL: dict[str, tuple[str, ...]] = {
    "qwen": (*CHAT_TOKENS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "internvl": (*CHAT_TOKENS, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    "idefics3": (
        *CHAT_TOKENS[:2],
        "<end_of_utterance>",
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        *TILES,
    ),
    "screenreader": (*CHAT_TOKENS, "<image>"),
}
IMAGE_TOKEN = {"qwen": "<|image_pad|>", "internvl": "<IMG_CONTEXT>", "idefics3": "<image>", "screenreader": "<image>"}

PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n" + PARTS + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UTTERANCES = (
    "<|im_start|>{% for m in messages %}{{ m.role | capitalize }}"
    "{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for part in m.content %}{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
TEMPLATES = {
    "qwen": CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    "internvl": CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
    "idefics3": UTTERANCES.replace("IMAGE", "<image>"),
    "screenreader": CHATML.replace("IMAGE", "<image>\n"),
}
TEXTS = [
    'type("PRJ-TQW7-2KMP") type("FIL-U5TN-SL2L") Locate the requested element in the screenshot. user\nassistant\n',
    "Type the visible reference code into the search field. Return only the computer-use action. [681,111,782,151]",
]

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": 0, "eos_token_id": 2}
QWEN_EYE = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
SIGLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def kind(family: str) -> str:
    """Families that share tokens and templates."""
    return "qwen" if family.startswith("qwen") else "idefics3" if family == "smolvlm" else family


def tokenizer(family: str) -> Any:
    """A byte-level BPE of a few hundred tokens with the family's special tokens and chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = list(SPECIAL[kind(family)])
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=360, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    named = {}
    if family == "internvl":
        named = {"start_image_token": "<img>", "end_image_token": "</img>"}
        named |= {"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=special[2], pad_token=special[0], extra_special_tokens=named or special
    )
    made.chat_template = TEMPLATES[kind(family)]
    return made


def config(family: str, tok: Any) -> Any:
    """A tiny config of the family."""
    import transformers as tf

    text = {**TEXT, "vocab_size": 512}
    ids = {"image_token_id": tok.convert_tokens_to_ids(IMAGE_TOKEN[kind(family)])}
    if family.startswith("qwen"):
        ids |= {name + "_id": tok.convert_tokens_to_ids(f"<|{text_}|>") for name, text_ in _QWEN_IDS.items()}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    if family == "qwen2_5_vl":
        eye = {**QWEN_EYE, "window_size": 56, "fullatt_block_indexes": [1]}
        return tf.Qwen2_5_VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=eye, **ids)
    if family == "qwen3_vl":
        eye = {**QWEN_EYE, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
        text |= {"head_dim": 8, "rope_parameters": {**rope, "mrope_interleaved": True}}
        return tf.Qwen3VLConfig(text_config=text, vision_config=eye, **ids)
    if family == "internvl":
        eye = {**SIGLIP, "image_size": [28, 28], "patch_size": [7, 7]}
        text |= {"model_type": "qwen2"}
        return tf.InternVLConfig(
            text_config=text, vision_config=eye, image_seq_length=4, tie_word_embeddings=False, **ids
        )
    if family == "screenreader":
        from indelible.models.screenreader import ScreenReaderConfig

        return ScreenReaderConfig(**text, **ids, pad_token_id=0, n_lead=2, place_width=8)
    eye = {**SIGLIP, "image_size": 32, "patch_size": 8}
    text |= {"model_type": "llama", "pad_token_id": 0}
    kind_ = tf.Idefics3Config if family == "idefics3" else tf.SmolVLMConfig
    return kind_(text_config=text, vision_config=eye, scale_factor=2, **ids)


_QWEN_IDS = {"video_token": "video_pad", "vision_start_token": "vision_start", "vision_end_token": "vision_end"}


def image_processor(family: str) -> Any:
    """The family's own image processing at a tiny size."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    if family == "screenreader":
        from indelible.models.screenreader import ScreenReaderImageProcessor

        return ScreenReaderImageProcessor(max_pixels=96 * 64, pixels_per_token=200)
    if family.startswith("qwen"):
        size = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
        return Qwen2VLImageProcessorPil(size=size, patch_size=14 if family == "qwen2_5_vl" else 16)
    if family == "internvl":
        return GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, max_patches=4)
    made = Idefics3ImageProcessorPil if family == "idefics3" else SmolVLMImageProcessorPil
    return made(size={"longest_edge": 96}, max_image_size={"longest_edge": 32})


def module(family: str, tok: Any, seed: int = 0) -> Any:
    """The family's transformers class with seeded random weights, float32."""
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(seed)
    made = AutoModelForImageTextToText.from_config(config(family, tok)).float()
    with torch.no_grad():  # weights of 0.02 make all answers alike
        for name, p in made.named_parameters():
            if p.ndim > 1:
                p.normal_(0.0, 0.3 if "embed" in name else 0.15)
    return made.eval()


def write(family: str, folder: Path, seed: int = 0) -> Path:
    """A model folder as transformers writes it."""
    tok = tokenizer(family)
    module(family, tok, seed).save_pretrained(folder)
    tok.save_pretrained(folder)
    image_processor(family).save_pretrained(folder)
    return folder


def image(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    """A picture of coloured blocks."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


def shot(seed: int, width: int = 96, height: int = 64) -> Picture:
    """The same as a `Picture`."""
    return picture(image(seed, width, height))


@functools.cache
def model(family: str) -> VisionModel:
    """A model of the family, loaded from its folder; nothing may change its weights."""
    with tempfile.TemporaryDirectory() as folder:
        made = load_model(str(write(family, Path(folder))), FLOAT32)[0]
    assert isinstance(made, VisionModel)
    return made


def native(made: VisionModel, messages: Sequence[Message], images: Sequence[Picture]) -> dict[str, torch.Tensor]:
    """A prompt as transformers' own processor makes it: template, image processing and tokens in one call."""
    turns: list[dict[str, Any]] = [{"role": m.role, "content": [{"type": "text", "text": m.content}]} for m in messages]
    first = next(turn for turn in turns if turn["role"] == "user")
    first["content"] = [{"type": "image"} for _ in images] + first["content"]
    tok, processor = made.chat.tokenizer, made.sight.processor
    text = tok.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    text += " " if text.endswith("Assistant:") else ""  # before an answer this template writes a blank
    shown = {"images": [pixels(p) for p in images]} if images else {}
    return dict(processor(text=[text], **shown, return_tensors="pt"))


def followed(inputs: dict[str, torch.Tensor], ids: Sequence[int]) -> dict[str, torch.Tensor]:
    """The prompt and `ids` behind it."""
    out = dict(inputs)
    out["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([list(ids)], dtype=torch.int64)], dim=1)
    out["attention_mask"] = torch.ones_like(out["input_ids"])
    if "mm_token_type_ids" in inputs:
        kinds = inputs["mm_token_type_ids"]
        out["mm_token_type_ids"] = torch.cat([kinds, kinds.new_zeros(1, len(ids))], dim=1)
    return out
