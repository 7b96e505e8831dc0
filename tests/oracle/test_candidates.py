"""Ranking as a token trie against scoring every candidate as a sequence of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indelible.data.answers import encode_answers
from indelible.data.records import Message, Query
from indelible.errors import DataError, Unscorable
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring import candidates as candidates_module
from indelible.scoring.candidates import TIE_NATS, Ranking

PROMPT = (Message("user", "Which reference code does Ada Lovelace have? It is on the letter about her hearing test."),)
DIGITS = [",".join(f"{i:03d}") for i in range(1000)]
UNEQUAL = ["7", "71", "711", "7113", "a", "ab", "abc", "FIL-U5TN-SL2L", "FIL-U5TN", "FIL-U5TN-SL2M", "the letter", "é"]


@torch.inference_mode()
def slowly(model: CausalModel, query: Query, candidates: list[str], suffix: str, prefix: str) -> np.ndarray:
    prompt, ids = encode_answers(model.chat, query.messages, [prefix + c + suffix for c in candidates], len(prefix))
    out = []
    for one in ids:
        whole = torch.from_numpy(np.concatenate([prompt, one]))
        with model.network.context():
            logp = model.module(input_ids=whole[None], use_cache=False).logits[0].float().log_softmax(-1)
        at = torch.arange(len(prompt), len(whole))
        out.append(float(logp[at - 1, whole[at]].double().sum()))
    return np.array(out)


@pytest.mark.parametrize(
    ("suffix", "prefix"),
    [
        ("", ""),
        ("!", "Her code is "),
        (" x", " "),
        (".", "Dear Ada,\n\n  thanks.\nReference: "),
        ("", "One\n"),
        ("", "\n\n"),
    ],
)
@pytest.mark.parametrize("template", [None, "alpaca", "llama3"])
def test_candidates_are_encoded_as_training_encodes_answers(tokenizer, template, suffix: str, prefix: str) -> None:
    from indelible.data.chat import chat_format

    chat = chat_format(tokenizer, template=template)
    texts = [prefix + c + suffix for c in UNEQUAL]
    prompt, ids = encode_answers(chat, PROMPT, texts, len(prefix))
    reaches = False
    for text, one in zip(texts, ids, strict=True):
        whole = chat.encode(Query(PROMPT, text))
        assert whole.input_ids[: len(prompt) + len(one)].tolist() == [*prompt, *one]
        after = [s for s, at in zip(whole.spans, whole.target_positions, strict=True) if at >= len(prompt) + len(one)]
        assert all(span is None for span in after), "nothing but the end marker follows"
        scored = whole.spans[len(whole.spans) - len(one) - len(after)]
        assert scored is not None
        reaches |= scored.end > len(prefix)
    assert reaches, "what all share and lies within the prefix is not scored"


def assert_ranked(found: Ranking, values: np.ndarray, true: int) -> None:
    own, others = values[true], np.delete(values, true)
    assert found.logprob == pytest.approx(own, abs=2e-4)
    close = int((np.abs(others - own) <= 2 * TIE_NATS + 2e-4).sum())
    assert found.n_candidates == len(values)
    assert abs(found.rank - 1 - int((others >= own).sum())) <= close
    assert abs(found.rank_optimistic - 1 - int((others > own).sum())) <= close
    assert found.rank_optimistic <= found.rank


@pytest.mark.parametrize(("suffix", "prefix"), [("", ""), (".", ""), ("", "Her code is "), ('", done', 'code("')])
@pytest.mark.parametrize("candidates", [DIGITS[::7], UNEQUAL], ids=["digits", "unequal"])
def test_ranks_and_values_are_those_of_one_by_one_scoring(toy, candidates, suffix: str, prefix: str) -> None:
    values = slowly(toy, Query(PROMPT, candidates[0]), candidates, suffix, prefix)
    for true in (0, 3, len(candidates) - 1, int(values.argmax()), int(values.argmin())):
        query = Query(PROMPT, candidates[true])
        whole = toy.rank(query, candidates, suffix, prefix=prefix, everything=True)
        assert whole.logprobs is not None
        np.testing.assert_allclose(whole.logprobs, values, rtol=0, atol=2e-4)
        pruned = toy.rank(query, candidates, suffix, prefix=prefix)
        assert pruned.logprobs is None
        for found in (whole, pruned):
            assert_ranked(found, values, true)
        assert (pruned.rank, pruned.rank_optimistic) == (whole.rank, whole.rank_optimistic)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    candidates=st.lists(st.text("ab1-", min_size=1, max_size=6), min_size=2, max_size=20, unique=True),
    batch_tokens=st.sampled_from([1, 40, 2048]),
    kv_memory=st.sampled_from([0, 1 << 30]),
    packs=st.booleans(),
)
def test_any_candidates_any_batches_any_memory(toy, candidates, batch_tokens, kv_memory, packs) -> None:
    model = replace(toy, batch_tokens=batch_tokens, kv_memory=kv_memory, packs=packs)
    values = slowly(toy, Query(PROMPT, candidates[0]), candidates, "", "")
    whole = model.rank(Query(PROMPT, candidates[-1]), candidates, everything=True)
    np.testing.assert_allclose(whole.logprobs, values, rtol=0, atol=2e-4)
    assert_ranked(model.rank(Query(PROMPT, candidates[-1]), candidates), values, len(candidates) - 1)


def test_shared_tokens_are_computed_once_and_the_last_never(toy) -> None:
    whole = toy.rank(Query(PROMPT, DIGITS[0]), DIGITS, everything=True)
    prompt, ids = encode_answers(toy.chat, PROMPT, DIGITS)
    # a level may compute a few tokens of the level above again: fewer than a call of its own would cost
    beginnings = {tuple(i[: k + 1]) for i in ids for k in range(len(i) - 1)}
    assert len(prompt) + len(beginnings) <= whole.tokens_computed < 2 * (len(prompt) + len(beginnings))


def test_branches_that_cannot_outrank_a_memorised_answer_are_not_computed(tuned_toy: Path, rows) -> None:
    model, _ = load_model(str(tuned_toy), LoadOptions(device="cpu", dtype="float32"))
    known = rows.members[0]
    word = known.target.split()[0]
    answers = [word, *(f"{i} {known.target}" for i in range(50))]
    query = Query(known.messages, word)
    whole, pruned = model.rank(query, answers, everything=True), model.rank(query, answers)
    assert (whole.rank, pruned.rank) == (1, 1)
    assert pruned.tokens_computed < whole.tokens_computed / 3


def test_in_bfloat16_pruning_loses_no_candidate_that_stands_clear_of_the_true_one() -> None:
    model, _ = load_model("builtin:toy", LoadOptions(device="cpu", dtype="bfloat16"))
    for true in (0, 500, 999):
        query = Query(PROMPT, DIGITS[true])
        whole, pruned = model.rank(query, DIGITS, everything=True), model.rank(query, DIGITS)
        assert whole.logprobs is not None
        near = int((np.abs(whole.logprobs - whole.logprob) < 0.5).sum())
        assert abs(pruned.rank - whole.rank) <= near
        assert pruned.logprob == pytest.approx(whole.logprob, abs=0.5)


def test_a_value_that_is_no_number_is_no_rank(toy, monkeypatch) -> None:
    monkeypatch.setattr(
        candidates_module,
        "chosen_logprobs",
        lambda _head, _hidden, rows, _ids: np.full(len(rows), np.nan, dtype=np.float64),
    )
    for everything in (True, False):
        with pytest.raises(Unscorable, match="not a number"):
            toy.rank(Query(PROMPT, "a"), ["a", "b", "abc"], everything=everything)


def test_an_adapter_ranks_through_itself_and_as_its_base(toy, lora_toy: Path) -> None:
    model, _ = load_model(str(lora_toy), LoadOptions(device="cpu", dtype="float32"))
    query = Query(PROMPT, UNEQUAL[4])
    tuned = model.rank(query, UNEQUAL, everything=True)
    np.testing.assert_allclose(tuned.logprobs, slowly(model, query, UNEQUAL, "", ""), rtol=0, atol=2e-4)
    base = model.as_base().rank(query, UNEQUAL, everything=True)
    np.testing.assert_allclose(base.logprobs, toy.rank(query, UNEQUAL, everything=True).logprobs, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("target", "candidates", "message"),
    [
        ("x", ["a", "b"], "hold the target"),
        ("a", ["a", "a"], "distinct"),
        ("a", ["a", ""], "without a token"),
        ("a", ["a", "word " * 3000], "the context has"),
    ],
)
def test_candidates_that_cannot_be_ranked_are_refused(toy, target: str, candidates: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        toy.rank(Query(PROMPT, target), candidates)
