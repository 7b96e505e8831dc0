"""Contexts of the tabular probes: what stands in them, and what must not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tabular_fakes import make_world

from indelible.attacks.tabular import PROBES, TabularProbe, candidate_labels, make_probe
from indelible.errors import ConfigError, DataError
from indelible.stats.tabular import PRIMARY

ROWS = np.array([3, 25, 7, 44])
OWN = ("copy", "noised", "permuted", "copies", "wrong-majority", "row-order")
SHARED = ("neutral", "foreign", "erased", "train-context", "fresh-context")


def unrolled(name: str, world, rows=ROWS):
    """Context features, labels and query of each row, whatever shape they were asked in."""
    queries = make_probe(name).contexts(world, rows)
    x, y, q = (t.numpy() for t in (queries.context_x, queries.context_y, queries.query_x))
    assert queries.n_classes == world.n_classes
    if len(x) == 1 and len(rows) > 1:
        assert q.shape[1] == len(rows)
        return np.repeat(x, len(rows), 0), np.repeat(y, len(rows), 0), q[0]
    assert x.shape[0] == q.shape[0] == len(rows)
    assert q.shape[1] == 1
    return x, y, q[:, 0]


def test_the_registry_holds_every_probe_and_the_statistics_know_the_suite():
    assert set(PROBES) == {*OWN, *SHARED}
    assert all(name == probe.name and probe.description for name, probe in PROBES.items())
    assert {name for name, probe in PROBES.items() if probe.informative} == {"train-context", "fresh-context"}
    suite = {name for name, probe in PROBES.items() if probe.in_suite}
    assert {*suite, "suite:mean", "suite:min"} == set(PRIMARY)
    assert not any(PROBES[name].in_suite for name in ("row-order", "erased", "train-context", "fresh-context"))


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("name", ["copy", "neutral", "foreign", "noised", "permuted", "erased"])
def test_zero_information_contexts_hold_one_equal_row_for_each_label(name, n_classes):
    world = make_world(n_classes=n_classes)
    x, y, q = unrolled(name, world)
    assert x.shape == (4, n_classes, 5)
    assert (np.sort(y, axis=1) == np.arange(n_classes)).all()
    assert (x == x[:, :1]).all(), "features must not tell the labels apart"
    features = {
        "copy": world.encoded[ROWS],
        "permuted": world.encoded[ROWS][:, PROBES["permuted"].order(world)],
        "foreign": np.tile(world.encoded[PROBES["foreign"].row(world)], (4, 1)),
        "neutral": np.tile(world.encoding.placeholder(), (4, 1)),
        "erased": np.tile(world.encoding.placeholder(), (4, 1)),
    }
    if name in features:
        np.testing.assert_array_equal(x[:, 0], features[name])
    np.testing.assert_array_equal(q, features["erased"] if name == "erased" else world.encoded[ROWS])


def test_noise_is_the_rows_own_whoever_is_asked_with_it():
    world = make_world()
    x, _, _ = unrolled("noised", world)
    alone, _, _ = unrolled("noised", world, ROWS[2:3])
    np.testing.assert_array_equal(alone[0], x[2])
    moved = x[:, 0] - world.encoded[ROWS]
    assert (moved != 0).all()
    everything = make_probe("noised", {"scale": 0.3}).contexts(world, np.arange(80)).context_x[:, 0].numpy()
    assert np.std(everything - world.encoded) == pytest.approx(0.3, rel=0.1)
    less = make_probe("noised", {"scale": 0.01}).contexts(world, ROWS).context_x[:, 0].numpy()
    assert np.abs(less - world.encoded[ROWS]).max() < 0.05


def test_the_permutation_leaves_no_column_in_its_place_and_is_one_for_all():
    for seed in range(20):
        order = PROBES["permuted"].order(make_world(seed=seed, n_features=4))
        assert sorted(order) == [0, 1, 2, 3]
        assert (order != np.arange(4)).all()
    single = make_world(n_features=1)
    assert PROBES["permuted"].unfit(single, ROWS) == ["a single column has no other order"] * 4
    assert PROBES["permuted"].unfit(make_world(), ROWS) == [None] * 4


@pytest.mark.parametrize("n_classes", [2, 4])
def test_copies_and_wrong_majority_count_labels(n_classes):
    world = make_world(n_classes=n_classes)
    for k in (2, 5):
        copies = make_probe("copies", {"k": k}).contexts(world, ROWS).context_y.numpy()
        wrong = make_probe("wrong-majority", {"k": k}).contexts(world, ROWS)
        assert wrong.context_x.shape == (4, k * (n_classes - 1) + 1, 5)
        for i, row in enumerate(ROWS):
            assert np.bincount(copies[i], minlength=n_classes).tolist() == [k] * n_classes
            expected = [1 if c == world.target[row] else k for c in range(n_classes)]
            assert np.bincount(wrong.context_y.numpy()[i], minlength=n_classes).tolist() == expected
            assert (wrong.context_x.numpy()[i] == world.encoded[row]).all()


def test_row_order_is_copy_in_reverse():
    world = make_world(n_classes=4)
    x, y, q = unrolled("copy", world)
    back_x, back_y, back_q = unrolled("row-order", world)
    np.testing.assert_array_equal(back_y, y[:, ::-1])
    np.testing.assert_array_equal(back_x, x[:, ::-1])
    np.testing.assert_array_equal(back_q, q)


def test_contexts_do_not_say_which_label_a_row_carries():
    world = make_world(n_classes=3)
    other = dataclasses.replace(world, target=(world.target + 1) % 3)
    for name in (*OWN, *SHARED):
        same = all((a == b).all() for a, b in zip(unrolled(name, world), unrolled(name, other), strict=True))
        says_something = name in ("wrong-majority", "train-context", "fresh-context")
        assert same != says_something, name


def test_no_probe_reads_membership():
    world = make_world()
    split = dataclasses.replace(world.split, members=world.split.nonmembers, nonmembers=world.split.members)
    other = dataclasses.replace(world, split=split)
    for name in PROBES:
        for a, b in zip(unrolled(name, world), unrolled(name, other), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_training_context_is_asked_whole_and_not_about_its_own_rows():
    world = make_world()
    context = world.split.context
    x, y, q = unrolled("train-context", world)
    np.testing.assert_array_equal(x[0], world.encoded[context])
    np.testing.assert_array_equal(y[0], world.target[context])
    np.testing.assert_array_equal(q, world.encoded[ROWS])
    why = PROBES["train-context"].unfit(world, np.array([0, context[3]]))
    assert why[0] is None
    assert "stands in this context" in why[1]


def test_the_fresh_context_is_balanced_and_was_never_trained_on():
    world = make_world(sizes=(20, 30, 12, 60), n_classes=3)
    chosen = PROBES["fresh-context"].context(world)
    assert set(chosen) <= set(world.split.reserve)
    assert np.bincount(world.target[chosen]).tolist() == [4, 4, 4]
    assert len(set(chosen)) == 12
    x, y, _ = unrolled("fresh-context", world)
    np.testing.assert_array_equal(x[0], world.encoded[chosen])
    np.testing.assert_array_equal(y[0], world.target[chosen])
    assert "stands in" in PROBES["fresh-context"].unfit(world, chosen[:1])[0]
    other = dataclasses.replace(world, seed=1)
    assert set(PROBES["fresh-context"].context(other)) != set(chosen)


def test_without_a_reserve_the_probes_that_need_it_say_so():
    world = make_world(sizes=(20, 30, 12, 0))
    for name in ("foreign", "fresh-context"):
        assert all("reserve" in why for why in PROBES[name].unfit(world, ROWS))
    unrelated = make_world()
    row = PROBES["foreign"].row(unrelated)
    assert row in unrelated.split.reserve
    assert PROBES["foreign"].unfit(unrelated, np.array([0, row])) == [None, "the unrelated row is this one"]


def test_many_classes_leave_ten_candidates_seeded_by_row():
    rng = np.random.default_rng(0)
    target = rng.choice(20, size=400, p=np.r_[np.full(10, 0.09), np.full(9, 0.1 / 9), 0.0])
    ids = [f"row {i}" for i in range(400)]
    choices = candidate_labels(target, 20, ids, 5)
    assert choices.shape == (400, 10)
    assert ((choices == target[:, None]).sum(axis=1) == 1).all()
    assert (np.diff(choices, axis=1) > 0).all(), "distinct, and in order of code"
    assert 19 not in choices, "no row carries it"
    drawn = np.bincount(choices.ravel(), minlength=20)
    assert drawn[:10].min() > 2 * drawn[10:19].max(), "drawn from the label marginal"
    order = rng.permutation(400)
    again = candidate_labels(target[order], 20, [ids[i] for i in order], 5)
    np.testing.assert_array_equal(again, choices[order])
    assert (candidate_labels(target, 20, ids, 6) != choices).any()
    np.testing.assert_array_equal(candidate_labels(target % 10, 10, ids, 0), np.tile(np.arange(10), (400, 1)))


def test_candidates_that_differ_give_each_row_a_context_of_its_own():
    world = make_world(sizes=(20, 30, 24, 40), n_classes=15)
    for name in ("copy", "neutral", "foreign", "erased"):
        x, y, _ = unrolled(name, world)
        np.testing.assert_array_equal(y, world.choices[ROWS])
        assert x.shape == (4, 10, 5)


@pytest.mark.parametrize("name", list(PROBES))
def test_the_same_seed_gives_the_same_contexts(name):
    for a, b in zip(unrolled(name, make_world(seed=3)), unrolled(name, make_world(seed=3)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("copi", None, "Did you mean 'copies'"),
        ("copies", {"n": 2}, "unknown setting of copies 'n'"),
        ("copy", {"k": 2}, "copy has no settings"),
        ("copies", {"k": 1}, "expected a whole number from 2"),
        ("wrong-majority", {"k": "many"}, "wrong-majority.k='many'"),
        ("noised", {"scale": 0.0}, "expected a number above 0"),
    ],
)
def test_wrong_probes_and_settings_are_one_clear_line(name, settings, words):
    with pytest.raises(ConfigError) as caught:
        make_probe(name, settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_fields_of_frozen_probes():
    assert make_probe("copies", {"k": 7}).k == 7
    assert isinstance(PROBES["noised"], TabularProbe)
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROBES["copies"].k = 3


def test_a_world_that_does_not_fit_is_refused():
    world = make_world()
    with pytest.raises(DataError, match="as_classes"):
        dataclasses.replace(world, target=world.target.astype(float))
    with pytest.raises(DataError, match="candidate labels"):
        dataclasses.replace(world, choices=world.choices[:, :1])
    with pytest.raises(DataError, match="own label"):
        dataclasses.replace(world, choices=np.full_like(world.choices, 0))
