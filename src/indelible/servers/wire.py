"""Log-probabilities as OpenAI-compatible servers write them, and what of it can be believed.

Three forms are read: `prompt_logprobs` (vLLM: by token id), `logprobs` of completions (parallel lists), and `logprobs`
of chats and of llama.cpp (a list of objects).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.chat import Encoded
from indelible.errors import Unscorable
from indelible.models.base import TokenLogprobs

UNKNOWN = "\ufffd"
"""What a decoder writes for a part of a character."""

_TOLERANCE = 1e-3  # nats: servers round what they write
_LEAST = -9000.0  # vLLM writes -9999 for minus infinity, which JSON has no word for


@dataclass(frozen=True, slots=True)
class Said:
    """One token as a server tells of it: its text, its id where told, log p (NaN where untold), and the most probable
    ones there as (text, id, log p)."""

    text: str
    id: int | None
    logprob: float
    top: tuple[tuple[str, int | None, float], ...] = ()


@dataclass(frozen=True)
class TokenNames:
    """A tokenizer's tokens by what servers may call them: the piece, or its text."""

    tokenizer: Any = field(repr=False)

    def same(self, token_id: int, text: str) -> bool:
        """Whether a server's text may be this token. One that is part of a character says nothing and passes."""
        names = {_plain(n) for n in (self.piece(token_id), self.text(token_id))}
        if UNKNOWN in text or text.startswith("bytes:") or any(UNKNOWN in n for n in names):
            return True
        return _plain(text) in names or (not text and token_id in self._special)

    def piece(self, token_id: int) -> str:
        """The token in the vocabulary's own spelling."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def text(self, *token_ids: int) -> str:
        """The text of some tokens, markers included."""
        return str(
            self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def is_read_back(self, token_ids: Sequence[int]) -> bool:
        """Whether the tokens' text is cut into these tokens again."""
        ids: list[int] = self.tokenizer(self.text(*token_ids), add_special_tokens=False)["input_ids"]
        return ids == list(token_ids)

    def id_of(self, text: str) -> int | None:
        """The one token of this text; None where there is none, or more than one."""
        return self._by_name.get(text)

    def is_part(self, token_id: int) -> bool:
        """Whether it is a part of a character."""
        return UNKNOWN in self.text(token_id)

    @cached_property
    def whole(self) -> int:
        """A token that is whole characters and no marker."""
        return next(i for i in range(len(self.tokenizer)) if i not in self._special and self.text(i).strip().isascii())

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self.tokenizer.all_special_ids)

    @cached_property
    def _by_name(self) -> dict[str, int | None]:
        ids = range(len(self.tokenizer))
        texts = self.tokenizer.batch_decode([[i] for i in ids], skip_special_tokens=False)
        found: dict[str, int | None] = {}
        for names in (texts, self.tokenizer.convert_ids_to_tokens(list(ids))):
            for i, name in zip(ids, names, strict=True):
                if name and UNKNOWN not in name:
                    found[name] = i if found.get(name, i) == i else None
        return found


def _plain(text: str) -> str:
    """Blanks as SentencePiece and byte-level vocabularies write them, and those that a decoder strips, taken away."""
    return text.replace("▁", " ").replace("Ġ", " ").strip(" ")


def first_choice(found: Mapping[str, Any]) -> dict[str, Any]:
    """The first of a completion's choices.

    Raises:
        Unscorable: there is none.
    """
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unscorable("the server's answer holds no choice")
    return choices[0]


