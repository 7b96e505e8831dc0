"""Reading tables: dialects, kinds, targets, duplicates, and one line for each thing that is wrong."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.data.table_duplicates import repeats
from indelible.data.tables import NAMED_TABLES, Table, as_classes, check_classes, read_table, without_duplicates
from indelible.errors import ConfigError, DataError, UserError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "tabular"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real tables are not beside the repository")

PLAIN = "age,job,y\n31,nurse,0\n42,baker,1\n57,nurse,1\n25,,0\n"


def write(folder: Path, content: str | bytes, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def kinds(table: Table) -> dict[str, str]:
    return {c.name: c.kind for c in table.columns}


@pytest.mark.parametrize(
    ("name", "shape", "task", "classes"),
    [
        ("breast_cancer", (569, 30), "classification", ("benign", "malignant")),
        ("wine", (178, 13), "classification", ("class_0", "class_1", "class_2")),
        ("iris", (150, 4), "classification", ("setosa", "versicolor", "virginica")),
        ("digits", (1797, 61), "classification", tuple("0123456789")),
        ("diabetes", (442, 10), "regression", ()),
    ],
)
def test_tables_by_name(name: str, shape: tuple[int, int], task: str, classes: tuple[str, ...]) -> None:
    from sklearn import datasets

    table = read_table(name)
    bunch = getattr(datasets, f"load_{name}")()
    assert (table.features.shape, table.task, table.classes) == (shape, task, classes)
    assert all(f"column '{c}'" not in note for c in kinds(table) for note in table.notes)
    np.testing.assert_array_equal(table.features.iloc[:, -1].to_numpy(), bunch.data[:, -1])
    if task == "regression":
        np.testing.assert_array_equal(table.target, bunch.target)
    else:
        named = bunch.target_names[bunch.target].astype(str)
        assert [classes[code] for code in table.target] == named.tolist()
    assert set(NAMED_TABLES) == {"breast_cancer", "wine", "iris", "digits", "diabetes"}


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_dialects_give_one_table(tmp_path: Path, separator: str, encoding: str) -> None:
    text = 'name,salary,y\n"Zoë, née Müller",10.5,a\nJürgen,12,b\n"say ""hi""",-3e1,a\n'
    rows = [["Zoë, née Müller", "10.5", "a"], ["Jürgen", "12", "b"], ['"say ""hi"""', "-3e1", "a"]]
    if separator != ",":
        text = "\n".join(separator.join(r) for r in [["name", "salary", "y"], *rows]) + "\n"
    table = read_table(write(tmp_path, text.encode(encoding)), target="y")
    assert table.features["name"].tolist() == ["Zoë, née Müller", "Jürgen", 'say "hi"']
    assert table.features["salary"].tolist() == [10.5, 12.0, -30.0]
    assert table.target.tolist() == [0, 1, 0]
    assert table.row_ids == ("r1", "r2", "r3")
    assert any(f"separator {separator!r}" in note for note in table.notes)
    assert any("Windows-1252" in note for note in table.notes) == (encoding == "cp1252")


def test_commas_in_numbers_and_single_quotes(tmp_path: Path) -> None:
    decimal = read_table(write(tmp_path, "a;b;y\n3,5;1;0\n4,25;2;1\n-1;3;1\n"), target="y")
    assert decimal.features["a"].tolist() == [3.5, 4.25, -1.0]
    assert any("decimal commas" in note for note in decimal.notes)
    headless = read_table(write(tmp_path, "3,5;1,5;0\n4,5;2,5;1\n5,5;3,5;1\n"), target=-1)
    assert headless.features["c1"].tolist() == [1.5, 2.5, 3.5]
    thousands = read_table(write(tmp_path, 'a,y\n"1,200",0\n"3,400,000.5",1\n7,1\n'), target="y")
    assert thousands.features["a"].tolist() == [1200, 3_400_000.5, 7]
    quoted = read_table(write(tmp_path, "'40-49','yes','x, y'\n'50-59','no','z'\n'40-49','no','x, y'\n"), target=1)
    assert quoted.features["c2"].tolist() == ["x, y", "z", "x, y"]


