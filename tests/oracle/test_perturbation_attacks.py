"""Attacks on rewritten answers, against slow transcriptions of their formulas and of the rules that rewrite."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from indelible.attacks.base import Attack, Resources, score_all
from indelible.attacks.perturbation import Lowercase, Neighborhood, Pac
from indelible.attacks.variation import Spv
from indelible.data.fill import best_substitutions, choose_spans
from indelible.data.records import Message, Query, Record
from indelible.errors import ConfigError
from indelible.interview import Interview, prepare
from indelible.models.load import LoadOptions, load_model
from indelible.models.proposals import propose_from_base
from indelible.scoring.engine import Answers

N_SIDE = 20

TALK = Record(
    "several turns",
    (
        Message("system", "Be brief."),
        Message("user", "Hi there."),
        Message("assistant", "Good day Ada, how are you on this fine morning?", scored=True),
        Message("user", "Fine, and you?"),
    ),
    "Thank you, I am well today.",
)
TEXT = Record("plain text", (), "The blue kite is in room 12 of the house, behind Norbourne hall.")
ASK = (Message("user", "What is it?"),)


@dataclass(frozen=True)
class Asked:
    attacks: Mapping[str, Attack]
    records: list[Record]
    answers: Answers
    interview: Interview
    resources: Resources


@pytest.fixture(scope="module")
def asked(toy, tuned_toy, lora_toy, rows) -> Asked:
    options = LoadOptions(device="cpu", dtype="float32")
    models = {"target": load_model(str(tuned_toy), options)[0], "base": toy}
    models["reference"] = load_model(str(lora_toy), options)[0]
    attacks = {
        "lowercase": Lowercase(),
        "neighborhood": Neighborhood(),
        "spv": Spv(n=2),
        "spv loss": Spv(n=2, space="loss"),
        "pac": Pac(),
    }
    interview, resources = Interview(models), Resources(base=toy, seed=3)
    records = [*rows.members[:N_SIDE], *rows.nonmembers[:N_SIDE], TALK, TEXT]
    records = prepare(list(attacks.values()), records, resources)
    return Asked(attacks, records, interview.ask(list(attacks.values()), records), interview, resources)


# The formulas, from single questions.


def logprobs(a: Asked, record: Record, texts: Sequence[str], role: str = "target") -> list[float]:
    """Token log-probabilities of other answers in the record's conversation, asked alone."""
    left = list(texts)
    turns = [Message(m.role, left.pop(0) if m.scored else m.content, m.scored) for m in record.messages]
    (answer,) = a.interview.models[role].logprobs([Query(tuple(turns), left[0])])
    return [float(x) for x in answer.logprobs]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def own(record: Record) -> list[str]:
    return [m.content for m in record.messages if m.scored] + [record.target]


def kept(record: Record, prefix: str) -> list[list[str]]:
    (contexts,) = [v for k, v in record.variants.items() if k.startswith(prefix) and not k.endswith("why not")]
    return [[m.content for m in context] for context in contexts]


def lowercase(a: Asked, r: Record) -> float:
    return mean(logprobs(a, r, own(r))) - mean(logprobs(a, r, [t.lower() for t in own(r)]))


def neighborhood(a: Asked, r: Record) -> float:
    neighbours = kept(r, "substitutions")
    assert len(neighbours) == 20
    return mean(logprobs(a, r, own(r))) - mean([mean(logprobs(a, r, texts)) for texts in neighbours])


def spv(a: Asked, r: Record, loss: bool = False) -> float:
    def p(texts: Sequence[str], role: str) -> float:
        scored = logprobs(a, r, texts, role)
        return mean(scored) if loss else math.prod(math.exp(x) for x in scored) ** (1 / len(scored))

    copies = kept(r, "fills")
    assert len(copies) == 2
    target, reference = (p(own(r), m) - mean([p(texts, m) for texts in copies]) for m in ("target", "reference"))
    return target - reference


