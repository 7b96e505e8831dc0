"""The forecast of a run against the run itself, on a clock that the work moves."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from indelible.attacks.base import Attack, Resources, plain, probed, score_all
from indelible.attacks.likelihood import Loss
from indelible.config import AuditConfig
from indelible.data.chat import Encoded
from indelible.data.records import Message, Query, Record, Reply
from indelible.data.splits import Cohort
from indelible.forecast import N_PILOT, N_WARM, NAMES, WORTH_IT, Forecast, _new_words, forecast
from indelible.interview import Interview, prepare
from indelible.models.base import TokenLogprobs
from indelible.rehearsal import check_seconds, report_seconds, statistics_seconds
from indelible.scoring.engine import Answers


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in ("forecast", "interview", "rehearsal"):
        monkeypatch.setattr(f"indelible.{module}.time", SimpleNamespace(monotonic=found.monotonic))
    return found


READING, WRITING = 0.01, 0.25
"""Seconds for a token."""


@dataclass
class Counted:
    """A model of words that computes shared beginnings once a call; its work moves the clock."""

    clock: Clock
    name: str
    context_length: int = 10**6
    loaded: bool = False

    @property
    def fingerprint(self) -> str:
        return self.name

    def encode(self, query: Query) -> Encoded:
        asked, told = " ".join(m.content for m in query.messages).split(), query.target.split()
        ids = np.array([zlib.crc32(w.encode()) for w in [*asked, *told]], dtype=np.int64)
        is_target = np.arange(len(ids)) >= max(len(asked), 1)
        return Encoded(ids, is_target, (None,) * int(is_target.sum()))

    def costs(self, encoded: Sequence[Encoded]) -> list[int]:
        seen: set[bytes] = set()
        out = []
        for e in encoded:
            beginnings = {e.input_ids[: i + 1].tobytes() for i in range(len(e))} - seen
            seen |= beginnings
            out.append(len(beginnings))
        return out

    def stream(self, encoded: Sequence[Encoded]) -> Iterator[tuple[int, TokenLogprobs]]:
        self.clock.now += sum(self.costs(encoded)) * READING + (not self.loaded and bool(encoded)) * 50
        self.loaded = self.loaded or bool(encoded)
        for i, e in enumerate(encoded):
            n = int(e.is_target.sum())
            yield i, TokenLogprobs(*np.full((3, n), -1.0, dtype=np.float32), np.zeros(n, dtype=np.int32))

    def replies(self, queries: Sequence[Query]) -> Iterator[tuple[int, str]]:
        for i, query in enumerate(queries):
            self.clock.now += (query.reply.max_new_tokens if query.reply else 0) * WRITING
            yield i, "so it is"

    def prompt_length(self, query: Query) -> int:
        return sum(len(m.content.split()) for m in query.messages)


PREFIX = (Message("user", "A long beginning " * 200), Message("assistant", "Yes."))


@dataclass(frozen=True)
class Probing(Attack):
    """A constant prefix, one probe of the record's own, and one reply, after work on the pool that comes once."""

    clock: Any = None

    name = "probing"

    def prepare(self, records: Sequence[Record], resources: Resources) -> list[Record]:
        self.clock.now += 3 * len(resources.pool)
        self.clock.now += sum(0.1 * len(r.target.split()) for r in records)
        return [r.with_variant("own", [(Message("assistant", f"{r.id} {r.target}"),)]) for r in records]

    def queries(self, record: Record, answers: Answers) -> list[Query]:
        written = Query(record.messages, "", reply=Reply(len(record.target.split())))
        own = record.variants["own"][0]
        return [plain(record), probed(record, PREFIX), probed(record, own), written, plain(record, "base")]

    def score(self, record: Record, answers: Answers) -> float:
        self.clock.now += 0.05 * len(record.target.split())
        return float(len(answers.text(self.queries(record, answers)[3])))


def made(n: int) -> list[Record]:
    rng = random.Random(4)
    return [
        Record(f"r{i:03}", (Message("user", f"q{i}"),), " ".join(f"w{i}x{j}" for j in range(rng.randint(5, 60))))
        for i in range(n)
    ]


def settings(**changes: Any) -> AuditConfig:
    return AuditConfig(**{"model": "m", "members": "a", "nonmembers": "b", "attacks": ("loss",), **changes})


def cohort_of(records: Sequence[Record], pool: Sequence[Record] = ()) -> Cohort:
    return Cohort(tuple(records[::2]), tuple(records[1::2]), tuple(pool), {}, ())


