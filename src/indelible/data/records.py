"""What is audited: a record. It carries no membership; that lives in the split ledger alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from indelible.data.pictures import Picture

Role = Literal["system", "user", "assistant", "text"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role="text"` is raw text outside any chat template.

    `scored` marks an assistant turn whose tokens belong to the target (every assistant turn of a training
    conversation), as opposed to an assistant turn that only serves as context (a probe's answer).
    """

    role: Role
    content: str
    scored: bool = False


Context = tuple[Message, ...]
"""Turns put before a record, such as a probe or a prefix of demonstrations."""


@dataclass(frozen=True)
class Record:
    """One training example, or one that might have been.

    Attributes:
        id: unique within an audit, stable across runs of the same file.
        messages: the turns before the target; assistant turns among them that were trained on have `scored=True`.
            Empty for plain text.
        target: the last assistant turn, or the whole text of a plain-text row.
        images: pictures of a vision-language record, in order; they stand before the text of the first user turn.
        variants: named contexts (masked copies, retrieved demonstrations, a constant prefix), made once and
            seeded by record id, so that randomness is data.
        numbers: named numbers made once beside the variants, such as how frequent its tokens are elsewhere.
        group: records of one group (several answers to one question) stay on one side and are resampled together.
    """

    id: str
    messages: tuple[Message, ...]
    target: str
    images: tuple[Picture, ...] = ()
    variants: Mapping[str, tuple[Context, ...]] = field(default_factory=dict, compare=False)
    group: str = ""
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict, compare=False)

    def with_variant(self, name: str, contexts: Iterable[Context]) -> Record:
        """A copy that also holds `contexts` under `name`."""
        return replace(self, variants={**self.variants, name: tuple(contexts)})

    def with_numbers(self, name: str, numbers: Iterable[float]) -> Record:
        """A copy that also holds `numbers` under `name`."""
        return replace(self, numbers={**self.numbers, name: tuple(numbers)})

    @property
    def prompt(self) -> str:
        """All text before the target, turns joined by newlines."""
        return "\n".join(m.content for m in self.messages)

    @property
    def responses(self) -> tuple[str, ...]:
        """The texts under the loss, in order: scored assistant turns, then the target."""
        return (*(m.content for m in self.messages if m.scored), self.target)

    @property
    def text(self) -> str:
        """Prompt and target as one string, for duplicate search and blind baselines."""
        return f"{self.prompt}\n{self.target}" if self.messages else self.target


@dataclass(frozen=True, slots=True)
class Reply:
    """How a question that asks for text is replied to.

    Attributes:
        max_new_tokens: the longest reply.
        temperature: 0 takes the most probable token; above, tokens are drawn from p^(1/temperature).
        seed: of the draw; several replies to one question differ in it. Nothing else decides what is drawn.
        begun: how the reply begins: given, and not part of what comes back.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    begun: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """One question to a model: the log-probability of `target` after `messages`, or with `reply`, a text after them.
    Equal queries are asked once. `images` stand before the text of the first user turn.

    `model` is a role, not a model: `target`, `base`, `reference` or `generator`; the audit says which model plays it.
    """

    messages: tuple[Message, ...]
    target: str
    images: tuple[Picture, ...] = ()
    model: str = "target"
    reply: Reply | None = None

    def digest(self) -> bytes:
        """SHA-256 over everything but the role: the same question to the same model has the same digest. Images count
        by their own SHA-256."""
        turns = [[m.role, m.content, m.scored] for m in self.messages]
        parts: list[object] = [turns, self.target, [image.sha256 for image in self.images]]
        if self.reply is not None:
            parts.append(astuple(self.reply))
        return hashlib.sha256(json.dumps(parts).encode()).digest()


def with_context(messages: tuple[Message, ...], context: Context) -> tuple[Message, ...]:
    """Put `context` before `messages`, behind a leading system turn if there is one."""
    n_system = 1 if messages and messages[0].role == "system" else 0
    return (*messages[:n_system], *context, *messages[n_system:])


def with_responses(record: Record, texts: Sequence[str]) -> Record:
    """The record with other answers: one text a scored turn, in order, the target's last; the prompt stays.

    Raises:
        ValueError: not as many texts as the record has answers.
    """
    *earlier, target = texts
    left = iter(earlier)
    if len(texts) != len(record.responses):
        raise ValueError(f"{len(texts)} texts for {len(record.responses)} answers")
    turns = tuple(replace(m, content=next(left)) if m.scored else m for m in record.messages)
    return replace(record, messages=turns, target=target)