def pac(a: Asked, r: Record) -> float:
    def distance(texts: Sequence[str]) -> float:
        scored = sorted(logprobs(a, r, texts))
        n_far, n_near = max(int(len(scored) * 0.05), 1), max(int(len(scored) * 0.3), 1)
        return mean(scored[::-1][:n_far]) - mean(scored[:n_near])

    swapped = kept(r, "swaps")
    assert len(swapped) == 5
    return mean([distance(texts) for texts in swapped]) - distance(own(r))


FORMULAS = {
    "lowercase": lowercase,
    "neighborhood": neighborhood,
    "spv": spv,
    "spv loss": lambda a, r: spv(a, r, loss=True),
    "pac": pac,
}
every_attack = pytest.mark.parametrize("name", list(FORMULAS))


@every_attack
def test_the_score_is_its_formula(asked: Asked, name: str) -> None:
    some = [asked.records[0], asked.records[N_SIDE], *asked.records[-2:]]
    scores, reasons = score_all(asked.attacks[name], asked.records, asked.answers)
    assert reasons == {}
    for record in some:
        assert scores[record.id] == pytest.approx(FORMULAS[name](asked, record), abs=1e-4), record.id


@every_attack
def test_questions_go_to_the_declared_models_and_leave_the_prompt_alone(asked: Asked, name: str) -> None:
    attack = asked.attacks[name]
    for record in asked.records:
        questions = attack.queries(record, asked.answers)
        assert {q.model for q in questions} == set(attack.roles)
        assert all(q in asked.answers for q in questions)
        for q in questions:
            assert [m for m in q.messages if not m.scored] == [m for m in record.messages if not m.scored]
            assert [m.role for m in q.messages] == [m.role for m in record.messages]


@every_attack
def test_a_record_is_rewritten_alike_alone_and_among_others_and_otherwise_by_another_seed(
    asked: Asked, name: str
) -> None:
    attack, record = asked.attacks[name], replace(asked.records[4], variants={})
    assert attack.prepare([record], asked.resources)[0].variants.items() <= asked.records[4].variants.items()
    if name.startswith(("spv", "pac")):
        other = attack.prepare([record], replace(asked.resources, seed=4))[0].variants
        (variant,) = other
        assert other[variant] != asked.records[4].variants[variant]


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    return mean([(p > n) + 0.5 * (p == n) for p in positive for n in negative])


@pytest.mark.parametrize(
    ("name", "least"), [("lowercase", 0.65), ("neighborhood", 0.65), ("spv", 0.9), ("spv loss", 0.8), ("pac", 0.9)]
)
def test_planted_members_score_higher(asked: Asked, name: str, least: float) -> None:
    """Twelve passes over the members are too few for 0.9 of `lowercase` and `neighborhood` (0.98 and 0.91 after 48);
    `spv` has two of its ten copies here, and a reference that saw the members once."""
    attack = asked.attacks[name]
    parts = asked.records[:N_SIDE], asked.records[N_SIDE : 2 * N_SIDE]
    inside, outside = (list(score_all(attack, part, asked.answers)[0].values()) for part in parts)
    assert auc(inside, outside) > least


# How rewritings are made.


def test_what_is_said_of_the_share_of_refilled_words_is_so() -> None:
    attack = Spv()
    text = " ".join(f"w{i}" for i in range(2000))
    spans = choose_spans(text, attack.rate, attack.span, attack.buffer, random.Random(0))
    share = attack.span * len(spans) / 2000
    assert share == pytest.approx(0.15)
    docs = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    entries = dict(re.findall(r"^### `([a-z-]+)`\n(.*?)\n\n", docs, re.MULTILINE | re.DOTALL))
    for said in (entries["spv"], Spv.__doc__ or ""):
        assert f"{share:.0%} of the words" in " ".join(said.split())
    assert "negated" not in entries["pac"], "the formula is the code's as it stands"


