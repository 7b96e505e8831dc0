"""Where canaries appear: the laws that comparisons of canaries rest on, and the paper's own numbers."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from indelible.canaries.config import DesignConfig, FinalWindow, Placement, Window
from indelible.canaries.schedule import (
    Request,
    _Board,
    checkpoint_steps,
    combinations,
    count_updates,
    deal,
    place,
    placement_name,
    spacing_updates,
    spread_order,
    update_of,
    window_rows,
)
from indelible.errors import ConfigError, DataError

N_ROWS, BATCH = 4000, 32  # 125 updates
NAMED = ("uniform", "early", "middle", "late")
FINALS = tuple(FinalWindow(end=end, gap=gap, of=125) for end in (60, 90, 125) for gap in (7, 16, 30))
PLACEMENTS: tuple[Placement, ...] = (*NAMED, Window(start=0.25, stop=0.6), Window(start=0.55, stop=0.95), *FINALS)

seeds = st.integers(0, 2**32)
placements = st.sampled_from(PLACEMENTS)
shapes = st.tuples(st.integers(0, 5), st.integers(0, 3), placements)  # dose, reserve above it, placement


def asked(parts, first: int = 0) -> list[Request]:
    return [Request(f"c{first + i}", dose, dose + more, where) for i, (dose, more, where) in enumerate(parts)]


def placed(requests: list[Request], seed: int, n_rows: int = N_ROWS, batch_size: int = BATCH) -> dict:
    return place(requests, n_rows=n_rows, batch_size=batch_size, seed=seed)


def updates(rows: tuple[int, ...], batch_size: int = BATCH) -> list[int]:
    return [update_of(row, batch_size) for row in rows]


# --- laws of every placement ---


@given(st.lists(shapes, max_size=12), seeds)
def test_rows_are_distinct_ascending_as_many_as_the_dose_and_inside_the_window(parts, seed):
    requests = asked(parts)
    places = placed(requests, seed)
    every = [row for rows in places.values() for row in rows]
    assert len(set(every)) == len(every)
    for request in requests:
        rows = places[request.id]
        assert list(rows) == sorted(rows)
        assert len(rows) == request.dose
        if isinstance(request.placement, FinalWindow):
            end, gap = int(request.placement.end), int(request.placement.gap)
            assert all(end - 7 - gap <= update <= end for update in updates(rows))
        else:
            low, high = window_rows(request.placement, N_ROWS)
            assert all(low <= row < high for row in rows)


@given(st.lists(shapes, min_size=1, max_size=12), seeds, st.data())
def test_lower_doses_use_a_subset_of_the_places_and_leave_the_other_canaries_alone(parts, seed, data):
    high = asked(parts)
    low = [Request(r.id, data.draw(st.integers(0, r.dose)), r.reserve, r.placement) for r in high]
    some, more = placed(low, seed), placed(high, seed)
    for lower, higher in zip(low, high, strict=True):
        assert set(some[lower.id]) <= set(more[higher.id])
        if lower.dose == higher.dose:
            assert some[lower.id] == more[higher.id]


@given(st.lists(shapes, max_size=7), st.lists(shapes, max_size=7), seeds)
def test_later_requests_move_no_earlier_one(first, then, seed):
    focal, auxiliary = asked(first), asked(then, len(first))
    alone, together = placed(focal, seed), placed(focal + auxiliary, seed)
    assert {r.id: together[r.id] for r in focal} == alone


@given(seeds)
def test_the_seed_decides(seed):
    requests = asked([(4, 0, "uniform")] * 6 + [(2, 0, FINALS[4])] * 6)
    assert placed(requests, seed) == placed(requests, seed)
    assert placed(requests, seed) != placed(requests, seed + 1)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=20), seeds)
def test_a_canary_lies_the_same_in_every_fifth(doses, seed):
    """N_ROWS is a multiple of five, so the fifths have equally many rows and differ by a shift alone."""
    fifths = [placed(asked([(*dose, name) for dose in doses]), seed) for name in ("early", "middle", "late")]
    for start, places in zip((0, 1600, 3200), fifths, strict=True):
        moved = {name: tuple(row - start for row in rows) for name, rows in places.items()}
        assert moved == fifths[0]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=20), seeds, st.sampled_from((0, 7, 30)))
def test_a_canary_lies_the_same_in_every_final_window(doses, seed, gap):
    early, late = (
        placed(asked([(dose, 0, FinalWindow(end=end, gap=gap, of=125)) for dose in doses]), seed) for end in (60, 125)
    )
    assert {name: tuple(row + 65 * BATCH for row in rows) for name, rows in early.items()} == late


@given(st.sampled_from((1, 20, 100)), st.integers(1, 40), seeds)
def test_a_request_is_served_wherever_its_window_has_room_and_to_the_last_row(share, n_rows, seed):
    """Nothing else has a place, so the nearest free row exists as long as the window has as many rows as asked."""
    window = Window(start=0, stop=share / 100)
    try:
        low, high = window_rows(window, n_rows)
    except DataError:
        return
    rows = placed(asked([(high - low, 0, window)]), seed, n_rows, 4)["c0"]
    assert rows == tuple(range(low, high))
    with pytest.raises(DataError, match=f"canary 'c0' wants {high - low + 1} places.*{n_rows}"):
        placed(asked([(high - low, 1, window)]), seed, n_rows, 4)


@given(st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29), st.integers(1, 30)), max_size=40))
def test_a_taken_place_gives_way_to_the_nearest_free_row_of_the_window(wishes):
    """Against a search through all rows, over windows that overlap and fill up."""
    board, free = _Board(30, 4), set(range(30))
    request = Request("c", 1, 1, "uniform")
    for ideal, low, width in wishes:
        low, high = min(ideal, low), max(ideal, low) + width
        inside = [row for row in free if low <= row < min(high, 30)]
        if not inside:
            with pytest.raises(DataError):
                board.take(ideal, low, min(high, 30), request, 1)
            continue
        row = board.take(ideal, low, min(high, 30), request, 1)
        assert row == min(inside, key=lambda one: (abs(one - ideal), one))
        free.remove(row)


# --- even spread ---


@given(st.integers(1, 600), st.data())
def test_every_beginning_of_the_spread_order_is_even_on_the_ring(n, data):
    order = spread_order(n)
    assert sorted(order) == list(range(n))
    k = data.draw(st.integers(1, n))
    first = sorted(order[:k])
    gaps = [b - a for a, b in zip(first, [*first[1:], first[0] + n], strict=True)]
    power = 2 ** (k.bit_length() - 1)
    assert max(gaps) <= math.ceil(n / power)
    assert min(gaps) >= n // (2 * power)


@given(st.integers(1, 64), st.integers(0, 64), st.sampled_from((*NAMED, Window(start=0.25, stop=0.6))), seeds)
def test_any_dose_of_a_canary_is_about_evenly_spread(dose, more, where, seed):
    low, high = window_rows(where, N_ROWS)
    rows = placed(asked([(dose, more, where)]), seed)["c0"]
    span, part = high - low, (high - low) / (dose + more)
    gaps = [b - a for a, b in zip(rows, [*rows[1:], rows[0] + span], strict=True)]
    assert max(gaps) <= 2 * span / dose + 2 * part + 1  # at random: growing with the logarithm of the dose
    if more == 0:
        assert min(gaps) >= 0.5 * part - 1
        assert max(gaps) <= 1.5 * part + 1
    for share in (0.25, 0.5, 0.75):
        before = sum(row < low + share * span for row in rows)
        assert abs(before - share * dose) <= 1.5 + math.log2(dose)


@settings(max_examples=25)
@given(st.sampled_from(((1, 63), (2, 62), (1, 0), (8, 0), (8, 5), (55, 0))), seeds)
def test_canaries_together_are_spread_too(dose, seed):
    """Dose 1 of a large reserve must not put all canaries into the beginning. Bounds: five standard deviations."""
    n_rows = 66_176
    places = placed(asked([(*dose, "uniform")] * 64), seed, n_rows, 64)
    quarters = Counter(row * 4 // n_rows for rows in places.values() for row in rows)
    assert all(abs(quarters[q] - 16 * dose[0]) <= (20 if dose[0] < 8 else 28) for q in range(4))


def test_two_canaries_do_not_always_meet_in_the_same_update():
    """Else what one does to another would be part of every reading."""
    places = placed(asked([(16, 0, "uniform")] * 64), 0, 66_176, 64)
    met = Counter()
    for i in range(64):
        for j in range(i):
            met[len(set(updates(places[f"c{i}"], 64)) & set(updates(places[f"c{j}"], 64)))] += 1
    assert met[0] + met[1] > 0.9 * sum(met.values())
    assert max(met) <= 6


# --- final windows ---


@given(
    st.integers(1, 10),
    st.integers(1, 8),
    st.integers(0, 8),
    st.integers(0, 30),
    st.integers(1, 12),
    st.integers(45, 125),
    seeds,
)
def test_a_final_window_holds_the_last_appearances_and_the_gap_is_exact(n, dose, more, gap, width, end, seed):
    where = FinalWindow(end=end, gap=gap, width=width, of=125)
    assume(n * (2 + (dose + more) // (gap + 1)) <= BATCH)  # no update can be full
    places = placed(asked([(dose, more, where)] * n), seed)
    times = {name: updates(rows) for name, rows in places.items()}
    last = Counter(max(time) for time in times.values())
    assert set(last) <= set(range(end - width + 1, end + 1))
    assert set(last.values()) <= {n // width, -(-n // width)}  # no update has a second before each has a first
    for seen in times.values():
        if dose > 1:
            assert max(seen) - min(seen) == gap == spacing_updates(where, 125)
        if dose > 2 and more == 0:
            steps = [b - a for a, b in pairwise(seen)]
            assert max(steps) - min(steps) <= 2  # even up to the update's edges and a taken row


def test_the_papers_timing_experiment():
    """Section C-A3: 72 canaries, dose 2, nine groups of eight, windows 157, 227, 297 by gaps 16, 63, 125."""
    config = DesignConfig(
        rows=10_000,
        batch_size=32,
        canaries=72,
        dose=2,
        placement=[FinalWindow(end=end, gap=gap) for end in (157, 227, 297) for gap in (16, 63, 125)],
        delay=16,
    )
    assert count_updates(config.rows, config.batch_size) == 313
    assert checkpoint_steps(config) == (173, 243, 313)
    groups = combinations(config)
    assert len(groups) == 9
    for rotation in range(9):
        dealt = deal(72, 9, rotation)
        assert Counter(dealt) == dict.fromkeys(range(9), 8)
        requests = [Request(f"c{i}", groups[g][0], 2, groups[g][1]) for i, g in enumerate(dealt)]
        places = placed(requests, 5, 10_000, 32)
        for number, (_, where) in enumerate(groups):
            times = [updates(places[f"c{i}"], 32) for i, g in enumerate(dealt) if g == number]
            assert sorted(time[1] for time in times) == list(range(int(where.end) - 7, int(where.end) + 1))
            assert {time[1] - time[0] for time in times} == {where.gap}
            assert {int(where.end) + 16 - time[1] for time in times} == set(range(16, 24))  # C-C4: delays 16 to 23


def test_final_windows_scale_to_another_length_of_training():
    """The email runs: 66,176 rows in batches of 64 are 1,034 updates, 3.3035 times the paper's 313."""
    windows = [FinalWindow(end=end, gap=gap) for end, gap in ((157, 16), (227, 63), (297, 125))]
    config = DesignConfig(rows=66_176, batch_size=64, dose=2, placement=windows, delay=16)
    assert count_updates(66_176, 64) == 1034
    assert [spacing_updates(window, 1034) for window in windows] == [53, 208, 413]
    assert checkpoint_steps(config) == (572, 803, 1034)
    places = placed(asked([(2, 0, windows[i % 3]) for i in range(78)]), 1, 66_176, 64)
    for number, (end, gap) in enumerate(((519, 53), (750, 208), (981, 413))):
        times = [updates(places[f"c{i}"], 64) for i in range(number, 78, 3)]
        assert sorted(time[1] for time in times) == list(range(end - 25, end + 1))  # width 8 becomes 26
        assert {time[1] - time[0] for time in times} == {gap}


