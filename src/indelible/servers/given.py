"""Questions to an OpenAI-compatible server, and how it gives the log-probabilities of a given text.

Four ways are known, the first that passes its proof is taken (`capabilities`):

- `prompt_logprobs`: vLLM's own, by token id, one request a text;
- `echo`: the prompt is given back with its log-probabilities, one request a text (vLLM, SGLang, llama-cpp-python);
- `forced`: one request a token: the token is made certain by a bias of the sampler, and the server tells the
  log-probability that it had without it (llama.cpp);
- `top`: one request a token: the most probable next tokens alone; a token that is not among them has no number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from indelible.data.chat import Encoded
from indelible.errors import Unscorable
from indelible.models.base import TokenLogprobs
from indelible.servers.http import Client
from indelible.servers.wire import Said, TokenNames, answered, believed, first_choice, read_prompt, read_tokens

Form = Literal["prompt_logprobs", "echo", "forced", "top"]
Prompt = Literal["ids", "text", "text after bos"]
"""How a prompt is sent: as token ids; as text; as text before which the server puts its own first token."""

BIAS = 100
"""Added to a logit, it makes a token certain; the most that servers take."""

TOP = 5
"""Most probable tokens asked for, one request a token; hosted servers give no more."""


@dataclass(frozen=True)
class Endpoint:
    """One model of a server. A status in `final` is a refusal and not asked again."""

    client: Client
    model: str
    final: frozenset[int] = frozenset()

    def complete(self, prompt: str | Sequence[int], **body: Any) -> dict[str, Any]:
        """`/completions`."""
        sent = {"model": self.model, "prompt": prompt if isinstance(prompt, str) else list(prompt), **body}
        return self.client.request("/completions", sent, final=self.final)

    def chat(self, messages: Sequence[Mapping[str, str]], **body: Any) -> dict[str, Any]:
        """`/chat/completions`."""
        sent = {"model": self.model, "messages": [dict(m) for m in messages], **body}
        return self.client.request("/chat/completions", sent, final=self.final)


@dataclass(frozen=True)
class Scoring:
    """How a server gives log-probabilities of given text."""

    form: Form
    prompt: Prompt

    def __str__(self) -> str:
        by = "a request a text" if self.form in ("prompt_logprobs", "echo") else "a request a token"
        return f"{self.form}, prompts as {self.prompt}, {by}"


def as_prompt(ids: Sequence[int], prompt: Prompt, names: TokenNames) -> str | list[int]:
    """Token ids as they are sent."""
    if prompt == "ids":
        return list(ids)
    return names.text(*(ids[1:] if prompt == "text after bos" else ids))


def score(endpoint: Endpoint, how: Scoring, encoded: Encoded, names: TokenNames) -> TokenLogprobs:
    """Log-probabilities of a query's target tokens.

    Raises:
        Unscorable: the server gave none, or none that can be believed.
        Rejected: it refuses the question.
    """
    ids = encoded.input_ids.tolist()
    if how.form in ("forced", "top"):
        said = [_one(endpoint, how, ids[:t], ids[t], names) for t in encoded.target_positions.tolist()]
        return believed(said, encoded.target_ids, names, untold=how.form == "top")
    wanted = {"prompt_logprobs": 1} if how.form == "prompt_logprobs" else {"echo": True, "logprobs": 1}
    # One token is generated, since servers differ in what they make of none; it is not looked at.
    found = endpoint.complete(as_prompt(ids, how.prompt, names), max_tokens=1, temperature=0, **wanted)
    choice = first_choice(found)
    said = read_prompt(choice, ids) if how.form == "prompt_logprobs" else read_tokens(choice)
    if not said:
        raise Unscorable("the server gave no log-probabilities of the prompt")
    return answered(said, encoded, names)


def _one(endpoint: Endpoint, how: Scoring, before: Sequence[int], token_id: int, names: TokenNames) -> Said:
    """A token after what stands before it."""
    prompt = as_prompt(before, how.prompt, names)
    if how.form == "forced" and not names.is_part(token_id):
        said = next_token(endpoint, prompt, logit_bias={str(token_id): BIAS})
        if said.id != token_id if said.id is not None else not names.same(token_id, said.text):
            raise Unscorable("the server wrote another token than the one it was made to")
        return said
    if how.form == "forced":
        # Of a part of a character llama.cpp tells nothing when it writes it: then it writes another token, and tells of
        # all that it could have written.
        said = next_token(endpoint, prompt, logprobs=len(names.tokenizer), logit_bias={str(names.whole): BIAS})
    else:
        said = next_token(endpoint, prompt)
    own = [p for text, told, p in said.top if (names.id_of(text) if told is None else told) == token_id]
    return Said(names.piece(token_id), token_id, own[0] if own else math.nan, said.top)


def next_token(endpoint: Endpoint, prompt: str | Sequence[int], **extra: Any) -> Said:
    """What the server says of the token that it would write next, the most probable one.

    Raises:
        Unscorable: nothing.
    """
    choice = first_choice(endpoint.complete(prompt, max_tokens=1, temperature=0, **{"logprobs": TOP, **extra}))
    said = read_tokens(choice)
    if not said or math.isnan(said[-1].logprob):
        raise Unscorable("the server gives no log-probabilities of what it writes")
    return said[-1]
