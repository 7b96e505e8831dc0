"""What a model server can do, proved by a few questions before anything else is asked of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from indelible.data.chat import ChatFormat, Encoded
from indelible.data.records import Message, Query, Reply
from indelible.errors import ModelError, Unscorable
from indelible.servers.given import Endpoint, Prompt, Scoring, as_prompt, next_token, score
from indelible.servers.http import Rejected
from indelible.servers.wire import TokenNames, first_choice, read_tokens
from indelible.servers.written import GO_ON, Writing, converse, prompt_tokens, write

PLAIN: dict[str, Any] = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
"""Sampling as the model is, without what a server or the model's own generation settings would add."""

AGREE = 0.2
"""Nats by which two answers about one token may differ: batches of another shape, half precision."""

_QUESTION = ({"role": "user", "content": "Tell me a story of one sentence."},)
_ANSWERS = ("The capital of France is Paris, on the Seine.", "Seven lamps wrote purple under a Tuesday.")
_BEGUN = "Answer 41-B:"


@dataclass(frozen=True)
class Capabilities:
    """What a server was seen to do.

    Attributes:
        scoring: how it gives log-probabilities of given text; None: it does not.
        top: it names the most probable token at every position.
        writing: how it is asked for text.
        draws: seeds give different texts at a temperature above 0, or that could not be seen.
        chat_top: its chat tells the most probable tokens of what it writes.
        notes: why something is not there, one sentence each.
    """

    scoring: Scoring | None
    top: bool
    writing: Writing
    draws: bool
    chat_top: bool
    notes: tuple[str, ...] = ()


def probe(endpoint: Endpoint, chat: ChatFormat | None, names: TokenNames | None) -> Capabilities:
    """Ask a server what it can do.

    Args:
        chat, names: by the model's own tokenizer; without it no log-probabilities can be asked for.

    Raises:
        ModelError: it gives no text at all, the key is wrong, or it cannot be reached.
    """
    endpoint = replace(endpoint, final=frozenset({500}))
    notes: list[str] = []
    scoring, top = None, False
    if chat is None or names is None:
        notes.append("no log-probabilities: they need the model's own tokenizer (tokenizer=FOLDER)")
    else:
        scoring, top = _scoring(endpoint, chat, names, notes)
    prompt = encoded_examples(chat)[0] if chat is not None else None
    ids = prompt.input_ids[: prompt.target_positions[0]].tolist() if prompt is not None else None
    writing = _writing(endpoint, ids, names)
    if writing.route == "chat" and writing.begins == "no":
        notes.append("no replies that are begun: its chat starts another one")
    if not writing.sampling:
        notes.append("replies are sampled as the server is set: it takes no top_k, min_p and repetition_penalty")
    draws = _draws(endpoint, writing, ids, names)
    if draws is False:
        notes.append("no drawn replies: three seeds gave one text at temperature 1.5")
    return Capabilities(scoring, top, writing, draws is not False, _chat_top(endpoint, writing.limit), tuple(notes))


# ------------------------------------------------------------------------------------- log-probabilities of given text


def encoded_examples(chat: ChatFormat) -> list[Encoded]:
    """Two texts that no model finds equally likely, in the model's own format."""
    if chat.template is None:
        return [chat.encode(Query((Message("text", "Paris. "),), text)) for text in _ANSWERS]
    return [chat.encode(Query((Message("user", "What is the capital of France?"),), text)) for text in _ANSWERS]


def ways(first: int, names: TokenNames) -> Iterator[Scoring]:
    """Ways to try, those of one request a text first."""
    yield Scoring("prompt_logprobs", "ids")
    for prompt in _prompts(first, names):
        yield Scoring("echo", prompt)
    yield Scoring("forced", "ids")
    yield Scoring("top", "ids")


def _scoring(endpoint: Endpoint, chat: ChatFormat, names: TokenNames, notes: list[str]) -> tuple[Scoring | None, bool]:
    examples = encoded_examples(chat)
    reasons: dict[str, str] = {}
    for how in ways(int(examples[0].input_ids[0]), names):
        try:
            top = prove(endpoint, how, examples, names)
        except (Rejected, Unscorable) as error:
            reasons[f"{how.form} with {how.prompt}"] = _why(error)
        else:
            if how.form == "top":
                notes.append(f"of given text the most probable tokens alone: {_listed(reasons)}")
            return how, top
    notes.append(f"no log-probabilities of given text: {_listed(reasons)}")
    return None, False


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{way}: {why}" for way, why in reasons.items())


