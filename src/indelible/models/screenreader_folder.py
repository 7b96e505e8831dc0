"""The folder of `builtin:screenreader`: the embedded SmolLM2's own files, with encoder and connector beside them.

The weights of the language model are linked, or copied where the file system has no links; no language model is shipped
twice. Encoder and connector are in `models/screenreader_files`, made by `indelible vision pretrain`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from indelible.errors import ModelError
from indelible.models.builtin import file_sha256
from indelible.progress import say
from indelible.scoring.cache import cache_root

FILES = Path(__file__).parent / "screenreader_files"
WEIGHTS = "screenreader.safetensors"
SPARE_TOKEN = "<empty_output>"
"""A special token of SmolLM2's vocabulary that no chat has; it becomes the image token, so that none is added."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def screenreader_folder(language: Path) -> Path:
    """The model folder in the user's cache, made once for the shipped weights and a language model's folder.

    Raises:
        ModelError: the shipped weights are not there.
    """
    if not (FILES / WEIGHTS).is_file():
        raise ModelError(
            f"builtin:screenreader has no weights in {FILES}: make them with indelible vision pretrain, or reinstall"
        )
    from indelible.models.screenreader import ScreenReaderImageProcessor

    settings = file_sha256(FILES / WEIGHTS) + language.name + TEMPLATE + ScreenReaderImageProcessor().to_json_string()
    folder = cache_root() / "models" / f"screenreader-{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
    if not (folder / "config.json").exists():
        say("putting builtin:screenreader together (once)")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        shutil.rmtree(partial, ignore_errors=True)
        assemble(language, FILES / WEIGHTS, partial)
        if folder.exists():  # another process was faster
            shutil.rmtree(partial)
        else:
            partial.replace(folder)
    return folder


def assemble(language: Path, weights: Path, folder: Path) -> None:
    """Write a model folder.

    Args:
        language: a folder of SmolLM2, its weights in one file.
        weights: those of encoder and connector, named as in the module.
        folder: is made.
    """
    from safetensors import safe_open

    from indelible.models.screenreader import IMAGE_TOKEN, ScreenReaderImageProcessor

    folder.mkdir(parents=True)
    placed: dict[str, str] = {}
    for source, name in ((language / "model.safetensors", "language.safetensors"), (weights, WEIGHTS)):
        _link(source, folder / name)
        with safe_open(source, "pt") as opened:
            placed |= dict.fromkeys(opened.keys(), name)
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    tokenizer: dict[str, Any] = json.loads((language / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    image_id = vocabulary[IMAGE_TOKEN] = vocabulary.pop(SPARE_TOKEN)
    for token in tokenizer["added_tokens"]:
        if token["id"] == image_id:
            token["content"] = IMAGE_TOKEN
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    shutil.copy(language / "tokenizer_config.json", folder)
    shutil.copy(language / "generation_config.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    ScreenReaderImageProcessor().save_pretrained(folder)
    # The config comes last: a folder that has one is whole.
    config = json.loads((language / "config.json").read_text())
    config |= {"model_type": "screenreader", "architectures": ["ScreenReaderForConditionalGeneration"]}
    (folder / "config.json").write_text(json.dumps({**config, "image_token_id": image_id}, indent=1))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy(source, target)