def test_archives_and_parquet_hold_the_same_table(tmp_path: Path) -> None:
    plain = read_table(write(tmp_path, PLAIN), target="y")
    path = tmp_path / "people.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("people/people.csv", PLAIN)
        archive.writestr("people/metadata.json", "{}")
        archive.writestr("__MACOSX/people.csv", "x")
    packed = read_table(path, target="y")
    zipped = read_table(write(tmp_path, gzip.compress(PLAIN.encode()), "people.csv.gz"), target="y")
    frame = pd.DataFrame({"age": [31, 42, 57, 25], "job": ["nurse", "baker", "nurse", None], "y": [0, 1, 1, 0]})
    frame.to_parquet(tmp_path / "people.parquet", index=False)
    columnar = read_table(tmp_path / "people.parquet", target="y")
    for table in (packed, zipped, columnar):
        pd.testing.assert_frame_equal(table.features, plain.features)
        assert (table.target.tolist(), table.columns, table.classes) == ([0, 1, 1, 0], plain.columns, ("0", "1"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("second.csv", PLAIN)
    with pytest.raises(DataError, match=r"holds 2 tables \(people/people.csv, second.csv\)"):
        read_table(path, target="y")


def test_parquet_types(tmp_path: Path) -> None:
    stamps = pd.to_datetime(["1970-01-02 00:00", "1969-12-31 12:00", None])
    frame = pd.DataFrame(
        {
            "when": stamps,
            "big": [2**60, 2**60 + 1, 2**60 + 2],
            "flag": [True, False, None],
            "level": pd.Categorical(["lo", "hi", "lo"]),
            "n": pd.array([1, None, 3], dtype="Int64"),
            "many": [["a"], ["b"], ["a"]],
            "y": [0.5, 1.5, 2.25],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", target="y")
    found = kinds(table)
    assert found == {"when": "date", "big": "category", "flag": "category", "level": "category", "n": "number",
                     "many": "category"}  # fmt: skip
    np.testing.assert_array_equal(table.features["when"], [1.0, -0.5, np.nan])
    assert table.features["big"].tolist() == [str(2**60 + i) for i in range(3)]
    assert table.features["flag"].tolist() == ["True", "False", None]
    assert table.features["n"].isna().tolist() == [False, True, False]
    assert table.task == "regression"


ARFF = """% a comment
@RELATION credit
@attribute 'credit amount' numeric
@attribute purpose {car, 'radio, tv', other}
@attribute note string
@attribute class {good,bad}
@data
1169, 'radio, tv', "it's new", good
?, car, ?, bad
2096.5, other, plain, good
"""


def test_arff(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, ARFF, "credit.arff"), target="class")
    np.testing.assert_array_equal(table.features["credit amount"], [1169, np.nan, 2096.5])
    assert table.features["purpose"].tolist() == ["radio, tv", "car", "other"]
    assert table.features["note"].tolist() == ["it's new", None, "plain"]
    assert (table.classes, table.target.tolist()) == (("bad", "good"), [1, 0, 1])
    sparse = ARFF[: ARFF.index("@data")] + "@data\n{0 5, 3 bad}\n{1 other}\n{0 7, 2 'a b'}\n"
    table = read_table(write(tmp_path, sparse, "sparse.arff"), target="class")
    assert table.features["credit amount"].tolist() == [5, 0, 7]
    assert table.features["purpose"].tolist() == ["car", "other", "car"]
    assert table.target.tolist() == [0, 1, 1]
    for broken, match in (("1, car, x", "3 cells; expected 4"), ("1, bus, x, bad", "'bus' is none"),
                          ("one, car, x, bad", "'one' in row 4")):  # fmt: skip
        with pytest.raises(DataError, match=match):
            read_table(write(tmp_path, f"{ARFF}{broken}\n", "broken.arff"), target="class")


def test_kinds_are_inferred_said_and_overridden(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame(
        {
            "RespondentID": rng.permutation(10_000)[:n],
            "height": rng.normal(size=n).round(3),
            "colour": rng.choice(["red", "Green", "blue"], n),
            "title": [f"a tale of {i} {'x' * (i % 7)}" for i in range(n)],
            "born": [f"{1 + i % 12}/{1 + i % 28}/19{60 + i % 40}" for i in range(n)],
            "seen": [f"April {1 + i % 28}{['st', 'nd', 'rd', 'th'][min(i % 28, 3)]}, 2015" for i in range(n)],
            "zip": [f"{i // 2 * 37:05d}" for i in range(n)],
            "same": ["x"] * n,
            "nothing": [""] * n,
            "y": rng.integers(2, size=n),
        }
    )
    frame.loc[3, "height"] = np.nan
    path = tmp_path / "t.csv"
    frame.to_csv(path)
    table = read_table(path, target="y")
    assert kinds(table) == {"height": "number", "colour": "category", "title": "text", "born": "date", "seen": "date",
                            "zip": "category"}  # fmt: skip
    assert table.features["born"].iloc[0] == (np.datetime64("1960-01-01") - np.datetime64("1970-01-01")).astype(int)
    assert table.features["seen"].iloc[1] == (np.datetime64("2015-04-02") - np.datetime64("1970-01-01")).astype(int)
    assert [c.n_missing for c in table.columns] == [1, 0, 0, 0, 0, 0]
    notes = "\n".join(table.notes)
    assert "left out, for they hold one value or none: same, nothing" in notes
    assert "column 'c0' is left out, for it looks like an id (it counts the rows)" in notes
    assert "keep it by giving its type, types {'RespondentID': 'number'}" in notes
    assert "RespondentID" in kinds(read_table(path, target="y", types={"RespondentID": "number"}))
    twice = pd.concat([frame, frame], ignore_index=True).assign(customer_id=range(2 * n))
    twice.drop(columns="RespondentID").to_csv(tmp_path / "twice.csv")
    assert without_duplicates(read_table(tmp_path / "twice.csv", target="y"))[1].n_exact == n, "ids hide duplicates"
    assert "column 'zip': codes with leading zeros" in notes
    assert "column 'born': dates read as %m/%d/%Y" in notes
    assert "1 values missing in 1 features" in notes
    other = read_table(path, target="y", id_column="RespondentID", drop=[0, "title"], group="colour", task="regression",
                       types={"zip": "number", "born": "text"})  # fmt: skip
    assert kinds(other) == {"height": "number", "born": "text", "seen": "date", "zip": "number"}
    assert other.row_ids == tuple(str(v) for v in frame["RespondentID"])
    assert other.groups == tuple(frame["colour"])
    assert (other.task, other.target.dtype) == ("regression", np.float64)


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        (["a,b", "1,x", "2,y"], True),
        (["0,1,2", "5.5,x,1", "3.5,y,0"], True),
        (["country,2019,2020", "fr,5.5,1", "de,3.5,0"], True),
        (["A11,6,A34", "A12,48,A32", "A14,12,A34"], False),
        (["yes,red", "no,red", "yes,blue", "no,blue", "yes,red"], False),
        (["x,?", "y,red", "z,blue"], False),
    ],
)
def test_header(tmp_path: Path, lines: list[str], header: bool) -> None:
    path = write(tmp_path, "\n".join(lines))
    table = read_table(path, target=-1)
    n_columns = lines[0].count(",") + 1
    assert table.target_name == (lines[0].split(",")[-1] if header else f"c{n_columns - 1}")
    assert any("no header" in note for note in table.notes) == (not header)
    forced = read_table(path, target=-1, header=not header)
    assert table.n_rows - forced.n_rows in ((-1, 0) if header else (1, 0))  # a row without a target is dropped
    assert any("no header" in note for note in forced.notes) == header


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["10", "9", "10", "9"], "classification", ("9", "10")),
        (["b", "a", "c", "a"], "classification", ("a", "b", "c")),
        ([str(i % 5) for i in range(20)], "classification", tuple("01234")),
        (["0.5", "1.5", "0.5"], "classification", ("0.5", "1.5")),
        (["0.5", "1.5", "2.5"], "regression", ()),
        ([str(i) for i in range(9)], "regression", ()),
        ([str(i % 21) for i in range(80)], "regression", ()),
        (["010", "2", "010", "09"], "classification", ("2", "09", "010")),
    ],
)
def test_task_and_order_of_classes(tmp_path: Path, values: list[str], task: str, classes: tuple[str, ...]) -> None:
    rows = "\n".join(f"{i * i},{v}" for i, v in enumerate(values))
    table = read_table(write(tmp_path, f"a,y\n{rows}\n"), target="y")
    assert (table.task, table.classes) == (task, classes)
    if classes:
        assert [classes[code] for code in table.target] == values
        assert table.target.dtype == np.int64
    else:
        assert table.target.tolist() == [float(v) for v in values]
    assert any(note.startswith(f"task: {task}, for") for note in table.notes)
    if task == "regression":
        forced = read_table(write(tmp_path, f"a,y\n{rows}\n"), target="y", task="classification")
        assert list(forced.classes) == sorted(set(values), key=float)