def prove(endpoint: Endpoint, how: Scoring, examples: Sequence[Encoded], names: TokenNames) -> bool:
    """Prove that what a server gives as log-probabilities of given text are that.

    Two texts: every number is finite and negative, not all are the same, and the texts differ. And at several places
    the token that the server writes there by itself has, as given text, the log-probability with which it was written
    (within `AGREE`), and is named as the most probable one.

    Returns:
        whether the most probable tokens are named.

    Raises:
        Unscorable, Rejected: they are not.
    """
    answers = [score(endpoint, how, e, names) for e in examples]
    known = np.concatenate([a.argmax for a in answers]) >= 0
    if how.form != "top":
        if any(np.ptp(a.logprobs) < 1e-6 for a in answers):
            raise Unscorable("the server gave the same number for every token")
        if abs(float(answers[0].logprobs.mean() - answers[1].logprobs.mean())) < 1e-4:
            raise Unscorable("the server gave two texts the same numbers")
    elif not known.any():
        raise Unscorable("the server's most probable tokens are not in the tokenizer")
    n_proved = 0
    ids, at = examples[0].input_ids, examples[0].target_positions
    for t in at[[0, len(at) // 3, 2 * len(at) // 3]]:
        written = next_token(endpoint, as_prompt(ids[:t].tolist(), how.prompt, names))
        token = written.id if written.id is not None else names.id_of(written.text)
        if token is None or not (how.prompt == "ids" or names.is_read_back([*ids[:t].tolist(), token])):
            continue
        mask = np.arange(t + 1) == t
        given = score(endpoint, how, Encoded(np.append(ids[:t], token), mask, (None,)), names)
        if not abs(float(given.logprobs[0]) - written.logprob) < AGREE:
            raise Unscorable("a token that the server wrote has another log-probability as given text")
        if given.argmax[0] not in (token, -1):
            raise Unscorable("a token that the server wrote is not the most probable one as given text")
        n_proved += 1
    if n_proved == 0:
        raise Unscorable("the tokens that the server writes are not in the tokenizer")
    return bool(known.mean() > 0.9)


# ------------------------------------------------------------------------------------------------------------- replies


def _writing(endpoint: Endpoint, ids: Sequence[int] | None, names: TokenNames | None) -> Writing:
    """How the server is asked for text: by a prompt of ours where that is read as it is meant, else in a chat.

    Raises:
        ModelError: it gives none.
    """
    reasons: list[str] = []
    if ids is not None and names is not None:
        for route in _prompts(ids[0], names):
            for sampling in (PLAIN, {}):
                try:
                    found = endpoint.complete(as_prompt(ids, route, names), max_tokens=1, temperature=0, **sampling)
                    if prompt_tokens(found) not in (None, len(ids)):
                        raise Unscorable("the server reads other tokens than were sent")
                    if isinstance(first_choice(found).get("text"), str):
                        return Writing(route, sampling)
                except (Rejected, Unscorable) as error:
                    reasons.append(_why(error))
    for sampling, limit in ((PLAIN, "max_tokens"), ({}, "max_tokens"), ({}, "max_completion_tokens")):
        how = Writing("chat", sampling, limit)
        try:
            first_choice(endpoint.chat(_QUESTION, **{limit: 1, "temperature": 0, **sampling}))
        except (Rejected, Unscorable) as error:
            reasons.append(_why(error))
        else:
            return replace(how, begins=_begins(endpoint, how))
    raise ModelError(
        f"{endpoint.client.url} gives no text of {endpoint.model}, neither for a prompt nor in a chat: "
        + "; ".join(dict.fromkeys(reasons))
    )


def _prompts(first: int, names: TokenNames) -> tuple[Prompt, ...]:
    return ("ids", "text", "text after bos") if first == names.tokenizer.bos_token_id else ("ids", "text")


def _begins(endpoint: Endpoint, how: Writing) -> Literal["no", "follows", "repeats"]:
    """What a chat does with a last message of the assistant.

    A server that knows `continue_final_message` reads fewer tokens with it than without: no end of the turn and no
    start of the next. One that writes the beginning again goes on with it (llama.cpp).
    """
    messages = [*_QUESTION, {"role": "assistant", "content": _BEGUN}]
    settings = {how.limit: 8, "temperature": 0, **how.sampling}
    with contextlib.suppress(Rejected, Unscorable):
        plain = endpoint.chat(messages, **settings)
        if str((first_choice(plain).get("message") or {}).get("content")).startswith(_BEGUN):
            return "repeats"
        on = endpoint.chat(messages, **settings, **GO_ON)
        n_plain, n_on = prompt_tokens(plain), prompt_tokens(on)
        if n_plain is not None and n_on is not None and n_on < n_plain:
            return "follows"
    return "no"


def _chat_top(endpoint: Endpoint, limit: str) -> bool:
    """Whether a chat tells the most probable tokens of what it writes."""
    with contextlib.suppress(Rejected, Unscorable):
        found = endpoint.chat(_QUESTION, **{limit: 1, "temperature": 0}, logprobs=True, top_logprobs=2)
        return any(len(said.top) > 1 for said in read_tokens(first_choice(found)))
    return False


def _draws(endpoint: Endpoint, how: Writing, ids: Sequence[int] | None, names: TokenNames | None) -> bool | None:
    """Whether seeds give different texts; None where that cannot be seen."""

    def text(seed: int) -> str:
        reply = Reply(24, temperature=1.5, seed=seed)
        if how.route == "chat" or ids is None or names is None:
            return converse(endpoint, how, _QUESTION, reply, seed)
        return write(endpoint, how, ids, names, reply, seed)

    try:
        return len({text(seed) for seed in (1, 2, 3)}) > 1
    except (Rejected, Unscorable):
        return None


def _why(error: Rejected | Unscorable) -> str:
    return f"{error.status} {error.said}".strip() if isinstance(error, Rejected) else str(error)
