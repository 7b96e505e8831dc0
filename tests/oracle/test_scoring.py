"""The engine against the slow obvious way: one query at a time, full logits, float32, moments by definition."""

from __future__ import annotations

import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from indelible.data.pools import demonstration
from indelible.data.records import Message, Query, with_context
from indelible.models.base import TokenLogprobs
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring import attention
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import answer
from indelible.scoring.network import lay_out_work

FLOAT32 = LoadOptions(device="cpu", dtype="float32")
TOLERANCE = 1e-4


@torch.inference_mode()
def slowly(model: CausalModel, query: Query) -> TokenLogprobs:
    e = model.encode(query)
    ids = torch.from_numpy(e.input_ids)
    with model.network.context():
        logits = model.module(input_ids=ids[None], use_cache=False).logits[0].float()
    at = torch.tensor([t for t in range(len(e)) if e.is_target[t]])
    logp = torch.log_softmax(logits, -1)[at - 1].double()
    p = logp.exp()
    mean = (p * logp).sum(-1)
    std = (p * (logp - mean[:, None]) ** 2).sum(-1).sqrt()
    own = logp[torch.arange(len(at)), ids[at]]
    return TokenLogprobs(own.numpy(), mean.numpy(), std.numpy(), logp.argmax(-1).numpy())


def assert_equal(fast: TokenLogprobs, slow: TokenLogprobs) -> None:
    for name in ("logprobs", "mean", "std"):
        assert getattr(fast, name).dtype == np.float32
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=0, atol=TOLERANCE, err_msg=name)
    assert fast.argmax.tolist() == slow.argmax.tolist()


def plain(record) -> Query:
    return Query(record.messages, record.target)


@pytest.fixture(scope="module")
def queries(rows) -> dict[str, list[Query]]:
    """Questions by kind; every kind in one list is the mixture an audit asks."""
    records, shots = rows.nonmembers[:6], [demonstration(r) for r in rows.pool[:2]]
    constant = shots[0] + shots[1]
    turns = (Message("user", "Hi"), Message("assistant", "Good day, Ada.", scored=True), Message("user", "And now?"))
    system = Message("system", "Be brief.")
    return {
        "alone": [plain(r) for r in records],
        "constant prefix": [Query(with_context(r.messages, constant), r.target) for r in records],
        "nested prefixes": [Query(with_context(r.messages, shots[0]), r.target) for r in records]
        + [Query(with_context(r.messages, constant), r.target) for r in records],
        "many answers to one prompt": [
            Query(records[0].messages, f"{r.target[:20]} {i}") for i, r in enumerate(records)
        ],
        "several scored turns": [
            Query(turns, "Nothing more."),
            Query((system, *turns, Message("assistant", "Later.", scored=True), Message("user", "ok")), "Bye"),
        ],
        "plain text": [Query((), r.target) for r in records[:3]]
        + [Query((Message("text", records[0].target * 2),), r.target) for r in records[:3]],
        "one token": [Query((Message("user", "a"),), "a"), Query((), "ab")],
    }


@pytest.fixture(scope="module")
def mixture(queries) -> list[Query]:
    return list(dict.fromkeys(q for kind in queries.values() for q in kind))


@pytest.fixture(scope="module")
def truth(toy, mixture) -> dict[Query, TokenLogprobs]:
    return {q: slowly(toy, q) for q in mixture}


@pytest.fixture
def own_toy() -> CausalModel:
    """A toy of its own, to hook or to train."""
    return load_model("builtin:toy", replace(FLOAT32, trainable=True))[0]


@pytest.mark.parametrize("batch_tokens", [1, 50, 500, 100_000])
def test_answers_do_not_depend_on_batch_size(toy, mixture, truth, batch_tokens: int) -> None:
    found, _ = answer(replace(toy, batch_tokens=batch_tokens), mixture)
    for query in mixture:
        assert_equal(found[query], truth[query])


def test_answers_do_not_depend_on_order_and_duplicates_are_asked_once(toy, mixture, truth) -> None:
    shuffled = [*mixture, *mixture[::2]]
    random.Random(0).shuffle(shuffled)
    found, counts = answer(toy, shuffled)
    assert (counts.asked, counts.unique, counts.cached, counts.failed) == (len(shuffled), len(mixture), 0, 0)
    assert set(found.found) == set(mixture)
    for query in mixture:
        assert_equal(found[query], truth[query])


@pytest.mark.parametrize(
    ("kind", "shares"),
    [("alone", False), ("constant prefix", True), ("nested prefixes", True), ("many answers to one prompt", True)],
)
def test_a_shared_beginning_is_computed_once_and_changes_no_answer(toy, queries, truth, kind, shares) -> None:
    found, counts = answer(toy, queries[kind])
    for query in queries[kind]:
        assert_equal(found[query], truth[query])
    asked = sum(len(toy.encode(q)) for q in set(queries[kind]))
    assert counts.tokens_asked == asked
    assert (counts.tokens_computed < 0.8 * asked) == shares