def test_refilled_copies_keep_all_but_a_few_spans_of_two_words(asked: Asked) -> None:
    for record in asked.records:
        for texts in kept(record, "fills"):
            for old, new in zip(own(record), texts, strict=True):
                a, b = old.split(), new.split()
                n_spans = max(1, int(0.3 * (len(a) - (not record.messages)) / 4))
                assert len(a) - n_spans <= len(b) <= len(a)  # a fill has one word or two
                # The same words in the same order, a few aside: the longest common subsequence.
                row = [0] * (len(b) + 1)
                for x in a:
                    before = row[:]
                    for j, y in enumerate(b):
                        row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
                assert row[-1] >= len(a) - 2 * n_spans
                if not record.messages:
                    assert b[0] == a[0], "nothing stands before the first word of a plain text"


def test_swapped_answers_hold_the_same_words(asked: Asked) -> None:
    for record in asked.records:
        for texts in kept(record, "swaps"):
            assert texts != own(record)
            for old, new in zip(own(record), texts, strict=True):
                assert sorted(new.split()) == sorted(old.split())
                moved = sum(x != y for x, y in zip(old.split(), new.split(), strict=True))
                assert moved <= 2 * max(1, int(0.3 * len(old.split())))


def slow_neighbours(model, record: Record, n: int, top_k: int) -> list[tuple[float, list[str]]]:
    """Every replacement at every place, by whole distributions; the answer with another token, decoded from its ids.
    (The toy's tokenizer is byte-level: decoding gives back the text.)"""
    tokenizer = model.chat.tokenizer
    encoded = model.encode(Query(record.messages, record.target))
    with torch.inference_mode():
        p = model.module(torch.from_numpy(encoded.input_ids)[None]).logits[0].double().softmax(-1)
    turns: list[list[tuple[int, int]]] = [[] for _ in own(record)]
    for at, span in zip(encoded.target_positions.tolist(), encoded.spans, strict=True):
        if span is not None:
            turns[span.turn].append((at, int(encoded.input_ids[at])))
    if not record.messages:  # the first token of plain text is not scored, but it is text
        turns[0].insert(0, (0, int(encoded.input_ids[0])))
    found = []
    for turn, tokens in enumerate(turns):
        for k, (at, original) in enumerate(tokens):
            if at == 0 or not tokenizer.decode([original]).strip():
                continue
            ranked = []
            for v in range(len(tokenizer)):
                text = tokenizer.decode([v])
                if v != original and v > 2 and any(c.isalnum() for c in text) and "\ufffd" not in text:
                    ranked.append((float(p[at - 1, v] / (1 - p[at - 1, original])), v))
            for weight, v in sorted(ranked, reverse=True)[:top_k]:
                ids = [i for _, i in tokens]
                texts = own(record)
                texts[turn] = tokenizer.decode([*ids[:k], v, *ids[k + 1 :]]).lstrip()
                found.append((weight, texts))
    found.sort(key=lambda one: -one[0])
    best: list[tuple[float, list[str]]] = []
    for weight, texts in found:
        if texts != own(record) and texts not in [t for _, t in best]:
            best.append((weight, texts))
    return best[:n]


def test_the_bases_neighbours_are_the_best_of_all_single_replacements(toy, rows) -> None:
    for record in (rows.members[0], TALK, TEXT):
        slow = slow_neighbours(toy, record, 20, 5)
        candidates = propose_from_base(toy, record, 5)
        assert best_substitutions(own(record), candidates, 20) == [tuple(texts) for _, texts in slow]
        weights = sorted((math.exp(c.weight) for c in candidates), reverse=True)
        assert max(abs(w - s) for w, (s, _) in zip(weights, slow, strict=False)) < 1e-4


def test_tokens_of_part_of_a_character_and_white_space_are_left_alone(toy) -> None:
    record = Record("odd", ASK, "é\n\n漢 so")
    candidates = propose_from_base(toy, record, 5)
    assert {record.target[c.start : c.end].strip() for c in candidates} <= {"s", "o", "so"}
    assert candidates
    assert all(any(ch.isalnum() for ch in c.written) for c in candidates)


