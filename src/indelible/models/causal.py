"""Causal language models on this machine: found, checked, loaded, asked."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indelible import distributed
from indelible.data.answers import encode_answers
from indelible.data.chat import ChatFormat, Encoded, refuse_images
from indelible.data.records import Query, Reply
from indelible.errors import DataError, ModelError
from indelible.models.base import EVERYTHING, Access, TokenLogprobs
from indelible.models.generation import prompt_ids, replies
from indelible.models.sources import Source
from indelible.scoring.candidates import Ranking, rank_candidates
from indelible.scoring.network import Network, Work, lay_out_work, run

DEFAULT_BATCH_TOKENS = {"cpu": 1024, "cuda": 4096, "mps": 4096}
KV_MEMORY = 1 << 30
"""Bytes of keys and values of shared beginnings kept between passes."""


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
    n_parameters: int  # an adapter's included
    adapter: bool | None = None  # None: no adapter at all
    kv_memory: int = KV_MEMORY
    rotary_limit: int = 1 << 62  # beyond it the rotary embedding depends on the longest query of a pass
    packs: bool = False  # proved by `runs_packs`
    base_fingerprint: str = ""  # of what lies under an adapter, and the tokenizer

    @property
    def access(self) -> frozenset[Access]:
        """All of it."""
        return EVERYTHING

    @property
    def fingerprint(self) -> str:
        """Changes with the weights, the adapter, the rendering and the dtype. Adapters over one base, switched off, are
        one model."""
        weights = self.base_fingerprint if self.adapter is False else self.weights_fingerprint
        parts = (weights, self.adapter is not False, self.chat.fingerprint, str(self.dtype))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def causal(self) -> Any:
        """The transformers module; an adapter's layers are within it."""
        return self.module.get_base_model() if self.adapter is not None else self.module

    @property
    def network(self) -> Network:
        """What the engine needs of the module."""
        causal = self.causal
        head = _head(causal)
        context = self.module.disable_adapter if self.adapter is False else contextlib.nullcontext
        return Network(_backbone(causal), head, self.device, self.dtype, causal.config, self.packs, context)

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query in this model's format."""
        return self.chat.encode(query)

    def _work(self, encoded: Sequence[Encoded]) -> Work:
        alike = max(map(len, encoded), default=0) <= self.rotary_limit
        return lay_out_work(
            encoded,
            packs=self.packs and alike,
            batch_tokens=self.batch_tokens if alike else 1,  # else one by one: a long query turns its neighbours
            kv_tokens=self.kv_tokens,
        )

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit into `kv_memory`."""
        return self.kv_memory // _kv_bytes(self.module.config, self.dtype) if self.packs else 0

    def stream(self, encoded: Sequence[Encoded]) -> Iterator[tuple[int, TokenLogprobs]]:
        """Answers as they get ready."""
        work = self._work(encoded)
        return run(replace(self.network, packs=work.packs), encoded, work)

    def costs(self, encoded: Sequence[Encoded]) -> Sequence[int]:
        """Tokens that `stream` computes for each of these; a shared beginning counts once."""
        return self._work(encoded).plan.costs

    def logprobs(self, queries: Sequence[Query]) -> list[TokenLogprobs]:
        """Answers in order; for a handful of queries (audits go through `engine.answer`)."""
        found = dict(self.stream([self.encode(q) for q in queries]))
        return [found[i] for i in range(len(queries))]

    def rank(
        self,
        query: Query,
        candidates: Sequence[str],
        suffix: str = "",
        *,
        prefix: str = "",
        everything: bool = False,
    ) -> Ranking:
        """Rank the query's target among candidates that could stand in its place, by log p(candidate + suffix).

        Args:
            query: its target is the true candidate, and must be among them.
            candidates: distinct strings.
            suffix: fixed text after every candidate, scored with it.
            prefix: fixed text of the answer before every candidate, conditioned on.
            everything: all candidates' log-probabilities are in the answer (no pruning).

        Raises:
            DataError: the target is not among the candidates, or a candidate comes twice, is empty or does not fit.
        """
        if len(set(candidates)) < len(candidates) or query.target not in candidates:
            raise DataError(f"candidates must be distinct and hold the target: {len(candidates)} given")
        texts = [f"{prefix}{c}{suffix}" for c in candidates]
        prompt, ids = self.answer_ids(query, texts, len(prefix))
        longest = len(prompt) + max(map(len, ids))
        if not len(prompt) or not min(map(len, ids)):
            raise DataError("a candidate without a token, or nothing before it: candidates need a prompt")
        if longest > self.context_length:
            raise DataError(f"candidates end {longest} tokens after the start; the context has {self.context_length}")
        alike = longest <= self.rotary_limit
        return rank_candidates(
            replace(self.network, packs=self.packs and alike),
            prompt,
            ids,
            list(candidates).index(query.target),
            batch_tokens=self.batch_tokens if alike else 1,
            kv_tokens=self.kv_tokens,
            everything=everything,
        )

    def answer_ids(
        self, query: Query, texts: Sequence[str], n_fixed: int
    ) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        """Tokens before many answers to one query, and those of each: see `encode_answers`."""
        refuse_images(query)
        return encode_answers(self.chat, query.messages, texts, n_fixed)

    def prompt_ids(self, query: Query) -> NDArray[np.int64]:
        """Tokens up to where a reply goes on."""
        return prompt_ids(self, query)

    def generation_inputs(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """What `generate` of the transformers module takes: prompts (B, T) padded on the left, and 1 where one is."""
        arrays = {"input_ids": ids, "attention_mask": mask}
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}

    def save_rendering(self, folder: Path) -> None:
        """Write what turns questions into tokens beside the weights: audits then render as training did, untold."""
        tokenizer = self.chat.tokenizer
        if self.chat.template is not None:
            tokenizer.chat_template = self.chat.template
        tokenizer.save_pretrained(folder)

    @property
    def untrained(self) -> str | None:
        """A pattern of the names of modules that training leaves as they are; None: there are none."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest says of it besides."""
        return {}

    def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
        """Texts as they get ready: see `generation.replies`."""
        return replies(self, queries)

    def prompt_length(self, query: Query) -> int:
        """Tokens before a reply."""
        return len(self.prompt_ids(query))

    def generate(
        self, queries: Sequence[Query], max_new_tokens: int, *, begun: Sequence[str] | None = None
    ) -> list[str]:
        """Greedy replies in order; `begun` says how each begins, and is not repeated."""
        asked = [
            replace(q, reply=Reply(max_new_tokens, begun=start))
            for q, start in zip(queries, begun or [""] * len(queries), strict=True)
        ]
        found = dict(replies(self, asked))
        return [found[i] for i in range(len(asked))]

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


def _kv_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of keys and values a token, over all layers."""
    text = config.get_text_config()
    n_heads = text.num_attention_heads
    n_kv = getattr(text, "num_key_value_heads", None) or n_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // n_heads
    return int(2 * text.num_hidden_layers * n_kv * width * dtype.itemsize)


def default_device() -> torch.device:
    """The fastest device there is; of several processes on a machine each has its own GPU."""
    if torch.cuda.is_available():
        if distributed.n_processes() > 1:
            return torch.device("cuda", distributed.local_index() % torch.cuda.device_count())
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
        "shares_beginnings": model.packs,
        "merged": "not merged"
        if model.adapter is not None
        else "full weights; whether an adapter is merged in is not known",
        "quantised": source.quantise,
        **model.facts,
    }
