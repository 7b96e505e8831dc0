"""Whether answers at hand still hold: of a model behind a server nobody tells us when its weights change."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from indelible import distributed
from indelible.data.records import Query
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import answer
from indelible.scoring.replies import reply

N_ASKED = 8
"""Answers at hand that are asked for again."""

MOST = 0.1
"""Mean difference of log-probabilities, nats a token, that rounding and batching may make; other weights make more."""

BEGINNING = 20
"""Characters of a greedy reply that have to come out again: rounding may turn later ones."""


def still_holds(model: LanguageModel, queries: Sequence[Query], cache: AnswerCache | None) -> bool | None:
    """Ask again for some of the answers to these questions that the cache holds; None where it holds none to compare.

    Log-probabilities have to agree within `MOST` on average; of greedy replies at least half have to begin as before.
    Drawn replies are not compared. Of several processes the main one has the cache, and all ask.
    """
    scored, written = distributed.from_main(lambda: _at_hand(model, queries, cache))
    some = _some(list(scored))
    if some:
        again = answer(model, some, stage="answers at hand, asked again")[0].found
        gaps = [np.abs(scored[q].logprobs - again[q].logprobs) for q in some if q in again]
        gap = float(np.mean(np.concatenate(gaps))) if gaps else math.nan
        if not gap <= MOST:
            return False
    replies = _some(list(written))
    if replies:
        texts = reply(model, replies, stage="answers at hand, asked again")[0].texts
        alike = sum(q in texts and texts[q][:BEGINNING] == written[q][:BEGINNING] for q in replies)
        if 2 * alike < len(replies):
            return False
    return True if some or replies else None


def _at_hand(
    model: LanguageModel, queries: Sequence[Query], cache: AnswerCache | None
) -> tuple[dict[Query, TokenLogprobs], dict[Query, str]]:
    if cache is None:
        return {}, {}
    scored = [q for q in queries if q.reply is None]
    greedy = [q for q in queries if q.reply is not None and not q.reply.temperature]
    return cache.read(model.fingerprint, scored), cache.read_texts(model.fingerprint, greedy)


def _some(queries: list[Query]) -> list[Query]:
    return random.Random(0).sample(queries, min(N_ASKED, len(queries)))