def test_rows_without_a_target_go_and_ids_stay(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,y\n1,u\n2,\n3,v\n4,N/A\n5,u\n"), target="y")
    assert table.row_ids == ("r1", "r3", "r5")
    assert table.features["a"].tolist() == [1, 3, 5]
    assert "2 rows without a target dropped" in table.notes


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (PLAIN, {"target": "Y2"}, "target 'Y2' is none of its columns; .*expected one of age, job, y"),
    (PLAIN, {"target": "jub"}, "did you mean 'job'"),
    (PLAIN, {"target": 3}, "target at position 3; expected -3 to 2"),
    (PLAIN, {}, "no target given; expected one of its columns .*: give --target NAME"),
    (PLAIN, {"target": "y", "drop": ["y"]}, "column 'y' is target and dropped column"),
    (PLAIN, {"target": "y", "types": {"age": "numbr"}}, "Did you mean 'number'"),
    (PLAIN, {"target": "y", "task": "regresion"}, "Did you mean 'regression'"),
    (PLAIN, {"target": "y", "drop": ["age", "job"]}, "no feature that differs"),
    (PLAIN, {"target": "y", "id_column": "job"}, "1 rows have no id"),
    (PLAIN, {"target": "age", "id_column": "y"}, "2 ids come twice, such as '0'"),
    (PLAIN, {"target": "job", "task": "regression"}, "3 of 3 .* numbers, the first 'nurse' in line 2; .*--task cl"),
    (PLAIN, {"target": "y", "types": {"job": "date"}}, r"3 of 3 values are not dates .*'nurse' in line 2"),
    ("a,y\n1,0\n2,0\n", {"target": "y"}, "the target 'y' is constant: 0 in the 2 rows"),
    ("a,y\n1,\n2,\n", {"target": "y"}, "the target 'y' is constant: none in the 0 rows"),
    ("a,b,a\nu,v,0\nx,y,1\n", {"target": "b"}, "duplicate column a"),
    ("", {"target": "y"}, "people.csv is empty"),
    (" \n\n", {"target": "y"}, "people.csv is empty"),
    ("a,y\n", {"target": "y"}, "holds a header and no rows"),
    ("a,y\n1,2\n3\n4,5,6\n", {"target": "y"}, r"line 3: 1 cells; expected 2, .*\(2 such lines; separator taken: ','\)"),
    ("\0\1\2", {"target": "y"}, "binary file"),
    ("a,y\n1,0\ninf,1\n3,1\n", {"target": "y"}, r"1 of 3 values are not finite numbers below 1e\+150, the first 'inf'"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "match"), WRONG)
