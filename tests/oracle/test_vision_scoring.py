"""Vision-language models against the slow obvious way: transformers' own processor and forward pass, one at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from vision_fakes import FAMILIES, FLOAT32, followed, model, native, shot, write

from indelible.data.records import Message, Query
from indelible.models.vision import VisionModel
from indelible.training.passes import add_gradient
from indelible.training.vision import freeze_encoder

TYPE = (Message("user", "Type the visible reference code into the search field."),)
LONG = (Message("system", "Act."), Message("user", "Look."), Message("assistant", "Yes."), *TYPE)
CODE = 'type("PRJ-TQW7-2KMP")'
QUERIES = (
    Query(TYPE, CODE, (shot(0),)),
    Query(TYPE, 'type("FIL-U5TN-SL2L")', (shot(0),)),
    Query(TYPE, CODE, (shot(1, 120, 50),)),
    Query(LONG, CODE, (shot(0), shot(2, 33, 90))),
    Query(TYPE, CODE),
    Query(LONG, "no", (shot(1, 120, 50),)),
)


@torch.inference_mode()
def slowly(made: VisionModel, query: Query, ids: list[int]) -> np.ndarray:
    """Log-probability of each token behind the query's prompt."""
    prompt = native(made, query.messages, query.images)
    logits = made.module(**followed(prompt, ids), use_cache=False).logits[0].float().log_softmax(-1)
    start = prompt["input_ids"].shape[1]
    return np.array([float(logits[start - 1 + k, i]) for k, i in enumerate(ids)])


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_transformers_own_forward(family: str) -> None:
    made = model(family)
    assert made.packs, "pictures share what text shares"
    padded = replace(made, packs=False, batch_tokens=4096)
    encoded = [made.encode(q) for q in QUERIES]
    together, alone = dict(made.stream(encoded)), dict(padded.stream(encoded))
    for i, query in enumerate(QUERIES):
        want = slowly(made, query, encoded[i].target_ids.tolist())
        prompt = native(made, query.messages, query.images)["input_ids"][0]
        own = made.sight.placeholders(encoded[i].input_ids)
        assert own.tolist() == [*prompt.tolist(), *encoded[i].target_ids.tolist()]
        np.testing.assert_allclose(together[i].logprobs, want, atol=1e-4)
        np.testing.assert_allclose(alone[i].logprobs, want, atol=1e-4)
    assert len({round(float(a.logprobs[0]), 4) for a in (together[0], together[2], together[4])}) == 3, "it looks"
    costs = made.costs(encoded)
    assert sum(costs) < sum(map(len, encoded)) - made.sight.n_tokens(shot(0)), (
        "one picture and prompt are computed once"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_is_that_of_candidates_scored_one_by_one(family: str) -> None:
    made = model(family)
    rng = np.random.default_rng(3)
    codes = ["PRJ-" + "".join(rng.choice(list("ABCD23"), 4)) for _ in range(24)]
    codes = list(dict.fromkeys([*codes, "FIL-U5TN", "PRJ-AB"]))
    query = Query(TYPE, codes[5], (shot(0),))
    found = made.rank(query, codes, '")', prefix='type("', everything=True)
    prompt, ids = made.answer_ids(query, [f'type("{c}")' for c in codes], len('type("'))
    n_native = native(made, TYPE, query.images)["input_ids"].shape[1]
    begun = prompt[n_native:].tolist()  # what all candidates share is conditioned on
    want = np.array([slowly(made, query, [*begun, *one.tolist()])[len(begun) :].sum() for one in ids])
    np.testing.assert_allclose(found.logprobs, want, atol=2e-4)
    assert found.rank == 1 + int((np.delete(want, 5) >= want[5] - 1e-4).sum())
    pruned = made.rank(query, codes, '")', prefix='type("')
    assert (pruned.rank, pruned.logprob) == (found.rank, pytest.approx(found.logprob, abs=1e-4))
    assert found.tokens_computed < len(prompt) + sum(map(len, ids)), "the picture is computed once"


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_those_of_transformers_generate(family: str) -> None:
    made = model(family)
    asked = [QUERIES[0], QUERIES[3], QUERIES[4]]
    for query, got in zip(asked, made.generate(asked, 8), strict=True):
        prompt = native(made, query.messages, query.images)
        whole = made.module.generate(**prompt, max_new_tokens=8, do_sample=False, eos_token_id=2, pad_token_id=0)
        new = whole[0, prompt["input_ids"].shape[1] :]
        assert got == made.chat.tokenizer.decode(new, skip_special_tokens=True)
        assert made.prompt_length(query) == prompt["input_ids"].shape[1]
    begun = made.generate(asked[:1], 4, begun=['type("'])
    assert begun == made.generate([replace(asked[0], target="ignored")], 4, begun=['type("'])


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "smolvlm"])  # it trains as Idefics3 does
def test_a_gradient_is_that_of_transformers_own_loss(family: str, tmp_path) -> None:
    from indelible.models.load import load_model

    made = load_model(str(write(family, tmp_path)), FLOAT32)[0]
    assert isinstance(made, VisionModel)
    before = made.logprobs([QUERIES[0]])[0].logprobs
    freeze_encoder(made)
    named = {name: p for name, p in made.module.named_parameters() if p.requires_grad}
    rows = QUERIES[:4]
    encoded = [made.encode(q) for q in rows]
    made.module.train()
    total = float(add_gradient(made, encoded, 1.0, autocast=False))
    got = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    made.module.zero_grad()
    slow = 0.0
    for query, e in zip(rows, encoded, strict=True):
        inputs = followed(native(made, query.messages, query.images), e.target_ids.tolist())
        labels = inputs["input_ids"].masked_fill(~torch.from_numpy(e.is_target)[None], -100)
        loss = made.module(**inputs, labels=labels, use_cache=False).loss * int(e.is_target.sum())
        loss.backward()
        slow += float(loss.detach())
    assert total == pytest.approx(slow, rel=1e-5)
    want = {name: p.grad for name, p in named.items() if p.grad is not None}
    assert got.keys() == want.keys()
    for name, grad in want.items():
        scale = float(grad.abs().max())
        assert float((got[name] - grad).abs().max()) <= 1e-4 * scale + 1e-6, name
    connector = [name for name in got if any(part in name for part in ("merger", "projector", "connector"))]
    assert connector
    assert all(float(got[name].abs().sum()) > 0 for name in connector if name.endswith("weight"))
    with torch.no_grad():  # a step on the connector alone: nothing of what was seen before may stay
        for name in connector:
            named[name] -= 0.05 * got[name].sign()
    made.module.eval()
    after = made.logprobs([QUERIES[0]])[0].logprobs
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, slowly(made, QUERIES[0], encoded[0].target_ids.tolist()), atol=1e-4)
