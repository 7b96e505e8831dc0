"""What a run will cost from here to its end, said before it goes on: a few records go through everything first.

Costs that come once (the pool's embeddings, a beginning that all questions share) are told from those that come with
every record, and only these are scaled. Statistics are rehearsed on scores drawn at random. Nothing that a model was
asked is lost: it is remembered, and the run goes on from there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from indelible.attacks.base import Attack, Resources, plain, score_all
from indelible.config import AuditConfig
from indelible.data.chat import Encoded
from indelible.data.records import Query, Record
from indelible.data.similarity import n_embedded
from indelible.data.splits import Cohort
from indelible.interview import Interview, prepare
from indelible.models.base import LanguageModel
from indelible.rehearsal import check_seconds, report_seconds, statistics_seconds
from indelible.scoring.engine import Answers

Item = TypeVar("Item")

N_WARM = 3
"""Records that go first and are not timed: with them everything is loaded that is loaded once."""

N_PILOT = 6
"""Records that are timed."""

WORTH_IT = 8 * N_PILOT
"""Fewer records are done before a forecast of them would be."""

NAMES = {
    "probes": "probes",
    "target": "audited model",
    "base": "control on the base",
    "drift": "check in float32",
    "statistics": "statistics",
    "report": "report",
}
"""What a line calls the stages of a run, by their names in `timings`."""


@dataclass(frozen=True)
class Forecast:
    """What is still to come, from where it is said to the end of the run.

    Attributes:
        tokens: through all models.
        seconds: in all; `stages`: by the stages' names in the manifest's `timings`.
        n_pilot: records that it goes by.
    """

    tokens: int
    seconds: float
    n_pilot: int
    stages: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = ", ".join(f"{NAMES[stage]} {_span(seconds)}" for stage, seconds in self.stages.items() if seconds)
        return (
            f"expected from here to the end: {self.tokens:,} tokens and {_span(self.seconds)} ({parts}), going by "
            f"{self.n_pilot} records"
        )


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@dataclass(frozen=True)
class _Asked:
    """What asking about some records took.

    Attributes:
        read: tokens of scored questions; `written`: those of questions for text.
        once: the share of `read` that does not grow with the records.
        reading: seconds for scored questions; `other`: for all else.
    """

    read: int
    written: int
    once: float
    reading: float
    other: float

    def tokens(self, scale: float) -> float:
        """Of `scale` times as many records; 0 of none."""
        return self.read * self._grown(scale) + self.written * scale

    def seconds(self, scale: float) -> float:
        """The same in time."""
        return self.reading * self._grown(scale) + self.other * scale

    @property
    def a_token(self) -> float:
        """Seconds for a token read."""
        return self.reading / self.read if self.read else 0.0

    def _grown(self, scale: float) -> float:
        return self.once + (1 - self.once) * scale if scale > 0 else 0.0


@dataclass(frozen=True)
class _Scored:
    """Seconds that scores took: `texts` for embedding words not met before, `rest` for all else."""

    rest: float
    texts: float

    def seconds(self, scale: float, texts: float) -> float:
        """For `scale` times as many records, which bring `texts` times as many new words."""
        return self.rest * scale + self.texts * texts


def forecast(
    interview: Interview,
    attacks: Sequence[Attack],
    records: Sequence[Record],
    resources: Resources,
    *,
    cohort: Cohort,
    control: Sequence[Record],
    config: AuditConfig,
    on_base: Sequence[Attack] | None = None,
    load_seconds: float = 0.0,
) -> Forecast | None:
    """Let a few records of all lengths go through everything and scale to the rest; None where there are too few.

    Work on a record is taken to go with its length in the audited model's tokens (prompt and answer).

    Args:
        records: the audited ones, not prepared; `cohort` says which are members, for the statistics alone.
        control: those of them that go through the control on the base model; empty for none.
        on_base: the attacks of that control, where not all.
        load_seconds: what loading one model took; the float32 check loads one, unless the audited model is in float32.
    """
    if len(records) < WORTH_IT:
        return None
    model = interview.models["target"]
    lengths = {r.id: len(model.encode(plain(r))) for r in records}
    ordered = sorted(records, key=lambda r: (lengths[r.id], r.id))
    warm, pilot = spread(ordered, N_WARM), spread(ordered, N_PILOT)

    def total(some: Sequence[Record]) -> int:
        return sum(lengths[r.id] for r in some)

    subjects = {"target": attacks, **({"base": attacks if on_base is None else on_base} if control else {})}
    ready = prepare(attacks, warm, resources)
    for subject, part in subjects.items():
        _score(part, ready, _ask(interview, part, ready, subject)[1])
    started = time.monotonic()
    prepare(attacks, [], resources)
    once = time.monotonic() - started
    started = time.monotonic()
    ready = prepare(attacks, pilot, resources)
    each = max(time.monotonic() - started - once, 0.0)
    whole = total(records) / total(pilot)
    n_before = n_embedded()
    asked, scored = {}, {}
    for subject, part in subjects.items():
        asked[subject], answers = _ask(interview, part, ready, subject)
        scored[subject] = _score(part, ready, answers)
    words = _new_words(n_before, n_embedded(), total(warm), total(pilot), total(records))
    stages = {"probes": once + each * whole}
    tokens = 0.0
    known = {r.id for r in (*warm, *pilot)}
    for subject, about in zip(subjects, (records, control), strict=False):
        left = total([r for r in about if r.id not in known]) / total(pilot)
        tokens += asked[subject].tokens(left)
        stages[subject] = asked[subject].seconds(left) + scored[subject].seconds(
            total(about) / total(pilot), words * len(about) / len(records)
        )
    stages["drift"] = check_seconds(interview, asked["target"].a_token, config, load_seconds)
    stages["statistics"] = statistics_seconds(attacks, control, cohort, lengths, config)
    stages["report"] = report_seconds(attacks)
    return Forecast(round(tokens), sum(stages.values()), len(warm) + len(pilot), stages)


def spread(ordered: Sequence[Item], n: int) -> list[Item]:
    """The middle item of each of n equal parts (of all there are, where they are fewer): their sum stands for the
    whole."""
    n = min(n, len(ordered))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * n)] for i in range(n)]


def _ask(
    interview: Interview, attacks: Sequence[Attack], prepared: Sequence[Record], subject: str
) -> tuple[_Asked, Answers]:
    known = {model.fingerprint: {*interview.found(model)} for model in interview.models.values()}
    scoring, writing = interview.scoring, interview.writing
    read, written, reading = scoring.tokens, writing.tokens, scoring.seconds
    started = time.monotonic()
    answers = interview.ask(attacks, prepared, subject=subject, stage=f"first records, {subject}: the {{model}} model")
    took, reading = time.monotonic() - started, scoring.seconds - reading
    once = _shared(interview, attacks, prepared, answers, subject, known)
    return _Asked(scoring.tokens - read, writing.tokens - written, once, reading, max(took - reading, 0.0)), answers


def _shared(
    interview: Interview,
    attacks: Sequence[Attack],
    prepared: Sequence[Record],
    answers: Answers,
    subject: str,
    known: Mapping[str, set[Query]],
) -> float:
    """The share of the tokens just computed that is the same for all records, such as a constant prefix.

    By itself every record would need these tokens: n records together save them n - 1 times.

    Args:
        known: what each model had answered before, by its fingerprint.
    """
    new = {m.fingerprint: interview.found(m).keys() - known[m.fingerprint] for m in interview.models.values()}
    models: dict[str, LanguageModel] = {}
    asked: dict[str, dict[Query, Encoded]] = {}
    alone = 0
    for record in prepared:
        own: dict[str, list[Encoded]] = {}
        for query in dict.fromkeys(q for a in attacks for q in a.queries(record, answers)):
            model = interview.models[subject if query.model == "target" else query.model]
            bare = replace(query, model="target")
            if bare in new[model.fingerprint]:
                models[model.fingerprint] = model
                encoded = asked.setdefault(model.fingerprint, {}).setdefault(bare, model.encode(bare))
                own.setdefault(model.fingerprint, []).append(encoded)
        alone += sum(sum(models[key].costs(some)) for key, some in own.items())
    whole = sum(sum(models[key].costs(list(some.values()))) for key, some in asked.items())
    return min(max((alone - whole) / (len(prepared) - 1) / whole, 0.0), 1.0) if whole else 0.0


def _score(attacks: Sequence[Attack], prepared: Sequence[Record], answers: Answers) -> _Scored:
    """Score twice: the second time no word is new."""
    took = []
    for _ in range(2):
        started = time.monotonic()
        for attack in attacks:
            score_all(attack, prepared, answers)
        took.append(time.monotonic() - started)
    return _Scored(took[1], max(took[0] - took[1], 0.0))


def _new_words(n_before: int, n_after: int, warm: int, pilot: int, whole: int) -> float:
    """How many new words the whole brings for each that the pilot brought.

    Words met grow as a power of the text read (Heaps' law), here through what was met after two parts of it.

    Args:
        n_before, n_after: words met before the pilot and after it. warm, pilot, whole: lengths.
    """
    if n_after <= n_before:
        return 0.0
    read = warm + pilot
    power = min(math.log(n_after / n_before) / math.log(read / warm), 1.0) if n_before else 1.0
    return float(n_after * ((whole / read) ** power - 1) / (n_after - n_before))