@pytest.mark.parametrize("n_control", [0, 40, 120])
def test_a_run_takes_what_was_forecast(clock: Clock, n_control: int) -> None:
    records, pool = made(120), made(10)
    models = {role: Counted(clock, role) for role in ("target", "base")}
    interview, attacks, resources = Interview(models), [Probing(clock)], Resources(pool=pool)  # type: ignore[arg-type]
    control = records[:n_control]
    found = forecast(
        interview, attacks, records, resources, cohort=cohort_of(records), control=control, config=settings()
    )
    assert found is not None
    assert found.n_pilot == N_WARM + N_PILOT
    began, tokens = clock.now, interview.counts.tokens_computed
    ready = prepare(attacks, records, resources)
    stages = {"probes": clock.now - began}
    for subject, part in (("target", ready), ("base", [r for r in ready if r in control])):
        before = clock.now
        if part:
            score_all(attacks[0], part, interview.ask(attacks, part, subject=subject))
            stages[subject] = clock.now - before
    for stage, took in stages.items():
        assert found.stages[stage] == pytest.approx(took, rel=0.05), stage
    assert found.tokens == pytest.approx(interview.counts.tokens_computed - tokens, rel=0.02)
    assert ("base" in found.stages) == bool(n_control)
    rest = found.stages["drift"] + found.stages["statistics"] + found.stages["report"]
    assert found.seconds == pytest.approx(sum(stages.values()) + rest, rel=0.05)
    assert rest == report_seconds(attacks) > 0


def test_few_records_have_no_forecast(clock: Clock) -> None:
    records = made(WORTH_IT - 1)
    interview = Interview({"target": Counted(clock, "target")})  # type: ignore[dict-item]
    cohort = cohort_of(records)
    assert forecast(interview, [], records, Resources(), cohort=cohort, control=[], config=settings()) is None
    assert clock.now == 0


def test_the_line_says_what_is_in_it() -> None:
    stages = dict.fromkeys(NAMES, 60.0) | {"drift": 0.0, "target": 3000.0}
    found = Forecast(1234567, sum(stages.values()), 9, stages)
    line = str(found)
    assert line == (
        "expected from here to the end: 1,234,567 tokens and 54 min (probes 60 s, audited model 50 min, control on the "
        "base 60 s, statistics 60 s, report 60 s), going by 9 records"
    )
    assert asdict(found)["stages"] == stages, "what the manifest keeps"


@pytest.mark.parametrize("fitted", [(), ("bag-of-words",), ("combined",), ("bag-of-words", "combined")])
def test_statistics_are_rehearsed_and_their_permutations_scaled(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, fitted: tuple[str, ...]
) -> None:
    records = made(60)
    asked: list[dict[str, Any]] = []

    def evaluate(
        frame: Any, scores: Any, *, blind_permutations: int = 99, combined_permutations: int = 199, **kwargs: Any
    ) -> None:
        asked.append({"frame": frame, "scores": scores, **kwargs})
        clock.now += 5 + 0.2 * blind_permutations * (kwargs["texts"] is not None)
        clock.now += 0.03 * combined_permutations * kwargs["combined"]

    monkeypatch.setattr("indelible.rehearsal.evaluate", evaluate)
    lengths = {r.id: 7 for r in records}
    config = settings(attacks=("loss", *fitted), n_bootstrap=321, level=0.9)
    took = statistics_seconds([Loss()], records[:10], cohort_of(records), lengths, config)
    expected = 5 + 0.2 * 99 * ("bag-of-words" in fitted) + 0.03 * 198 * ("combined" in fitted)
    assert took == pytest.approx(expected)
    for told in asked:
        assert (told["n_bootstrap"], told["level"]) == (321, 0.9)
        assert told["scores"].groupby("model").size().to_dict() == {"base": 10, "target": 60}
        assert told["frame"]["member"].sum() == 30


def test_the_check_in_float32_is_part_of_it_where_there_is_one(toy) -> None:
    interview = Interview({"target": toy})
    interview.ask([Loss()], [replace(r, target=f"{r.target} it is") for r in made(4)])
    lengths = [len(toy.encode(q)) for q in interview.found(toy)]
    config = settings(drift_records=8)
    took = check_seconds(interview, 0.01, config, load_seconds=100.0)
    assert 8 * 0.01 * np.mean(lengths) < took < 100, "in float32 already: nothing to load"
    assert check_seconds(interview, 0.02, config, load_seconds=100.0) == pytest.approx(2 * took)
    assert check_seconds(interview, 0.01, settings(drift_records=0), load_seconds=100.0) == 0
    quantised = settings(load={"quantise": "8bit"})
    assert check_seconds(interview, 0.01, quantised, load_seconds=100.0) == 0


def test_new_words_become_fewer() -> None:
    # 100 s^0.5 words in s records: 300 after 9 records, 1,200 after 144.
    n_warm, n_pilot = 100 * 3**0.5, 300.0
    per = _new_words(round(n_warm * 1000), round(n_pilot * 1000), 3, 6, 144)
    assert per == pytest.approx((1200 - 300) / (300 - n_warm), rel=1e-3)
    assert _new_words(5, 5, 3, 6, 144) == 0
    assert _new_words(10, 30, 3, 6, 144) == pytest.approx((480 - 30) / 20), "all new still"
