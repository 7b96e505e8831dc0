"""Attacks on generated text against slow transcriptions: words crossed off one by one, full logits of one sequence."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from indelible.attacks.base import Attack, Resources, score_all
from indelible.attacks.generation import DRAWS, INSTRUCTION, IcpGenerated, Samia
from indelible.data.records import Message, Query, Record, Reply
from indelible.data.similarity import ngram_recall
from indelible.errors import ConfigError, ModelError, Unscorable
from indelible.interview import Interview, prepare
from indelible.models.load import LoadOptions, load_model
from indelible.models.server import ServerModel
from indelible.scoring.engine import Answers

FLOAT32 = LoadOptions(device="cpu", dtype="float32")

TALK = Record(
    "several turns",
    (
        Message("system", "Be brief."),
        Message("user", "Hi there."),
        Message("assistant", "Good day Ada, how are you?", scored=True),
        Message("user", "Fine, and you?"),
    ),
    "Thank you, I am well today.",
)
TEXT = Record("plain text", (), "The blue kite is in room 12 of the house.")
SHORT = Record("short", (Message("user", "Yes or no?"),), "Yes")


@pytest.fixture(scope="module")
def tuned(tuned_toy: Path):
    return load_model(str(tuned_toy), FLOAT32)[0]


def ready(attack: Attack, records: Sequence[Record], seed: int = 0) -> list[Record]:
    return prepare([attack], records, Resources(seed=seed))


# samia


def slow_recall(rest: str, said: str, n: int = 1) -> float:
    """N-grams of the rest that can be crossed off in what was said, each once."""
    wanted = [rest.split()[i : i + n] for i in range(len(rest.split()) - n + 1)]
    left = [said.split()[i : i + n] for i in range(len(said.split()) - n + 1)]
    hits = 0
    for gram in wanted:
        if gram in left:
            left.remove(gram)
            hits += 1
    return hits / len(wanted)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_recall_is_the_share_of_words_that_come_back(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(50):
        one, two = (" ".join(rng.choice(list("abc"), size=rng.integers(n, 9))) for _ in range(2))
        assert ngram_recall(one, two, n) == pytest.approx(slow_recall(one, two, n))
    assert ngram_recall("a b a", "a a a a") == pytest.approx(2 / 3)
    assert ngram_recall("a b", "") == 0
    assert ngram_recall("A b", "a b") == 0.5
    with pytest.raises(Unscorable):
        ngram_recall("a " * (n - 1), "a a a a", n)


HALVES = {
    "several turns": ("Thank you, I", " am well today."),
    "plain text": ("The blue kite is in", " room 12 of the house."),
    "short": ("", "Yes"),
}


@pytest.mark.parametrize("settings", [{}, {"n": 3, "temperature": 0.5, "ngram": 2}, {"zlib": True}])
def test_samia_is_its_formula(tuned, rows, settings: dict) -> None:
    records = [*rows.members[:2], rows.nonmembers[0], TALK, TEXT, *([] if "ngram" in settings else [SHORT])]
    attack = Samia(**settings)
    records = ready(attack, records)
    answers = Interview({"target": tuned}).ask([attack], records)
    scores, reasons = score_all(attack, records, answers)
    assert reasons == {}
    for record in records:
        words = record.target.split()
        n_given = len(words) // 2
        begun, rest = HALVES.get(record.id, (None, None))
        if begun is None:
            begun = next(record.target[:i] for i in range(999) if record.target[:i].split() == words[:n_given])
            rest = record.target[len(begun) :]
        whole = tuned.encode(Query(record.messages, record.target))
        ids = [
            int(i) for i, s in zip(whole.target_ids, whole.spans, strict=True) if s and s.turn == whole.spans[-2].turn
        ]
        text = ""
        while tuned.chat.tokenizer.decode(ids) != rest[-len(tuned.chat.tokenizer.decode(ids)) :]:
            ids = ids[1:]  # the tokens of the rest
        n_new = len(ids)
        numbers = []
        for seed in range(settings.get("n", 10)):
            reply = Reply(n_new, settings.get("temperature", 1.0), seed, begun)
            text = answers.text(Query(record.messages, rest, reply=reply))
            recall = slow_recall(rest, text, settings.get("ngram", 1))
            numbers.append(recall * len(zlib.compress(text.encode())) if settings.get("zlib") else recall)
        assert scores[record.id] == pytest.approx(sum(numbers) / len(numbers), abs=1e-4), record.id


def test_samia_continuations_are_drawn_after_the_first_half(tuned) -> None:
    """The first token that is drawn, over many seeds, follows the model's own distribution at that place."""
    attack = Samia(n=300, max_new_tokens=1)
    (talk,) = ready(attack, [TALK])
    answers = Interview({"target": tuned}).ask([attack], [talk])
    texts = [answers.text(query) for query in attack.queries(talk, answers)]
    encoded = tuned.encode(Query(TALK.messages, TALK.target))
    at = [t for t, s in enumerate(encoded.is_target) if s]
    first = next(t for t, s in zip(at, encoded.spans, strict=True) if s and s.turn == 1 and s.start == 12)
    with torch.inference_mode():
        logits = tuned.module(input_ids=torch.from_numpy(encoded.input_ids[:first])[None]).logits[0, -1].double()
    p, ids = logits.softmax(0).topk(3)
    for value, index in zip(p.tolist(), ids.tolist(), strict=True):
        share = texts.count(tuned.chat.tokenizer.decode([index], skip_special_tokens=True)) / len(texts)
        assert abs(share - value) < 4 * math.sqrt(value * (1 - value) / len(texts)) + 0.01


