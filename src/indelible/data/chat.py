"""From a query to token ids: the one place where prompts are rendered, for training and for scoring alike.

A query is rendered through the model's own chat template and cut into pieces (context, answer, end marker). Each piece
is encoded by itself, so that no token crosses the boundary between what conditions and what is scored, and the target
tokens of a record are the same whatever context stands before it. Every scored assistant turn contributes its answer
and its end-of-turn marker to the target.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indelible.data.records import Message, Query
from indelible.data.templates import END_MARKERS, TEMPLATES
from indelible.errors import ConfigError, ModelError, did_you_mean


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of rendered text. `turn` is the index of the scored answer it belongs to, -1 for context."""

    text: str
    turn: int = -1
    is_end: bool = False
    trimmed: int = 0  # characters that the template took off the answer's start


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Where a target token stands in its answer: `responses[turn][start:end]`."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A query as tokens.

    Attributes:
        input_ids: (T,) int64.
        is_target: (T,) bool, true where the token is scored (and, in training, under the loss). Never true at 0:
            the first token has nothing before it.
        spans: one entry a target token; None for the end marker, which is no text of the record.
    """

    input_ids: NDArray[np.int64]
    is_target: NDArray[np.bool_]
    spans: tuple[TokenSpan | None, ...]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def target_positions(self) -> NDArray[np.int64]:
        """Positions of the target tokens, ascending; token at position t is predicted from position t - 1."""
        return np.flatnonzero(self.is_target)

    @property
    def target_ids(self) -> NDArray[np.int64]:
        """Ids of the target tokens, in order."""
        return self.input_ids[self.is_target]


@dataclass(frozen=True)
class ChatFormat:
    """How a model's conversations become text, and text becomes tokens.

    Attributes:
        tokenizer: a transformers tokenizer.
        template: Jinja source, or None for plain text only.
        name: what reports call it: `tokenizer`, a name of `TEMPLATES`, or a file's name.
        system: system turn put before records that have none.
        joint: encode prompt and answer as one string and cut at the length of the prompt encoded alone, as the
            released ICP-MIA code does (`compat="icp-mia"`); the boundary may then fall inside a merged token.
    """

    tokenizer: Any = field(compare=False, repr=False)
    template: str | None
    name: str
    system: str | None = None
    joint: bool = False

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the rendering, beside the tokenizer's own files."""
        text = repr((self.template, self.system, self.joint))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def pieces(self, messages: tuple[Message, ...], target: str) -> list[Piece]:
        """Render a conversation and cut it at the boundaries of its scored answers.

        Raises:
            ModelError: no template for chat data, or a template that rewrites earlier turns.
        """
        if all(m.role == "text" for m in messages):
            bos = _default_bos(self.tokenizer)
            return [Piece(bos + "".join(m.content for m in messages)), Piece(target, turn=0)]
        if self.template is None:
            raise ModelError(
                "the tokenizer has no chat template, but the data are conversations: "
                "pass --template (a Jinja file, or one of " + ", ".join(sorted(TEMPLATES)) + ")"
            )
        turns: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in messages]
        scored = [i for i, m in enumerate(messages) if m.scored]
        if self.system is not None and messages[0].role != "system":
            turns.insert(0, {"role": "system", "content": self.system})
            scored = [i + 1 for i in scored]
        turns.append({"role": "assistant", "content": target})
        scored.append(len(turns) - 1)
        return self._cut(turns, scored)

    def _render(self, turns: list[dict[str, Any]], *, prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                turns, chat_template=self.template, tokenize=False, add_generation_prompt=prompt
            )
        except TemplateError as error:  # a broken template, or one that refuses these roles in this order
            roles = ", ".join(turn["role"] for turn in turns)
            raise ModelError(f"chat template '{self.name}' refuses the turns {roles}: {error}") from error
        return text

    def _cut(self, turns: list[dict[str, Any]], scored: list[int]) -> list[Piece]:
        full = self._render(turns, prompt=False)
        pieces: list[Piece] = []
        cursor = 0
        for turn, i in enumerate(scored):
            prompt = self._render(turns[:i], prompt=True)
            start, content, trimmed = self._find(full, prompt, turns[: i + 1])
            if start < cursor:
                raise ModelError(
                    f"chat template '{self.name}' does not render an assistant turn as prompt + answer + end marker; "
                    "pass --template with one that does"
                )
            end = start + len(content)
            alone = full if i == len(turns) - 1 else self._render(turns[: i + 1], prompt=False)
            marker = _end_marker(alone[end:], self.tokenizer)
            marker = marker if full.startswith(marker, end) else ""
            pieces += [
                Piece(full[cursor:start]),
                Piece(content, turn, trimmed=trimmed),
                Piece(marker, turn, is_end=True),
            ]
            cursor = end + len(marker)
        return [p for p in pieces if p.text]

    def _find(self, full: str, prompt: str, turns: list[dict[str, Any]]) -> tuple[int, str, int]:
        """Where the last of `turns`, an answer, stands in `full`: start (-1: nowhere), its text, characters trimmed.

        Many templates trim answers. Some write something fixed between prompt and answer, such as a blank (Llama 2,
        Mistral) or an empty thinking block (Qwen 3); rendering another answer shows what. It is context.
        """
        content = turns[-1]["content"]
        stripped = (content.strip(), len(content) - len(content.lstrip()))
        for text, trimmed in ((content, 0), stripped):
            if full.startswith(prompt + text):
                return len(prompt), text, trimmed
        other = "\ue000"
        shown = self._render([*turns[:-1], {"role": "assistant", "content": other}], prompt=False)
        start = shown.find(other)
        for text, trimmed in ((content, 0), stripped):
            if shown.startswith(prompt) and full.startswith(shown[:start] + text):
                return start, text, trimmed
        return -1, content, 0

    def encode(self, query: Query) -> Encoded:
        """Token ids of a query and which of them are its target.

        Raises:
            ModelError: it shows images, and this is a format for text.
        """
        refuse_images(query)
        pieces = self.pieces(query.messages, query.target)
        if self.joint:
            return self._encode_joint(pieces)
        ids: list[int] = []
        spans: list[TokenSpan | None] = []
        is_target: list[bool] = []
        for piece in pieces:
            out = self.tokenizer(piece.text, add_special_tokens=False, return_offsets_mapping=piece.turn >= 0)
            new = out["input_ids"]
            ids += new
            is_target += [piece.turn >= 0] * len(new)
            if piece.turn >= 0:
                offsets = out["offset_mapping"]
                spans += [
                    None if piece.is_end else TokenSpan(piece.turn, start + piece.trimmed, end + piece.trimmed)
                    for start, end in offsets
                ]
        mask = np.array(is_target, dtype=np.bool_)
        if len(mask) and mask[0]:  # nothing to predict the first token from
            mask[0], spans = False, spans[1:]
        return Encoded(np.array(ids, dtype=np.int64), mask, tuple(spans))

    def _encode_joint(self, pieces: list[Piece]) -> Encoded:
        if any(p.turn > 0 for p in pieces):
            raise ModelError("compat icp-mia scores one answer a record; these conversations have several")
        prompt = "".join(p.text for p in pieces if p.turn < 0)
        n_prompt = len(self.tokenizer(prompt)["input_ids"])
        out = self.tokenizer("".join(p.text for p in pieces), return_offsets_mapping=True)
        ids = np.array(out["input_ids"], dtype=np.int64)
        n_prompt = max(n_prompt, 1)  # nothing to predict the first token from
        mask = np.arange(len(ids)) >= n_prompt
        answer_end = len(prompt) + sum(len(p.text) for p in pieces if p.turn >= 0 and not p.is_end)
        spans = [
            TokenSpan(0, max(start - len(prompt), 0), end - len(prompt)) if end <= answer_end else None
            for start, end in out["offset_mapping"][n_prompt:]
        ]
        return Encoded(ids, mask, tuple(spans))