def test_wrong_input_is_one_line(tmp_path: Path, content: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read_table(write(tmp_path, content), **options)
    assert "\n" not in str(caught.value)


def test_garbage_in_a_numeric_column(tmp_path: Path) -> None:
    cells = [str(i) for i in range(40)]
    cells[17], cells[30] = "unknown", "12 kg"
    text = "\n\na,y\n" + "".join(f"{c},{i % 2}\n" for i, c in enumerate(cells))
    path = write(tmp_path, text)
    match = "column 'a': 2 of 40 values are not numbers, the first 'unknown' in line 21; .*types {'a': 'category'}"
    with pytest.raises(DataError, match=match):
        read_table(path, target="y")
    assert kinds(read_table(path, target="y", types={"a": "text"})) == {"a": "text"}
    cells[:8] = ["x"] * 8  # a quarter: no longer clearly numeric
    path = write(tmp_path, "a,y\n" + "".join(f"{c},{i % 2}\n" for i, c in enumerate(cells)))
    table = read_table(path, target="y")
    assert kinds(table) == {"a": "text"}
    assert "column 'a': 75% of its values are numbers, the others not" in table.notes
    (odd,) = table.odd  # for the terminal; the notes stay in the run and hold no value of the table
    assert odd == "column 'a' is read as text: its first value that is no number is 'x' in line 2"
    with pytest.raises(DataError, match="10 of 40 values are not numbers, the first 'x' in line 2"):
        read_table(path, target="y", types={"a": "number"})


def test_only_near_names_are_suggested(tmp_path: Path) -> None:
    path = write(tmp_path, "magnesium,y\n1,0\n2,1\n")
    with pytest.raises(UserError, match="'target' is none of its columns; expected one of magnesium, y"):
        read_table(path, target="target")


def test_unknown_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'breast_cancer'"):
        read_table("breast_cancr")
    with pytest.raises(DataError, match=r"nowhere.csv: no such file; .*check the path"):
        read_table(tmp_path / "nowhere.csv", target="y")
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path, target="y")
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read_table(write(tmp_path, b"PAR1 and nothing else", "t.parquet"), target="y")
    with pytest.raises(DataError, match="looks like JSON"):
        read_table(write(tmp_path, '[{"a": 1}]', "t.json"), target="a")


