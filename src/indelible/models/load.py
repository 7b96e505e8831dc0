"""Loading: a `Source` becomes a `CausalModel`, checked before anything is asked of it."""

from __future__ import annotations

import hashlib
import logging as stdlib_logging
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError

from indelible.data.chat import chat_format
from indelible.errors import ConfigError, MissingExtra, ModelError
from indelible.models.causal import (
    DEFAULT_BATCH_TOKENS,
    KV_MEMORY,
    CausalModel,
    default_device,
    default_dtype,
)
from indelible.models.checks import check_adapter, check_network, prepack_checked, rotary_limit, runs_packs
from indelible.models.prepack import can_prepack
from indelible.models.sources import Source, locate, trained_system
from indelible.models.vision import VisionModel
from indelible.models.vision_load import check_seeing, check_vision, take_processor_template, with_vision
from indelible.progress import say

N_KERNELS = 64
"""Compiled kernels that oneDNN keeps."""

KINDS = {
    "AutoModelForCausalLM": "causal language model",
    "AutoModelForImageTextToText": "vision-language model",
}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadOptions:
    """How to load, the same for every model of an audit.

    `None` or "auto" means: decided by the device. `chat_data` says that the records are conversations with roles.
    `kv_memory` bounds the bytes of keys and values kept between passes. `trainable` keeps weights as they are; without
    it they may be laid out for the processor, to answer only. `images` asks for a vision-language model.
    """

    device: str = "auto"
    dtype: str = "auto"
    batch_tokens: int | None = None
    template: str | None = None
    system: str | None = None
    quantise: str = "none"
    trust_remote_code: bool = False
    chat_data: bool = False
    kv_memory: int = KV_MEMORY
    trainable: bool = False
    images: bool = False


def load_model(given: str, options: LoadOptions, *, base: str | None = None) -> tuple[CausalModel, Source]:
    """Load a model for scoring.

    Args:
        given: hub id, folder, adapter folder, .gguf file or builtin:NAME.
        base: for an adapter, the base to put under it instead of the one it names.

    Raises:
        ModelError, ConfigError, MissingExtra: one line each.
    """
    quiet()
    bound_kernels()
    exact_float32()
    source = locate(given, quantise=options.quantise)
    if source.kind == "server":
        raise ModelError("a server's model can be audited; this takes a model on this machine: give its folder")
    device = default_device() if options.device == "auto" else _device(options.device)
    dtype = default_dtype(device) if options.dtype == "auto" else _dtype(options.dtype)
    under = source
    if source.kind == "adapter":
        if not (base or source.base):
            raise ModelError(f"adapter {given} names no base model: give it with --base")
        under = locate(base or str(source.base), quantise=options.quantise)
        if under.kind == "adapter":
            raise ModelError(f"the base of adapter {given} is itself an adapter ({under.given}): give a full model")
    auto = "AutoModelForImageTextToText" if options.images else "AutoModelForCausalLM"
    if options.images:
        check_vision(under)
    module = load_module(under, dtype=dtype, device=device, trust_remote_code=options.trust_remote_code, auto=auto)
    fingerprint = base = under.fingerprint()
    tokenizer = load_tokenizer(source, under, trust_remote_code=options.trust_remote_code)
    if source.kind == "adapter":
        module = _adapted(module, source)
        fingerprint = _digest(fingerprint, source.fingerprint())
        words = getattr(tokenizer, "backend_tokenizer", None)
        base = _digest(base, words.to_str()) if words is not None else fingerprint
    if options.images:
        take_processor_template(tokenizer, source, under)
    system = options.system if options.system is not None else trained_system(source.folder)
    chat = chat_format(tokenizer, template=options.template, system=system, chat_data=options.chat_data)
    module.eval()
    n_parameters = sum(p.numel() for p in module.parameters())
    model = CausalModel(
        name=given,
        weights_fingerprint=_digest(fingerprint, options.quantise),
        base_fingerprint=_digest(base, options.quantise),
        module=module,
        chat=chat,
        device=device,
        dtype=dtype,
        context_length=context_length(module.config.get_text_config(), tokenizer),
        batch_tokens=options.batch_tokens or DEFAULT_BATCH_TOKENS.get(device.type, 4096),
        kind=source.kind,
        n_parameters=n_parameters,
        kv_memory=options.kv_memory,
        adapter=True if source.kind == "adapter" else None,
    )
    if options.images:
        model = with_vision(model, source, under)
    check_network(model)
    model = replace(model, packs=runs_packs(model), rotary_limit=rotary_limit(module.config))
    if not model.packs:
        say(f"{given}: its architecture computes every prompt anew; beginnings are not shared")
    elif not options.trainable and can_prepack(module, device, dtype):
        prepack_checked(model)
    if isinstance(model, VisionModel):
        check_seeing(model)
    if source.kind == "adapter":
        check_adapter(model)
    return model, source


