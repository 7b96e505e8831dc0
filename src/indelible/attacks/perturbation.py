"""Attacks that compare an answer with rewritten ones: a memorised answer is better than its neighbours."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from indelible.attacks.base import Attack, Resources, log_likelihood, plain
from indelible.data.fill import best_substitutions, swap_words
from indelible.data.records import Message, Query, Record, with_responses
from indelible.errors import ConfigError, Unscorable
from indelible.models.base import Access
from indelible.progress import Progress
from indelible.scoring.engine import Answers

TRIES = 5
"""How often a rewriting is drawn that may come out as the original."""


def keep_rewritings(record: Record, name: str, rewritings: Sequence[Sequence[str]], why_not: str) -> Record:
    """A copy of the record that holds rewritten answers under `name`, or where there are none, the reason.

    Args:
        rewritings: of all its answers each, in order.
    """
    if not rewritings:
        record = record.with_variant(f"{name}: why not", [(Message("text", why_not),)])
    return record.with_variant(name, [tuple(Message("assistant", text) for text in texts) for texts in rewritings])


def rewritings(record: Record, name: str) -> list[Record]:
    """The record with each of the answers kept under `name` in the place of its own."""
    return [with_responses(record, [turn.content for turn in context]) for context in record.variants[name]]


def rewriting_mean(record: Record, name: str, values: Sequence[float]) -> float:
    """Mean over a record's rewritings.

    Raises:
        Unscorable: there are none, with the reason.
    """
    if not values:
        raise Unscorable(record.variants[f"{name}: why not"][0][0].content)
    return float(np.mean(values))


@dataclass(frozen=True)
class Lowercase(Attack):
    """Log-likelihood of the answer against that of the same in lower case."""

    name: ClassVar[str] = "lowercase"
    formula: ClassVar[str] = "LL(y|x) - LL(lower(y)|x)"
    paper: ClassVar[str] = "Carlini et al. 2021 (Lowercase)"
    deviation: ClassVar[str] = (
        "the logarithm of the paper's ratio of perplexities, which ranks alike; the authors' code divides the "
        "log-perplexities; the prompt stays as it is"
    )

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), plain(self._lowered(record))]

    def score(self, record: Record, answers: Answers) -> float:
        own = log_likelihood(answers[plain(record)])
        lowered = self._lowered(record)
        if lowered == record:
            raise Unscorable("no upper-case letter in the answer")
        return own - log_likelihood(answers[plain(lowered)])

    @staticmethod
    def _lowered(record: Record) -> Record:
        return with_responses(record, [text.lower() for text in record.responses])


@dataclass(frozen=True)
class Neighborhood(Attack):
    """Log-likelihood of the answer against the mean over neighbours that differ from it in one token.

    Settings: `n` neighbours; `top_k` candidates a token; `model` that proposes them, a masked language model by folder
    or hub name or `base`; `corrupt`, how a masked model is kept from seeing the token (a base sees what precedes it).
    """

    n: int = 20
    top_k: int = 5
    model: str = "base"
    corrupt: Literal["dropout", "mask"] = "dropout"

    name: ClassVar[str] = "neighborhood"
    formula: ClassVar[str] = (
        "LL(y|x) - mean_i LL(y_i|x), y_i the answer with one token replaced: the n = 20 replacements of heaviest "
        "p(v) / (1 - p(y_t)) among the 5 most probable v at each t"
    )
    paper: ClassVar[str] = "Mattern et al. 2023; ICP-MIA App. A (Neighborhood Attack)"
    writer: ClassVar[str] = "model"
    deviation: ClassVar[str] = (
        "by default the audited model's base proposes, from what precedes a token (paper: roberta-base, from both "
        "sides); replacements are made in the text as it is (released code: decoded anew, cut at 512 tokens)"
    )

    def __post_init__(self) -> None:
        for key, value in (("n", self.n), ("top_k", self.top_k)):
            if value < 1:
                raise ConfigError(f"neighborhood: {key}={value}: expected at least 1")

    @property
    def needs_base(self) -> bool:
        return self.model == "base"

    def access_to(self, role: str) -> Access:
        """What it needs of the model of this role: the base proposes by its next-token distributions."""
        return "weights" if role == "base" else self.access

    @property
    def _variant(self) -> str:
        return f"substitutions:{self.model}:{self.corrupt}:{self.top_k}:{self.n}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        out: list[Record] = []
        with Progress("neighbours", total=len(records), unit="records") as progress:
            for record, neighbours in zip(records, self._neighbours(records, resources), strict=True):
                found, why_not = (
                    ([], neighbours)
                    if isinstance(neighbours, str)
                    else (neighbours, "no neighbour: no token of the answer can be replaced")
                )
                out.append(keep_rewritings(record, self._variant, found, why_not))
                progress.advance(1)
        return out

    def _neighbours(self, records: Sequence[Record], resources: Resources) -> Iterator[Sequence[tuple[str, ...]] | str]:
        """A record's neighbours, or why it has none."""
        if self.needs_base:
            from indelible.models.proposals import propose_from_base

            if resources.base is None:
                raise ConfigError(
                    "neighborhood needs a base model: give --base, or a masked language model as its setting model"
                )
            for record in records:
                try:
                    candidates = propose_from_base(resources.base, record, self.top_k)
                except Unscorable as error:
                    yield f"no neighbour: {error}"
                    continue
                yield best_substitutions(record.responses, candidates, self.n)
            return
        from indelible.models.masked import load_masked

        masked = load_masked(self.model)
        for record in records:
            seed = f"{resources.seed}:{record.id}:substitutions"
            candidates = masked.propose(record.responses, self.top_k, self.corrupt, seed)
            yield best_substitutions(record.responses, candidates, self.n)

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), *(plain(r) for r in rewritings(record, self._variant))]

    def score(self, record: Record, answers: Answers) -> float:
        own = log_likelihood(answers[plain(record)])
        others = [log_likelihood(answers[plain(r)]) for r in rewritings(record, self._variant)]
        return own - rewriting_mean(record, self._variant, others)


