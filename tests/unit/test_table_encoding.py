"""Encodings: frozen on the context, finite, and never two different rows as one."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from indelible.data.table_columns import hashed, squash, unsquash
from indelible.data.table_encoding import Encoding, check_distinct, fit_encoding
from indelible.data.table_types import Kind
from indelible.data.tables import Column, Table, read_table, without_duplicates
from indelible.errors import ConfigError, DataError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "tabular"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real tables are not beside the repository")
quick = settings(max_examples=80, deadline=None)


def table_of(**columns: tuple[Kind, list[Any]]) -> Table:
    data, described = {}, []
    for name, (kind, values) in columns.items():
        numeric = kind in ("number", "date")
        data[name] = pd.Series(values, dtype="float64" if numeric else object)
        described.append(Column(name, kind, int(data[name].nunique()), int(data[name].isna().sum())))
    n = len(next(iter(data.values())))
    ids = tuple(f"r{i}" for i in range(n))
    return Table("t", pd.DataFrame(data), np.arange(float(n)), "regression", "y", (), tuple(described), ids, None, ())


MIXED = table_of(
    size=("number", [1.0, 2.0, 4.0, 9.0, 1000.0, np.nan, 2.0, 3.5]),
    colour=("category", ["red", "blue", "red", "green", "amber", None, "violet", "red"]),
    title=("text", ["the cat", "a dog", "the cat sat", "a bird", "THE CAT", None, "dog a", "the cat"]),
    day=("date", [0.0, 10.0, 20.0, 30.0, 40.5, 50.0, 60.0, 70.0]),
    flat=("number", [7.0, 7.0, 7.0, 7.0, 8.0, 5.0, 7.0, 7.0]),
)
CONTEXT = [0, 1, 2, 3]


def test_numbers_categories_and_dates_by_hand() -> None:
    encoding = fit_encoding(MIXED, CONTEXT)
    encoded = pd.DataFrame(encoding.encode(MIXED.features), columns=list(encoding.names))
    assert encoding.encode(MIXED.features).dtype == np.float32

    def slow(value: float, values: list[float]) -> float:
        mean = sum(values) / len(values)
        z = (value - mean) / math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        return z if abs(z) <= 5 else math.copysign(5 + math.log(1 + abs(z) - 5), z)

    for i, value in enumerate(MIXED.features["size"]):
        if i == 5:
            assert (encoded["size"][i], encoded["size (missing)"][i]) == (0, 1)
        else:
            assert encoded["size"][i] == pytest.approx(slow(value, [1, 2, 4, 9]), abs=1e-4)
            assert encoded["size (missing)"][i] == 0
    assert encoded["size"][4] == pytest.approx(5 + math.log(1 + (1000 - 4) / math.sqrt(38 / 4) - 5), abs=1e-4)
    for i, value in enumerate(MIXED.features["day"]):
        assert encoded["day"][i] == pytest.approx(slow(value, [0, 10, 20, 30]), abs=1e-4)
    # red is in the context twice, blue and green once; amber and violet are not.
    codes = {"red": 0, "blue": 1, "green": 2, "amber": 3, "violet": 4}
    for i, value in enumerate(MIXED.features["colour"]):
        expected = 0 if value is None else codes[value]
        assert encoded["colour"][i] == pytest.approx((expected - 2) / math.sqrt(2), abs=1e-4)
        assert encoded["colour (missing)"][i] == (value is None)
    # All 7 in the context: the table's spread stands in, so that 8 and 5 stay themselves.
    spread = np.std([7, 7, 7, 7, 8, 5, 7, 7])
    np.testing.assert_allclose(encoded["flat"], (MIXED.features["flat"] - 7) / spread, atol=1e-4)
    assert "column 'flat': one value in the context: the table's spread" in encoding.notes
    assert "column 'colour': 2 categories the context has none of" in encoding.notes
    check_distinct(encoding.encode(MIXED.features), MIXED.row_ids)


def test_text_is_near_where_it_is_alike_and_never_equal() -> None:
    encoding = fit_encoding(MIXED, CONTEXT)
    names = [n for n in encoding.names if n.startswith("title")]
    assert names == [*(f"title (text {j})" for j in range(1, 9)), "title (position)", "title (missing)"]
    encoded = pd.DataFrame(encoding.encode(MIXED.features), columns=list(encoding.names))[names].to_numpy()
    np.testing.assert_array_equal(encoded[0, :8], encoded[4, :8])  # case aside they are one text ...
    assert encoded[0, 8] != encoded[4, 8]  # ... so that the position tells them apart
    np.testing.assert_array_equal(encoded[0], encoded[7])
    np.testing.assert_allclose(encoded[CONTEXT, :8].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(encoded[CONTEXT, :8].std(axis=0), 1, atol=1e-5)
    assert encoded[5].tolist() == [0.0] * 9 + [1.0]
    made = hashed(["Total coffee sales", "total coffee sale", "zebra crossing", "x"])
    gaps = np.linalg.norm(made - made[0], axis=1)
    assert gaps[1] < 0.5 * gaps[2]
    np.testing.assert_array_equal(made, hashed(["Total coffee sales", "total coffee sale", "zebra crossing", "x"]))


def test_placeholder_says_nothing() -> None:
    encoding = fit_encoding(MIXED, CONTEXT)
    row = dict(zip(encoding.names, encoding.placeholder().tolist(), strict=True))
    encoded = pd.DataFrame(encoding.encode(MIXED.features), columns=list(encoding.names))
    assert row["colour"] == encoded["colour"][0]  # red, the most frequent
    assert all(value == 0 for name, value in row.items() if name != "colour")
    assert encoding.placeholder().dtype == np.float32


def test_a_row_is_encoded_alone_and_labels_play_no_part() -> None:
    table = read_table("breast_cancer")
    context = np.arange(0, 64)
    encoding = fit_encoding(table, context)
    whole = encoding.encode(table.features)
    np.testing.assert_array_equal(encoding.encode(table.features.iloc[[500, 3]]), whole[[500, 3]])
    copies = pd.concat([table.features.iloc[[500]]] * 5)
    np.testing.assert_array_equal(encoding.encode(copies), np.repeat(whole[[500]], 5, axis=0))
    relabelled = replace(table, target=1 - table.target)
    np.testing.assert_array_equal(fit_encoding(relabelled, context).encode(table.features), whole)
    other = table.features.copy()
    other.iloc[64:] = other.iloc[64:] * 3 + 1  # the rest of the table moves: the context's encoding does not
    np.testing.assert_array_equal(fit_encoding(replace(table, features=other), context).encode(table.features), whole)
    np.testing.assert_allclose(whole[:64].mean(axis=0), 0, atol=0.05)
    assert encoding.names == tuple(table.features.columns)


numbers = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0 + 2**-52, -1.0, 3126807211.0, 3126807212.0, 1e149, -1e149, 1e-300, 5e-324, np.nan]),
    st.floats(-1e3, 1e3),
)
texts = st.sampled_from(["", "a", "A", "ab", "ba", "aba", "bab", "the cat", "The cat", "cat the", "ü", "u", None])
levels = st.sampled_from(["a", "b", "c", "A", None])


@quick
@given(
    st.lists(st.tuples(numbers, numbers, levels, texts), min_size=2, max_size=25),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    st.floats(0.01, 3),
)
def test_different_rows_stay_different(rows: list[tuple[Any, ...]], picks: list[int], scale: float) -> None:
    named: list[tuple[str, Kind]] = [("n", "number"), ("d", "date"), ("c", "category"), ("t", "text")]
    table = table_of(**{name: (kind, [row[j] + 0.0 if j < 2 else row[j] for row in rows])
                        for j, (name, kind) in enumerate(named)})  # fmt: skip
    distinct = {tuple(None if v != v else v for v in row) for row in rows}
    assume(len(distinct) > 1)
    table, _ = without_duplicates(table, near=False)
    assert table.n_rows == len(distinct)
    encoding = fit_encoding(table, [p % table.n_rows for p in picks])
    encoded = encoding.encode(table.features)
    assert encoded.shape == (table.n_rows, len(encoding.names))
    assert np.isfinite(encoded).all()
    check_distinct(encoded, table.row_ids)
    assert len({row.tobytes() for row in encoded + 0.0}) == table.n_rows
    assert np.isfinite(encoding.placeholder()).all()
    noised = encoding.noised(encoded, np.random.default_rng(0), scale)
    assert noised.shape == encoded.shape
    assert noised.dtype == np.float32
    assert np.isfinite(noised).all()


@quick
@given(st.lists(st.floats(-1e200, 1e200), min_size=1, max_size=10))
def test_squash_keeps_order_and_has_an_inverse(values: list[float]) -> None:
    z = np.array(sorted(values))
    y = squash(z)
    assert (np.diff(y) >= 0).all()
    near = np.abs(z) < 1e3
    np.testing.assert_allclose(unsquash(y[near]), z[near], rtol=1e-9, atol=1e-12)
    assert np.abs(y).max() < 500
    inner = np.abs(z) <= 5
    np.testing.assert_array_equal(y[inner], z[inner])


def test_positions_where_float32_makes_numbers_equal() -> None:
    ids = [3126807211.0 + i for i in range(30)]
    table = table_of(big=("number", [0.0, *ids]), small=("number", [float(i) for i in range(31)]))
    encoding = fit_encoding(table, [0, 1, 2, 3])
    assert encoding.names == ("big", "big (position)", "small")
    encoded = encoding.encode(table.features)
    assert len(np.unique(encoded[:, 0])) < 31
    ranks = (np.arange(31) - 15) / math.sqrt((31**2 - 1) / 12)
    np.testing.assert_allclose(encoded[:, 1], ranks, atol=1e-4)
    check_distinct(encoded[:, :2], table.row_ids)
    moved = encoding.noised(encoded, np.random.default_rng(1), 0.5)
    steps = moved[:, 1] * math.sqrt((31**2 - 1) / 12) + 15  # the position that fits the number as moved
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert steps.min() >= 0
    assert steps.max() <= 31


def test_noise() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    table = table_of(
        x=("number", rng.normal(10, 3, n).tolist()),
        far=("number", [1e6 if i % 4 == 0 else float(i % 7) for i in range(n)]),
        hole=("number", [np.nan if i % 5 == 0 else float(i) for i in range(n)]),
        c=("category", [["a", "b", "c", None][min(i % 10, 3)] for i in range(n)]),
        t=("text", [f"title {i % 50}" for i in range(n)]),
    )
    context = [i for i in range(400) if i % 4]
    encoding = fit_encoding(table, context)
    encoded = encoding.encode(table.features)
    np.testing.assert_array_equal(encoding.noised(encoded, rng, 0.0), encoded)
    at = {name: i for i, name in enumerate(encoding.names)}
    same = [encoding.noised(encoded, np.random.default_rng(3), 0.5) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    moved = same[0] - encoded
    assert moved[:, at["x"]].std() == pytest.approx(0.5, rel=0.05)
    assert moved[:, at["x"]].mean() == pytest.approx(0, abs=0.05)
    extreme = encoded[:, at["far"]] > 6  # far out, half a standard deviation is next to nothing
    assert np.abs(moved[extreme, at["far"]]).max() < 1e-3
    holes = encoded[:, at["hole (missing)"]] == 1
    assert holes.mean() == 0.2
    assert (same[0][holes][:, [at["hole"], at["hole (missing)"]]] == [0, 1]).all()
    pairs = [at["c"], at["c (missing)"]]
    changed = (moved[:, pairs] != 0).any(axis=1)
    shares = Counter(table.features["c"].iloc[context])
    kept = sum((n / len(context)) * np.mean([v == c for v in table.features["c"].tolist()]) for c, n in shares.items())
    assert changed.mean() == pytest.approx(0.5 * (1 - kept), abs=0.03)
    words = [i for name, i in at.items() if name.startswith("t ")]
    known = {row.tobytes() for row in encoded[context][:, words]}
    assert {row.tobytes() for row in same[0][(moved[:, words] != 0).any(axis=1)][:, words]} <= known
    whole = encoding.noised(encoded, np.random.default_rng(4), 1.0)
    assert {row.tobytes() for row in whole[:, words]} <= known
    with pytest.raises(ConfigError, match="noise of scale -1"):
        encoding.noised(encoded, rng, -1)


def test_what_the_table_does_not_hold() -> None:
    table = table_of(n=("number", [1.0, 2.0, 3.0]), c=("category", ["a", "b", "a"]), t=("text", ["x", "y", "z"]))
    encoding = fit_encoding(table, [0, 1])

    def encode(column: str, value: Any) -> np.ndarray[Any, Any]:
        features = table.features.copy()
        features.loc[1, column] = value
        return encoding.encode(features)

    with pytest.raises(DataError, match=r"column 'c' holds 'd' .*no row of the table has"):
        encode("c", "d")
    with pytest.raises(DataError, match="column 'n' misses 1 values"):
        encode("n", np.nan)
    with pytest.raises(DataError, match="column 'n' holds an infinite number"):
        encode("n", np.inf)
    with pytest.raises(DataError, match="column 't' is missing"):
        encoding.encode(table.features.drop(columns="t"))
    assert np.isfinite(encode("n", 1e9)).all()
    with pytest.raises(ConfigError, match="no context rows"):
        fit_encoding(table, [])


def test_a_column_without_any_value() -> None:
    table = table_of(n=("number", [np.nan] * 3), c=("category", [None] * 3), t=("text", [None] * 3),
                     x=("number", [1.0, 2.0, 3.0]))  # fmt: skip
    encoding = fit_encoding(table, [0])
    encoded = pd.DataFrame(encoding.encode(table.features), columns=list(encoding.names))
    assert (encoded[["n (missing)", "c (missing)", "t (missing)"]] == 1).all(axis=None)
    assert np.isfinite(encoded.to_numpy()).all()
    check_distinct(encoded.to_numpy(), table.row_ids)


def test_check_distinct() -> None:
    rows = np.array([[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [2.0, 3.0], [2.0, 1.0]], dtype=np.float32)
    check_distinct(rows[[0, 1, 3]], ["a", "b", "d"])
    with pytest.raises(DataError, match="2 rows encode to the same numbers as another, the first of them c, as a does"):
        check_distinct(rows, list("abcde"))
    with pytest.raises(DataError, match="row b encodes to a number that is not finite"):
        check_distinct(np.array([[1.0], [np.nan]]), ["a", "b"])


@real
@pytest.mark.parametrize(
    ("file", "target"),
    [("coffee/arabica_data_cleaned.csv", "Total.Cup.Points"), ("movies/movies.csv", "binary"),
     ("carte/wine_pl.parquet", "price"), ("german_credit/german.csv", -1)],
)  # fmt: skip
def test_real_rows_stay_different(file: str, target: str | int) -> None:
    table, _ = without_duplicates(read_table(REAL / file, target=target))
    for context in (np.arange(64), np.array([5])):
        encoding: Encoding = fit_encoding(table, context)
        encoded = encoding.encode(table.features)
        assert np.isfinite(encoded).all()
        assert np.abs(encoded).max() < 40
        check_distinct(encoded, table.row_ids)