def test_no_canary_is_always_the_last_of_its_window():
    """Else its code and identity would be confounded with its delay in every seed."""
    lasts = [updates(placed(asked([(1, 0, FINALS[0])] * 8), seed)["c0"])[0] for seed in range(40)]
    assert len(set(lasts)) >= 6


def test_a_gap_too_short_for_a_small_training_stays_a_gap():
    assert spacing_updates(FinalWindow(end=297, gap=1), 40) == 1
    assert spacing_updates(FinalWindow(end=297, gap=0), 40) == 0
    assert spacing_updates("late", 40) is None
    assert spacing_updates(Window(start=0, stop=1), 40) is None


# --- errors ---


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (FinalWindow(end=130, gap=7, of=125), "needs updates 116 to 130, training has 1 to 125"),
        (FinalWindow(end=30, gap=25, of=125), "needs updates -2 to 30"),
        (Window(start=0.5, stop=0.5001), "'window 0.50-0.5001' holds none of 4000 rows"),
    ],
)
def test_windows_that_do_not_fit_say_so(where, numbers):
    with pytest.raises(DataError, match=numbers):
        placed(asked([(2, 0, where)]), 0)


def test_a_full_window_and_a_full_update_say_which_rows_are_taken():
    with pytest.raises(
        DataError, match=r"'c4'.*placement 'late': rows 3200 to 3999 of 4000 \(updates 101 to 125\).* 1000"
    ):
        placed(asked([(200, 0, "late")] * 5), 0)
    narrow = FinalWindow(end=60, gap=7, width=1, of=125)
    with pytest.raises(
        DataError,
        match=r"'c32'.*'final 60 of 125, width 1': rows 1888 to 1919 of 4000 \(updates 60 to 60\).*ask for 66",
    ):
        placed(asked([(2, 0, narrow)] * 33), 0)