@pytest.mark.parametrize("batch_tokens", [1, 300, 100_000])
@pytest.mark.parametrize("kv_memory", [0, 1 << 30])
def test_tokens_computed_is_what_the_backbone_really_sees(own_toy, mixture, truth, batch_tokens, kv_memory) -> None:
    seen = 0

    def count(_module, _args, kwargs) -> None:
        nonlocal seen
        seen += kwargs["input_ids"].numel()

    own_toy.network.backbone.register_forward_pre_hook(count, with_kwargs=True)
    found, counts = answer(replace(own_toy, batch_tokens=batch_tokens, kv_memory=kv_memory), mixture)
    assert seen == counts.tokens_computed
    for query in mixture:
        assert_equal(found[query], truth[query])


TINY = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=512, n_embd=32, n_layer=2, n_head=4, n_positions=1024, bos_token_id=1, eos_token_id=2)
    )


def _sliding():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(num_key_value_heads=2, sliding_window=16, **TINY, **IDS))


def _mixed_windows():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers = ["full_attention", "sliding_attention", "full_attention"]
    sizes = {**TINY, "head_dim": 16, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(layer_types=layers, use_sliding_window=True, sliding_window=12, **sizes, **IDS))


def _window_in_the_mask_alone():
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}
    sizes = {**TINY, "num_key_value_heads": 2, "shared_expert_intermediate_size": 16}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**sizes, **experts, **window, **IDS))


def _rotary_by_length():
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    sizes = {**TINY, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(rope_parameters=rope, **sizes, **IDS))


def _capped():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {**TINY, "head_dim": 16, "num_key_value_heads": 2}
    return Gemma2ForCausalLM(Gemma2Config(attn_logit_softcapping=5.0, sliding_window=16, **sizes, **IDS))


@pytest.mark.parametrize(
    ("make", "shares"),
    [
        (_gpt2, True),
        (_sliding, True),
        (_mixed_windows, True),
        (_window_in_the_mask_alone, False),
        (_capped, False),
    ],
)
def test_other_architectures_share_only_where_packs_are_proved_equal(
    tokenizer, queries, tmp_path: Path, make: Callable[[], torch.nn.Module], shares: bool
) -> None:
    torch.manual_seed(1)
    make().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, _ = load_model(str(tmp_path), FLOAT32)
    asked = [*queries["constant prefix"], *queries["several scored turns"]]
    assert loaded.packs is shares
    for batch_tokens in (100, 2048):
        model = replace(loaded, batch_tokens=batch_tokens)
        found, counts = answer(model, asked)
        assert (counts.tokens_computed < counts.tokens_asked) is shares
        for query in asked:
            assert_equal(found[query], slowly(model, query))


def test_a_rotary_embedding_that_depends_on_the_longest_query_is_asked_one_by_one(tokenizer, queries, tmp_path) -> None:
    torch.manual_seed(1)
    _rotary_by_length().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = replace(load_model(str(tmp_path), FLOAT32)[0], context_length=1024)
    assert model.rotary_limit == 64
    asked = [*queries["constant prefix"], *queries["one token"]]
    assert max(len(model.encode(q)) for q in asked) > 64 > min(len(model.encode(q)) for q in asked)
    found, _ = answer(model, asked)
    for query in asked:
        assert_equal(found[query], slowly(model, query))


def test_a_model_saved_without_its_cache_flag_shares_all_the_same(tokenizer, tmp_path: Path) -> None:
    model = _sliding()
    model.config.use_cache = False  # as trainers with gradient checkpointing leave it
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_model(str(tmp_path), FLOAT32)[0].packs


def test_bfloat16_answers_are_those_of_bfloat16_asked_one_by_one(mixture) -> None:
    model, _ = load_model("builtin:toy", replace(FLOAT32, dtype="bfloat16"))
    found, _ = answer(model, mixture)
    for query in mixture:
        slow = slowly(model, query).logprobs
        assert np.abs(found[query].logprobs - slow).max() < 0.25
        assert abs(found[query].logprobs.mean() - slow.mean()) < 0.05


def test_one_masked_call_gives_what_cutting_by_stretch_gives(toy, mixture, truth, monkeypatch) -> None:
    monkeypatch.setattr(attention, "_by_stretch", None)  # as on a device other than the CPU
    monkeypatch.setattr(attention, "cuts_by_stretch", lambda *_: False)
    found, counts = answer(replace(toy, batch_tokens=300), mixture)
    assert counts.tokens_computed < counts.tokens_asked
    for query in mixture:
        assert_equal(found[query], truth[query])


