"""Counting without a model: attacks ask, their questions are tokenised, counted and answered with made-up numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from indelible.attacks import Attack
from indelible.attacks.base import Resources, plain
from indelible.config import AuditConfig
from indelible.data.chat import ChatFormat, Encoded
from indelible.data.records import Query, Record
from indelible.errors import UserError
from indelible.interview import prepare
from indelible.models.base import TokenLogprobs
from indelible.scoring.engine import Answers
from indelible.scoring.network import lay_out_work

BATCH_TOKENS = 1024
KEPT_TOKENS = 8192
"""Of a pass, and of the beginnings kept between passes: what a small machine does."""


@dataclass
class Dry:
    """A tokenizer that plays a model: it counts what is asked and answers with numbers that mean nothing.

    `tokens` are those that are read in a pass, `written` those of replies, of which each takes a pass of its own.
    """

    fingerprint: str
    chat: ChatFormat
    context_length: int
    tokens: int = 0
    written: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def encode(self, query: Query) -> Encoded:
        """Tokens of a query."""
        return self.chat.encode(query)

    def ask(self, queries: Sequence[Query]) -> tuple[dict[Query, TokenLogprobs], dict[Query, str]]:
        """Answers and texts; tokens of what is new are counted, shared beginnings once.

        Queries are without a role: what was asked in one is not counted in another.
        """
        found: dict[Query, TokenLogprobs] = {}
        texts: dict[Query, str] = {}
        new = []
        for query in queries:
            known = query.digest() in self._seen
            self._seen.add(query.digest())
            encoded = self.encode(query)
            if query.reply is not None:
                texts[query] = "other words " * (query.reply.max_new_tokens // 2) or "other"
                self.tokens += 0 if known else len(encoded)
                self.written += 0 if known else query.reply.max_new_tokens
                continue
            n = int(encoded.is_target.sum())
            ones = np.ones(n, dtype=np.float32)
            found[query] = TokenLogprobs(-ones, -ones, ones, encoded.target_ids.astype(np.int32))
            if not known:
                new.append(encoded)
        work = lay_out_work(new, packs=True, batch_tokens=BATCH_TOKENS, kv_tokens=KEPT_TOKENS)
        self.tokens += sum(work.plan.costs)
        return found, texts


def count(
    attacks: Sequence[Attack],
    records: Sequence[Record],
    pool: Sequence[Record],
    models: Mapping[str, Dry],
    config: AuditConfig,
    prepared: dict[object, list[Record]],
    *,
    subject: str,
) -> list[str]:
    """Let attacks ask about records, with the model of role `subject` under test, and count.

    An attack whose variants another model writes (neighbours, fillings) is counted by their number, each as long as the
    answer, as the prompt before it is shared; one that lacks something (a model, a pool, an embedder) is not counted.

    Args:
        prepared: what attacks made of the records before; added to.

    Returns:
        what is not counted, one sentence each.
    """
    notes = []
    for attack in attacks:
        if not {*attack.roles} <= {"target", *models} or len(pool) < attack.n_pool:
            continue
        if attack.needs_base or getattr(attack, "model", None) or getattr(attack, "filler", None):
            notes.append(f"{attack.name}: its variants are counted, not the writing of them")
            for role in attack.roles:
                plays = models[subject if role == "target" else role]
                plays.ask([plain(r) for r in records])
                answered = sum(int(plays.encode(plain(r)).is_target.sum()) for r in records)
                plays.tokens += int(getattr(attack, "n", 1)) * answered
            continue
        try:
            _count(attack, records, pool, models, config, prepared, subject)
        except UserError as error:
            notes.append(f"{attack.name} is not counted: {error}")
    return notes


def _count(
    attack: Attack,
    records: Sequence[Record],
    pool: Sequence[Record],
    models: Mapping[str, Dry],
    config: AuditConfig,
    prepared: dict[object, list[Record]],
    subject: str,
) -> None:
    def model(query: Query) -> Dry:
        return models[subject if query.model == "target" else query.model]

    target = models["target"]
    resources = Resources(
        pool=pool,
        known=pool,
        seed=config.seed,
        spans=lambda q: target.encode(q).spans,
        tokens=lambda q: target.encode(q).target_ids.tolist(),
        embedder=config.embedder,
    )
    answers = Answers(
        {},
        spans=lambda q: model(q).encode(q).spans,
        tokens=lambda q: model(q).encode(q).target_ids.tolist(),
        decode=lambda q, ids: ["" for _ in ids],
    )
    key = (attack, config.seed, config.embedder, *(tuple(r.id for r in part) for part in (records, pool)))
    if key not in prepared:
        prepared[key] = prepare([attack], records, resources)
    while True:
        wanted = list(
            dict.fromkeys(q for r in prepared[key] for q in attack.queries(r, answers) if q not in answers)
        )  # fmt: skip
        if not wanted:
            return
        found, texts = dict(answers.found), dict(answers.texts)
        for plays in {id(model(q)): model(q) for q in wanted}.values():
            own = {query: replace(query, model="target") for query in wanted if model(query) is plays}
            said, wrote = plays.ask(list(own.values()))
            found |= {query: said[bare] for query, bare in own.items() if bare in said}
            texts |= {query: wrote[bare] for query, bare in own.items() if bare in wrote}
        answers = replace(answers, found=found, texts=texts)
