"""Attacks that see no probabilities of the target: how like the truth its guesses are stands in for them (PETAL)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from indelible.attacks.base import Attack, Reduce, plain, probed
from indelible.attacks.context import IcpReference, IcpSelfPerturbation, Probes
from indelible.data.pools import DEFAULT_EMBEDDER
from indelible.data.records import Context, Query, Record, Reply, with_context
from indelible.data.similarity import fit_line, log_similarities
from indelible.errors import ConfigError, Unscorable
from indelible.models.base import Access
from indelible.scoring.engine import Answers

Array = NDArray[np.float64]
Line = tuple[float, float]
"""Slope and intercept: a log-probability from a log-similarity."""

PART = "\ufffd"
"""What stands in the text of a token that is part of a character."""

GUESSES = (
    "end markers and tokens that are part of a character are left out, an ended reply is like no token, and cosines "
    "within 1e-6 of 1 are 1; the answer alone is scored, given its prompt (authors: the whole text)"
)


@dataclass(frozen=True)
class LabelOnly(Attack):
    """What attacks on labels share: the target's greedy next token after each true prefix, and the surrogate's line.

    s_t = cosine of the sentence embeddings of the true and the guessed token's text, u_t = ln max(s_t, 1e-16). On the
    surrogate (role `base`) u and the true log-probabilities l of the same text give a least-squares line l ~ a u + b;
    the target's log-likelihood is then estimated as mean_t (a u_t + b).

    Settings: `ask` for the guesses of one pass (`logprobs`; exact), or one token of text a position (`text`), the
    positions then being the surrogate's tokens, by default as the target allows; `max_tokens` of an answer's beginning;
    the `embedder`.
    """

    ask: Literal["logprobs", "text"] | None = None
    max_tokens: int = 64
    embedder: str = DEFAULT_EMBEDDER

    access: ClassVar[Access] = "top-k"
    roles: ClassVar[tuple[str, ...]] = ("target", "base")

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigError(f"{self.name}: max_tokens={self.max_tokens}: expected at least 2")

    def access_to(self, role: str) -> Access:
        """What it needs of the model of this role: text alone of the target, where it asks for text."""
        return "text" if role == "target" and self.ask == "text" else self.access

    def asking(self, access: frozenset[Access]) -> Self:
        """The attack with `ask` settled for a target that gives `access`: one pass where that tells its guesses. What
        was set stays."""
        if self.ask is not None:
            return self
        return replace(self, ask="text" if "text" in access and self.access not in access else "logprobs")

    def guesses(self, record: Record, context: Context, answers: Answers) -> list[Query]:
        """The questions to the target about the record after a context."""
        if self.ask != "text":
            return [probed(record, context)]
        return [question for question, _ in one_by_one(record, context, answers, self.max_tokens)]

    def u(self, record: Record, context: Context, answers: Answers, model: str = "target") -> Array:
        """Log-similarities of a model's guesses to the record's tokens, (n,) with n at most `max_tokens`.

        Raises:
            Unscorable: a guess is missing, or there is no token of text.
        """
        if self.ask == "text" and model == "target":
            asked = one_by_one(record, context, answers, self.max_tokens)
            pairs = [(true, answers.text(question)) for question, true in asked]
        else:
            pairs = self._at_once(record, context, answers, model)
        if not pairs:
            raise Unscorable("no scored token")
        return log_similarities(pairs, self.embedder)

    def _at_once(self, record: Record, context: Context, answers: Answers, model: str) -> list[tuple[str, str]]:
        query = probed(record, context, model)
        guessed = answers[query].argmax
        places = positions(record, query, answers, self.max_tokens)
        at = list(places)
        if (guessed[at] < 0).any():
            raise Unscorable("the model does not tell its most probable tokens: set ask=text")
        return list(zip(places.values(), _decoded(query, guessed[at].tolist(), answers), strict=True))

    def line(self, record: Record, context: Context, answers: Answers) -> Line:
        """The surrogate's line on the record after a context.

        Raises:
            Unscorable: there is none: fewer than two tokens, or all guesses equally alike.
        """
        query = probed(record, context, "base")
        truth = answers[query].logprobs[list(positions(record, query, answers, self.max_tokens))].astype(np.float64)
        return fit_line(self.u(record, context, answers, "base"), truth)


def positions(record: Record, query: Query, answers: Answers, limit: int) -> dict[int, str]:
    """Which target tokens of a query are text of the record and count, with their texts: the first `limit` that are
    scored without a context too, so that two contexts are compared on the same tokens.

    A token that is part of a character is left out: all of these have one text, and would be alike.

    Raises:
        Unscorable: where tokens stand is not known.
    """
    if answers.spans is None or answers.tokens is None:
        raise Unscorable("the model's tokenizer is not known")
    n_alone, spans = len(answers.spans(plain(record, query.model))), answers.spans(query)
    first = len(spans) - n_alone  # plain text alone has no score for its first token
    at = [i for i, span in enumerate(spans) if span is not None and i >= first]
    texts = _decoded(query, np.asarray(answers.tokens(query), dtype=np.int64)[at].tolist(), answers)
    return dict([(i, text) for i, text in zip(at, texts, strict=True) if PART not in text][:limit])


def _decoded(query: Query, ids: Sequence[int], answers: Answers) -> list[str]:
    if answers.decode is None:
        raise Unscorable("the model's tokenizer is not known")
    return answers.decode(query, ids)


def one_by_one(record: Record, context: Context, answers: Answers, limit: int) -> list[tuple[Query, str]]:
    """For each of the record's first `limit` tokens by the surrogate's tokenizer (see `positions`): the question for
    one token of text after the true prefix, and the true text there.

    A prefix ends where the token before ends, so that a blank belongs to the token it leads.

    Raises:
        Unscorable: the surrogate's tokenizer is not known.
    """
    if answers.spans is None:
        raise Unscorable("the surrogate's tokenizer is not known")
    scored = [i for i, m in enumerate(record.messages) if m.scored] + [len(record.messages)]
    out: list[tuple[Query, str]] = []
    alone = plain(record, "base")
    counted = positions(record, alone, answers, limit)
    before = None
    for i, span in enumerate(answers.spans(alone)):
        if span is None or span == before or span.start == span.end:
            continue
        text = record.responses[span.turn]
        cut = before.end if before is not None and before.turn == span.turn else span.start
        before = span
        if i not in counted:
            continue
        messages = with_context(record.messages[: scored[span.turn]], context)
        # The rest of the answer is the target only so that the prefix is cut into the tokens it has in the answer.
        question = Query(messages, text[cut:], record.images, reply=Reply(max_new_tokens=1, begun=text[:cut]))
        out.append((question, text[cut : span.end]))
    return out


@dataclass(frozen=True)
class Petal(LabelOnly):
    """Estimated log-likelihood of the answer, from how like the truth the target's greedy next tokens are."""

    name: ClassVar[str] = "petal"
    formula: ClassVar[str] = (
        "mean_t (a u_t + b), u_t = ln max(cos(emb(y_t), emb(greedy next token)), 1e-16); a, b: least squares of the "
        "base's log p(y_t|x,y_<t) on its own u_t"
    )
    paper: ClassVar[str] = "He et al. 2025 (PETAL); ICP-MIA App. A (surrogate: the target's base; greedy; 64 tokens)"
    deviation: ClassVar[str] = GUESSES

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record, "base"), *self.guesses(record, (), answers)]

    def score(self, record: Record, answers: Answers) -> float:
        a, b = self.line(record, (), answers)
        return float(np.mean(a * self.u(record, (), answers) + b))


