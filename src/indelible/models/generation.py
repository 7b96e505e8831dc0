"""Text from a causal model on this machine: the most probable one, or draws that each have their own seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.data.answers import encode_answers
from indelible.data.chat import refuse_images
from indelible.data.records import Message, Query, Reply
from indelible.data.templates import END_MARKERS
from indelible.errors import ModelError
from indelible.models.beginnings import families, prefilled

if TYPE_CHECKING:
    from indelible.data.chat import ChatFormat
    from indelible.models.causal import CausalModel

TOGETHER = 16
"""Replies made in one batch."""


def prompt_ids(model: CausalModel, query: Query) -> NDArray[np.int64]:
    """Token ids up to where a reply goes on. Where the last token of `begun` would run on into the query's target,
    that token is left to the model.

    Raises:
        ModelError: a beginning is given in a format that has no boundary between prompt and answer; or images are, to a
            model without a vision tower.
    """
    refuse_images(query)
    begun = query.reply.begun if query.reply is not None else ""
    if not model.chat.joint:
        return encode_answers(model.chat, query.messages, [begun + query.target], len(begun))[0]
    if begun:
        raise ModelError("compat icp-mia has no boundary between prompt and answer: a reply cannot be begun")
    encoded = model.encode(query)
    at = encoded.target_positions
    return encoded.input_ids[: at[0]] if len(at) else encoded.input_ids


def end_marker(chat: ChatFormat) -> str:
    """What the chat template puts at the end of a reply, as it stands there; '' for a format that ends none."""
    if chat.template is None:
        return ""
    last = chat.pieces((Message("user", "x"),), "x")[-1]
    return last.text if last.is_end else ""


def end_of_turn(model: CausalModel) -> tuple[list[int], str]:
    """What ends a reply: token ids, and a text where this tokenizer has no token for the template's end marker.

    A model's own settings name the end it was first trained with, which is not always the one of its chat template.
    """
    tokenizer, chat = model.chat.tokenizer, model.chat
    own = model.causal.generation_config.eos_token_id
    ids = [own] if isinstance(own, int) else list(own or [])
    marker = end_marker(chat)
    if not marker:
        return ids, ""
    final = tokenizer(marker, add_special_tokens=False)["input_ids"][-1]
    if tokenizer.decode([final]) in {*END_MARKERS, *tokenizer.all_special_tokens}:
        return list(dict.fromkeys([*ids, final])), ""
    return ids, marker.strip()


@torch.inference_mode()
def replies(model: CausalModel, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
    """Replies as they get ready, with the index of each: text up to the end marker or `max_new_tokens`.

    A few are made at a time, padded on the left; what their prompts share is computed once. What a model's own
    generation settings add to the most probable token (penalties on repetition, forbidden tokens) is left out: it would
    work against copying.

    Args:
        queries: each with its `reply`; targets say only where the beginning of a reply ends.
    """
    prompts = [model.prompt_ids(query) for query in queries]
    asked = [query.reply or Reply(1) for query in queries]
    place = {i: (len(f.trunk), k, n) for k, f in enumerate(families(prompts)) for n, i in enumerate(f.members)}
    order = sorted(range(len(queries)), key=lambda i: (asked[i].temperature, asked[i].max_new_tokens, place[i]))
    whole = max((len(ids) + reply.max_new_tokens for ids, reply in zip(prompts, asked, strict=True)), default=0)
    alike = model.packs and whole <= model.rotary_limit  # padding is nothing to attention alone
    alone = any(query.images for query in queries)  # a batch would pad pictures of several sizes
    n_together = TOGETHER if alike and not alone else 1
    ends, marker = end_of_turn(model) if queries else ([], "")
    for members in _alike(order, asked, n_together):
        longest = max(len(prompts[i]) for i in members)
        fill = model.chat.tokenizer.eos_token_id or 0
        ids = np.full((len(members), longest), fill, dtype=np.int64)  # (B, T)
        mask = np.zeros_like(ids)
        for row, i in enumerate(members):
            ids[row, longest - len(prompts[i]) :] = prompts[i]
            mask[row, longest - len(prompts[i]) :] = 1
        temperature = asked[members[0]].temperature
        drawn = [Draw([queries[i] for i in members], temperature)] if temperature > 0 else []
        with model.network.context(), plainly_greedy(model.causal):
            begun = prefilled(model, [prompts[i] for i in members]) if alike and not alone else None
            made = model.causal.generate(
                **model.generation_inputs(ids, mask),
                **({} if begun is None else {"cache": begun}),
                max_new_tokens=asked[members[-1]].max_new_tokens,
                do_sample=False,
                logits_processor=drawn,
                eos_token_id=ends or None,
                pad_token_id=model.chat.tokenizer.eos_token_id,
            )
        for i, ids_ in zip(members, made, strict=True):
            own = ids_[longest : longest + asked[i].max_new_tokens]
            text = str(model.chat.tokenizer.decode(own, skip_special_tokens=True))
            yield i, text.split(marker)[0] if marker else text


def _alike(order: Sequence[int], asked: Sequence[Reply], n_together: int) -> Iterator[list[int]]:
    """Batches of one temperature, none of whose replies may become twice as long as another."""
    batch: list[int] = []
    for i in order:
        first = asked[batch[0]] if batch else asked[i]
        other = asked[i].temperature != first.temperature or asked[i].max_new_tokens > 2 * first.max_new_tokens
        if other or len(batch) == n_together:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class Draw:
    """Turns the most probable token into a draw from p^(1/temperature): Gumbel noise on the logits (Gumbel-max).

    Each row has its own stream, seeded by its question, so that a reply depends on no other of its batch.
    """

    def __init__(self, queries: Sequence[Query], temperature: float) -> None:
        self.temperature = temperature
        self.streams = []
        for query in queries:
            seed = int.from_bytes(query.digest()[:8], "big") >> 1
            self.streams.append(torch.Generator().manual_seed(seed))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, T) ids so far and (B, V) logits -> (B, V)."""
        noise = torch.stack([torch.empty(scores.shape[1]).exponential_(generator=g) for g in self.streams])
        return scores.float() / self.temperature - noise.log().to(scores.device)


@contextlib.contextmanager
def plainly_greedy(causal: Any) -> Iterator[None]:
    """Within it, a module's own generation settings are the plain ones, but for its special tokens."""
    from transformers import GenerationConfig

    own = causal.generation_config
    tokens = {name: getattr(own, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    causal.generation_config = GenerationConfig(**tokens)
    try:
        yield
    finally:
        causal.generation_config = own