def refuse_images(query: Query) -> None:
    """Stop a question that shows images from being asked without them.

    Raises:
        ModelError: it does, and this is what a model without a vision tower says.
    """
    if query.images:
        raise ModelError(
            f"the question shows {len(query.images)} image(s), and the model has no vision tower: "
            "give a vision-language model, loaded with images"
        )


def _default_bos(tokenizer: Any) -> str:
    """The text a tokenizer puts before a plain string by itself, or ''."""
    ids = tokenizer("a")["input_ids"]
    return str(tokenizer.bos_token) if tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else ""


def _with_bos(template: str, tokenizer: Any) -> str:
    """A template of ours, with the BOS that this tokenizer puts before every text and some models cannot do without."""
    return template if "bos_token" in template or not _default_bos(tokenizer) else "{{ bos_token }}" + template


def _end_marker(tail: str, tokenizer: Any) -> str:
    """The start of `tail` up to and with the first end-of-turn token; '' where the template writes none."""
    known = {*END_MARKERS, *tokenizer.all_special_tokens}
    hits = [(tail.find(t), t) for t in known if t and t in tail]
    if not hits:
        return ""
    at, token = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
    return tail[: at + len(token)]


def chat_format(
    tokenizer: Any, *, template: str | None = None, system: str | None = None, chat_data: bool = True
) -> ChatFormat:
    """The format for a tokenizer.

    Args:
        template: None for the tokenizer's own; a name of `TEMPLATES`; or the path of a Jinja file.
        chat_data: the records are conversations with roles (`messages`, `conversations`). For prompt/answer rows a
            tokenizer without a template falls back to the stated `plain` format; for conversations it is an error.

    Raises:
        ConfigError: unknown template.
        ModelError: conversations, and a tokenizer without a template.
    """
    if template is None:
        own = getattr(tokenizer, "chat_template", None)
        if own:
            return ChatFormat(tokenizer, own, "tokenizer", system)
        if chat_data:
            raise ModelError(
                "the tokenizer has no chat template, but the data are conversations: "
                "pass --template (a Jinja file, or one of " + ", ".join(sorted(TEMPLATES)) + ")"
            )
        return ChatFormat(tokenizer, _with_bos(TEMPLATES["plain"], tokenizer), "plain", system)
    if template == "icp-mia":
        return ChatFormat(tokenizer, TEMPLATES[template], template, system, joint=True)
    if template in TEMPLATES:
        return ChatFormat(tokenizer, _with_bos(TEMPLATES[template], tokenizer), template, system)
    path = Path(template)
    if not path.is_file():
        raise ConfigError(did_you_mean(template, list(TEMPLATES), "template") + " Or the path of a Jinja file.")
    return ChatFormat(tokenizer, path.read_text(encoding="utf-8"), path.name, system)