@dataclass(frozen=True)
class _IcpLabel(LabelOnly):
    """ICP on estimated log-likelihoods.

    Settings, beside those of the probes and of `petal`: `fit` the surrogate's line on the record without a probe, for
    all its prompts (`once`), or on each prompt by itself (`each`).
    """

    fit: Literal["once", "each"] = "once"

    @abstractmethod
    def _probes(self, record: Record, answers: Answers) -> Sequence[Context]: ...

    def _queries(self, record: Record, answers: Answers) -> list[Query]:
        prompts = [(), *self._probes(record, answers)]
        fitted = prompts if self.fit == "each" else prompts[:1]
        surrogate = [probed(record, c, "base") for c in fitted]
        return [*surrogate, *(q for c in prompts for q in self.guesses(record, c, answers))]

    def _score(self, record: Record, answers: Answers, reduce: Reduce, probes: Probes) -> float:
        contexts = self._probes(record, answers)
        if not contexts:
            raise Unscorable("no probe: nothing to mask, or none in the file")
        once = self.line(record, (), answers)

        def estimate(context: Context) -> float:
            a, b = self.line(record, context, answers) if self.fit == "each" and context else once
            guessed = a * self.u(record, context, answers) + b
            return float(guessed.sum() if reduce == "sum" else guessed.mean())

        alone = estimate(())
        drops = [alone - estimate(context) for context in contexts]
        return float(min(drops) if probes == "best" else np.mean(drops))