cells = st.sampled_from([0.0, 1.0, 1.0004, 1.0006, 2.0, -3.0, 50.0, np.nan])
words = st.sampled_from(["a b", "A  b", "a b.", "<a", ">a", "...", "?!", None])
levels = st.sampled_from(["x", "X ", "<5", ">5", None])


def slow_form(row: tuple[Any, ...], steps: list[float]) -> tuple[Any, ...]:
    number, text, level = row
    form: list[Any] = [None if np.isnan(number) else round(number / steps[0]) if steps[0] else number]
    bare = None if text is None else " ".join(w.strip(".?!") for w in text.lower().split()).strip()
    form.append(text if bare == "" else bare)
    form.append(None if level is None else level.lower().strip())
    return tuple(form)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, words, levels), min_size=1, max_size=25))
def test_duplicates_equal_brute_force(rows: list[tuple[Any, ...]]) -> None:
    frame = pd.DataFrame({"n": pd.Series([r[0] for r in rows], dtype=float),
                          "t": pd.Series([r[1] for r in rows], dtype=object),
                          "c": pd.Series([r[2] for r in rows], dtype=object)})  # fmt: skip
    given_numbers = np.array([r[0] for r in rows if not np.isnan(r[0])])
    step = 0.0
    if given_numbers.size:
        low, high = np.percentile(given_numbers, [25, 75])
        step = float((high - low) or given_numbers.std()) * 1e-3
    seen_exact: set[Any] = set()
    seen_near: set[Any] = set()
    exact, near = [], []
    for i, row in enumerate(rows):
        key = tuple(None if isinstance(v, float) and np.isnan(v) else v for v in row)
        form = slow_form(row, [step])
        if key not in seen_exact:
            exact.append(i)
        if form not in seen_near:
            near.append(i)
        seen_exact.add(key)
        seen_near.add(form)
    keep, found = repeats(frame, ["number", "text", "category"], near=False)
    assert (keep.tolist(), found.n_exact, found.n_near) == (exact, len(rows) - len(exact), 0)
    keep, found = repeats(frame, ["number", "text", "category"], near=True)
    assert (keep.tolist(), found.n_exact, found.n_near) == (near, len(rows) - len(exact), len(exact) - len(near))


def test_duplicates_go_whatever_their_target(tmp_path: Path) -> None:
    text = "a,t,g,y\n1,A man,u,0\n1,A man,v,1\n1,a  man,v,2\n2,A man,u,1\n3,A man,w,1\n1000,x,w,0\n"
    table = read_table(write(tmp_path, text), target="y", group="g")
    assert table.classes == ("0", "1", "2")
    clean, found = without_duplicates(table)
    assert (found.n_exact, found.n_near) == (1, 1)
    assert clean.row_ids == ("r1", "r4", "r5", "r6")
    assert clean.groups == ("u", "u", "w", "w")
    assert (clean.classes, clean.target.tolist()) == (("0", "1"), [0, 1, 1, 0])
    assert clean.columns[0].n_distinct == 4
    notes = "\n".join(clean.notes)
    assert "1 exact and 1 near duplicates removed: rows equal in all features" in notes
    assert "thousandth" in notes
    assert "classes left without a row: 2" in notes
    strict, found = without_duplicates(table, near=False)
    assert (found.n_exact, found.n_near, strict.row_ids[1]) == (1, 0, "r3")


