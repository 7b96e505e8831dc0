"""Splits: disjoint, class shares equal, labels permuted without changing a marginal, groups whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from indelible.data.table_matching import apportion, kolmogorov_smirnov, total_variation
from indelible.data.table_splits import TableSplit, most_nonmembers, split_table
from indelible.data.tables import Column, Table, as_classes, read_table
from indelible.errors import ConfigError, DataError, UserError

quick = settings(max_examples=60, deadline=None)
PARTS = ("members", "nonmembers", "context", "reserve")


def table_of(target: list[Any], groups: list[str] | None = None, classes: int = 0) -> Table:
    n = len(target)
    features = pd.DataFrame({"a": np.arange(float(n))})
    codes = np.array(target, dtype=np.int64 if classes else np.float64)
    return Table(
        name="t",
        features=features,
        target=codes,
        task="classification" if classes else "regression",
        target_name="y",
        classes=tuple(f"k{i}" for i in range(classes)),
        columns=(Column("a", "number", n, 0),),
        row_ids=tuple(f"r{i}" for i in range(n)),
        groups=None if groups is None else tuple(groups),
        notes=(),
    )


def parts_of(split: TableSplit) -> dict[str, list[int]]:
    return {name: getattr(split, name).tolist() for name in PARTS}


def split_or_line(table: Table, **sizes: Any) -> TableSplit | str:
    try:
        return split_table(table, **sizes)
    except UserError as error:
        return str(error)


def check_properties(table: Table, split: TableSplit, n_members: int, n_context: int) -> None:
    parts = parts_of(split)
    rows = [r for part in parts.values() for r in part]
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(table.n_rows))
    assert len(parts["members"]) == n_members
    assert len(parts["context"]) <= n_context
    for part in parts.values():  # the marginal of each part is that of its true labels, exactly
        assert Counter(split.target[part].tolist()) == Counter(table.target[part].tolist())
    nowhere = sorted(set(range(table.n_rows)) - set(rows))
    np.testing.assert_array_equal(split.target[nowhere], table.target[nowhere])
    if table.groups is None:
        assert not nowhere
    else:
        where = {r: name for name, part in parts.items() for r in part}
        used = {table.groups[r]: where[r] for r in rows}
        assert all(used[table.groups[r]] == where[r] for r in rows)
        assert all(used.get(table.groups[r]) in ("members", "nonmembers", "context") for r in nowhere)


classes_of_rows = st.integers(2, 5).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.integers(0, k - 1), min_size=4 * k, max_size=120))
)


@quick
@given(classes_of_rows, st.integers(1, 30), st.integers(1, 60), st.integers(2, 30), st.integers(0, 9), st.booleans())
def test_exact_splits(
    made: tuple[int, list[int]], n_members: int, n_nonmembers: int, n_context: int, seed: int, randomise: bool
) -> None:
    k, labels = made
    assume(len(set(labels)) == k)
    table = table_of(labels, classes=k)
    sizes = {"n_members": n_members, "n_nonmembers": n_nonmembers, "n_context": n_context}
    split = split_or_line(table, **sizes, seed=seed, randomise=randomise)
    if isinstance(split, str):
        assert "\n" not in split
        return
    check_properties(table, split, n_members, n_context)
    assert len(split.nonmembers) <= n_nonmembers
    counts = {name: np.bincount(split.target[rows], minlength=k) for name, rows in parts_of(split).items() if rows}
    np.testing.assert_array_equal(counts["members"] * len(split.nonmembers), counts["nonmembers"] * n_members)
    assert split.matched_exactly
    assert split.distance == pytest.approx(0, abs=1e-12)
    each = max(1, min(n_context // k, min(Counter(labels).values()) // 2))
    assert counts["context"].tolist() == [each] * k
    notes = "\n".join(split.notes)
    assert (f"context of {each * k} rows, not {n_context}" in notes) == (each * k < n_context)
    assert (f"{len(split.nonmembers)} non-members, not {n_nonmembers}" in notes) == (
        len(split.nonmembers) < n_nonmembers
    )
    if not randomise:
        np.testing.assert_array_equal(split.target, table.target)


@quick
@given(classes_of_rows, st.integers(1, 30), st.integers(2, 30))
def test_the_most_nonmembers_is_the_most(made: tuple[int, list[int]], n_members: int, n_context: int) -> None:
    k, labels = made
    assume(len(set(labels)) == k)
    assume(n_context >= k)
    table = table_of(labels, classes=k)
    most = most_nonmembers(table, n_members=n_members, n_context=n_context)
    each = max(1, min(n_context // k, min(Counter(labels).values()) // 2))
    left = np.bincount(labels, minlength=k) - each
    # Brute force for whole multiples q of the members: class by class, as many members as (1 + q) rows allow.
    multiples = [q for q in range(1, len(labels)) if sum(int(n) // (1 + q) for n in left) >= n_members]
    assert most >= max((q * n_members for q in multiples), default=0)
    if most:
        split = split_or_line(table, n_members=n_members, n_nonmembers=most, n_context=n_context, seed=1)
        assert "members would be of class" in split if isinstance(split, str) else len(split.nonmembers) == most
    assert most_nonmembers(table, n_members=n_members, n_context=n_context, n_reserve=3) <= most
    assert all(n == 0 or n_members + n + each * k + 3 <= len(labels)
               for n in [most_nonmembers(table, n_members=n_members, n_context=n_context, n_reserve=3)])  # fmt: skip


@quick
@given(classes_of_rows, st.integers(2, 20), st.integers(2, 30), st.randoms(use_true_random=False))
def test_groups_are_whole(made: tuple[int, list[int]], n_members: int, n_groups: int, rng: Any) -> None:
    k, labels = made
    assume(len(set(labels)) == k)
    groups = [f"g{rng.randrange(n_groups)}" for _ in labels]
    table = table_of(labels, groups, classes=k)
    split = split_or_line(table, n_members=n_members, n_nonmembers=n_members, n_context=k, seed=3)
    if isinstance(split, str):
        assert "too few" in split or "would be of class" in split or f"come in {len(set(groups))} groups" in split
        return
    check_properties(table, split, n_members, k)
    assert split.matched_exactly
    set_aside = [n for n in split.notes if "had no room" in n]
    n_used = sum(len(rows) for rows in parts_of(split).values())
    assert set_aside == ([] if n_used == len(labels) else [set_aside[0]])
    assert not set_aside or set_aside[0].startswith(f"{len(labels) - n_used} rows")


def test_groups_of_four_with_one_choice_each() -> None:
    labels = [1, 0, 0, 0] * 200
    table = table_of(labels, [f"person {i // 4}" for i in range(800)], classes=2)
    split = split_table(table, n_members=100, n_nonmembers=200, n_context=20, seed=0)
    check_properties(table, split, 100, 20)
    people = {name: {r // 4 for r in rows} for name, rows in parts_of(split).items()}
    assert sum(len(p) for p in people.values()) == len(set.union(*people.values())) == 200


@quick
@given(st.lists(st.floats(-1e6, 1e6), min_size=60, max_size=200), st.integers(30, 60), st.integers(30, 120),
       st.integers(1, 40), st.booleans())  # fmt: skip
def test_regression(targets: list[float], n_members: int, n_nonmembers: int, n_context: int, randomise: bool) -> None:
    table = table_of(targets)
    sizes = {"n_members": n_members, "n_nonmembers": n_nonmembers, "n_context": n_context}
    split = split_or_line(table, **sizes, seed=5, randomise=randomise)
    if isinstance(split, str):
        assert n_members + n_nonmembers + n_context > len(targets)
        return
    check_properties(table, split, n_members, n_context)
    assert (len(split.nonmembers), len(split.context)) == (n_nonmembers, n_context)
    members, nonmembers = split.target[split.members], split.target[split.nonmembers]
    assert split.distance == pytest.approx(ks_2samp(members, nonmembers, method="asymp").statistic, abs=1e-12)
    assert split.distance < 0.05
    assert split.distance <= 1 / min(n_members, n_nonmembers) + 0.5 / max(n_members, n_nonmembers) + 1e-9
    assert (split.distance_name, split.matched_exactly) == ("KS", False)
    order = sorted(range(len(targets)), key=targets.__getitem__)  # the context: one row a run
    at = sorted(targets[r] for r in split.context)
    for i, value in enumerate(at):
        low, high = i * len(targets) // n_context, -(-(i + 1) * len(targets) // n_context) - 1
        assert targets[order[low]] <= value <= targets[order[high]]


def test_equal_targets_are_taken_at_random() -> None:
    table = table_of([0.0] * 50 + [1.0] * 50)
    splits = [split_table(table, n_members=30, n_nonmembers=30, n_context=10, seed=s) for s in range(4)]
    for split in splits:  # five of each target, but not one of each ten rows of the file
        assert (table.target[split.context] == 0).sum() == 5
        assert len({r // 10 for r in split.context.tolist()}) < 10


def test_regression_in_groups() -> None:
    rng = np.random.default_rng(0)
    table = table_of(rng.normal(size=900).tolist(), [f"g{i // 3}" for i in range(900)])
    split = split_table(table, n_members=100, n_nonmembers=200, n_context=30, seed=0)
    check_properties(table, split, 100, 30)
    assert len(split.nonmembers) == 200
    assert split.distance < 0.05


def test_a_regressions_context_is_even_over_quantiles() -> None:
    table = read_table("diabetes")
    split = split_table(table, n_members=50, n_nonmembers=200, n_context=60, seed=2)
    deciles = as_classes(table, 10).target[split.context]
    assert np.bincount(deciles, minlength=10).min() >= 5
    assert np.bincount(deciles, minlength=10).max() <= 7
    assert split.distance < 0.05
    assert any("KS of the labels" in note for note in split.notes)


def test_shares_follow_the_table_and_may_be_close_only() -> None:
    labels = [0] * 530 + [1] * 330 + [2] * 140
    table = table_of(labels, classes=3)
    exact = split_table(table, n_members=100, n_nonmembers=200, n_context=30, seed=0)
    assert np.abs(np.bincount(exact.target[exact.members]) - [53, 33, 13]).max() <= 1
    assert (exact.distance, exact.distance_name) == (0.0, "TVD")
    loose = split_table(table, n_members=100, n_nonmembers=333, n_context=30, seed=0, exact=False)
    assert len(loose.nonmembers) == 333
    assert not loose.matched_exactly
    members, nonmembers = loose.target[loose.members], loose.target[loose.nonmembers]
    shares = [[(part == c).mean() for c in range(3)] for part in (members, nonmembers)]
    slow = sum(abs(a - b) for a, b in zip(*shares, strict=True)) / 2
    assert loose.distance == pytest.approx(slow, abs=1e-12)
    assert 0 < loose.distance < 0.05
    with pytest.raises(DataError, match=r"apart at best, in 50 draws; expected below 0.001"):
        split_table(table, n_members=100, n_nonmembers=333, n_context=30, seed=0, exact=False, max_distance=0.001)


def test_a_rare_class_is_left_to_members_or_refused() -> None:
    rare = table_of([0] * 397 + [1] * 3, classes=2)
    with pytest.raises(DataError, match="all 50 members would be of class 'k0', for 'k1' has 3 of 400 rows") as caught:
        split_table(rare, n_members=50, n_nonmembers=275, n_context=64, seed=0)
    assert "\n" not in str(caught.value)
    some = table_of([0] * 380 + [1] * 30, classes=2)
    split = split_table(some, n_members=50, n_nonmembers=250, n_context=64, seed=0)
    assert np.bincount(split.target[split.context]).tolist() == [15, 15], "half of the rare class"
    assert np.bincount(split.target[split.members]).min() >= 1
    three = table_of([0] * 200 + [1] * 200 + [2] * 2, classes=3)
    split = split_table(three, n_members=50, n_nonmembers=100, n_context=30, seed=0)
    assert "no member is of class k2" in split.notes


def test_seeds_and_streams() -> None:
    table = read_table("wine")
    sizes = {"n_members": 40, "n_nonmembers": 40, "n_context": 30}
    one, again, other = (split_table(table, **sizes, seed=s) for s in (1, 1, 2))
    assert parts_of(one) == parts_of(again)
    np.testing.assert_array_equal(one.target, again.target)
    assert parts_of(one) != parts_of(other)
    true = split_table(table, **sizes, seed=1, randomise=False)
    assert parts_of(true) == parts_of(one)  # labels have a stream of their own
    np.testing.assert_array_equal(true.target, table.target)
    for rows in (one.members, one.nonmembers, one.context, one.reserve):
        moved = (one.target[rows] != table.target[rows]).mean()
        assert 0.35 < moved < 0.95  # about two thirds, for three classes
    frequent = Counter(r for s in range(40) for r in split_table(table, **sizes, seed=s).members.tolist())
    assert len(frequent) == table.n_rows  # every row can become a member ...
    for code in range(3):  # ... and within a class all equally often
        rows = np.flatnonzero(table.target == code)
        counts = np.array([frequent[r] for r in rows])
        expected = counts.mean()
        rate = expected / 40
        assert ((counts - expected) ** 2).sum() / (expected * (1 - rate)) < 1.6 * len(rows)


@pytest.mark.parametrize("seed", range(3))
def test_the_digits_as_in_a_grid(seed: int) -> None:
    table = read_table("digits")
    split = split_table(table, n_members=512, n_nonmembers=1000, n_context=64, seed=seed)
    assert np.bincount(split.target[split.context]).tolist() == [6] * 10
    assert split.distance == 0.0
    assert len(split.nonmembers) == 896  # 128 units of 4 members and 7 non-members
    assert (np.diff(split.members) > 0).mean() < 0.6  # not in the file's order


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"n_members": 0}, ConfigError, "n_members is 0"),
        ({"n_context": 2}, ConfigError, "context of 2 rows cannot hold each of the 3 classes"),
        ({"max_distance": 0}, ConfigError, "max_distance is 0"),
        ({"n_nonmembers": 200}, DataError, r"wine: 178 rows are too few for a context of 30, 40 members and 200"),
        ({"n_nonmembers": 200}, DataError, "fit at most 80 non-members to 40 members, or 73 of each"),
        ({"n_members": 170}, DataError, "fit no 170 members and non-members, or 73 of each"),
        ({"n_members": 53, "n_nonmembers": 30}, ConfigError, "one is a multiple of the other"),
        ({"n_members": 170, "exact": False}, DataError, "fit no 170 members and non-members, or 74 of each"),
    ],
)  # fmt: skip
def test_wrong_sizes(changes: dict[str, Any], error: type[UserError], match: str) -> None:
    sizes = {"n_members": 40, "n_nonmembers": 40, "n_context": 30, "seed": 0}
    with pytest.raises(error, match=match) as caught:
        split_table(read_table("wine"), **{**sizes, **changes})
    assert "\n" not in str(caught.value)


def test_groups_that_cannot_be_dealt() -> None:
    table = table_of([0, 1] * 50, ["all" if i < 90 else f"g{i}" for i in range(100)], classes=2)
    with pytest.raises(DataError, match="come in 11 groups, which cannot be dealt"):
        split_table(table, n_members=20, n_nonmembers=20, n_context=4, seed=0)


def test_regression_that_is_too_small() -> None:
    table = read_table("diabetes")
    with pytest.raises(
        DataError, match=r"442 rows are too few .*at most 342 non-members to 50 members, or 196 of each"
    ):
        split_table(table, n_members=50, n_nonmembers=400, n_context=50, seed=0)
    with pytest.raises(DataError, match="beside that context fit no 5 members and non-members, or 0 of each"):
        split_table(table, n_members=5, n_nonmembers=5, n_context=442, seed=0)
    with pytest.raises(DataError, match="apart at best"):
        split_table(table, n_members=7, n_nonmembers=30, n_context=50, seed=0)


@quick
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.data())
def test_apportion(weights: list[int], data: st.DataObject) -> None:
    assume(sum(weights) > 0)
    total = data.draw(st.integers(0, 200))
    free = apportion(total, np.array(weights), np.full(len(weights), 1000))
    quotas = [total * w / sum(weights) for w in weights]
    assert free.sum() == total
    assert all(abs(part - quota) <= 1 for part, quota in zip(free, quotas, strict=True))
    caps = np.array(data.draw(st.lists(st.integers(0, 30), min_size=len(weights), max_size=len(weights))))
    if total > caps.sum():
        with pytest.raises(ValueError):
            apportion(total, np.array(weights), caps)
    else:
        capped = apportion(total, np.array(weights), caps)
        assert capped.sum() == total
        assert (capped <= caps).all()
        assert (capped >= np.minimum(free, caps)).all()


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.lists(st.integers(0, 6), min_size=1, max_size=40))
def test_distances(a: list[int], b: list[int]) -> None:
    slow = sum(abs(a.count(c) / len(a) - b.count(c) / len(b)) for c in range(7)) / 2
    assert total_variation(a, b) == pytest.approx(slow, abs=1e-12)
    at = [abs(sum(v <= x for v in a) / len(a) - sum(v <= x for v in b) / len(b)) for x in a + b]
    assert kolmogorov_smirnov(a, b) == pytest.approx(max(at), abs=1e-12)
