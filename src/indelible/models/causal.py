"""Causal language models on this machine: found, checked, loaded, asked."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from indelible.data.chat import ChatFormat, Encoded
from indelible.data.records import Query
from indelible.errors import ModelError
from indelible.models.base import TokenLogprobs
from indelible.models.sources import Source
from indelible.scoring.batching import plan
from indelible.scoring.engine import Network, run_batches

DEFAULT_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384, "mps": 4096}
KV_TOKENS = 65_536


@dataclass(frozen=True)
class CausalModel:
    """A loaded causal language model with its chat format.

    `adapter=False` on an adapted model answers as its base: the adapter is switched off around every pass, so that
    target and base share one copy in memory.
    """

    name: str
    weights_fingerprint: str
    module: Any = field(repr=False, compare=False)
    chat: ChatFormat = field(repr=False)
    device: torch.device
    dtype: torch.dtype
    context_length: int
    batch_tokens: int
    kind: str
    adapter: bool | None = None  # None: no adapter at all

    @property
    def fingerprint(self) -> str:
        """Changes with the weights, the adapter, the rendering and the dtype."""
        parts = (self.weights_fingerprint, self.adapter is not False, self.chat.fingerprint, str(self.dtype))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def n_parameters(self) -> int:
        """Parameters of the module, an adapter's included."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def network(self) -> Network:
        """What the engine needs of the module."""
        causal = self.module.get_base_model() if self.adapter is not None else self.module
        head = _head(causal)
        context = self.module.disable_adapter if self.adapter is False else contextlib.nullcontext
        backbone = _backbone(causal)
        return Network(backbone, head, self.device, _can_share(causal), context)

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query in this model's format."""
        return self.chat.encode(query)

    def stream(self, encoded: Sequence[Encoded]) -> Iterator[tuple[int, TokenLogprobs]]:
        """Answers as they get ready."""
        return run_batches(self.network, encoded, batch_tokens=self.batch_tokens, kv_tokens=KV_TOKENS)

    def costs(self, encoded: Sequence[Encoded]) -> Sequence[int]:
        """Tokens that `stream` computes for each of these; a shared beginning counts once."""
        share = self.network.can_share
        return plan(encoded, batch_tokens=self.batch_tokens, share=share, kv_tokens=KV_TOKENS).costs

    def logprobs(self, queries: Sequence[Query]) -> list[TokenLogprobs]:
        """Answers in order; for a handful of queries (audits go through `engine.answer`)."""
        found = dict(self.stream([self.encode(q) for q in queries]))
        return [found[i] for i in range(len(queries))]

    @torch.inference_mode()
    def generate(self, queries: Sequence[Query], max_new_tokens: int) -> list[str]:
        """Greedy continuations of the prompts, one at a time."""
        out = []
        tokenizer = self.chat.tokenizer
        for query in queries:
            encoded = self.encode(query)
            prompt = encoded.input_ids[: encoded.target_positions[0]]
            ids = torch.from_numpy(prompt)[None].to(self.device)
            with self.network.context():
                reply = self.module.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    pad_token_id=tokenizer.eos_token_id,
                )
            out.append(str(tokenizer.decode(reply[0, ids.shape[1] :], skip_special_tokens=True)))
        return out

    def as_base(self) -> CausalModel:
        """This adapted model with its adapter switched off.

        Raises:
            ModelError: there is no adapter.
        """
        if self.adapter is None:
            raise ModelError(f"{self.name} has no adapter to switch off: give its base model with --base")
        return replace(self, name=f"base of {self.name}", adapter=False)


def _backbone(causal: Any) -> Any:
    """The decoder under the head. Found by transformers' own rule, and proved by `check_network`."""
    return causal.get_decoder() if hasattr(causal, "get_decoder") else causal.base_model


def _head(causal: Any) -> Any:
    """Hidden states to logits, with what some architectures do to logits afterwards (Gemma 2, Cohere, Granite)."""
    linear, config = causal.get_output_embeddings(), causal.config
    if linear is None:
        raise ModelError(f"{type(causal).__name__} has no language-model head to score with")
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1.0)
    if cap is None and scale == 1.0:
        return linear

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = linear(hidden) * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return head


def _can_share(causal: Any) -> bool:
    """Whether every layer keeps a plain, growing key-value cache (no sliding window, no recurrent state)."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=causal.config)
    return bool(getattr(causal.config, "use_cache", False)) and all(
        type(layer) is DynamicLayer for layer in cache.layers
    )


@torch.inference_mode()
def check_network(model: CausalModel) -> None:
    """Prove on a few tokens that head(backbone(ids)) is what the model itself computes.

    Some architectures scale or cap logits after the head; scoring them through the parts would be wrong.

    Raises:
        ModelError: they differ.
    """
    network = model.network
    ids = torch.arange(3, 11, device=model.device)[None]
    with network.context():
        whole = model.module(input_ids=ids, use_cache=False).logits.float()
        parts = network.head(network.backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    if not whole.isfinite().all():
        raise ModelError(f"{model.name}: its logits are not finite; the weights are broken (did training diverge?)")
    if not torch.allclose(
        whole.log_softmax(-1), parts.log_softmax(-1), atol=1e-3 if model.dtype == torch.float32 else 0.1
    ):
        raise ModelError(
            f"{model.name}: its logits are not its head applied to its decoder's output; this architecture "
            "post-processes logits and cannot be scored yet"
        )


@torch.inference_mode()
def check_adapter(model: CausalModel) -> None:
    """An adapter that changes no logit would make an audit of the base model look like one of the tuned model.

    Raises:
        ModelError: logits with and without the adapter are equal.
    """
    ids = torch.arange(3, 19, device=model.device)[None]
    with_adapter = model.module(input_ids=ids, use_cache=False).logits
    with model.module.disable_adapter():
        without = model.module(input_ids=ids, use_cache=False).logits
    if torch.equal(with_adapter, without):
        raise ModelError(
            f"{model.name}: the adapter changes no logit (untrained, or not applied to this base); "
            "auditing it would audit the base model"
        )


def default_device() -> torch.device:
    """The fastest device there is."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the processor multiplies matrices in it, else float32."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return torch.bfloat16
    return torch.float32


def describe(model: CausalModel, source: Source) -> dict[str, Any]:
    """The facts of a model for a manifest."""
    return {
        "source": f"{source.given} (adapter off)" if model.adapter is False else source.given,
        "kind": model.kind,
        "fingerprint": model.fingerprint,
        "weights_fingerprint": model.weights_fingerprint,
        "n_parameters": model.n_parameters,
        "template": model.chat.name,
        "template_fingerprint": model.chat.fingerprint,
        "system": model.chat.system,
        "context_length": model.context_length,
        "adapter": model.adapter,
        "merged": "not merged"
        if model.adapter is not None
        else "full weights; whether an adapter is merged in is not known",
        "quantised": source.quantise,
    }
