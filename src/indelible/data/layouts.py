"""The row layouts that are known: which columns make a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Layout:
    """One way in which the columns of a row make a record: `columns` must be there, `optional` may be."""

    name: str
    kind: Literal["pair", "chat", "text"]
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    meaning: str


def _pair(prompt: str, target: str, *optional: str) -> Layout:
    extra = f"{prompt}, then a line break and {' or '.join(optional)} where not empty" if optional else prompt
    name = f"{prompt}/input/{target}" if optional[:1] == ("input",) else f"{prompt}/{target}"
    return Layout(name, "pair", (prompt, target), optional, f"user turn: {extra}; target: {target}")


LAYOUTS: tuple[Layout, ...] = (
    Layout("messages", "chat", ("messages",), (), "turns of role and content; every assistant turn is target"),
    Layout("conversations", "chat", ("conversations",), (), "ShareGPT turns of from and value; as messages"),
    _pair("instruction", "output", "input"),
    _pair("instruction", "response", "context"),
    _pair("prompt", "response"),
    _pair("prompt", "completion"),
    _pair("question", "answer"),
    _pair("question", "response"),
    _pair("query", "response"),
    _pair("input", "output"),
    _pair("source", "target"),
    Layout("text", "text", ("text",), (), "plain text without a chat template; all of it is target"),
)
"""In order of precedence: a row takes the first layout whose columns it has."""


def list_formats() -> list[Layout]:
    """The known row layouts, in order of precedence, for `indelible list formats`."""
    return list(LAYOUTS)