def read_tokens(choice: Mapping[str, Any]) -> list[Said]:
    """The tokens of a choice's `logprobs`, in either form; empty where it has none.

    Raises:
        Unscorable: another form.
    """
    told = choice.get("logprobs")
    if told is None:
        return []
    try:
        if "content" in told:
            return [_said(entry) for entry in told["content"] or []]
        tops = told.get("top_logprobs") or [None] * len(told["tokens"])
        rows = zip(told["tokens"], told["token_logprobs"], tops, strict=True)
        return [
            Said(str(text), None, _number(value), tuple((str(t), None, _number(v)) for t, v in (top or {}).items()))
            for text, value, top in rows
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unscorable("the server's log-probabilities have a form that is not known") from None


def _said(entry: Mapping[str, Any]) -> Said:
    tops = tuple((str(t["token"]), t.get("id"), _number(t["logprob"])) for t in entry.get("top_logprobs") or [])
    return Said(str(entry["token"]), entry.get("id"), _number(entry["logprob"]), tops)


def read_prompt(choice: Mapping[str, Any], ids: Sequence[int]) -> list[Said]:
    """The tokens of a prompt from `prompt_logprobs`; empty where the server does not know it.

    Raises:
        Unscorable: another form, or other tokens.
    """
    told = choice.get("prompt_logprobs")
    if told is None:
        return []
    try:
        out = []
        for token_id, entry in zip(ids, told, strict=True):
            if entry is None:
                out.append(Said(UNKNOWN, token_id, math.nan))
                continue
            tops = {int(i): (str(e.get("decoded_token") or UNKNOWN), _number(e["logprob"])) for i, e in entry.items()}
            text, value = tops[token_id]
            out.append(Said(text, token_id, value, tuple((t, i, v) for i, (t, v) in tops.items())))
        return out
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unscorable("the server's log-probabilities are not of the tokens sent") from None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def line_up(said: Sequence[Said], ids: Sequence[int], names: TokenNames) -> None:
    """Prove that the first `len(ids)` tokens of a server's are these.

    Raises:
        Unscorable: they are not; the message tells where, and repeats no text.
    """
    if len(said) < len(ids):
        raise Unscorable(f"the server tells of {len(said)} tokens, {len(ids)} were asked about")
    for k, (token_id, told) in enumerate(zip(ids, said, strict=False)):
        if told.id != token_id if told.id is not None else not names.same(token_id, told.text):
            raise Unscorable(f"the server's tokens are not the tokenizer's (token {k + 1} of {len(ids)})")
        if not names.same(token_id, told.text):
            raise Unscorable(f"the server names its tokens otherwise than the tokenizer (token {k + 1} of {len(ids)})")


def believed(said: Sequence[Said], ids: NDArray[np.int64], names: TokenNames, *, untold: bool = False) -> TokenLogprobs:
    """A server's tokens as the answer to a query.

    Args:
        said: one entry a target token; `ids` (n,) are what these tokens must be.
        untold: some may have no number; they stay NaN.

    Returns:
        `argmax` is -1 where the most probable token is not told, or has no name that is its alone; `mean` and `std` are
        NaN: they need the whole distribution.

    Raises:
        Unscorable: what stands there cannot be a log-probability: none, above 0, minus infinity, more than the most
            probable token's, or 0.0 for all.
    """
    logprobs = np.array([s.logprob for s in said], dtype=np.float32)
    n_missing = int((~np.isfinite(logprobs)).sum())
    if np.isinf(logprobs).any() or (n_missing and not untold):
        raise Unscorable(f"the server gave no log-probability ({n_missing} of {len(said)} tokens)")
    if (logprobs > _TOLERANCE).any() or (logprobs < _LEAST).any():
        raise Unscorable("the server gave a number that is no log-probability")
    if len(logprobs) > 1 and not logprobs.any():
        raise Unscorable("the server gave 0.0 for every token")
    argmax = np.array([most_probable(s, int(i), names) for s, i in zip(said, ids, strict=True)], dtype=np.int32)
    nothing = np.full(len(said), np.nan, dtype=np.float32)
    return TokenLogprobs(np.minimum(logprobs, 0), nothing, nothing.copy(), argmax)


def most_probable(said: Said, token_id: int, names: TokenNames) -> int:
    """The id of the most probable token where this one stands; -1 where it is not known.

    Raises:
        Unscorable: the token has more than the most probable one.
    """
    if not said.top:
        return -1
    text, told, value = max(said.top, key=lambda t: t[2])
    if said.logprob > value + _TOLERANCE:
        raise Unscorable("the server gave a token more than its most probable one")
    if said.logprob >= value - 1e-6:
        return token_id
    found = told if told is not None else names.id_of(text)
    return -1 if found is None else found


def answered(said: Sequence[Said], encoded: Encoded, names: TokenNames) -> TokenLogprobs:
    """The answer to a query from all tokens of its prompt, lined up first.

    Raises:
        Unscorable: see `line_up` and `believed`.
    """
    line_up(said, encoded.input_ids.tolist(), names)
    return believed([said[t] for t in encoded.target_positions], encoded.target_ids, names)
