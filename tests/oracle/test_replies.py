"""Replies against the slow obvious way: one question at a time, the whole sequence anew for every token."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indelible.data.records import Message, Query, Reply
from indelible.errors import ModelError, Unscorable
from indelible.models.beginnings import LEFT, families
from indelible.models.generation import Draw, prompt_ids
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.cache import AnswerCache
from indelible.scoring.replies import reply

FLOAT32 = LoadOptions(device="cpu", dtype="float32")
QUESTIONS = [
    "When is my hearing test?",
    "Hi.",
    "What did the nurse say about the results of the blood test that I took at the clinic last Monday morning?",
    "Who can see me on Friday?",
    "Is it far?",
    "Please tell me about the blue kite in room 12.",
]


def asking(text: str, reply: Reply) -> Query:
    return Query((Message("user", text),), "", reply=reply)


def slow_greedy(model, ids: list[int], n_new: int) -> str:
    """One sequence, no cache of keys and values, until the end marker."""
    tokenizer, start = model.chat.tokenizer, len(ids)
    ids = list(ids)
    with torch.inference_mode(), model.network.context():
        for _ in range(n_new):
            ids.append(int(model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
    return str(tokenizer.decode(ids[start:], skip_special_tokens=True))


def said(model, queries: list[Query]) -> list[str]:
    found = dict(model.replies(queries))
    assert sorted(found) == list(range(len(queries)))
    return [found[i] for i in range(len(queries))]


@pytest.fixture(scope="module")
def tuned(tuned_toy: Path):
    return load_model(str(tuned_toy), FLOAT32)[0]


@pytest.fixture(scope="module")
def adapted(lora_toy: Path):
    return load_model(str(lora_toy), FLOAT32)[0]


@pytest.mark.parametrize("which", ["tuned", "adapted", "base of adapted"])
def test_greedy_replies_of_any_batch_are_the_slow_ones(tuned, adapted, rows, which: str) -> None:
    model = {"tuned": tuned, "adapted": adapted}.get(which) or adapted.as_base()
    talk = (Message("user", "Hi."), Message("assistant", "Good day.", scored=True), Message("user", "And you?"))
    queries = [asking(text, Reply(n_new)) for n_new in (1, 8, 12) for text in QUESTIONS]
    queries += [Query(talk, "", reply=Reply(12)), Query((), "", reply=Reply(12, begun="The blue kite is"))]
    queries += [Query(r.messages, "", reply=Reply(24)) for r in rows.members[:5]]
    for query, text in zip(queries, said(model, queries), strict=True):
        assert text == slow_greedy(model, prompt_ids(model, query).tolist(), query.reply.max_new_tokens)


def test_a_reply_that_is_begun_goes_on_from_the_tokens_of_the_true_answer(tuned, rows) -> None:
    """Teacher-forced: one token of reply after each true prefix is the most probable token of one pass."""
    record = rows.members[0]
    plain = Query(record.messages, record.target)
    answer, encoded = tuned.logprobs([plain])[0], tuned.encode(plain)
    queries, expected = [], []
    for span, guess in zip(encoded.spans[1:20], answer.argmax[1:20], strict=True):
        begun, rest = record.target[: span.start], record.target[span.start :]
        queries.append(Query(record.messages, rest, reply=Reply(1, begun=begun)))
        expected.append(tuned.chat.tokenizer.decode([int(guess)], skip_special_tokens=True))
        ids = prompt_ids(tuned, queries[-1]).tolist()
        assert ids == encoded.input_ids[: len(ids)].tolist()
    assert said(tuned, queries) == expected
    assert len(set(expected)) > 5


def test_a_drawn_reply_depends_on_its_question_and_seed_alone(tuned) -> None:
    queries = [asking(text, Reply(10, 1.0, seed)) for text in QUESTIONS for seed in range(4)]
    queries += [asking(text, Reply(10, 0.5, seed)) for text in QUESTIONS[:2] for seed in range(2)]
    together = dict(zip(queries, said(tuned, queries), strict=True))
    backwards = dict(zip(queries[::-1], said(tuned, queries[::-1]), strict=True))
    assert backwards == together
    for query in queries[::3]:
        assert said(tuned, [query]) == [together[query]]
    assert len({together[q] for q in queries[:4]}) > 1, "four seeds, one question"
    assert together[queries[0]] != together[asking(QUESTIONS[0], Reply(10, 0.5, 0))]


def slow_draw(model, query: Query) -> str:
    """One sequence, its own noise: the token of greatest logit / temperature - ln(-ln uniform), written with E."""
    ids, start = prompt_ids(model, query).tolist(), len(prompt_ids(model, query))
    stream = torch.Generator().manual_seed(int.from_bytes(query.digest()[:8], "big") // 2)
    with torch.inference_mode():
        for _ in range(query.reply.max_new_tokens):
            logits = model.module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            arrivals = torch.empty(len(logits)).exponential_(generator=stream).double()
            ids.append(int((logits / query.reply.temperature).exp().div(arrivals).argmax()))  # the first to arrive
            if ids[-1] == model.chat.tokenizer.eos_token_id:
                break
    return str(model.chat.tokenizer.decode(ids[start:], skip_special_tokens=True))


def test_drawn_replies_are_the_slow_ones(tuned) -> None:
    queries = [asking(text, Reply(8, temperature, 5)) for text in QUESTIONS for temperature in (0.4, 1.0, 2.0)]
    assert said(tuned, queries) == [slow_draw(tuned, query) for query in queries]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax_at_their_temperature(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -math.inf])
    n = 4000
    queries = [asking("x", Reply(1, temperature, seed)) for seed in range(n)]
    chosen = Draw(queries, temperature)(torch.zeros(n, 1), logits.expand(n, -1)).argmax(1)
    shares = np.bincount(chosen.numpy(), minlength=6) / n
    expected = torch.softmax(logits / temperature, 0).double().numpy()
    assert np.abs(shares - expected).max() < 4 * math.sqrt(0.25 / n)
    chi_squared = n * float((((shares - expected) ** 2)[:5] / expected[:5]).sum())
    assert chi_squared < 18.5  # 4 degrees of freedom: one in a thousand
    assert shares[5] == 0


def test_one_stream_goes_on_from_token_to_token() -> None:
    """The noise of a second token is not that of the first."""
    draw = Draw([asking("x", Reply(9, 1.0, 1))], 1.0)
    first, second = (draw(torch.zeros(1, 1), torch.zeros(1, 50)) for _ in range(2))
    assert abs(float(np.corrcoef(first[0], second[0])[0, 1])) < 0.5


def test_first_tokens_of_a_model_follow_its_own_probabilities(tuned) -> None:
    n, temperature = 480, 0.8
    text = QUESTIONS[0]
    replies = Counter(said(tuned, [asking(text, Reply(1, temperature, seed)) for seed in range(n)]))
    ids = prompt_ids(tuned, asking(text, Reply(1)))
    with torch.inference_mode():
        logits = tuned.module(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0, -1].double()
    p = torch.softmax(logits / temperature, 0)
    likely = p.topk(5)
    assert float(likely.values[0]) < 0.95, "nothing to see where one token has it all"
    for value, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
        share = replies[tuned.chat.tokenizer.decode([index], skip_special_tokens=True)] / n
        assert abs(share - value) < 4 * math.sqrt(value * (1 - value) / n) + 1 / n


def test_a_reply_ends_at_the_templates_marker_whatever_the_models_settings_name(tuned, rows, monkeypatch) -> None:
    tokenizer = tuned.chat.tokenizer
    queries = [Query(r.messages, "", reply=Reply(100)) for r in rows.members[:8]]
    before = said(tuned, queries)
    assert any(len(tokenizer(text)["input_ids"]) < 90 for text in before), "some do end"
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert other != tokenizer.eos_token_id
    for named in (other, [other], None):
        monkeypatch.setattr(tuned.causal.generation_config, "eos_token_id", named)
        assert said(tuned, queries) == before


def test_a_marker_that_is_no_token_ends_a_reply_too(tuned, monkeypatch) -> None:
    """A template's marker that this tokenizer writes in pieces."""
    template = tuned.chat.template.replace("<|im_end|>", "</s>")
    model = replace(tuned, chat=replace(tuned.chat, template=template))
    monkeypatch.setattr(type(model.chat.tokenizer), "decode", lambda self, ids, **_: "so</s>\nand on")
    assert said(model, [asking("Hi.", Reply(2))]) == ["so"]