ICP_LABEL = (
    "the paper says only that log-probabilities become PETAL's estimates; ours: one line a record, fitted without a "
    "probe, so that unchanged guesses are no gain (fit=each: one a prompt)"
)


@dataclass(frozen=True)
class IcpLabel(_IcpLabel, IcpSelfPerturbation):
    """ICP-SP without probabilities: log-likelihoods are estimated as in `petal`, with and without a masked copy.

    Settings: those of `icp-sp` and `petal`; `fit` the surrogate's line `once` a record, or on `each` prompt by itself.
    """

    name: ClassVar[str] = "icp-label"
    formula: ClassVar[str] = (
        "mean_j [L(y|x) - L(y|(x,y_j),x)], L = mean_t (a u_t + b) as in petal, y_j the answer with floor(p L) units "
        "masked"
    )
    paper: ClassVar[str] = "ICP-MIA Sec. VII-A, Table VI (label-only ICP-MIA-SP in the PETAL framework)"
    deviation: ClassVar[str] = f"{ICP_LABEL}; {IcpSelfPerturbation.deviation}; {GUESSES}"

    def __post_init__(self) -> None:
        LabelOnly.__post_init__(self)
        IcpSelfPerturbation.__post_init__(self)
        if self.mask != "random" and self.probe_file is None:
            raise ConfigError(f"icp-label: mask={self.mask}: labels tell no likelihoods, expected random")

    def _probes(self, record: Record, answers: Answers) -> Sequence[Context]:
        return self._contexts(record, answers)

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return self._queries(record, answers)

    def score(self, record: Record, answers: Answers) -> float:
        return self._score(record, answers, self.reduce, self.probes)


@dataclass(frozen=True)
class IcpLabelReference(_IcpLabel, IcpReference):
    """ICP-Ref without probabilities: log-likelihoods are estimated as in `petal`, with and without a demonstration.

    Settings: those of `icp-ref` and `petal`; `fit` the surrogate's line `once` a record, or on `each` prompt by itself.
    """

    name: ClassVar[str] = "icp-label-ref"
    formula: ClassVar[str] = (
        "min_j [L(y|x) - L(y|(x_j,y_j),x)], L = sum_t (a u_t + b) as in petal, (x_j,y_j) the K nearest pool records"
    )
    paper: ClassVar[str] = "ICP-MIA Sec. VII-A, Table VI (label-only ICP-MIA-Ref in the PETAL framework)"
    deviation: ClassVar[str] = f"{ICP_LABEL}; {IcpReference.deviation}; {GUESSES}"

    def __post_init__(self) -> None:
        LabelOnly.__post_init__(self)
        IcpReference.__post_init__(self)

    def _probes(self, record: Record, answers: Answers) -> Sequence[Context]:
        return record.variants[self._variant]

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return self._queries(record, answers)

    def score(self, record: Record, answers: Answers) -> float:
        return self._score(record, answers, self.reduce, self.probes)
