"""Attacks on generated text: alternative answers as probes of in-context probing, and continuations compared."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from indelible.attacks.base import Attack, Reduce, Resources, plain, probed
from indelible.attacks.context import Probes, icp_score
from indelible.data.perturb import probe_from
from indelible.data.records import Context, Message, Query, Record, Reply
from indelible.data.similarity import ngram_recall
from indelible.errors import ConfigError, ModelError, Unscorable
from indelible.models.base import Access
from indelible.scoring.engine import Answers

INSTRUCTION = (
    "One answer reads:\n\n{answer}\n\nWrite another one with the same meaning and about the same length, in other "
    "words. Write nothing but the answer."
)

TOKENS_A_WORD = 2
"""Where no tokenizer is known."""

RUN_SEED = "seed of the run"
"""Name of the number by which a prepared record knows it."""

DRAWS = 2**32
"""More than any attack draws of one question: the draws of two seeds are never the same."""

STEP = 16
"""Alternative answers get their length rounded up to multiples of it, so that more of them are written together."""


def n_tokens(record: Record, answers: Answers, turn: int, start: int = 0) -> int:
    """Tokens of the record's answer `turn` from character `start` on, at least 1: the target's, or twice the words
    where its tokenizer is not known."""
    try:
        spans = answers.spans(plain(record)) if answers.spans is not None else None
    except (ModelError, Unscorable):
        spans = None
    if spans is None:
        return max(1, TOKENS_A_WORD * len(record.responses[turn][start:].split()))
    return max(1, sum(span is not None and span.turn == turn and span.end > start for span in spans))


def with_run_seed(records: Sequence[Record], resources: Resources) -> list[Record]:
    """Records that know the run's seed, for `draw_seed`."""
    return [r.with_numbers(RUN_SEED, [resources.seed]) for r in records]


def draw_seed(record: Record, i: int) -> int:
    """Seed of the record's draw `i`, counted from 0: another for each seed of the run."""
    return int(record.numbers[RUN_SEED][0]) * DRAWS + i


