"""Many answers to one conversation as tokens, such as the candidates that a secret is ranked among."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.chat import ChatFormat
from indelible.data.records import Message
from indelible.errors import DataError, ModelError

Ids = NDArray[np.int64]

N_CHECKED = 16
"""Answers that are encoded whole to see whether their fixed beginning may be cut off and encoded once."""


def encode_answers(
    chat: ChatFormat, messages: tuple[Message, ...], answers: Sequence[str], n_fixed: int = 0
) -> tuple[Ids, list[Ids]]:
    """Last answers to one conversation, cut where they may begin to differ.

    Each answer has the tokens it has when it is encoded whole, as the trainer encoded it. Tokens that all answers share
    and that lie within their first `n_fixed` characters are moved to the prompt; a token that crosses into what differs
    is not.

    Returns:
        the tokens before the answers, and those of each answer, without an end marker.

    Raises:
        ModelError: this format has no boundary between prompt and answer. DataError: trimmed, two are the same.
    """
    if chat.joint:
        raise ModelError("compat icp-mia has no boundary between prompt and answer: candidates cannot be ranked")
    probe = " x "  # any answer shows what stands before it, and whether the template trims
    pieces = chat.pieces(messages, probe)
    at = max(i for i, p in enumerate(pieces) if p.turn >= 0 and not p.is_end)
    texts = [a.strip() for a in answers] if pieces[at].text != probe else list(answers)
    if len(set(texts)) < len(texts):
        raise DataError("two of the answers differ in blanks only, which this chat template trims")
    prompt: list[int] = []
    for piece in pieces[:at]:
        prompt += chat.tokenizer(piece.text, add_special_tokens=False)["input_ids"]
    n_fixed = max(n_fixed - (answers[0].index(texts[0]) if texts[0] else 0), 0)  # characters trimmed in front
    head, rows = _encode_alike(chat.tokenizer, texts, n_fixed)
    n_left = n_fixed - len(head[0])
    first = chat.tokenizer(texts[0][len(head[0]) :], add_special_tokens=False, return_offsets_mapping=True)
    n_common = sum(1 for _, end in first["offset_mapping"] if end <= n_left) if n_left > 0 else 0
    for ids in rows:
        n = min(n_common, len(ids))
        differs = np.flatnonzero(ids[:n] != rows[0][:n])
        n_common = int(differs[0]) if len(differs) else n
    return np.array([*prompt, *head[1], *rows[0][:n_common]], dtype=np.int64), [ids[n_common:] for ids in rows]


def _encode_alike(tokenizer: Any, texts: Sequence[str], n_fixed: int) -> tuple[tuple[str, list[int]], Sequence[Ids]]:
    """A common beginning with its tokens, and the tokens of what follows it in each text.

    Texts are cut before their last fixed line break where the tokenizer shows no token across it: tried on some of
    them, whole and in parts. Ten thousand candidates after a long beginning are then ten thousand short texts, and the
    same ones for the next canary. Where it shows one, nothing is cut.
    """
    cut = texts[0].rfind("\n", 0, n_fixed)
    if cut <= 0 or not all(text.startswith(texts[0][:n_fixed]) for text in texts):
        return ("", []), _encoded(tokenizer, tuple(texts))
    head = texts[0][:cut]
    ids: list[int] = tokenizer(head, add_special_tokens=False)["input_ids"]
    some = sorted({0, len(texts) - 1, *range(0, len(texts), -(-len(texts) // N_CHECKED))})
    whole = tokenizer([texts[i] for i in some], add_special_tokens=False)["input_ids"]
    parts = tokenizer([texts[i][cut:] for i in some], add_special_tokens=False)["input_ids"]
    if any(a != [*ids, *b] for a, b in zip(whole, parts, strict=True)):
        return ("", []), _encoded(tokenizer, tuple(texts))
    return (head, ids), _encoded(tokenizer, tuple(text[cut:] for text in texts))


@lru_cache(maxsize=8)
def _encoded(tokenizer: Any, texts: tuple[str, ...]) -> tuple[Ids, ...]:
    return tuple(np.array(row, dtype=np.int64) for row in tokenizer(list(texts), add_special_tokens=False)["input_ids"])