def _digest(*parts: str) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def bound_kernels() -> None:
    """Let oneDNN keep few compiled kernels. It keeps one for every shape of every product, a quarter of a MiB each, up
    to 1,024; passes over packs hardly ever have the same number of tokens twice, so that most are never used again.
    Read by oneDNN at its first product: later it has no effect."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(N_KERNELS))


def exact_float32() -> None:
    """Let float32 be float32 on a GPU: unless told, PyTorch computes convolutions, as of vision encoders, in TF32
    ("Canary audits" C-B2)."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def quiet() -> None:
    """Keep transformers' own bars and advice off the terminal; what matters is said by this package."""
    import warnings

    from transformers.utils import logging

    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
    logging.set_verbosity_error()
    stdlib_logging.getLogger("bitsandbytes").setLevel(stdlib_logging.ERROR)  # it prints a line a product
    logging.disable_progress_bar()


def load_module(
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    auto: str = "AutoModelForCausalLM",
) -> Any:
    """The bare transformers module of a full model. `auto` names the class of transformers that finds its own."""
    import transformers

    extra: dict[str, Any] = {}
    if source.quantise != "none":
        extra["quantization_config"] = _quantisation(source.quantise, dtype)
        extra["device_map"] = {"": device}
    try:
        module, info = getattr(transformers, auto).from_pretrained(
            source.folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **extra,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{source.given} cannot be loaded as a {KINDS[auto]}: {line}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:  # transformers would fill them with random numbers, and say so only in a log line
        raise ModelError(
            f"{source.given} cannot be loaded whole: {len(absent)} weights that its config asks for are not in its "
            f"files, or do not fit; first {absent[0]}"
        )
    for part in module.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):
            # bitsandbytes would repack 4-bit weights at the first pass: no gradient passes them then, and widths that
            # are no multiple of 64 fail
            part.support_avx512bf16_for_cpu = False
    return module if source.quantise != "none" else module.to(device)


def load_tokenizer(source: Source, under: Source, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer beside the weights, or the base's where an adapter brings none."""
    from transformers import AutoTokenizer

    folder = source.folder if (source.folder / "tokenizer_config.json").exists() else under.folder
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"no tokenizer can be loaded from {folder}") from error
    if not tokenizer.is_fast:  # only fast tokenizers say where in the text a token stands
        raise ModelError(f"the tokenizer of {source.given} is a slow one; expected a fast one (tokenizer.json)")
    return tokenizer


def _adapted(module: Any, source: Source) -> Any:
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(module, str(source.folder))
    except (ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"adapter {source.given} does not fit its base model: {line}") from error


def _quantisation(quantise: str, dtype: torch.dtype) -> Any:
    import importlib.util

    if quantise not in {"4bit", "8bit"}:
        raise ConfigError(f"--quantise {quantise}: expected none, 4bit or 8bit")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra(f"--quantise {quantise} needs bitsandbytes: pip install 'indelible[quant]'")
    from transformers import BitsAndBytesConfig

    if quantise == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name}: expected auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name}: this machine has no CUDA device")
    return device


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name}: expected auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def context_length(config: Any, tokenizer: Any) -> int:
    """The smaller of what the network and the tokenizer say; both may leave it open."""
    told = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    return min([int(n) for n in told if n is not None and 0 < int(n) < 10**9], default=1 << 20)
