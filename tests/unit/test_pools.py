from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.attacks.base import Resources
from indelible.attacks.context import IcpReference
from indelible.data.pools import constant_prefix, demonstration, nearest
from indelible.data.records import Message, Record


def rec(name: str, target: str | None = None, prompt: str | None = None) -> Record:
    return Record(name, (Message("system", "S"), Message("user", prompt or f"Q{name}")), target or f"A{name}")


def unit(rng: np.random.Generator, n: int) -> np.ndarray:
    v = rng.normal(size=(n, 3))
    return (v / np.linalg.norm(v, axis=1, keepdims=True)).astype(np.float32)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 5), m=st.integers(1, 8), k=st.integers(1, 10), seed=st.integers(0, 1000))
def test_nearest_is_the_brute_force_order_of_what_is_allowed(n: int, m: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, pool, allowed = unit(rng, n), unit(rng, m), rng.random((n, m)) < 0.7
    for i, row in enumerate(nearest(queries, pool, k, allowed)):
        cosine = {j: float(np.dot(queries[i].astype(float), pool[j].astype(float))) for j in range(m) if allowed[i, j]}
        assert row == sorted(cosine, key=lambda j: -cosine[j])[:k]


def test_equally_near_rows_keep_the_pools_order() -> None:
    same = np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (4, 1))
    assert nearest(same[:1], same, 3, np.ones((1, 4), dtype=bool)) == [[0, 1, 2]]


def test_a_demonstration_is_scored_nowhere_and_has_no_system_turn() -> None:
    turns = (Message("system", "S"), Message("user", "a"), Message("assistant", "b", scored=True), Message("user", "c"))
    assert demonstration(Record("r", turns, " d ")) == (
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c"),
        Message("assistant", " d "),
    )
    assert demonstration(Record("r", turns, " d "), strip=True)[-1] == Message("assistant", "d")
    assert demonstration(Record("r", (), "text")) == (Message("text", "text\n\n"),)


def test_the_constant_prefix_is_seeded_and_knows_no_pool_order() -> None:
    pool = [rec(str(i)) for i in range(30)]
    shuffled = random.Random(1).sample(pool, 30)
    made = constant_prefix(pool, 7, seed=0)
    assert made == constant_prefix(shuffled, 7, seed=0) != constant_prefix(pool, 7, seed=1)
    questions = [m.content for m in made if m.role == "user"]
    assert len(set(questions)) == 7
    assert [m.content for m in made if m.role == "assistant"] == [q.replace("Q", "A") for q in questions]


def test_a_records_own_duplicate_is_no_probe_of_it(monkeypatch) -> None:
    monkeypatch.setattr("indelible.attacks.context.embed", lambda texts, _: unit(np.random.default_rng(0), len(texts)))
    record = rec("r", "The answer.", "The question?")
    pool = [rec("p", "the  ANSWER", "The question"), rec("q"), rec("s", "Another.", "The question?")]
    (prepared,) = IcpReference(k=3).prepare([record], Resources(pool=pool))
    answers = {c[-1].content for c in next(iter(prepared.variants.values()))}
    assert answers == {"Aq", "Another."}
