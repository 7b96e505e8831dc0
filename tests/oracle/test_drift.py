"""What a run says about its own arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from indelible import drift
from indelible.data.records import Query
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import answer

FLOAT32 = LoadOptions(device="cpu", dtype="float32")


def measured(model, options: LoadOptions, queries: list[Query], n: int = 4) -> dict:
    answers, _ = answer(model, queries)
    return drift.measure_drift(model, options, answers.found, n=n, seed=0, base=None)


@pytest.fixture(scope="module")
def queries(rows) -> list[Query]:
    return [Query(r.messages, r.target) for r in rows.members[:12]]


def test_float32_answers_are_the_plain_ones_and_bfloat16_ones_are_measured_against_them(toy, queries) -> None:
    exact = measured(toy, FLOAT32, queries)
    assert exact["n_queries"] == 4
    assert exact["max_abs_mean_nats"] <= exact["max_abs_logprob_nats"] < 1e-4
    options = replace(FLOAT32, dtype="bfloat16")
    rounded, _ = load_model("builtin:toy", options)
    facts = measured(rounded, options, queries, n=len(queries))
    answers, plain = answer(rounded, queries)[0], answer(toy, queries)[0]
    differences = [np.abs(answers[q].logprobs - plain[q].logprobs).max() for q in queries]
    assert facts["max_abs_logprob_nats"] == pytest.approx(max(differences), abs=1e-4)
    assert 1e-3 < facts["max_abs_mean_nats"] < facts["max_abs_logprob_nats"]


def test_what_is_not_measured_has_a_reason(toy, queries, monkeypatch) -> None:
    assert measured(toy, FLOAT32, queries, n=0)["not_measured"] == "switched off"
    assert "quantised" in measured(toy, replace(FLOAT32, quantise="4bit"), queries)["not_measured"]
    assert "nothing" in drift.measure_drift(toy, FLOAT32, {}, n=4, seed=0, base=None)["not_measured"]
    monkeypatch.setattr(drift, "_free_memory", lambda _: 1000)
    facts = measured(replace(toy, dtype=torch.bfloat16), FLOAT32, queries)
    assert "GiB are free" in facts["not_measured"]
    assert "max_abs_logprob_nats" not in facts