def test_requests_that_cannot_be_meant():
    with pytest.raises(ValueError, match="dose 3 is not between 0 and the reserve of 2"):
        Request("a", 3, 2, "uniform")
    with pytest.raises(ValueError, match="same id"):
        placed([Request("a", 1, 1, "uniform")] * 2, 0)
    with pytest.raises(ValueError, match="at least one group"):
        deal(4, 0, 0)


# --- groups, names, checkpoints ---


@given(st.integers(0, 80), st.integers(1, 12), st.integers(0, 30))
def test_dealing_is_balanced_and_rotations_give_every_canary_every_group(n, n_groups, rotation):
    sizes = Counter(deal(n, n_groups, rotation))
    counts = [sizes[g] for g in range(n_groups)]
    assert sum(counts) == n
    assert max(counts) - min(counts) <= 1
    rounds = zip(*(deal(n, n_groups, rotation + r) for r in range(n_groups)), strict=True)
    assert all(sorted(groups) == list(range(n_groups)) for groups in rounds)


def test_combinations_cross_doses_with_placements():
    config = DesignConfig(dose=[2, 4], placement=["early", "late"])
    assert combinations(config) == [(2, "early"), (2, "late"), (4, "early"), (4, "late")]
    assert combinations(DesignConfig(dose=3)) == [(3, "uniform")]
    with pytest.raises(ConfigError, match="empty"):
        combinations(DesignConfig(placement=[]))


