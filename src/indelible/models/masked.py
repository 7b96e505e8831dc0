"""Models that fill gaps, by folder or hub name: masked language models (RoBERTa, ...) and T5-like ones."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from indelible.data.fill import Blanks, Candidate, group_spans, read_fills, with_blank, with_sentinels
from indelible.data.records import Message, Query, Reply
from indelible.errors import ModelError
from indelible.models.causal import default_device
from indelible.models.generation import Draw
from indelible.models.load import quiet
from indelible.models.proposals import ROUNDS, admissible, best_tokens, seed_of, written_forms
from indelible.models.sources import Source, locate

Corrupt = Literal["dropout", "mask"]
"""How a masked model is kept from seeing the token it proposes for: parts of its embedding dropped, or a mask token."""

DROPOUT = 0.7
"""Share of a token's embedding that is dropped (Mattern et al. 2023)."""

BATCH_TOKENS = 4096
FILLS_TOGETHER = 16
"""Gapped texts filled in one batch."""

MAX_WORDS = 300
"""Words of a text that a filler sees at once: about its 512 tokens."""

TOKENS_A_FILL = 12
"""New tokens that a filler may write for each span, its sentinel included."""


@dataclass(frozen=True)
class MaskedModel:
    """A masked language model. `limit` is how many tokens it reads at once, markers included."""

    name: str
    module: Any = field(repr=False, compare=False)
    tokenizer: Any = field(repr=False, compare=False)
    limit: int

    def propose(self, texts: Sequence[str], top_k: int, corrupt: Corrupt, seed: str) -> list[Candidate]:
        """Candidates for every token of the texts (a record's answers): the `top_k` most probable others by the
        model's distribution where that token is corrupted (Mattern et al. 2023, Sec. 3).

        Texts longer than the model reads are read in windows that follow one another. White space and tokens that are
        part of a character are left alone. With `corrupt="dropout"` the masks are drawn from `seed`.
        """
        generator = torch.Generator().manual_seed(seed_of(seed))
        forms = written_forms(self.tokenizer)
        out: list[Candidate] = []
        for turn, text in enumerate(texts):
            windows = self.tokenizer(
                text,
                truncation=True,
                max_length=self.limit,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
            )
            fields = (windows["input_ids"], windows["offset_mapping"], windows["special_tokens_mask"])
            for ids, offsets, special in zip(*fields, strict=True):
                spans = [(int(start), int(end)) for start, end in offsets]
                shared = Counter(span for span, s in zip(spans, special, strict=True) if not s)
                places = [
                    i
                    for i, (span, s) in enumerate(zip(spans, special, strict=True))
                    if not s and shared[span] == 1 and text[span[0] : span[1]].strip()
                ]
                scales = self._scales(len(ids), generator) if corrupt == "dropout" else None
                for i, row, best in self._best(ids, places, scales, top_k, forms):
                    where = with_blank(text, *spans[i], forms[ids[i]])
                    out += [
                        Candidate(turn, *where, forms[token], weight)
                        for weight, token in zip(row, best, strict=True)
                        if weight > -torch.inf
                    ]
        return out

    def _scales(self, n_tokens: int, generator: torch.Generator) -> Tensor:
        """What each token's embedding is multiplied by, (T, D): 0, or 1 / (1 - DROPOUT)."""
        width = _embeddings(self.module)[1]
        return (torch.rand(n_tokens, width, generator=generator) >= DROPOUT).float() / (1 - DROPOUT)

    def _best(
        self, ids: Sequence[int], places: Sequence[int], scales: Tensor | None, top_k: int, forms: Sequence[str]
    ) -> Iterator[tuple[int, list[float], list[int]]]:
        """Place, weights and token ids; each place is a row of a batch in which it alone is corrupted."""
        device = self.module.device
        tokens = torch.tensor(list(ids), device=device)
        allowed: Tensor | None = None
        n_rows = max(1, BATCH_TOKENS // len(ids))
        for begin in range(0, len(places), n_rows):
            at = torch.tensor(places[begin : begin + n_rows], device=device)
            rows = torch.arange(len(at), device=device)
            batch = tokens.repeat(len(at), 1)  # (B, T)
            factor = None
            if scales is None:
                batch[rows, at] = self.tokenizer.mask_token_id
            else:
                factor = torch.ones(*batch.shape, scales.shape[1], device=device)  # (B, T, D)
                factor[rows, at] = scales.to(device)[at]
            with torch.inference_mode(), _scaled(self.module, factor), _only(self.module, at):
                logits = self.module(input_ids=batch, attention_mask=torch.ones_like(batch)).logits
            logits = logits[:, 0] if logits.shape[1] == 1 else logits[rows, at]  # (B, V)
            if allowed is None:
                allowed = admissible(forms, logits.shape[1], words=False).to(device)
            weights, best = best_tokens(logits, tokens[at], allowed, top_k)
            yield from zip(at.tolist(), weights.tolist(), best.tolist(), strict=True)


@dataclass(frozen=True)
class FillModel:
    """A T5-like model. `n_sentinels` of its tokens mark gaps."""

    name: str
    module: Any = field(repr=False, compare=False)
    tokenizer: Any = field(repr=False, compare=False)
    n_sentinels: int

    def fill(
        self, blanks: Sequence[Blanks], advance: Callable[[int], None] = lambda _: None
    ) -> list[tuple[str, ...] | None]:
        """Fills drawn from the model at temperature 1, one a span, given the rest of the text alone.

        More spans than the model has sentinels, or long texts, are filled in parts. A reply without all its fills is
        drawn anew, up to `ROUNDS` times.

        Args:
            advance: told how many more spans are filled.

        Returns:
            for each text its fills, or None where one of its parts failed.
        """
        parts = {
            (i, k): (with_sentinels(blank.text, part, spans), len(spans), blank.seed)
            for i, blank in enumerate(blanks)
            for k, (part, spans) in enumerate(
                group_spans(blank.text, blank.spans, max_spans=self.n_sentinels - 1, max_words=MAX_WORDS)
            )
        }
        found: dict[tuple[int, int], tuple[str, ...]] = {}
        for attempt in range(ROUNDS):
            left = sorted((at for at in parts if at not in found), key=lambda at: (parts[at][1], len(parts[at][0]), at))
            while left:
                n = parts[left[0]][1]  # replies of one batch end at one sentinel
                members = [at for at in left[:FILLS_TOGETHER] if parts[at][1] == n]
                left = left[len(members) :]
                asked = [(parts[at][0], seed_of(f"{parts[at][2]}:{at[1]}:{attempt}")) for at in members]
                for at, fills in zip(members, self._draw(asked, n), strict=True):
                    if fills is not None:
                        found[at] = fills
                        advance(n)
        keys = [[at for at in parts if at[0] == i] for i in range(len(blanks))]
        return [
            tuple(fill for at in own for fill in found[at]) if all(at in found for at in own) else None for own in keys
        ]

    @torch.inference_mode()
    def _draw(self, asked: Sequence[tuple[str, int]], n: int) -> list[tuple[str, ...] | None]:
        tokens = self.tokenizer([text for text, _ in asked], padding=True, return_tensors="pt").to(self.module.device)
        n_new = TOKENS_A_FILL * (n + 1)
        seeds = [Query((Message("text", text),), "", reply=Reply(n_new, 1.0, seed)) for text, seed in asked]
        last = self.tokenizer.convert_tokens_to_ids(f"<extra_id_{n}>")
        end = self.tokenizer.eos_token_id
        made = self.module.generate(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            max_new_tokens=n_new,
            do_sample=False,
            num_beams=1,
            logits_processor=[Draw(seeds, 1.0)],
            eos_token_id=[end, last],
            pad_token_id=self.tokenizer.pad_token_id,
        )
        made[made == end] = last  # the end closes the last fill as well
        marks = self.tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(self.n_sentinels)])
        other = {*self.tokenizer.all_special_ids} - {*marks}  # a drawn unknown or padding token is no text
        rows = [[i for i in row if i not in other] for row in made.tolist()]
        return [read_fills(self.tokenizer.decode(row), n) for row in rows]