def test_all_rows_duplicates(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,y\n5,Red,0\n5,red,1\n5,RED,1\n")
    table = read_table(path, target="y")
    with pytest.raises(DataError, match="all 3 rows are the same"):
        without_duplicates(table)
    assert without_duplicates(table, near=False)[0].n_rows == 3


def test_as_classes_cuts_at_quantiles() -> None:
    table = read_table("diabetes")
    cut = as_classes(table, 10)
    low, high = table.target.min(), table.target.max()
    bounds = [low, *(np.quantile(table.target, i / 10) for i in range(1, 10)), high]
    for value, code in zip(table.target, cut.target, strict=True):
        assert bounds[code] <= value <= bounds[code + 1]
        assert value < bounds[code + 1] or code == 9
    assert np.bincount(cut.target).min() >= 40
    assert (cut.task, len(cut.classes), cut.classes[-1]) == ("classification", 10, f"[{bounds[9]:.6g}, {high:.0f}]")
    assert "cut at its quantiles into 10 classes" in cut.notes[-1]
    assert as_classes(cut, 3) is cut
    with pytest.raises(ConfigError):
        as_classes(table, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5, 7.0]), min_size=2, max_size=30).filter(lambda v: len(set(v)) > 1),
       st.integers(2, 12))  # fmt: skip
def test_quantile_classes_are_ordered_and_none_is_empty(values: list[float], k: int) -> None:
    features = pd.DataFrame({"a": np.arange(float(len(values)))})
    ids = tuple(str(i) for i in range(len(values)))
    table = Table("t", features, np.array(values), "regression", "y", (), (), ids, None, ())
    cut = as_classes(table, k)
    assert 2 <= len(cut.classes) <= k
    assert set(cut.target.tolist()) == set(range(len(cut.classes)))
    assert len(set(cut.classes)) == len(cut.classes)
    order = np.argsort(values, kind="stable")
    assert (np.diff(cut.target[order]) >= 0).all()
    assert all(len({int(c) for c, v in zip(cut.target, values, strict=True) if v == x}) == 1 for x in set(values))


def test_check_classes() -> None:
    table = read_table("digits")
    check_classes(table, 10)
    with pytest.raises(DataError, match="has 10 classes; expected at most 9"):
        check_classes(table, 9)


@real
@pytest.mark.parametrize(
    ("file", "options", "shape", "task", "duplicates"),
    [
        ("carte/wine_pl.parquet", {"target": "price"}, (2247, 15), "regression", (1, 0)),
        ("german_credit/german.csv", {"target": -1}, (1000, 20), "classification", (0, 0)),
        ("skrub/midwest_survey.zip", {"target": "Census_Region", "drop": ["In_what_ZIP_code_is_your_home_located"]},
         (2494, 26), "classification", (5, 2)),
        ("coffee/arabica_data_cleaned.csv", {"target": "Total.Cup.Points"}, (1311, 41), "regression", (0, 0)),
        ("movies/movies.csv", {"target": "binary"}, (1794, 13), "classification", (0, 0)),
        ("uci/breast-cancer.csv", {"target": -1}, (286, 9), "classification", (20, 0)),
        ("uci/winequality-white.csv", {"target": -1}, (4898, 11), "classification", (937, 0)),
    ],
)  # fmt: skip
def test_real_tables(
    file: str, options: dict[str, Any], shape: tuple[int, int], task: str, duplicates: tuple[int, int]
) -> None:
    table = read_table(REAL / file, **options)
    assert (table.features.shape, table.task) == (shape, task)
    clean, found = without_duplicates(table)
    assert (found.n_exact, found.n_near) == duplicates
    assert clean.n_rows == shape[0] - sum(duplicates)


@real
def test_a_real_numeric_column_with_words_in_it() -> None:
    with pytest.raises(
        DataError, match=r"ZIP_code.*: 7 of 2494 values are not numbers, the first 'No home' in line 25"
    ):
        read_table(REAL / "skrub" / "midwest_survey.zip", target="Census_Region")
