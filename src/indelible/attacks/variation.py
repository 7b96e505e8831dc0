"""SPV-MIA: how much better an answer is than its refilled copies, under the model and under a reference."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from indelible.attacks.base import Attack, Resources, log_likelihood, plain
from indelible.attacks.perturbation import keep_rewritings, rewriting_mean, rewritings
from indelible.data.fill import Blanks, choose_spans, put_fills
from indelible.data.records import Query, Record
from indelible.errors import ConfigError, ModelError
from indelible.models.base import Access
from indelible.progress import Progress
from indelible.scoring.engine import Answers


@dataclass(frozen=True)
class Spv(Attack):
    """Probabilistic variation: an answer against copies with some spans of words refilled, calibrated by a reference
    model's.

    Settings: `n` copies; `rate` of the words that go to spans of `span` words, each counted with `buffer` words on both
    sides, so that 0.3 cuts out 15% of the words; spans stand at least `buffer` words apart; `filler`, a T5-like model
    by folder or hub name or `base`; `space`, whether likelihoods are compared as probabilities (geometric mean a token)
    or as losses.
    """

    n: int = 10
    rate: float = 0.3
    span: int = 2
    buffer: int = 1
    filler: str = "base"
    space: Literal["probability", "loss"] = "probability"

    name: ClassVar[str] = "spv"
    formula: ClassVar[str] = (
        "[p_T(y|x) - mean_i p_T(y_i|x)] - [p_R(y|x) - mean_i p_R(y_i|x)], p = exp(LL), y_i the answer with "
        "max(1, floor(0.3 words / (2 + 2))) spans of 2 words refilled"
    )
    paper: ClassVar[str] = "Fu et al. 2024 (SPV-MIA); ICP-MIA App. A"
    writer: ClassVar[str] = "filler"
    deviation: ClassVar[str] = (
        "by default the audited model's base fills the spans, each from the prompt and what stands left of it (paper: "
        "T5, from both sides); short answers have one span (authors' code: none, and a score of 0); copies are not "
        "drawn in symmetric pairs, as in the authors' code; the released ICP-MIA baseline compares losses, not "
        "probabilities (space=loss), of spans of one word; the reference is the one given"
    )
    roles: ClassVar[tuple[str, ...]] = ("target", "reference")

    def __post_init__(self) -> None:
        for key, value, least in (("n", self.n, 1), ("span", self.span, 1), ("buffer", self.buffer, 0)):
            if value < least:
                raise ConfigError(f"spv: {key}={value}: expected at least {least}")
        if not 0 < self.rate <= 1:
            raise ConfigError(f"spv: rate={self.rate}: expected a number in (0, 1]")

    @property
    def needs_base(self) -> bool:
        return self.filler == "base"

    def access_to(self, role: str) -> Access:
        """What it needs of the model of this role: the base only writes."""
        return "text" if role == "base" else self.access

    @property
    def _variant(self) -> str:
        return f"fills:{self.filler}:{self.rate}:{self.span}:{self.buffer}:{self.n}"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        wanted = [[self._blanks(r, resources.seed, i) for i in range(self.n)] for r in records]
        fills, why_none = self._fill([b for copies in wanted for copy in copies for b in copy.values()], resources)
        out = []
        for record, copies in zip(records, wanted, strict=True):
            made = [_filled(record, copy, fills) for copy in copies]
            why_not = why_none if any(copies) else f"the answer is too short for a span of {self.span} words"
            out.append(keep_rewritings(record, self._variant, [texts for texts in made if texts], why_not))
        return out

    def _blanks(self, record: Record, seed: int, copy: int) -> dict[int, Blanks]:
        """The places of one copy of a record, by answer; answers too short for a span have none."""
        scored = [i for i, m in enumerate(record.messages) if m.scored]
        rng = random.Random(f"{seed}:{record.id}:fills:{copy}")
        out = {}
        for turn, (text, n_before) in enumerate(zip(record.responses, [*scored, len(record.messages)], strict=True)):
            messages = record.messages[:n_before]
            spans = choose_spans(text, self.rate, self.span, self.buffer, rng, n_kept=0 if messages else 1)
            if spans:
                out[turn] = Blanks(messages, text, spans, rng.getrandbits(62))
        return out

    def _fill(
        self, blanks: Sequence[Blanks], resources: Resources
    ) -> tuple[Mapping[Blanks, tuple[str, ...] | None], str]:
        """Fills of each text, None where there are none, and why there are none."""
        why_none = "the filler gave no fills"
        if self.needs_base and resources.base is None:
            raise ConfigError("spv needs a base model: give --base, or a T5-like model as its setting filler")
        with Progress("refilling answers", total=sum(len(b.spans) for b in blanks), unit="spans") as progress:
            if resources.base is not None and self.needs_base:
                from indelible.models.proposals import fill_from_base

                try:
                    fills = fill_from_base(resources.base, blanks, progress.advance, cache=resources.cache)
                except ModelError as error:  # a format in which no answer can be begun: no reason to stop the others
                    return dict.fromkeys(blanks), f"{why_none}: {error}"
            else:
                from indelible.models.masked import load_filler

                fills = load_filler(self.filler).fill(blanks, progress.advance)
        return dict(zip(blanks, fills, strict=True)), why_none

    def queries(self, record: Record, answers: Answers) -> Sequence[Query]:
        asked = [record, *rewritings(record, self._variant)]
        return [plain(r, role) for role in self.roles for r in asked]

    def score(self, record: Record, answers: Answers) -> float:
        target, reference = (self._variation(record, answers, role) for role in self.roles)
        return target - reference

    def _variation(self, record: Record, answers: Answers, role: str) -> float:
        own = self._value(record, answers, role)
        others = [self._value(r, answers, role) for r in rewritings(record, self._variant)]
        return own - rewriting_mean(record, self._variant, others)

    def _value(self, record: Record, answers: Answers, role: str) -> float:
        mean = log_likelihood(answers[plain(record, role)])
        return math.exp(mean) if self.space == "probability" else mean


def _filled(
    record: Record, copy: Mapping[int, Blanks], fills: Mapping[Blanks, tuple[str, ...] | None]
) -> list[str] | None:
    """The record's answers with the spans of one copy filled; None where none was cut out, or one stays open."""
    texts = list(record.responses)
    for turn, blank in copy.items():
        given = fills[blank]
        if given is None:
            return None
        texts[turn] = put_fills(blank.text, blank.spans, given)
    return texts if copy else None