def test_samia_repeats_and_members_come_back_more(tuned, rows) -> None:
    attack = Samia(n=3)
    records = ready(attack, [*rows.members, *rows.nonmembers])
    scores, _ = score_all(attack, records, Interview({"target": tuned}).ask([attack], records))
    few = records[4::-1]
    again, _ = score_all(attack, few, Interview({"target": tuned}).ask([attack], few))
    assert again == {r.id: scores[r.id] for r in few}
    pairs = [(scores[m.id], scores[n.id]) for m in rows.members for n in rows.nonmembers]
    n_in, n_out = len(rows.members), len(rows.nonmembers)
    chance = math.sqrt((n_in + n_out + 1) / (12 * n_in * n_out))  # standard error of an AUC of 0.5
    assert np.mean([(m > n) + 0.5 * (m == n) for m, n in pairs]) > 0.5 + 1.645 * chance


def test_samia_without_words_or_room_has_a_reason(tuned, rows) -> None:
    empty = Record("empty", (Message("user", "Say nothing."),), " \n")
    word = Record("word", (), "Hippopotamus")
    long = Record("long", (Message("user", "word " * 2000),), "two words")
    records = [empty, word, long, SHORT, rows.members[0]]
    attack = Samia(n=2)
    records = ready(attack, records)
    scores, reasons = score_all(attack, records, Interview({"target": tuned}).ask([attack], records))
    assert reasons["empty"] == "the answer has no word"
    assert reasons["word"] == "nothing before the reply"
    assert "longer than the context" in reasons["long"]
    assert set(reasons) == {"empty", "word", "long"}
    assert all(math.isfinite(scores[r.id]) for r in (SHORT, rows.members[0]))
    pairs = Samia(n=2, ngram=2)
    short = ready(pairs, [SHORT])
    scores, reasons = score_all(pairs, short, Interview({"target": tuned}).ask([pairs], short))
    assert "fewer than 2 words" in reasons["short"]


def test_samia_of_a_model_whose_tokens_are_not_known_counts_words() -> None:
    def unknown(_: Query) -> Sequence[None]:
        raise ModelError("no tokenizer")

    (text,) = ready(Samia(n=1), [TEXT])
    for spans in (None, unknown):
        asked = Samia(n=1).queries(text, Answers({}, spans=spans))
        assert [q.reply.max_new_tokens for q in asked if q.reply] == [2 * 5]


@dataclass
class Worded:
    """A model behind a server whose tokenizer was not given: what it encodes are words."""

    chat: None = None
    name: str = "worded"
    fingerprint: str = "worded"
    context_length: int = 1000
    access: frozenset[str] = frozenset({"text"})

    encode = ServerModel.encode
    prompt_length = ServerModel.prompt_length

    def __post_init__(self) -> None:
        self.asked: list[Query] = []

    def replies(self, queries: Sequence[Query]):
        for i, query in enumerate(queries):
            self.asked.append(query)
            yield i, "so it is"


def test_where_words_are_all_that_is_counted_a_reply_may_have_two_tokens_a_word(toy) -> None:
    record = Record("r", (Message("user", "Say it."),), "one two three four five six seven eight")
    model, attack = Worded(), Samia(n=1)
    Interview({"target": model}).ask([attack], ready(attack, [record]))
    assert [q.reply.max_new_tokens for q in model.asked if q.reply] == [2 * 4]
    long = replace(record, target=" ".join(["word"] * 20))
    model, attack = Worded(), IcpGenerated(k=1)
    answers = Interview({"target": model, "generator": model}).ask([Writes(attack)], ready(attack, [record, long]))
    assert [q.reply.max_new_tokens for q in model.asked if q.reply] == [16, 48], "8 and 20 words, in steps of 16"
    assert not answers.failed