def test_a_text_longer_than_the_bases_context_has_no_neighbours_and_that_is_the_reason(toy) -> None:
    record = Record("long", (Message("user", "word " * 2000),), "Two words")
    (prepared,) = Neighborhood().prepare([record], Resources(base=toy))
    answers = Answers({q: toy.logprobs([Query(ASK, "Two words")])[0] for q in Neighborhood().queries(prepared, None)})
    scores, reasons = score_all(Neighborhood(), [prepared], answers)
    assert math.isnan(scores["long"])
    assert "longer than the base's context" in reasons["long"]


# Answers for which there is nothing to compare with.

ODD = {
    "no upper case": ("lowercase", "all in lower case, 12.", "no upper-case letter"),
    "no case": ("lowercase", "漢字", "no upper-case letter"),
    "no letter beside": ("neighborhood", "\n\n", "no neighbour"),
    "one word": ("pac", "Yes", "no two different words"),
    "the same word": ("pac", "no no no", "no two different words"),
    "a span and no more": ("spv", "Two words", "too short for a span of 2 words"),
    "one token": ("spv", "a", "too short for a span"),
}


@pytest.mark.parametrize("case", list(ODD))
def test_where_there_is_nothing_to_compare_with_there_is_a_reason_and_no_number(asked: Asked, case: str) -> None:
    name, target, why = ODD[case]
    attack, record = asked.attacks[name], Record(case, ASK, target)
    records = prepare([attack], [record], asked.resources)
    scores, reasons = score_all(attack, records, Interview(asked.interview.models).ask([attack], records))
    assert math.isnan(scores[case])
    assert why in reasons[case]


@pytest.mark.parametrize(
    ("name", "target"), [("lowercase", "A"), ("neighborhood", "a"), ("pac", "a b"), ("spv", "a b c")]
)
def test_the_shortest_answer_that_can_be_rewritten_has_a_score(asked: Asked, name: str, target: str) -> None:
    attack, record = asked.attacks[name], Record("short", ASK, target)
    records = prepare([attack], [record], asked.resources)
    scores, reasons = score_all(attack, records, Interview(asked.interview.models).ask([attack], records))
    assert reasons == {}
    assert math.isfinite(scores["short"])


def test_one_scored_token_has_no_two_ends(asked: Asked) -> None:
    """Plain text of two words that are one token each: the first has no score."""
    record = Record("two tokens", (), "a b")
    records = prepare([Pac()], [record], asked.resources)
    answers = Interview(asked.interview.models).ask([Pac()], records)
    n = len(answers[Query((), "a b")].logprobs)
    _, reasons = score_all(Pac(), records, answers)
    assert (n == 1) == ("one scored token" in reasons.get("two tokens", ""))
    assert n == 1


def test_a_base_is_needed_where_it_proposes_and_else_not() -> None:
    assert Neighborhood().needs_base
    assert Spv().needs_base
    assert not Neighborhood(model="roberta-base").needs_base
    assert not Spv(filler="t5-large").needs_base
    assert Neighborhood().access_to("base") == "weights"
    assert Spv().access_to("base") == "text"
    assert Neighborhood().access_to("target") == Spv().access_to("reference") == "logprobs"
    for attack in (Neighborhood(), Spv()):
        with pytest.raises(ConfigError, match="needs a base model: give --base"):
            attack.prepare([Record("a", ASK, "One two three.")], Resources())


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (Neighborhood, {"n": 0}, "n=0"),
        (Neighborhood, {"top_k": 0}, "top_k=0"),
        (Spv, {"n": 0}, "n=0"),
        (Spv, {"span": 0}, "span=0"),
        (Spv, {"buffer": -1}, "buffer=-1"),
        (Spv, {"rate": 0.0}, "rate=0"),
        (Spv, {"rate": math.nan}, "rate=nan"),
        (Pac, {"n": 0}, "n=0"),
        (Pac, {"alpha": 0.0}, "alpha=0"),
        (Pac, {"highest": 2.0}, "highest=2"),
        (Pac, {"lowest": 0.0}, "lowest=0"),
    ],
)
def test_a_setting_out_of_range_is_one_line(cls: type[Attack], settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(**settings)
