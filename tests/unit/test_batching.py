from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indelible.data.chat import Encoded
from indelible.scoring.batching import Batch, plan
from indelible.scoring.prefix import MIN_SAVED_TOKENS, group_by_prefix, shareable


def enc(ids: Sequence[int], first_target: int | None = None) -> Encoded:
    """A query of these tokens whose targets begin at `first_target` (the last token by default)."""
    first = len(ids) - 1 if first_target is None else first_target
    return Encoded(np.array(ids, dtype=np.int64), np.arange(len(ids)) >= first, (None,) * (len(ids) - first))


@st.composite
def encodings(draw: st.DrawFn, max_size: int = 12, max_len: int = 12) -> list[Encoded]:
    """Queries over two token ids, so that beginnings are often shared, some repeated many times over."""
    out = []
    for _ in range(draw(st.integers(0, max_size))):
        ids = draw(st.lists(st.integers(0, 1), min_size=2, max_size=max_len))
        ids = ids[:1] * draw(st.sampled_from([0, 0, 300])) + ids
        out.append(enc(ids, draw(st.integers(1, len(ids) - 1))))
    return out


budgets = st.sampled_from([1, 7, 40, 700, 100_000])


@settings(max_examples=150, deadline=None)
@given(encoded=encodings(), batch_tokens=budgets, share=st.booleans())
@example(encoded=[], batch_tokens=1, share=True)
def test_a_plan_runs_every_query_once_within_its_budget(encoded, batch_tokens: int, share: bool) -> None:
    batches = plan(encoded, batch_tokens=batch_tokens, share=share).batches
    assert sorted(i for b in batches for i in b.members) == list(range(len(encoded)))
    for batch in batches:
        padded = len(batch.members) * (max(len(encoded[i]) for i in batch.members) - batch.n_shared)
        assert padded <= batch_tokens or len(batch.members) == 1
        assert batch.n_shared == 0 or share


@settings(max_examples=100, deadline=None)
@given(encoded=encodings(), kv_tokens=st.sampled_from([1, 400, 1000]))
def test_the_cached_tokens_of_a_batch_are_bounded(encoded, kv_tokens: int) -> None:
    for batch in plan(encoded, batch_tokens=100_000, kv_tokens=kv_tokens).batches:
        assert len(batch.members) * batch.n_shared <= kv_tokens or len(batch.members) == 1


@settings(max_examples=150, deadline=None)
@given(encoded=encodings(), batch_tokens=budgets)
def test_costs_add_up_to_the_tokens_computed(encoded, batch_tokens: int) -> None:
    made = plan(encoded, batch_tokens=batch_tokens)
    computed, prefix = 0, b""
    for batch in made.batches:
        beginning = encoded[batch.members[0]].input_ids[: batch.n_shared].tobytes()
        if batch.n_shared and beginning != prefix:  # the engine keeps one beginning, the last
            computed += batch.n_shared
            prefix = beginning
        computed += sum(len(encoded[i]) - batch.n_shared for i in batch.members)
    assert sum(made.costs) == computed <= sum(map(len, encoded))
    assert all(0 < c <= len(e) for c, e in zip(made.costs, encoded, strict=True))


@settings(max_examples=50, deadline=None)
@given(encoded=encodings())
def test_without_sharing_the_longest_run_first_and_cost_their_length(encoded) -> None:
    made = plan(encoded, batch_tokens=40, share=False)
    order = [len(encoded[i]) for b in made.batches for i in b.members]
    assert order == sorted(order, reverse=True)
    assert list(made.costs) == [len(e) for e in encoded]


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_split_batch_keeps_its_members_in_two_halves(n: int) -> None:
    one, two = Batch(5, tuple(range(n))).split()
    assert (*one.members, *two.members) == tuple(range(n))
    assert len(one.members) == n // 2
    assert one.n_shared == two.n_shared == 5


@pytest.mark.parametrize(("first_target", "expected"), [(1, 0), (2, 1), (5, 4)])
def test_the_state_that_predicts_the_first_target_is_never_shared(first_target: int, expected: int) -> None:
    assert shareable(enc(range(6), first_target)) == expected


@settings(max_examples=200, deadline=None)
@given(encoded=encodings(), min_saved=st.sampled_from([1, 10, MIN_SAVED_TOKENS]))
def test_groups_partition_the_queries_and_share_what_they_say(encoded, min_saved: int) -> None:
    groups = group_by_prefix(encoded, min_saved=min_saved)
    assert sorted(i for g in groups for i in g.members) == list(range(len(encoded)))
    for group in groups:
        beginnings = {encoded[i].input_ids[: group.n_shared].tobytes() for i in group.members}
        assert len(beginnings) == 1
        assert all(group.n_shared < int(encoded[i].target_positions[0]) for i in group.members)
        if group.n_shared:
            assert (len(group.members) - 1) * group.n_shared >= min_saved


def saved(encoded: Sequence[Encoded], blocks: Sequence[Sequence[int]]) -> int:
    total = 0
    for block in blocks:
        heads = [encoded[i].input_ids[: shareable(encoded[i])].tolist() for i in block]
        common = next((n for n, column in enumerate(zip(*heads, strict=False)) if len(set(column)) > 1), None)
        total += (len(block) - 1) * (min(map(len, heads)) if common is None else common)
    return total


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for i, block in enumerate(rest):
            yield [*rest[:i], [items[0], *block], *rest[i + 1 :]]


@settings(max_examples=150, deadline=None)
@given(encoded=encodings(max_size=5, max_len=8))
@example(encoded=[enc([0] * 40, 39), enc([0] * 40, 39), *[enc([0] * 9 + [i], 9) for i in range(1, 4)]])
def test_grouping_saves_as_much_as_the_best_of_all_partitions(encoded) -> None:
    groups = [g for g in group_by_prefix(encoded, min_saved=1) if g.n_shared]
    ours = sum((len(g.members) - 1) * g.n_shared for g in groups)
    assert ours == max(saved(encoded, p) for p in partitions(list(range(len(encoded)))))
