"""Text from an OpenAI-compatible server: through a prompt of ours, or through messages that it renders itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from indelible.data.records import Reply
from indelible.errors import Unscorable
from indelible.servers.given import Endpoint, Prompt, as_prompt
from indelible.servers.wire import TokenNames, first_choice


@dataclass(frozen=True)
class Writing:
    """How a server is asked for text.

    Attributes:
        route: how a prompt of ours is sent; or messages, to its chat.
        sampling: fields which say that nothing is added to the model's own sampling, where the server knows them.
        limit: the field that bounds a reply's length.
        begins: what its chat does with a reply that is begun: starts another one, writes what follows, or writes all of
            it again.
    """

    route: Prompt | Literal["chat"]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limit: str = "max_tokens"
    begins: Literal["no", "follows", "repeats"] = "no"

    def __str__(self) -> str:
        plainly = "plain sampling" if self.sampling else "the server's own sampling"
        by = "messages, rendered by the server" if self.route == "chat" else f"prompts as {self.route}"
        return f"{by}, {plainly}"


def write(
    endpoint: Endpoint,
    how: Writing,
    ids: Sequence[int],
    names: TokenNames,
    reply: Reply,
    seed: int,
    stop: str = "",
) -> str:
    """A reply to a prompt of ours.

    Args:
        ids: (T,) token ids of the prompt; the beginning of the reply is part of it.
        seed: of the draw.
        stop: text at which the reply ends, and which is not part of it.

    Raises:
        Unscorable: the server gave no text, or cut the prompt.
        Rejected: it refuses the question.
    """
    if how.route == "chat":
        raise ValueError("this server is asked by messages")
    found = endpoint.complete(as_prompt(ids, how.route, names), **_settings(how, reply, seed, stop))
    choice, n_read = first_choice(found), prompt_tokens(found)
    if n_read is not None and n_read < len(ids):
        raise Unscorable(f"the server read {n_read} tokens of a prompt of {len(ids)}")
    return _text(choice, choice.get("text"), stop)


def converse(endpoint: Endpoint, how: Writing, messages: Sequence[Mapping[str, str]], reply: Reply, seed: int) -> str:
    """A reply to messages that the server renders.

    Raises:
        Unscorable: the server gave no text, cut the messages, or cannot go on with a reply that is begun.
        Rejected: it refuses the question.
    """
    settings = _settings(how, reply, seed, "")
    if reply.begun:
        if how.begins == "no":
            raise Unscorable("the server's chat does not go on with a reply that is begun: give the model's tokenizer")
        messages = [*messages, {"role": "assistant", "content": reply.begun}]
        settings |= GO_ON if how.begins == "follows" else {}
    found = endpoint.chat(messages, **settings)
    choice, n_read = first_choice(found), prompt_tokens(found)
    n_words = sum(len(m["content"].split()) for m in messages)  # no tokenizer puts two of them into one token
    if n_read is not None and n_read < n_words:
        raise Unscorable(f"the server read {n_read} tokens of messages of {n_words} words")
    message = choice.get("message")
    text = _text(choice, message.get("content") if isinstance(message, dict) else None, "")
    if reply.begun and how.begins == "repeats":
        if not text.startswith(reply.begun):
            raise Unscorable("the server did not go on with the reply as it was begun")
        text = text.removeprefix(reply.begun)
    return text


GO_ON = {"continue_final_message": True, "add_generation_prompt": False}
"""vLLM's way to have a last message of the assistant continued."""


def _settings(how: Writing, reply: Reply, seed: int, stop: str) -> dict[str, Any]:
    out = {how.limit: reply.max_new_tokens, "temperature": reply.temperature, **how.sampling}
    if reply.temperature > 0:
        out["seed"] = seed
    if stop:
        out["stop"] = [stop]
    return out


def _text(choice: Mapping[str, Any], text: Any, stop: str) -> str:
    if choice.get("finish_reason") == "content_filter":
        raise Unscorable("the server's filter held the reply back")
    if not isinstance(text, str):
        raise Unscorable("the server gave no text")
    return text.split(stop)[0] if stop else text


def prompt_tokens(found: Mapping[str, Any]) -> int | None:
    """How many tokens a server says that it read; None where it does not say."""
    usage = found.get("usage")
    n = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return n if isinstance(n, int) else None