@dataclass(frozen=True)
class Writes(Attack):
    """The questions of another attack that ask for text."""

    inner: Attack

    def queries(self, record: Record, answers: Answers) -> list[Query]:
        return [q for q in self.inner.queries(record, answers) if q.reply is not None]

    def score(self, record: Record, answers: Answers) -> float:
        raise NotImplementedError


@pytest.mark.parametrize("attack", [Samia(n=4), IcpGenerated(k=4)])
def test_another_seed_of_the_run_draws_other_replies(tuned, toy, attack: Attack) -> None:
    def drawn(seed: int) -> list[str]:
        records = ready(attack, [TALK], seed)
        answers = Interview({"target": tuned, "generator": toy}).ask([Writes(attack)], records)
        questions = Writes(attack).queries(records[0], answers)
        assert len({q.reply.seed for q in questions if q.reply}) == 4
        return [answers.text(q) for q in questions]

    first, again, other = drawn(0), drawn(0), drawn(1)
    assert first == again
    assert first != other


# icp-sp-gen


def slow_ll(model, record: Record, context: tuple[Message, ...] = ()) -> float:
    alone = model.encode(Query(record.messages, record.target))
    n_system = sum(m.role == "system" for m in record.messages)
    messages = (*record.messages[:n_system], *context, *record.messages[n_system:])
    encoded = model.encode(Query(messages, record.target))
    with torch.inference_mode():
        logits = model.module(input_ids=torch.from_numpy(encoded.input_ids)[None], use_cache=False).logits[0].double()
    at = [t for t, scored in enumerate(encoded.is_target) if scored][-int(alone.is_target.sum()) :]
    return float(np.mean([float(logits[t - 1].log_softmax(0)[encoded.input_ids[t]]) for t in at]))


def as_probe(record: Record, texts: Sequence[str]) -> tuple[Message, ...]:
    left = list(texts)
    turns = [Message(m.role, left.pop(0) if m.scored else m.content) for m in record.messages if m.role != "system"]
    return (*turns, Message("assistant", left[0])) if turns else (Message("text", left[0] + "\n"),)


def with_instruction(text: str, answer: str, instruction: str = INSTRUCTION) -> str:
    said = instruction.replace("{answer}", answer)
    return f"{text}\n\n{said}" if text else said


@dataclass(frozen=True)
class Writer:
    """A generator whose replies are given: one list for all questions, by their seed."""

    inner: object
    replies_by_seed: tuple[str, ...]
    asked: list[Query]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    @property
    def fingerprint(self) -> str:
        return "writer"

    def replies(self, queries: Sequence[Query]):
        for i, query in enumerate(queries):
            self.asked.append(query)
            yield i, self.replies_by_seed[query.reply.seed % DRAWS]


def asked(attack: Attack, records: Sequence[Record], tuned, writer) -> tuple[dict[str, float], dict[str, str], Answers]:
    records = ready(attack, records)
    answers = Interview({"target": tuned, "generator": writer}).ask([attack], records)
    scores, reasons = score_all(attack, records, answers)
    assert all(q in answers for r in records for q in attack.queries(r, answers)), "nothing new in a last round"
    return scores, dict(reasons), answers


@pytest.mark.parametrize(("probes", "over"), [("mean", lambda d: sum(d) / len(d)), ("best", min)])
def test_icp_with_alternatives_is_its_formula(tuned, toy, rows, probes: str, over: Callable[..., float]) -> None:
    records = [rows.members[0], rows.nonmembers[0], TEXT]
    attack = IcpGenerated(k=2, probes=probes)
    scores, reasons, answers = asked(attack, records, tuned, toy)
    assert reasons == {}
    for record in records:
        prompt = record.messages[-1].content if record.messages else ""
        messages = (*record.messages[:-1], Message("user", with_instruction(prompt, record.target)))
        spans = tuned.encode(Query(record.messages, record.target)).spans
        n_tokens = sum(span is not None for span in spans)
        n_new = next(n for n in range(16, 999, 16) if n >= n_tokens)
        replies = [Query(messages, "", model="generator", reply=Reply(n_new, 0.7, seed)) for seed in range(2)]
        drops = [
            slow_ll(tuned, record) - slow_ll(tuned, record, as_probe(record, [answers.text(q).strip()]))
            for q in replies
        ]
        assert scores[record.id] == pytest.approx(over(drops), abs=1e-4), record.id