def polarized_distance(logprobs: np.ndarray, highest: float, lowest: float) -> float:
    """Mean of the highest max(1, floor(highest n)) log-probabilities minus mean of the lowest max(1, floor(lowest n))
    (Ye et al. 2024, polarized distance).

    Raises:
        Unscorable: fewer than two tokens, which have no two ends, or a log-probability that is not finite.
    """
    if len(logprobs) == 0:
        raise Unscorable("no scored token")
    if not np.isfinite(logprobs).all():
        raise Unscorable("the model gave a log-probability that is not finite")
    if len(logprobs) == 1:
        raise Unscorable("one scored token: it is the most and the least probable one")
    ordered = np.sort(logprobs.astype(np.float64))
    top = ordered[-max(1, int(highest * len(ordered))) :]
    return float(top.mean() - ordered[: max(1, int(lowest * len(ordered)))].mean())


@dataclass(frozen=True)
class Pac(Attack):
    """How much further apart the most and least probable tokens move when words of the answer are swapped.

    Settings: `n` answers with words swapped, max(1, floor(`alpha` words)) times each; `highest` and `lowest`, the
    shares of the tokens that are the two ends.
    """

    n: int = 5
    alpha: float = 0.3
    highest: float = 0.05
    lowest: float = 0.3

    name: ClassVar[str] = "pac"
    formula: ClassVar[str] = (
        "mean_i PD(y_i|x) - PD(y|x), PD = mean of the highest 5% of token log-probabilities - mean of the lowest 30%, "
        "y_i the answer with 0.3 of its word count random swaps of two words"
    )
    paper: ClassVar[str] = "Ye et al. 2024 (PAC)"
    deviation: ClassVar[str] = (
        "the answer given its prompt is scored (authors: bare text), with the sign turned so that higher is member, as "
        "their code's evaluation does; a draw that leaves the answer as it was is repeated; white space between words "
        "stays; token probabilities are the model's own, the paper's sampling estimate for closed models is left out"
    )

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"pac: n={self.n}: expected at least 1")
        for key, value in (("alpha", self.alpha), ("highest", self.highest), ("lowest", self.lowest)):
            if not 0 < value <= 1:
                raise ConfigError(f"pac: {key}={value}: expected a number in (0, 1]")

    @property
    def _variant(self) -> str:
        return f"swaps:{self.alpha}:{self.n}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        why_not = "no two different words to swap"
        return [keep_rewritings(r, self._variant, self._swapped(r, resources.seed), why_not) for r in records]

    def _swapped(self, record: Record, seed: int) -> list[tuple[str, ...]]:
        if all(len(set(text.split())) < 2 for text in record.responses):
            return []
        rng = random.Random(f"{seed}:{record.id}:swaps")
        out = []
        for _ in range(self.n):
            for _ in range(TRIES):
                texts = tuple(swap_words(t, max(1, int(self.alpha * len(t.split()))), rng) for t in record.responses)
                if texts != record.responses:
                    out.append(texts)
                    break
        return out

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), *(plain(r) for r in rewritings(record, self._variant))]

    def score(self, record: Record, answers: Answers) -> float:
        own = self._distance(record, answers)
        others = [self._distance(r, answers) for r in rewritings(record, self._variant)]
        return rewriting_mean(record, self._variant, others) - own

    def _distance(self, record: Record, answers: Answers) -> float:
        return polarized_distance(answers[plain(record)].logprobs, self.highest, self.lowest)