@pytest.mark.parametrize("length", [attention.BLOCK, attention.BLOCK + 1, 2 * attention.BLOCK, 501])
def test_causal_attention_in_blocks_is_whole_causal_attention(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(2, 3, length, 16, generator=generator)  # three heads read the same keys
    key, value = (torch.randn(2, length, 16, generator=generator) for _ in range(2))
    found, lse = attention._flash(query, key, value, 0.3, causal=True)
    scores = (query.double() @ key.double()[:, None].mT * 0.3).masked_fill(
        torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf
    )
    torch.testing.assert_close(found.double(), scores.softmax(-1) @ value.double()[:, None], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


def test_an_adapted_model_answers_through_its_adapter_and_its_base_view_as_the_base(lora_toy, mixture, truth) -> None:
    model, _ = load_model(str(lora_toy), FLOAT32)
    tuned, _ = answer(model, mixture)
    base, _ = answer(model.as_base(), mixture)
    for query in mixture:
        assert_equal(base[query], truth[query])
        assert_equal(tuned[query], slowly(model, query))
    assert max(np.abs(tuned[q].logprobs - base[q].logprobs).max() for q in mixture) > 0.1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_halves_the_batch_and_loses_nothing(own_toy, mixture, truth, error: Exception) -> None:
    tried: list[int] = []
    longest = max(len(own_toy.encode(q)) for q in mixture)

    def small_memory(_module, _args, kwargs) -> None:
        tried.append(kwargs["input_ids"].numel())
        if tried[-1] > longest:
            raise error

    own_toy.network.backbone.register_forward_pre_hook(small_memory, with_kwargs=True)
    found, _ = answer(replace(own_toy, batch_tokens=100_000), mixture)
    assert tried[0] > 4 * longest
    assert all(after < before for before, after in pairwise(tried) if before > longest), "a part is tried next"
    for query in mixture:
        assert_equal(found[query], truth[query])


def test_other_errors_and_a_single_query_that_does_not_fit_are_raised(own_toy, mixture) -> None:
    def broken(*_args) -> None:
        raise failure

    own_toy.network.backbone.register_forward_pre_hook(broken)
    for failure in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("shapes do not match")):
        with pytest.raises(type(failure), match=str(failure)):
            answer(own_toy, mixture)


def test_too_long_and_empty_questions_fail_with_a_reason_and_are_never_cut(toy) -> None:
    long, empty, good = Query((), "word " * 3000), Query((), ""), Query((), "word")
    found, counts = answer(toy, [long, empty, good])
    assert "longer than the context" in found.failed[long]
    assert found.failed[empty] == "no scored token"
    assert set(found.found) == {good}
    assert counts.failed == 2


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[AnswerCache]:
    opened = AnswerCache(tmp_path / "answers", engine_version=1)
    yield opened
    opened.close()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeError("the plug was pulled")])
def test_an_interruption_loses_no_answer_that_was_given(own_toy, cache, queries, interruption: BaseException) -> None:
    asked = queries["alone"] + queries["constant prefix"] + queries["plain text"]
    model = replace(own_toy, batch_tokens=700)
    passes = 0

    def count(_module, _args, kwargs, _out) -> None:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise interruption

    hook = model.network.backbone.register_forward_hook(count, with_kwargs=True)
    with pytest.raises(type(interruption)):
        answer(model, asked, cache=cache)
    hook.remove()
    first = lay_out_work([model.encode(q) for q in asked], packs=True, batch_tokens=700, kv_tokens=1 << 30).plan.packs
    again, counts = answer(model, asked, cache=cache)
    assert 0 < counts.cached == sum(len(pack.members) for pack in first[:3]) < len(asked)
    for query in asked:
        assert_equal(again[query], slowly(model, query))
    third, counts = answer(model, asked, cache=cache)
    assert (counts.cached, counts.tokens_computed) == (len(asked), 0)
    for query in asked:
        for name in ("logprobs", "mean", "std", "argmax"):
            assert np.array_equal(getattr(third[query], name), getattr(again[query], name))


def test_the_cache_knows_models_and_engine_versions_apart(cache, toy, queries) -> None:
    query = queries["alone"][0]
    answer(toy, [query], cache=cache)
    assert list(cache.read(toy.fingerprint, [query])) == [query]
    assert cache.read(replace(toy, weights_fingerprint="another").fingerprint, [query]) == {}
    newer = AnswerCache(cache.folder, engine_version=2)
    assert newer.read(toy.fingerprint, [query]) == {}
    newer.close()


def test_the_cache_spells_no_text_and_is_its_owners_alone(cache, toy, queries, truth) -> None:
    asked = queries["alone"]
    found, _ = answer(toy, asked, cache=cache)
    written = b"".join(p.read_bytes() for p in cache.folder.glob("answers.sqlite*"))
    for query in asked:
        assert found[query].logprobs.tobytes() in written, "the answer is there, as it is"
        spelt = truth[query].argmax.astype(np.int32)
        target = toy.encode(query).input_ids[toy.encode(query).is_target]
        for ids in (spelt, target):
            for width in (np.int16, np.int32, np.int64, np.float32):
                assert ids[:4].astype(width).tobytes() not in written
        assert query.target[:12].encode() not in written
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache.folder / "key").stat().st_mode) == 0o600