def test_every_answer_of_a_conversation_gets_an_alternative(tuned, toy) -> None:
    writer = Writer(toy, ("Well met.", "So so, thanks."), [])
    scores, reasons, _ = asked(IcpGenerated(k=2), [TALK], tuned, writer)
    assert reasons == {}
    drops = [slow_ll(tuned, TALK) - slow_ll(tuned, TALK, as_probe(TALK, [t] * 2)) for t in writer.replies_by_seed]
    assert scores[TALK.id] == pytest.approx(sum(drops) / 2, abs=1e-4)
    contents = {tuple(m.content for m in q.messages) for q in writer.asked}
    first, second = TALK.responses
    assert contents == {
        ("Be brief.", with_instruction("Hi there.", first)),
        ("Be brief.", "Hi there.", first, with_instruction("Fine, and you?", second)),
    }
    assert not any(m.scored for q in writer.asked for m in q.messages)


def test_an_empty_alternative_and_the_answer_itself_are_no_probes(tuned, toy, rows) -> None:
    record = rows.members[0]
    writer = Writer(toy, ("", "  \n", f" {record.target}\n", "Something else."), [])
    scores, _, _ = asked(IcpGenerated(k=4), [record], tuned, writer)
    expected = slow_ll(tuned, record) - slow_ll(tuned, record, as_probe(record, ["Something else."]))
    assert scores[record.id] == pytest.approx(expected, abs=1e-4)
    scores, reasons, _ = asked(IcpGenerated(k=3), [record], tuned, writer)
    assert math.isnan(scores[record.id])
    assert "every alternative is empty" in reasons[record.id]


def test_alternatives_follow_the_settings(tuned, toy, rows) -> None:
    record = rows.members[0]
    writer = Writer(toy, ("One.", "Two."), [])
    blind = IcpGenerated(k=2, instruction="Put it {another} way.", temperature=0.2, max_new_tokens=9)
    scores, reasons, _ = asked(blind, [record, TEXT], tuned, writer)
    assert {q.reply for q in writer.asked} == {Reply(9, 0.2, 0), Reply(9, 0.2, 1)}
    assert {q.messages[-1].content for q in writer.asked} == {
        f"{record.messages[-1].content}\n\nPut it {{another}} way."
    }
    assert all(record.target not in m.content for q in writer.asked for m in q.messages)
    assert math.isfinite(scores[record.id])
    assert "plain text has no prompt" in reasons[TEXT.id]


def test_a_generator_that_cannot_be_asked_is_a_reason_and_stops_no_one(tuned, toy, rows) -> None:
    long = Record("long", (Message("user", "word " * 2000),), "two words")
    # It fits once, and not with its probe.
    middle = Record("middle", (Message("user", "a b c d e f g h " * 60),), "two words")
    scores, reasons, _ = asked(IcpGenerated(k=1), [long, middle, SHORT, rows.members[0]], tuned, toy)
    assert {"long", "middle"} <= set(reasons)
    assert all("longer than the context" in reasons[name] for name in ("long", "middle"))
    assert math.isfinite(scores[rows.members[0].id])
    assert math.isfinite(scores["short"]) or "alternative" in reasons["short"]


def test_alternatives_repeat_by_seed_and_differ_between_seeds(tuned, toy, rows) -> None:
    attack, records = IcpGenerated(k=3, max_new_tokens=16), rows.members[:3]
    one, _, answers = asked(attack, records, tuned, toy)
    two, _, _ = asked(attack, records[::-1], tuned, toy)
    assert one == pytest.approx(two, abs=1e-6)
    for record in ready(attack, records):
        texts = {answers.text(q) for q in attack.queries(record, answers) if q.model == "generator"}
        assert len(texts) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: IcpGenerated(k=0),
        lambda: IcpGenerated(temperature=0.0),
        lambda: IcpGenerated(temperature=-1.0),
        lambda: IcpGenerated(temperature=math.nan),
        lambda: IcpGenerated(max_new_tokens=0),
        lambda: Samia(n=0),
        lambda: Samia(ngram=0),
        lambda: Samia(share=1.0),
        lambda: Samia(share=-0.1),
        lambda: Samia(temperature=0.0),
        lambda: Samia(max_new_tokens=0),
    ],
)
def test_a_setting_out_of_range_is_one_line(make: Callable[[], Attack]) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_what_is_asked_of_whom() -> None:
    assert IcpGenerated().access_to("generator") == "text"
    assert IcpGenerated().access_to("target") == "logprobs"
    assert Samia.access == "text"
    assert IcpGenerated(k=1, temperature=0.0).k == 1
    assert replace(Samia(n=1), temperature=0.0).temperature == 0
