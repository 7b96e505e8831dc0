"""In-context probing (ICP-MIA): a probe stands before the record, and its likelihood moves, or does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from indelible.attacks.base import Attack, Reduce, Resources, log_likelihood, plain, probed
from indelible.data.duplicates import exact_key
from indelible.data.perturb import (
    Unit,
    mask_as_released,
    mask_by_likelihood,
    mask_randomly,
    probe_from,
    probe_key,
    read_probes,
    tokens_by_turn,
    word_spans,
)
from indelible.data.pools import demonstration, embed, nearest
from indelible.data.records import Context, Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.scoring.engine import Answers

Probes = Literal["best", "mean"]


def icp_score(
    record: Record,
    contexts: Sequence[Context],
    answers: Answers,
    reduce: Reduce,
    probes: Probes,
    model: str = "target",
) -> float:
    """In-context probing score (ICP-MIA, Eq. 7 and 8).

    ICP(C) = LL(y|x) - LL(y|C,x); the score is the minimum over the probes (`best`: the probe that helps most), or their
    mean. Near zero: the model had nothing left to learn from a hint, as for a member.

    Raises:
        Unscorable: no probe, or one that could not be asked.
    """
    if not contexts:
        raise Unscorable("no probe")
    alone = answers[plain(record, model)]
    without, n = log_likelihood(alone, reduce), len(alone.logprobs)
    drops = [without - log_likelihood(answers[probed(record, c, model)], reduce, n_last=n) for c in contexts]
    return float(min(drops) if probes == "best" else np.mean(drops))


@dataclass(frozen=True)
class IcpSelfPerturbation(Attack):
    """ICP with masked copies of the record's own answer as probes.

    Settings: `rate` p and `unit` (floor(p L) words or tokens are masked); `k` random masks; `mask` random, or one
    deterministic probe that masks the lowest- or highest-likelihood units; `placeholder`; `reduce` the log-likelihoods
    by mean or sum over tokens; `probes` best or mean; `probe_file` with probes made elsewhere.
    """

    k: int = 5
    rate: float = 0.5
    unit: Unit = "word"
    placeholder: str = "[MASK]"
    mask: Literal["random", "lowest", "highest"] = "random"
    reduce: Reduce = "mean"
    probes: Probes = "mean"
    probe_file: str | None = None

    name: ClassVar[str] = "icp-sp"
    formula: ClassVar[str] = "mean_j [LL(y|x) - LL(y|(x,y_j),x)], y_j the answer with floor(p L) units masked"
    paper: ClassVar[str] = "ICP-MIA Sec. V-B2 (ICP-MIA-SP), Eq. 7 and 8"
    deviation: ClassVar[str] = (
        "mean over probes and over tokens (paper: the best probe, and the sum); masked units are words (paper: tokens)"
    )

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"icp-sp: rate={self.rate}: expected a number in (0, 1]")
        if self.k < 1:
            raise ConfigError(f"icp-sp: k={self.k}: expected at least 1")

    @property
    def _variant(self) -> str:
        return f"masks:{self.mask}:{self.unit}:{self.rate}:{self.placeholder}:{self.k}:{self.probe_file}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        if self.probe_file is not None:
            given = read_probes(self.probe_file)
            # A file gives one text a probe, so it cannot probe a conversation with several answers.
            texts = [given.get(probe_key(r.prompt, r.target), ()) if len(r.responses) == 1 else () for r in records]
            return [
                r.with_variant(self._variant, [probe_from(r, [text.strip()]) for text in own])
                for r, own in zip(records, texts, strict=True)
            ]
        if self.mask != "random":  # these masks need the model's first answer
            return list(records)
        return [r.with_variant(self._variant, self._random_probes(r, resources)) for r in records]

    def _random_probes(self, record: Record, resources: Resources) -> list[Context]:
        rng = random.Random(f"{resources.seed}:{record.id}:masks")
        spans = self._units(record, resources)
        out = []
        for _ in range(self.k):
            if self.unit == "icp-mia":
                answers = [mask_as_released(t, self.rate, self.placeholder, rng).strip() for t in record.responses]
            else:
                masked = [
                    mask_randomly(text, s, self.rate, self.placeholder, rng)
                    for text, s in zip(record.responses, spans, strict=True)
                ]
                if all(m is None for m in masked):
                    return []
                answers = [text if m is None else m for text, m in zip(record.responses, masked, strict=True)]
            out.append(probe_from(record, answers))
        return out

    def _units(self, record: Record, resources: Resources) -> list[list[tuple[int, int]]]:
        if self.unit != "token":
            return [word_spans(text) for text in record.responses]
        if resources.spans is None:
            raise ConfigError("icp-sp: unit=token needs a local model's tokenizer: set unit=word")
        turns = tokens_by_turn(record, resources.spans(plain(record)))
        return [[span for span, _ in turn] for turn in turns]

    def _contexts(self, record: Record, answers: Answers) -> Sequence[Context]:
        if self.mask == "random" or self.probe_file is not None:
            return record.variants[self._variant]
        first = plain(record)
        if answers.spans is None:
            raise Unscorable("likelihood masks need the model's tokenizer")
        tokens = tokens_by_turn(record, answers.spans(first), answers[first].logprobs.tolist())
        masked = [
            mask_by_likelihood(
                text,
                [span for span, _ in turn] if self.unit == "token" else word_spans(text),
                turn,
                self.rate,
                self.placeholder,
                lowest=self.mask == "lowest",
            )
            for text, turn in zip(record.responses, tokens, strict=True)
        ]
        if all(m is None for m in masked):
            return []
        return [probe_from(record, [t if m is None else m for t, m in zip(record.responses, masked, strict=True)])]

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        first = plain(record)
        if self.mask != "random" and self.probe_file is None and (first not in answers or first in answers.failed):
            return [first]
        return [first, *(probed(record, c) for c in self._contexts(record, answers))]

    def score(self, record: Record, answers: Answers) -> float:
        return self.score_of(record, answers, "target")

    def score_of(self, record: Record, answers: Answers, model: str) -> float:
        """The score by the answers of the model of this role."""
        contexts = self._contexts(record, answers)
        if not contexts:
            raise Unscorable(
                "no probe in the file" if self.probe_file else "floor(rate x length) is 0: nothing to mask"
            )
        return icp_score(record, contexts, answers, self.reduce, self.probes, model)


@dataclass(frozen=True)
class IcpSpLowest(IcpSelfPerturbation):
    """ICP-SP with the lowest-likelihood units masked: one deterministic probe."""

    mask: Literal["random", "lowest", "highest"] = "lowest"

    name: ClassVar[str] = "icp-sp-lowest"
    formula: ClassVar[str] = "LL(y|x) - LL(y|(x,y'),x), y' the answer with its floor(p L) least likely units masked"
    paper: ClassVar[str] = "ICP-MIA Sec. V-B2 (Min-K% masking)"


@dataclass(frozen=True)
class IcpSpHighest(IcpSelfPerturbation):
    """ICP-SP with the highest-likelihood units masked: one deterministic probe."""

    mask: Literal["random", "lowest", "highest"] = "highest"

    name: ClassVar[str] = "icp-sp-highest"
    formula: ClassVar[str] = "LL(y|x) - LL(y|(x,y'),x), y' the answer with its floor(p L) most likely units masked"
    paper: ClassVar[str] = "ICP-MIA Sec. V-B2 (Max-K% masking)"


@dataclass(frozen=True)
class IcpReference(Attack):
    """ICP with the most similar records of a reference pool as probes.

    Settings: `k` nearest by cosine similarity of sentence embeddings; `embed` the prompt, the prompt and the answer, or
    the string the released code embeds; `reduce` and `probes` as in `icp-sp`; `strip` the demonstration's answer.
    """

    k: int = 10
    embed: Literal["prompt", "prompt+target", "icp-mia"] = "prompt"
    reduce: Reduce = "sum"
    probes: Probes = "best"
    strip: bool = False

    name: ClassVar[str] = "icp-ref"
    formula: ClassVar[str] = "min_j [LL(y|x) - LL(y|(x_j,y_j),x)], (x_j,y_j) the K nearest pool records"
    paper: ClassVar[str] = "ICP-MIA Sec. V-B1 (ICP-MIA-Ref), Eq. 7 and 8"
    deviation: ClassVar[str] = (
        "a record's own duplicates are no probe of it; the released code takes the mean over tokens, not the sum"
    )

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"icp-ref: k={self.k}: expected at least 1")

    @property
    def n_pool(self) -> int:
        return 1

    @property
    def n_pool_wanted(self) -> int:
        return self.k

    @property
    def _variant(self) -> str:
        return f"neighbours:{self.embed}:{self.k}:{self.strip}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        pool = list(resources.pool)
        unit = embed([self._text(r) for r in [*records, *pool]], resources.embedder)
        # Cohorts keep duplicates out of the pool already; this holds for pools and records from anywhere.
        keys = np.array([hash(exact_key(r)) for r in [*records, *pool]])
        allowed = keys[: len(records), None] != keys[None, len(records) :]  # (n, m)
        neighbours = nearest(unit[: len(records)], unit[len(records) :], self.k, allowed)
        return [
            r.with_variant(self._variant, [demonstration(pool[j], strip=self.strip) for j in row])
            for r, row in zip(records, neighbours, strict=True)
        ]

    def _text(self, record: Record) -> str:
        if self.embed == "icp-mia":
            # The released code embeds its Llama-3 rendering of the prompt with an empty assistant turn.
            return (
                f"<|start_header_id|>user<|end_header_id|>\n\n{record.prompt}<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n<|eot_id|>"
            )
        return record.prompt if self.embed == "prompt" and record.messages else record.text

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        return [plain(record), *(probed(record, c) for c in record.variants[self._variant])]

    def score(self, record: Record, answers: Answers) -> float:
        return self.score_of(record, answers, "target")

    def score_of(self, record: Record, answers: Answers, model: str) -> float:
        """The score by the answers of the model of this role."""
        return icp_score(record, record.variants[self._variant], answers, self.reduce, self.probes, model)