def load_masked(name: str) -> MaskedModel:
    """A masked language model by folder or hub name, in float32.

    Raises:
        ModelError: it is not there, or is none, or its tokenizer does not say where in a text its tokens stand.
    """
    from transformers import AutoModelForMaskedLM

    module, tokenizer = _load(name, AutoModelForMaskedLM, "a masked language model")
    if tokenizer.mask_token_id is None:
        raise ModelError(f"{name} has no mask token: expected a masked language model, such as roberta-base")
    told = [tokenizer.model_max_length]
    positions = getattr(getattr(module.base_model, "embeddings", None), "position_embeddings", None)
    if positions is not None and hasattr(positions, "num_embeddings"):
        # RoBERTa counts positions from behind its padding index.
        told.append(positions.num_embeddings - (-1 if positions.padding_idx is None else positions.padding_idx) - 1)
    elif getattr(module.config, "max_position_embeddings", None):
        told.append(module.config.max_position_embeddings)
    return MaskedModel(name, module, tokenizer, int(min(told)))


def load_filler(name: str) -> FillModel:
    """A T5-like model by folder or hub name, in float32.

    Raises:
        ModelError: it is not there, or is none, or has no sentinel tokens.
    """
    from transformers import AutoModelForSeq2SeqLM

    module, tokenizer = _load(name, AutoModelForSeq2SeqLM, "a T5-like model")
    vocabulary = tokenizer.get_vocab()
    n = next(i for i in range(len(vocabulary) + 1) if f"<extra_id_{i}>" not in vocabulary)
    if n < 2:
        raise ModelError(f"{name} has no sentinel tokens <extra_id_0>, <extra_id_1>, ...: expected a T5-like model")
    return FillModel(name, module, tokenizer, n)


def _load(name: str, kind: Any, what: str) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    quiet()
    source: Source = locate(name)
    if source.kind == "adapter":
        raise ModelError(f"{name} is an adapter: expected {what}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder)
        module, info = kind.from_pretrained(
            source.folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{name} cannot be loaded as {what}: {line}") from error
    absent = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if absent:
        raise ModelError(f"{name} is not {what} as a whole: its files lack {len(absent)} weights, first {absent[0]}")
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of {name} is a slow one; expected a fast one (tokenizer.json)")
    return module.eval().to(default_device()), tokenizer


def _embeddings(module: Any) -> tuple[Any, int]:
    """The layer whose output enters the encoder, and its width; the word embeddings where it goes by no usual name."""
    words = module.get_input_embeddings()
    layer = getattr(module.base_model, "embeddings", None)
    return (layer, words.embedding_dim) if isinstance(layer, torch.nn.Module) else (words, words.embedding_dim)


@contextlib.contextmanager
def _scaled(module: Any, factor: Tensor | None) -> Iterator[None]:
    """Within it the embeddings' output is multiplied by `factor`."""
    if factor is None:
        yield
        return
    handle = _embeddings(module)[0].register_forward_hook(lambda _module, _inputs, output: output * factor)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _only(module: Any, at: Tensor) -> Iterator[None]:
    """Within it the vocabulary-wide layer computes one position a row: the others' logits would fill the memory."""
    head = module.get_output_embeddings()
    if head is None:
        yield
        return

    def pick(_module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0][torch.arange(len(at), device=at.device), at][:, None], *inputs[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()