def test_names():
    assert [placement_name(p) for p in NAMED] == list(NAMED)
    assert placement_name(Window(start=0.75, stop=1)) == "window 0.75-1.00"
    assert placement_name(Window(start=0.751, stop=0.9)) == "window 0.751-0.90"
    assert placement_name(FinalWindow(end=157, gap=16)) == "final 157"
    assert placement_name(FinalWindow(end=12.5, gap=1)) == "final 12.5"
    assert placement_name(FinalWindow(end=38, gap=1, width=2, of=40)) == "final 38 of 40, width 2"


def test_checkpoints_of_windows_in_rows():
    """100 rows in batches of 8: 13 updates; the first fifth ends with row 19, in update 3."""
    base = {"rows": 100, "batch_size": 8}
    assert checkpoint_steps(DesignConfig(**base, placement="early")) == ()
    assert checkpoint_steps(DesignConfig(**base, placement="early", delay=4)) == (7, 13)
    assert checkpoint_steps(DesignConfig(**base, placement=["early", "late"], delay=0)) == (3, 13)
    assert checkpoint_steps(DesignConfig(**base, placement=["uniform", Window(start=0.5, stop=0.7)], delay=2)) == (
        11,
        13,
    )
    halves = DesignConfig(rows=100, batch_size=1, placement=FinalWindow(end=50.5, gap=5, of=100), delay=49.5)
    assert checkpoint_steps(halves) == (100,)  # 51 + 50 by rounding
    with pytest.raises(ConfigError, match="delay 1 after placement 'late', which ends at update 13"):
        checkpoint_steps(DesignConfig(**base, placement=["early", "late"], delay=1))
    with pytest.raises(ConfigError, match="final 297"):
        checkpoint_steps(DesignConfig(rows=10_000, batch_size=32, placement=FinalWindow(end=297, gap=16), delay=17))


@given(st.integers(40, 3000), st.sampled_from((157, 227, 297)), st.integers(0, 16))
def test_all_groups_wait_equally_long_at_any_length_of_training(n_steps, end, delay):
    windows = [FinalWindow(end=end, gap=16), FinalWindow(end=100, gap=16)]
    steps = checkpoint_steps(DesignConfig(rows=n_steps, batch_size=1, placement=windows, delay=delay))
    assert steps[-1] == n_steps
    ends = [math.floor(e * n_steps / 313 + 0.5) for e in (100, end)]
    waits = [at - e for at, e in zip(steps, ends, strict=False)]
    assert abs(waits[0] - delay * n_steps / 313) <= 0.5
    assert waits[0] - waits[1] in ((0, 1) if steps[1] == n_steps else (0,))


def test_the_largest_design_of_the_paper():
    """Section A-D: 64 canaries, dose 512: 32,768 of 66,176 rows (a search through all rows would take minutes)."""
    places = placed(asked([(512, 0, "uniform")] * 64), 0, 66_176, 64)
    rows = [row for some in places.values() for row in some]
    assert len(set(rows)) == 32_768
    per_update = Counter(updates(tuple(rows), 64))
    assert min(per_update[u] for u in range(1, 1035)) >= 10
