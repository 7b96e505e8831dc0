"""Attacks meet models: questions are collected in rounds, asked once a model, and handed back as answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from indelible.attacks.base import Attack, Resources, score_all
from indelible.data.chat import Encoded
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.models.server import ServerModel
from indelible.progress import say
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import Answers, Counts, answer
from indelible.scoring.replies import reply
from indelible.scoring.staleness import still_holds


@dataclass
class Work:
    """What one kind of question took so far: tokens computed and seconds, tokenising included."""

    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Interview:
    """The models of an audit by role, and everything they have said so far.

    Answers are remembered by model, not by role: what the base was asked for `reference-base` is not asked again when
    the base is itself the one under test. `scoring` and `writing` add up what questions for log-probabilities and those
    for texts took.
    """

    models: Mapping[str, LanguageModel]
    cache: AnswerCache | None = None
    counts: Counts = field(default_factory=Counts)
    scoring: Work = field(default_factory=Work)
    writing: Work = field(default_factory=Work)
    _found: dict[tuple[str, Query], TokenLogprobs] = field(default_factory=dict)
    _texts: dict[tuple[str, Query], str] = field(default_factory=dict)
    _failed: dict[tuple[str, Query], str] = field(default_factory=dict)
    _compared: set[str] = field(default_factory=set)

    def ask(
        self,
        attacks: Sequence[Attack],
        records: Sequence[Record],
        *,
        subject: str = "target",
        stage: str = "asking the {model} model",
    ) -> Answers:
        """All answers the attacks need about the records, with the model of role `subject` under test.

        Attacks are asked for questions again and again until nothing new comes: some need a first answer to know their
        second question. `{model}` in `stage` stands for the role of the model asked.
        """

        def model(query: Query) -> LanguageModel:
            return self.models[subject if query.model == "target" else query.model]

        answers = Answers(
            {},
            spans=lambda q: _encoded(model(q), q).spans,
            tokens=lambda q: _encoded(model(q), q).target_ids.tolist(),
            decode=lambda q, ids: token_texts(model(q), ids),
        )
        rounds = 0
        while True:
            wanted = dict.fromkeys(
                q for a in attacks for r in records for q in a.queries(r, answers) if q not in answers
            )
            if not wanted:
                return answers
            rounds += 1
            answers = self._answer(wanted, answers, subject, stage if rounds == 1 else f"{stage} (round {rounds})")

    def found(self, model: LanguageModel) -> dict[Query, TokenLogprobs]:
        """Everything that a model answered."""
        return {query: reply for (key, query), reply in self._found.items() if key == model.fingerprint}

    def _answer(self, wanted: Iterable[Query], so_far: Answers, subject: str, stage: str) -> Answers:
        found, failed, texts = dict(so_far.found), dict(so_far.failed), dict(so_far.texts)
        by_model: dict[str, tuple[str, list[Query]]] = {}
        for query in wanted:
            role = subject if query.model == "target" else query.model
            by_model.setdefault(self.models[role].fingerprint, (role, []))[1].append(query)
        for key, (role, queries) in by_model.items():
            bare = [replace(q, model="target") for q in queries]
            self._ask(self.models[role], bare, stage.format(model=role))
            for query, question in zip(queries, bare, strict=True):
                if (key, question) in self._found:
                    found[query] = self._found[key, question]
                elif (key, question) in self._texts:
                    texts[query] = self._texts[key, question]
                else:
                    failed[query] = self._failed[key, question]
        return replace(so_far, found=found, failed=failed, texts=texts)

    def _ask(self, model: LanguageModel, queries: Sequence[Query], stage: str) -> None:
        """Have the model answer what it has not answered yet: log-probabilities first, then texts."""
        key = model.fingerprint
        self._compare(model, queries)
        known = {q for q in queries if any((key, q) in told for told in (self._found, self._texts, self._failed))}
        for ask, is_text, work in ((answer, False, self.scoring), (reply, True, self.writing)):
            part = [q for q in queries if (q.reply is not None) == is_text]
            new = [q for q in part if q not in known]
            if not part:
                continue
            started = time.monotonic()
            said, counts = ask(model, new, cache=self.cache, stage=f"{stage}, replies" if is_text else stage)
            work.seconds += time.monotonic() - started
            work.tokens += counts.tokens_computed
            counts.asked = len(part)
            self.counts.add(counts)
            self._found.update({(key, q): a for q, a in said.found.items()})
            self._texts.update({(key, q): text for q, text in said.texts.items()})
            self._failed.update({(key, q): why for q, why in said.failed.items()})

    def _compare(self, model: LanguageModel, queries: Sequence[Query]) -> None:
        """Once a server: do its answers at hand still hold? If not, none of them is used."""
        if not isinstance(model, ServerModel) or model.fingerprint in self._compared:
            return
        holds = still_holds(model, queries, self.cache)
        if holds is not None:
            self._compared.add(model.fingerprint)
        if holds is False:
            say(f"{model.name} answers otherwise than before, as other weights would: answers at hand are not used")
            if self.cache is not None:
                self.cache.distrust(model.fingerprint)


def _encoded(model: LanguageModel, query: Query) -> Encoded:
    """The tokens of a query.

    Raises:
        Unscorable: the model is behind a server and its tokenizer was not given; it would encode words.
    """
    if getattr(model, "chat", model) is None:
        raise Unscorable("the model's tokenizer is not known")
    return model.encode(query)


def token_texts(model: LanguageModel, ids: Sequence[int]) -> list[str]:
    """The text of each single token; '' for a special one, which is no text; with U+FFFD in it for a part of a
    character.

    Raises:
        Unscorable: the model keeps its tokenizer to itself.
    """
    tokenizer = getattr(getattr(model, "chat", None), "tokenizer", None)
    if tokenizer is None:
        raise Unscorable("the model's tokenizer is not known")
    return [str(text) for text in tokenizer.batch_decode([[i] for i in ids], skip_special_tokens=True)]


def prepare(attacks: Sequence[Attack], records: Sequence[Record], resources: Resources) -> list[Record]:
    """Records with the variants of all attacks.

    Raises:
        ConfigError: the pool is too small for an attack, or too few members are known.
    """
    prepared = list(records)
    for attack in attacks:
        if len(resources.pool) < attack.n_pool:
            raise ConfigError(too_small_pool(attack, len(resources.pool)))
        if len(resources.known) < attack.n_known:
            raise ConfigError(
                f"{attack.name} needs {attack.n_known} known members set aside, there are {len(resources.known)}"
            )
        prepared = attack.prepare(prepared, resources)
    return prepared


def too_small_pool(attack: Attack, n_pool: int) -> str:
    """Why an attack cannot run on a pool."""
    return f"{attack.name} needs {attack.n_pool} pool records, there are {n_pool}: give --pool, or more non-members"


def score_frame(attacks: Mapping[str, Attack], records: Sequence[Record], answers: Answers, model: str) -> pd.DataFrame:
    """`scores.parquet` rows: record_id, attack, model, score (NaN where there is none), reason."""
    rows = []
    for name, attack in attacks.items():
        scores, reasons = score_all(attack, records, answers)
        rows += [(record_id, name, model, value, reasons.get(record_id)) for record_id, value in scores.items()]
    return pd.DataFrame(rows, columns=["record_id", "attack", "model", "score", "reason"])


def unscorable(scores: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Attack -> reason -> count, numbers in brackets left out of the reasons."""
    missing = scores[scores["score"].isna()]
    out: dict[str, dict[str, int]] = {}
    for attack, part in missing.groupby("attack"):
        out[str(attack)] = dict(Counter(str(reason).split(" (")[0] for reason in part["reason"]))
    return out