@dataclass(frozen=True)
class IcpGenerated(Attack):
    """ICP with answers that another model wrote in place of the record's own as probes.

    Settings: `k` alternatives at a `temperature`; the `instruction` that follows the record's prompt, in which
    `{answer}` stands for the answer (without it the generator writes a reply of its own); `max_new_tokens` of one, by
    default about the answer's length; `reduce` and `probes` as in `icp-sp`. In a conversation every answer gets its
    alternative. One that is empty or the answer itself is no probe: the others decide.
    """

    k: int = 5
    temperature: float = 0.7
    instruction: str = INSTRUCTION
    max_new_tokens: int | None = None
    reduce: Reduce = "mean"
    probes: Probes = "mean"

    name: ClassVar[str] = "icp-sp-gen"
    formula: ClassVar[str] = "mean_j [LL(y|x) - LL(y|(x,y_j),x)], y_j an alternative answer by the generator"
    paper: ClassVar[str] = "ICP-MIA Sec. V-B2 (generation-based perturbation), VI-D, Table II"
    deviation: ClassVar[str] = (
        "mean over probes and over tokens (paper: the best probe, and the sum); the instruction is ours, and it shows "
        "the answer (the paper's is an image)"
    )
    roles: ClassVar[tuple[str, ...]] = ("target", "generator")

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"icp-sp-gen: k={self.k}: expected at least 1")
        if not self.temperature >= 0 or (self.temperature == 0 and self.k > 1):
            raise ConfigError(
                f"icp-sp-gen: temperature={self.temperature}: expected a number above 0 (at 0 all alternatives are one)"
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ConfigError(f"icp-sp-gen: max_new_tokens={self.max_new_tokens}: expected at least 1")

    def access_to(self, role: str) -> Access:
        """What it needs of the model of this role: the generator only writes."""
        return "text" if role == "generator" else self.access

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        return with_run_seed(records, resources)

    def _asked(self, record: Record, answers: Answers) -> list[list[Query]]:
        """Questions to the generator: k lists, with one question an answer of the record."""
        ends = [*(i for i, m in enumerate(record.messages) if m.scored), len(record.messages)]
        out = []
        for seed in (draw_seed(record, i) for i in range(self.k)):
            row = []
            for turn, end in enumerate(ends):
                n_new = self.max_new_tokens or -(-n_tokens(record, answers, turn) // STEP) * STEP
                said = tuple(Message(m.role, m.content) for m in record.messages[:end])
                messages = instructed(said, self.instruction.replace("{answer}", record.responses[turn]))
                row.append(Query(messages, "", model="generator", reply=Reply(n_new, self.temperature, seed)))
            out.append(row)
        return out

    def _contexts(self, record: Record, answers: Answers) -> list[Context]:
        """The probes.

        Raises:
            Unscorable: an alternative could not be asked for.
        """
        out = []
        for row in self._asked(record, answers):
            texts = [answers.text(query).strip() for query in row]
            own = [text.strip() for text in record.responses]
            if all(text and text != answer for text, answer in zip(texts, own, strict=True)):
                out.append(probe_from(record, texts))
        return out

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        first = plain(record)
        if not record.messages and "{answer}" not in self.instruction:
            return [first]
        asked = [query for row in self._asked(record, answers) for query in row]
        if any(query not in answers or query in answers.failed for query in asked):
            return [first, *asked]
        return [first, *asked, *(probed(record, c) for c in self._contexts(record, answers))]

    def score(self, record: Record, answers: Answers) -> float:
        if not record.messages and "{answer}" not in self.instruction:
            raise Unscorable("plain text has no prompt to reply to: the instruction must show the {answer}")
        contexts = self._contexts(record, answers)
        if not contexts:
            raise Unscorable("no probe: every alternative is empty, or the answer itself")
        return icp_score(record, contexts, answers, self.reduce, self.probes)


def instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    """A conversation whose last user turn ends with an instruction; a user turn of its own where there is none.

    Raw text becomes a user turn too: generators answer to chat.
    """
    if messages and messages[-1].role in ("user", "text"):
        return (*messages[:-1], Message("user", f"{messages[-1].content}\n\n{instruction}"))
    return (*messages, Message("user", instruction))


@dataclass(frozen=True)
class Samia(Attack):
    """How much of an answer's second half comes back in continuations sampled after its first half.

    Settings: `n` continuations at a `temperature`; `share` of the answer's words that is given; n-grams of `ngram`
    words; `zlib` multiplies each recall by the continuation's compressed bytes; `max_new_tokens`, by default as many
    as the rest has. In a conversation the last answer is continued.
    """

    n: int = 10
    temperature: float = 1.0
    share: float = 0.5
    ngram: int = 1
    zlib: bool = False
    max_new_tokens: int | None = None

    name: ClassVar[str] = "samia"
    formula: ClassVar[str] = (
        "mean_j sum_g min(c_rest(g), c_j(g)) / sum_g c_rest(g) over word n-grams g (n = 1), j = 1..10 sampled "
        "continuations of the answer's first half"
    )
    paper: ClassVar[str] = "Kaneko et al. 2024 (SaMIA)"
    deviation: ClassVar[str] = (
        "drawn from all tokens (authors: the 50 most probable), up to the length of the rest (authors: 1,024 tokens); "
        "the answer is continued given its prompt (authors: whole texts)"
    )
    access: ClassVar[Access] = "text"

    def __post_init__(self) -> None:
        for name in ("n", "ngram", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"samia: {name}={value}: expected at least 1")
        if not 0 <= self.share < 1:
            raise ConfigError(f"samia: share={self.share}: expected a number in [0, 1)")
        if not self.temperature >= 0 or (self.temperature == 0 and self.n > 1):
            raise ConfigError(
                f"samia: temperature={self.temperature}: expected a number above 0 (at 0 all continuations are one)"
            )

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        return with_run_seed(records, resources)

    def _cut(self, record: Record) -> int:
        """Where the given words end."""
        ends = [word.end() for word in re.finditer(r"\S+", record.target)]
        n_given = int(self.share * len(ends))
        return ends[n_given - 1] if n_given else 0

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        cut = self._cut(record)
        begun, rest = record.target[:cut], record.target[cut:]
        if not rest.strip():
            return []
        n_new = self.max_new_tokens or n_tokens(record, answers, len(record.responses) - 1, cut)
        # The rest is the target only so that the beginning is cut into the tokens it has in the answer.
        return [
            Query(
                record.messages, rest, record.images, reply=Reply(n_new, self.temperature, draw_seed(record, i), begun)
            )
            for i in range(self.n)
        ]

    def score(self, record: Record, answers: Answers) -> float:
        texts = [answers.text(query) for query in self.queries(record, answers)]
        rest = record.target[self._cut(record) :]
        recalls = [ngram_recall(rest, text, self.ngram) for text in texts]
        if not recalls:
            raise Unscorable("the answer has no word")
        if self.zlib:
            recalls = [r * len(zlib.compress(text.encode())) for r, text in zip(recalls, texts, strict=True)]
        return float(np.mean(recalls))