def test_each_question_is_asked_once_and_no_more_when_its_reply_is_known(tuned, tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers", engine_version=2)
    queries = [asking(text, Reply(6, t, 3)) for text in QUESTIONS for t in (0.0, 1.0)]
    first, counts = reply(tuned, [*queries, *queries[:3]], cache=cache)
    assert (counts.asked, counts.unique, counts.cached, counts.failed) == (15, 12, 0, 0)
    assert counts.tokens_asked == sum(len(prompt_ids(tuned, q)) + 6 for q in queries)
    assert [first.text(q) for q in queries] == said(tuned, queries)
    again, counts = reply(tuned, queries, cache=cache)
    assert (counts.cached, counts.tokens_computed) == (12, 0)
    assert again.texts == first.texts
    # Another seed, temperature, length or beginning is another question.
    q = queries[1]
    others = [
        replace(q, reply=replace(q.reply, **change))
        for change in ({"seed": 4}, {"temperature": 0.9}, {"max_new_tokens": 5}, {"begun": "A"})
    ]
    assert cache.read_texts(tuned.fingerprint, [q, *others]) == {q: first.text(q)}
    assert cache.read_texts("another model", [q]) == {}
    assert cache.read(tuned.fingerprint, [replace(q, reply=None)]) == {}
    cache.close()


def test_replies_on_disk_spell_no_text(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers", engine_version=2)
    secret = "Ada Lovelace has room 4711, naïve 😀"
    rows = [(asking("Who lives in room 4711?", Reply(8, 1.0, seed)), secret) for seed in range(3)]
    rows.append((asking("Nothing?", Reply(8)), ""))
    cache.write_texts("model", rows)
    files = [path for path in cache.folder.iterdir() if path.name != "key"]
    stored = b"".join(path.read_bytes() for path in files)
    assert len(stored) > 1000
    for part in ("Ada", "Lovelace", "4711", "room", "naïve", "😀"):
        assert part.encode() not in stored
    values = [row[0] for row in cache._db.execute("SELECT value FROM answers")]
    assert len(set(values)) == len(rows), "one text under three questions is three masks"
    cache.close()
    again = AnswerCache(tmp_path / "answers", engine_version=2)
    assert again.read_texts("model", [q for q, _ in rows]) == dict(rows)
    again.close()
    other = AnswerCache(tmp_path / "answers", engine_version=3)
    assert other.read_texts("model", [q for q, _ in rows]) == {}
    other.close()


def test_a_question_that_cannot_be_asked_has_a_reason_and_stops_no_other(tuned) -> None:
    fine = asking("Hi.", Reply(4))
    long = asking("word " * 1500, Reply(4))
    far = asking("Hi.", Reply(1020))
    nothing = Query((), "", reply=Reply(4))
    empty = asking("", Reply(4))  # an empty turn is still a prompt
    answers, counts = reply(tuned, [long, fine, far, nothing, empty])
    assert counts.failed == 3
    assert answers.text(fine) == said(tuned, [fine])[0]
    assert answers.text(empty) == said(tuned, [empty])[0]
    for query, reason in (
        (long, "longer than the context"),
        (far, "+ 1020 > 1024 tokens"),
        (nothing, "nothing before"),
    ):
        with pytest.raises(Unscorable, match=reason.replace("+", r"\+")):
            answers.text(query)
        assert query in answers


def test_a_format_without_a_boundary_fails_what_is_begun_and_replies_to_the_rest(tuned) -> None:
    joint = load_model("builtin:toy", replace(FLOAT32, template="icp-mia"))[0]
    begun, plain = asking("Hi.", Reply(3, begun="Good")), asking("Hi.", Reply(3))
    text = Query((), "", reply=Reply(3))
    answers, counts = reply(joint, [begun, plain, text])
    assert counts.failed == 2
    assert answers.text(plain) == slow_greedy(joint, prompt_ids(joint, plain).tolist(), 3)
    assert "cannot be begun" in answers.failed[begun]
    assert "nothing before" in answers.failed[text]
    with pytest.raises(ModelError, match="cannot be begun"):
        joint.generate([plain], 3, begun=["Good"])


def test_no_question_is_no_work(tuned) -> None:
    answers, counts = reply(tuned, [])
    assert (answers.texts, counts.asked, counts.tokens_asked) == ({}, 0, 0)
    assert list(tuned.replies([])) == []


def test_replies_after_many_beginnings_of_one_text_are_the_slow_ones_and_cost_it_once(tuned, rows) -> None:
    queries = []
    for record in rows.members[:2]:
        ends = [i for i, c in enumerate(record.target) if c == " "][:10]
        queries += [Query(record.messages, "", reply=Reply(6, begun=record.target[:end])) for end in ends]
        queries += [
            Query(record.messages, "", reply=Reply(6, 1.0, k, record.target[:end])) for k, end in enumerate(ends)
        ]
    seen: list[int] = []
    hook = tuned.causal.register_forward_pre_hook(
        lambda _, args, given: seen.append(given["input_ids"].numel()), with_kwargs=True
    )
    found = said(tuned, queries)
    hook.remove()
    for query, text in zip(queries, found, strict=True):
        slow = slow_draw if query.reply.temperature else lambda m, q: slow_greedy(m, prompt_ids(m, q).tolist(), 6)
        assert text == slow(tuned, query)
    prompts = sum(len(prompt_ids(tuned, q)) for q in queries)
    assert sum(seen) < prompts / 2 + 6 * len(queries)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=12))
def test_families_hold_every_prompt_once_and_what_it_shares_with_the_trunk(prompts: list[list[int]]) -> None:
    arrays = [np.array(ids, dtype=np.int64) for ids in prompts]
    found = families(arrays)
    assert sorted(i for f in found for i in f.members) == list(range(len(prompts)))
    for family in found:
        for i, n in zip(family.members, family.shared, strict=True):
            assert prompts[i][:n] == family.trunk[:n].tolist()
            assert n == len(prompts[i]) or prompts[i][n] != family.trunk[n]
            assert len(prompts[i]) - n <= LEFT
            assert len(prompts[i]) <= len(family.trunk)
