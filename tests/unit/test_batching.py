from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from indelible.scoring.batching import plan
from indelible.scoring.prefix import TokenTree, token_tree

Sequences = list[tuple[list[int], int]]  # tokens, and how many of them may be shared


@st.composite
def sequences(draw: st.DrawFn) -> Sequences:
    """Sequences over two token ids, so that beginnings are often shared, some repeated many times over."""
    out = []
    for _ in range(draw(st.integers(0, 12))):
        ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=12))
        ids = ids[:1] * draw(st.sampled_from([0, 0, 30])) + ids
        out.append((ids, draw(st.integers(0, len(ids)))))
    return out


def tree_of(made: Sequences, min_saved: int) -> TokenTree:
    return token_tree([np.array(ids) for ids, _ in made], [n for _, n in made], min_saved=min_saved)


budgets = st.sampled_from([1, 7, 40, 100_000])
savings = st.sampled_from([1, 5, 1 << 62])


@settings(max_examples=200, deadline=None)
@given(made=sequences(), min_saved=savings)
@example(made=[], min_saved=1)
@example(made=[([0, 1], 2), ([0, 1], 2), ([0], 1)], min_saved=1)
def test_a_tree_spells_every_sequence_and_shares_only_what_may_be_shared(made: Sequences, min_saved: int) -> None:
    tree = tree_of(made, min_saved)
    users: dict[int, int] = {}
    for i, (ids, _) in enumerate(made):
        spelt: list[int] = []
        for s in tree.chain(i):
            stretch = tree.stretches[s]
            assert stretch.start == len(spelt)
            assert len(stretch) > 0
            spelt += made[stretch.source][0][stretch.start : stretch.stop]
            users[s] = users.get(s, 0) + 1
        assert spelt == ids
    for i, (_, n) in enumerate(made):
        for s in tree.chain(i):
            assert users[s] == 1 or tree.stretches[s].stop <= n
    for s, stretch in enumerate(tree.stretches):
        assert stretch.parent < s, "preorder"
        inside = [t for t in range(s, len(tree.stretches)) if s in _ancestors(tree, t)]
        assert inside == list(range(s, s + len(inside))), "a subtree is contiguous"
    if min_saved == 1 << 62:
        assert max(users.values(), default=1) == 1


@settings(max_examples=100, deadline=None)
@given(made=sequences())
def test_with_every_saving_wanted_no_shareable_token_is_computed_twice(made: Sequences) -> None:
    tree = tree_of(made, 1)
    distinct = {tuple(ids[: k + 1]) for ids, n in made for k in range(n)}
    own = sum(len(ids) - n for ids, n in made)
    assert sum(map(len, tree.stretches)) == len(distinct) + own


def _ancestors(tree: TokenTree, s: int) -> set[int]:
    out = set()
    while s >= 0:
        out.add(s)
        s = tree.stretches[s].parent
    return out


@settings(max_examples=200, deadline=None)
@given(made=sequences(), min_saved=savings, batch_tokens=budgets, kv_tokens=st.sampled_from([0, 9, 100_000]))
def test_a_plan_answers_every_sequence_once_within_its_budgets(made, min_saved, batch_tokens, kv_tokens) -> None:
    tree = tree_of(made, min_saved)
    made_plan = plan(tree, batch_tokens=batch_tokens, kv_tokens=kv_tokens)
    assert sorted(i for p in made_plan.packs for i in p.members) == list(range(len(made)))
    have: frozenset[int] = frozenset()
    computed = []
    for pack in made_plan.packs:
        chains = [tree.chain(i) for i in pack.members]
        assert set(pack.needed) == {s for chain in chains for s in chain}
        assert list(pack.needed) == sorted(pack.needed)
        computed.append(sum(len(tree.stretches[s]) for s in pack.needed if s not in have))
        assert computed[-1] <= batch_tokens or len(pack.members) == 1
        have = pack.keep
        assert have <= set(pack.needed)
        assert sum(len(tree.stretches[s]) for s in have) <= kv_tokens
    assert sum(made_plan.costs) == sum(computed)
    if kv_tokens == 100_000:
        assert sum(computed) == sum(map(len, tree.stretches)), "nothing is computed twice where memory allows"
    for pack in made_plan.packs:
        if len(pack.members) > 1:
            one, two = pack.split(tree)
            assert one.members + two.members == pack.members
            assert set(one.needed) | set(two.needed) == set(pack.needed)


def test_the_longest_come_first() -> None:
    made = [([i] * n, 0) for i, n in enumerate([3, 9, 1, 5])]
    packs = plan(tree_of(made, 1), batch_tokens=1, kv_tokens=0).packs
    assert [len(made[p.members[0]][0]) for p in packs] == [9, 5, 3, 1]
