"""The ordered file: fixed budget, matched background, and exact removal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.canaries.base import Row
from indelible.canaries.insertion import background_sequence, insert, remove
from indelible.canaries.schedule import Request, place
from indelible.data.records import Message
from indelible.errors import DataError

seeds = st.integers(0, 2**32)
ways = st.sampled_from(("in-place", "drawn"))
orders = st.sampled_from(("shuffled", "epochs"))


def make_rows(n: int) -> list[Row]:
    return [Row(f"r{i}", (Message("user", f"question {i}"),), f"answer {i}") for i in range(n)]


@st.composite
def files(draw) -> tuple[list[Row], dict[str, tuple[int, ...]], int]:
    """A background (copies of rows included), places of up to six canaries in it, and a batch size."""
    n_rows = draw(st.integers(1, 60))
    order = draw(orders)
    background = background_sequence(make_rows(60), n_rows=n_rows, copies=draw(st.integers(1, 4)), order=order, seed=1)
    rows = draw(st.permutations(range(n_rows)))
    slots = {}
    for name in "abcdef"[: draw(st.integers(0, 6))]:
        dose = draw(st.integers(0, len(rows)))
        slots[name], rows = tuple(sorted(rows[:dose])), rows[dose:]
    return background, slots, draw(st.integers(1, 9))


# --- background ---


@given(st.integers(1, 200), st.integers(1, 6), orders, seeds)
def test_background_has_exactly_n_rows_with_equal_copies(n_rows, copies, order, seed):
    n_unique = -(-n_rows // copies)
    sequence = background_sequence(make_rows(n_unique + 3), n_rows=n_rows, copies=copies, order=order, seed=seed)
    counts = Counter(row.id for row in sequence)
    assert len(sequence) == n_rows
    assert set(counts) == {f"r{i}" for i in range(n_unique)}
    assert max(counts.values()) <= copies
    assert max(counts.values()) - min(counts.values()) <= 1
    if n_rows % copies == 0:
        assert set(counts.values()) == {copies}


@given(st.integers(1, 200), st.integers(1, 6), seeds)
def test_both_orders_hold_the_same_rows_and_an_epoch_holds_each_once(n_rows, copies, seed):
    rows = make_rows(200)
    shuffled, epochs = (
        background_sequence(rows, n_rows=n_rows, copies=copies, order=order, seed=seed)
        for order in ("shuffled", "epochs")
    )
    assert Counter(row.id for row in shuffled) == Counter(row.id for row in epochs)
    n_unique = -(-n_rows // copies)
    for start in range(0, n_rows, n_unique):
        one = [row.id for row in epochs[start : start + n_unique]]
        assert len(set(one)) == len(one)


def test_shuffled_is_one_sequence_and_passes_differ():
    rows = make_rows(200)
    shuffled = background_sequence(rows, n_rows=800, copies=4, order="shuffled", seed=0)
    assert len({row.id for row in shuffled[:200]}) < 180  # with repeats: about 200 (1 - (3/4)^4) = 137
    epochs = background_sequence(rows, n_rows=800, copies=4, order="epochs", seed=0)
    assert len({tuple(row.id for row in epochs[start : start + 200]) for start in range(0, 800, 200)}) == 4
    assert shuffled == background_sequence(rows, n_rows=800, copies=4, order="shuffled", seed=0)
    assert shuffled != background_sequence(rows, n_rows=800, copies=4, order="shuffled", seed=1)


def test_the_email_corpus_of_the_paper():
    """Section A-A: 16,544 pairs four times are 66,176 rows; 16,543 pairs are not enough."""
    rows = make_rows(16_544)
    sequence = background_sequence(rows, n_rows=66_176, copies=4, order="shuffled", seed=0)
    assert set(Counter(row.id for row in sequence).values()) == {4}
    with pytest.raises(DataError, match=r"66176 rows of 4 copies each need 16544 different .* gave 16543"):
        background_sequence(rows[:-1], n_rows=66_176, copies=4, order="shuffled", seed=0)


# --- insertion ---


@given(files(), ways, seeds)
def test_canaries_stand_in_their_places_and_the_ledger_says_so(file, way, seed):
    background, slots, batch_size = file
    sequence, ledger = insert(background, slots, displacement=way, batch_size=batch_size, seed=seed)
    assert len(sequence) == len(background)
    for name, rows in slots.items():
        assert tuple(row for row, one in enumerate(sequence) if one == name) == rows
        own = [one for one in ledger if one.canary_id == name]
        assert [(one.appearance, one.row) for one in own] == list(enumerate(rows, start=1))
    assert [one.row for one in ledger] == sorted(row for rows in slots.values() for row in rows)
    for one in ledger:
        assert (one.update - 1) * batch_size <= one.row < one.update * batch_size
    trained = Counter(one.id for one in sequence if isinstance(one, Row))
    assert trained + Counter(one.displaced for one in ledger) == Counter(row.id for row in background)


@given(files(), ways, seeds, st.randoms(use_true_random=False))
def test_removal_is_the_exact_inverse_whatever_the_order_of_the_ledger(file, way, seed, rng):
    background, slots, batch_size = file
    sequence, ledger = insert(background, slots, displacement=way, batch_size=batch_size, seed=seed)
    gone = {one.displaced for one in ledger}
    displaced = {row.id: row for row in background if row.id in gone}
    rng.shuffle(ledger)
    assert remove(sequence, ledger, displaced, displacement=way, seed=seed) == background


@given(files(), seeds)
def test_in_place_leaves_every_other_row_where_it_was(file, seed):
    background, slots, batch_size = file
    sequence, ledger = insert(background, slots, displacement="in-place", batch_size=batch_size, seed=seed)
    assert all(one == background[row] for row, one in enumerate(sequence) if isinstance(one, Row))
    assert all(background[one.row].id == one.displaced for one in ledger)


@given(files(), seeds, st.randoms(use_true_random=False))
def test_drawn_gives_the_same_background_in_the_same_order_wherever_the_canaries_are(file, seed, rng):
    background, slots, batch_size = file
    rows = list(range(len(background)))
    rng.shuffle(rows)
    moved = {}
    for name, places in slots.items():
        moved[name], rows = tuple(sorted(rows[: len(places)])), rows[len(places) :]
    kept = []
    for design in (slots, moved):
        sequence, ledger = insert(background, design, displacement="drawn", batch_size=batch_size, seed=seed)
        kept.append(([one for one in sequence if isinstance(one, Row)], [one.displaced for one in ledger]))
    assert kept[0] == kept[1]


@given(files(), seeds, st.integers(0, 6))
def test_drawn_with_fewer_canary_rows_displaces_a_subset_and_keeps_the_order(file, seed, n):
    background, slots, batch_size = file
    few = dict(list(slots.items())[:n])
    indexed = [replace(row, id=f"{i}") for i, row in enumerate(background)]  # tells copies apart
    some, more = (insert(indexed, s, displacement="drawn", batch_size=batch_size, seed=seed) for s in (few, slots))
    assert {one.displaced for one in some[1]} <= {one.displaced for one in more[1]}
    left = [int(one.id) for one in more[0] if isinstance(one, Row)]
    assert left == sorted(left)


def test_drawn_displacement_depends_on_the_seed_and_is_not_where_the_canaries_are():
    background, slots = make_rows(400), {"a": tuple(range(320, 400))}
    lists = [insert(background, slots, displacement="drawn", batch_size=8, seed=seed)[1] for seed in (0, 1)]
    gone = [{int(one.displaced[1:]) for one in ledger} for ledger in lists]
    assert gone[0] != gone[1]
    assert all(30 <= sum(i < 200 for i in some) <= 50 for some in gone)  # about half of the 80 from the first half


@given(seeds)
def test_moving_an_auxiliary_cohort_changes_nothing_else(seed):
    """Section A-D: focal canaries, removed rows and the order of the rest are the same in all three trainings."""
    background = make_rows(500)
    focal = [Request(f"f{i}", 4, 8, "middle") for i in range(5)]
    trainings = {}
    for where in ("early", "late"):
        requests = [*focal, *(Request(f"x{i}", 4, 4, where) for i in range(5))]
        slots = place(requests, n_rows=500, batch_size=10, seed=seed)
        trainings[where] = insert(background, slots, displacement="drawn", batch_size=10, seed=seed)
    alone = insert(
        background, place(focal, n_rows=500, batch_size=10, seed=seed), displacement="drawn", batch_size=10, seed=seed
    )

    def focal_rows(training):
        return [(one.canary_id, one.row) for one in training[1] if one.canary_id.startswith("f")]

    early, late = trainings["early"], trainings["late"]
    assert focal_rows(early) == focal_rows(late) == focal_rows(alone)
    assert [one for one in early[0] if isinstance(one, Row)] == [one for one in late[0] if isinstance(one, Row)]
    assert {one.displaced for one in alone[1]} < {one.displaced for one in early[1]}


# --- errors ---


def test_slots_that_cannot_be():
    background = make_rows(10)
    with pytest.raises(DataError, match="3 canary appearances have only 2 different rows"):
        insert(background, {"a": (1, 4), "b": (4,)}, displacement="in-place", batch_size=2, seed=0)
    with pytest.raises(DataError, match="canary rows 3 to 10 reach outside the file of 10 rows"):
        insert(background, {"a": (3, 10)}, displacement="in-place", batch_size=2, seed=0)


def test_removal_refuses_what_does_not_belong_together():
    background = make_rows(10)
    sequence, ledger = insert(background, {"a": (3, 7), "b": (5,)}, displacement="drawn", batch_size=2, seed=0)
    rows = {row.id: row for row in background}
    swapped = [*sequence[:3], "b", *sequence[4:]]
    for wrong, some in ((sequence, ledger[:2]), (background, ledger), (swapped, ledger)):
        with pytest.raises(DataError, match=f"the ledger's {len(some)} canary rows are not the"):
            remove(wrong, some, rows, displacement="drawn", seed=0)
    del rows[ledger[0].displaced]
    with pytest.raises(DataError, match=f"1 displaced rows are missing, among them '{ledger[0].displaced}'"):
        remove(sequence, ledger, rows, displacement="drawn", seed=0)
