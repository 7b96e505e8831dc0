"""Words in the place of others, from a causal language model: where no masked one is at hand, the base proposes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from indelible.data.fill import Blanks, Candidate, with_blank
from indelible.data.records import Query, Record, Reply
from indelible.errors import ConfigError, Unscorable
from indelible.models.base import LanguageModel
from indelible.models.causal import CausalModel
from indelible.scoring.logprobs import CHUNK
from indelible.scoring.replies import remembered

if TYPE_CHECKING:
    from indelible.scoring.cache import AnswerCache

ROUNDS = 5
"""How often a filler is asked for one fill before it is given up."""

TOKENS_A_WORD = 4
"""New tokens that the base may write for each word of a span, to write about as many words."""


@lru_cache(maxsize=4)
def written_forms(tokenizer: Any) -> tuple[str, ...]:
    """Each token as it is written after a word: with a blank in front where it begins a new one.

    '' for special and added tokens, and for those that are no text by themselves (bytes of a character).
    """
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
    alone = tokenizer.decode(anchor)
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    texts = tokenizer.batch_decode([[*anchor, i] for i in range(len(tokenizer))])
    return tuple(
        text[len(alone) :] if i not in special and text.startswith(alone) and "\ufffd" not in text else ""
        for i, text in enumerate(texts)
    )


def admissible(forms: Sequence[str], n_vocabulary: int, *, words: bool) -> Tensor:
    """Which tokens may be put in, (V,) bool: those with any visible text, or with `words`, with a letter or digit.

    Rows of the vocabulary that no token has are not.
    """
    allowed = torch.zeros(n_vocabulary, dtype=torch.bool)
    for i, form in enumerate(forms[:n_vocabulary]):
        allowed[i] = any(c.isalnum() for c in form) if words else bool(form.strip())
    return allowed


def best_tokens(logits: Tensor, originals: Tensor, allowed: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The `top_k` most probable allowed tokens at each place, the original aside.

    Args:
        logits: (P, V). originals: (P,) token ids. allowed: (V,) bool.

    Returns:
        (P, k) log p(token) - log(1 - p(original)), -inf where there are fewer, and (P, k) token ids. The original's
        complement is summed from the others, so that it is exact where the model is sure of the original.
    """
    others = logits.float().log_softmax(-1).scatter(1, originals[:, None], -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    top = others.masked_fill(~allowed, -torch.inf).topk(min(top_k, others.shape[1]))
    return top.values - rest, top.indices


def propose_from_base(model: LanguageModel, record: Record, top_k: int) -> list[Candidate]:
    """Candidates for every token of a record's answers: the `top_k` most probable others with a letter or digit, by the
    model's next-token distribution given the prompt and the answer so far.

    White space, end markers and tokens that are part of a character are left alone.

    Raises:
        ConfigError: a model that does not show its distributions. Unscorable: longer than its context.
    """
    if not isinstance(model, CausalModel):
        raise ConfigError(f"{model.name} does not show whole distributions: give a base model on this machine")
    encoded = model.encode(Query(record.messages, record.target, record.images))
    if len(encoded) > model.context_length:
        raise Unscorable(f"longer than the base's context ({len(encoded)} > {model.context_length} tokens)")
    shared = Counter(encoded.spans)
    chosen = [
        (int(at), span)
        for at, span in zip(encoded.target_positions, encoded.spans, strict=True)
        if span is not None and shared[span] == 1 and record.responses[span.turn][span.start : span.end].strip()
    ]
    if not chosen:
        return []
    forms = written_forms(model.chat.tokenizer)
    ids = torch.from_numpy(encoded.input_ids).to(model.device)
    at = torch.tensor([position for position, _ in chosen], device=model.device)
    out: list[Candidate] = []
    with torch.inference_mode():
        with model.network.context():
            hidden = model.network.backbone(input_ids=ids[None], use_cache=False).last_hidden_state[0]  # (T, D)
        allowed: Tensor | None = None
        for begin in range(0, len(chosen), CHUNK):
            rows = at[begin : begin + CHUNK]
            logits = model.network.head(hidden[rows - 1])  # (P, V)
            if allowed is None:
                allowed = admissible(forms, logits.shape[1], words=True).to(model.device)
            weights, tokens = best_tokens(logits, ids[rows], allowed, top_k)
            for (position, span), row, best in zip(chosen[begin:], weights.tolist(), tokens.tolist(), strict=False):
                form = forms[encoded.input_ids[position]]
                where = with_blank(record.responses[span.turn], span.start, span.end, form)
                out += [
                    Candidate(span.turn, *where, forms[i], weight)
                    for weight, i in zip(row, best, strict=True)
                    if weight > -torch.inf
                ]
    return out


def fill_from_base(
    model: LanguageModel,
    blanks: Sequence[Blanks],
    advance: Callable[[int], None] = lambda _: None,
    *,
    cache: AnswerCache | None = None,
) -> list[tuple[str, ...] | None]:
    """Fills that the model writes, one a span: as many words as the span has, drawn at temperature 1, as the text would
    go on after all that stands left of it.

    Fills of one text are drawn independently, each after the text as it was. A reply without a word is drawn anew, up
    to `ROUNDS` times.

    Args:
        advance: told how many more spans are filled.
        cache: of replies at hand, and for new ones.

    Returns:
        for each text its fills, or None where one of them failed.

    Raises:
        ModelError: a format in which a reply cannot be begun.
    """
    fills: dict[tuple[int, int], str] = {}
    open_ = [(i, j) for i, blank in enumerate(blanks) for j in range(len(blank.spans))]
    for attempt in range(ROUNDS):
        asked = {at: _question(blanks[at[0]], at[1], attempt) for at in open_}
        asked = {at: query for at, query in asked.items() if _fits(model, query)}
        places = list(asked)
        for k, text in remembered(model, [asked[at] for at in places], cache):
            if isinstance(text, Unscorable):
                continue
            i, j = places[k]
            start, end = blanks[i].spans[j]
            words = text.split()[: len(blanks[i].text[start:end].split())]
            if words:
                fills[i, j] = " ".join(words)
                advance(1)
        open_ = [at for at in places if at not in fills]
    return [_complete(fills, i, len(blank.spans)) for i, blank in enumerate(blanks)]


def _question(blank: Blanks, j: int, attempt: int) -> Query:
    start, end = blank.spans[j]
    n_new = TOKENS_A_WORD * len(blank.text[start:end].split())
    seed = seed_of(f"{blank.seed}:{j}:{attempt}")
    return Query(blank.messages, "", reply=Reply(n_new, 1.0, seed, blank.text[:start].rstrip()))


def _fits(model: LanguageModel, query: Query) -> bool:
    n_new = query.reply.max_new_tokens if query.reply is not None else 0
    return 0 < model.prompt_length(query) <= model.context_length - n_new


def _complete(fills: Mapping[tuple[int, int], str], i: int, n: int) -> tuple[str, ...] | None:
    return tuple(fills[i, j] for j in range(n)) if all((i, j) in fills for j in range(n)) else None


def seed_of(purpose: str) -> int:
    """A whole number below 2^63 for a purpose, such as 'run seed:record:draw'."""
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big") >> 1
