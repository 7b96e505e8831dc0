from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indelible.data.formats import read_records
from indelible.data.layouts import LAYOUTS, list_formats
from indelible.data.records import Message
from indelible.errors import ConfigError, DataError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="real data sets are not beside the repository")
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
TARGET = TEXT.filter(lambda t: t.strip() != "")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


PAIRS = [
    ({"prompt": "p", "response": "r"}, "prompt/response", "p"),
    ({"prompt": "p", "completion": "r"}, "prompt/completion", "p"),
    ({"question": "p", "answer": "r"}, "question/answer", "p"),
    ({"question": "p", "response": "r"}, "question/response", "p"),
    ({"query": "p", "response": "r"}, "query/response", "p"),
    ({"input": "p", "output": "r"}, "input/output", "p"),
    ({"source": "p", "target": "r"}, "source/target", "p"),
    ({"source": ["a b", "c"], "target": ["r", "s"]}, "source/target", "a b c"),
    ({"instruction": "i", "response": "r"}, "instruction/response", "i"),
    ({"instruction": "i", "context": "c", "response": "r"}, "instruction/response", "i\nc"),
    ({"instruction": "i", "input": "x", "output": "r"}, "instruction/input/output", "i\nx"),
    ({"instruction": "i", "input": "", "output": "r"}, "instruction/input/output", "i"),
    ({"instruction": "i", "input": None, "output": "r"}, "instruction/input/output", "i"),
    ({"instruction": "i", "output": "r", "text": "whole"}, "instruction/input/output", "i"),
    ({"instruction": " i ", "input": " ", "output": "r"}, "instruction/input/output", " i \n "),
]


@pytest.mark.parametrize(("row", "name", "prompt"), PAIRS)
def test_pair_layouts(tmp_path: Path, row: dict[str, Any], name: str, prompt: str) -> None:
    table = read_records(write(tmp_path / "a.jsonl", [row]))
    assert table.format == f"jsonl: {name}"
    assert table.records[0].messages == user(prompt)
    assert table.records[0].target == "r"


def test_strip_touches_prompts_only(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"instruction": " i ", "input": " \n", "output": " r "}])
    record = read_records(file, strip=True).records[0]
    assert (record.prompt, record.target) == ("i", " r ")


def test_messages_score_every_assistant_turn(tmp_path: Path) -> None:
    turns = [("system", "s"), ("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2"), ("user", "u3")]
    rows = [
        {"messages": [{"role": r, "content": c} for r, c in turns]},
        {"messages": [{"role": "user", "content": "only a question"}]},
    ]
    table = read_records(write(tmp_path / "a.jsonl", rows))
    record = table.records[0]
    assert [(m.role, m.content, m.scored) for m in record.messages] == [
        ("system", "s", False), ("user", "u1", False), ("assistant", "a1", True), ("user", "u2", False),
    ]  # fmt: skip
    assert record.responses == ("a1", "a2")
    assert (table.n_rows, table.n_empty) == (2, 1)
    assert any("after the last assistant turn" in note for note in table.notes)


def test_sharegpt_with_system_column(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]
    table = read_records(write(tmp_path / "a.jsonl", [{"conversations": turns, "system": "s"}]))
    assert table.format == "jsonl: conversations"
    assert table.records[0].messages == (Message("system", "s"), Message("user", "u"))
    assert table.records[0].target == "a"


def test_plain_text(tmp_path: Path) -> None:
    table = read_records(write(tmp_path / "a.jsonl", [{"text": "whole", "category": 3}]))
    assert (table.records[0].messages, table.records[0].target) == ((), "whole")
    assert "columns not used: category" in table.notes


def test_columns_may_be_mapped(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"Q": "q", "A": "a", "text": "t", "id": "k"}])
    table = read_records(file, columns={"prompt": "Q", "response": "A"}, id_column="id")
    assert (table.format, table.records[0].prompt, table.records[0].id) == ("jsonl: prompt/response", "q", "k")
    with pytest.raises(DataError, match=r"a\.jsonl has no column 'B'; found Q, A, text, id"):
        read_records(file, columns={"prompt": "B"})
    with pytest.raises(ConfigError, match="Did you mean 'prompt'"):
        read_records(file, columns={"promt": "Q"})


def test_every_layout_is_listed_once() -> None:
    names = [layout.name for layout in list_formats()]
    assert len(names) == len(set(names)) == len(LAYOUTS)


ROWS = st.lists(st.tuples(TEXT, TARGET), min_size=1, max_size=6)


@quick
@given(ROWS)
def test_all_file_kinds_hold_the_same_records(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    import pandas as pd

    objects = [{"prompt": p, "response": r} for p, r in rows]
    lines = "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects).encode()
    files = {name: tmp_path / name for name in ("a.jsonl", "a.json", "b.json", "c.json", "a.jsonl.gz", "raw")}
    files["a.jsonl"].write_bytes(lines)
    files["raw"].write_bytes(lines)
    files["c.json"].write_bytes(lines)
    files["a.jsonl.gz"].write_bytes(gzip.compress(lines))
    files["a.json"].write_text(json.dumps(objects), encoding="utf-8")
    files["b.json"].write_text(json.dumps({"data": objects}, indent=1), encoding="utf-8")
    for name, sep in (("a.csv", ","), ("a.tsv", "\t")):
        files[name] = tmp_path / name
        with files[name].open("w", newline="", encoding="utf-8") as out:
            csv.writer(out, delimiter=sep, quoting=csv.QUOTE_ALL).writerows([("prompt", "response"), *rows])
    files["a.parquet"] = tmp_path / "a.parquet"
    pd.DataFrame(objects).to_parquet(files["a.parquet"])
    tables = {name: read_records(path) for name, path in files.items()}
    for name, table in tables.items():
        assert [(r.prompt, r.target) for r in table.records] == rows, name
        assert table.records == tables["a.jsonl"].records, name


@quick
@given(ROWS, st.randoms(use_true_random=False))
def test_ids_and_groups_do_not_depend_on_order(tmp_path: Path, rows: list[tuple[str, str]], rng: random.Random) -> None:
    objects = [{"prompt": p, "response": r} for p, r in [*rows, rows[0], (rows[0][0], rows[0][1].upper())]]
    first = read_records(write(tmp_path / "a.jsonl", objects)).records
    rng.shuffle(objects)
    again = read_records(write(tmp_path / "b.jsonl", objects)).records
    assert sorted(first, key=lambda r: r.id) == sorted(again, key=lambda r: r.id)
    assert len({r.id for r in first}) == len(first)


def test_ids_from_a_column(tmp_path: Path) -> None:
    rows = [{"id": i, "prompt": f"p{i}", "response": "r", "key": i // 2} for i in range(4)]
    file = write(tmp_path / "a.jsonl", rows)
    assert [r.id for r in read_records(file, id_column="id").records] == ["0", "1", "2", "3"]
    unasked = [r.id for r in read_records(file).records]  # a column called id may hold names or addresses
    assert all(len(i) == 12 for i in unasked)
    with pytest.raises(DataError, match=r"a\.jsonl: id column 'key' has 0 blank and 2 repeated"):
        read_records(file, id_column="key")


def test_groups(tmp_path: Path) -> None:
    rows = [{"prompt": p, "response": r, "who": w} for p, r, w in [("Q?", "a", "x"), (" q", "b", "y"), ("z", "c", "x")]]
    file = write(tmp_path / "a.jsonl", rows)
    by_prompt = [r.group for r in read_records(file).records]
    assert by_prompt[0] == by_prompt[1] != by_prompt[2]
    assert [r.group for r in read_records(file, group_column="who").records] == ["x", "y", "x"]
    alone = read_records(file, group_by_prompt=False).records
    assert [r.group for r in alone] == [r.id for r in alone]


def test_a_prompt_of_the_whole_file_is_no_group(tmp_path: Path) -> None:
    rows = [{"prompt": "Write a poem.", "response": f"poem {i}"} for i in range(30)]
    table = read_records(write(tmp_path / "a.jsonl", rows))
    assert all(r.group == r.id for r in table.records)
    assert any("a template, no group" in n for n in table.notes)


PR = {"prompt": "p", "response": "r"}
LINE = json.dumps(PR).encode() + b"\n"
BAD: list[tuple[str, bytes, str]] = [
    ("empty.jsonl", b"", "is empty"),
    ("blank.jsonl", b"\xef\xbb\xbf\n \n", "is empty"),
    ("header.csv", b"prompt,response\n", "is empty"),
    ("none.json", b"[]", "is empty"),
    ("binary.jsonl", b"\x89PNG\0\0", "binary file"),
    ("latin.jsonl", LINE + b'{"prompt": "\xe9"}', "line 2: not UTF-8"),
    ("wide.jsonl", '{"a": 1}'.encode("utf-16"), "UTF-16"),
    ("broken.jsonl", LINE + b'{"prompt": "p"\n', "line 2, column"),
    ("broken.json", b'[\n{"prompt": "p",}\n]', "line 2, column"),
    ("array.jsonl", LINE + b"[1]\n", "line 2: not a JSON object"),
    ("number.json", b"3", "not a JSON object|one JSON value"),
    ("twice.jsonl", b'{"prompt": "a", "prompt": "b", "response": "r"}\n', "duplicate column 'prompt'"),
    ("twice.csv", b"text,text\na,b\n", "duplicate column 'text'"),
    ("ragged.csv", b"prompt,response\na\n", "line 2: 1 cells; expected 2"),
    ("quote.csv", b'prompt,response\n"a"b,c\n', "line 2: malformed CSV"),
    ("unknown.jsonl", b'{"alpha": 1, "beta": 2}\n', "found alpha, beta; expected one of: messages; .*prompt.response"),
    ("unknown.csv", b"alpha,beta\n1,2\n", "found alpha, beta"),
    ("mixed.jsonl", LINE + b'{"text": "t"}\n', "mixed layouts: line 1 is prompt/response, line 2 is text"),
    ("missing.jsonl", LINE + b'{"prompt": "p"}\n', "line 2: unknown column set: found prompt"),
    ("type.jsonl", LINE + b'{"prompt": "p", "response": ["r"]}\n', "line 2: column 'response' holds a list"),
    ("type.json", b'[{"text": 3}]', "row 1: column 'text' holds a number"),
    ("turns.jsonl", b'{"messages": "hi"}\n', "'messages' holds text; expected a list of turns"),
    ("role.jsonl", b'{"messages": [{"role": "tool", "content": "x"}]}\n', "role 'tool'; expected one of system"),
    ("keys.jsonl", b'{"messages": [{"who": "x"}]}\n', "turn 1 of 'messages' has who; expected role and content"),
    ("half.jsonl", b'{"text": "\\ud800"}\n', "line 1: column 'text' holds half a surrogate"),
    ("hollow.jsonl", b'{"prompt": "p", "response": " "}\n', "all 1 rows have an empty target"),
    ("bad.parquet", b"PAR1 and nothing else", "not a whole Parquet file"),
    ("not.parquet", LINE, "not a whole Parquet file"),
    ("bad.jsonl.gz", b"\x1f\x8b nothing", "not a whole gzip file"),
    ("what.dat", b"hello there\n", "kind of file is not known"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=[b[0] for b in BAD])
def test_wrong_input_is_one_line_that_names_the_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_records(tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_folder_and_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        read_records(tmp_path / "nowhere.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_records(str(tmp_path / "no" / "ending"))
    with pytest.raises(DataError, match="folder that `datasets` did not save"):
        read_records(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'messages'"):
        read_records(tmp_path, format="message")


def test_a_named_format_wins_over_precedence(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [PR | {"text": "whole"}])
    assert read_records(file, format="text").records[0].target == "whole"


def test_hub_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[str, str | None, str]] = []

    def load(name: str, config: str | None, *, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        if name == "owner/none":
            raise ConnectionError("Couldn't reach\n the hub")
        return datasets.Dataset.from_list([PR])

    monkeypatch.setattr(datasets, "load_dataset", load)
    table = read_records("owner/name:main", split="test")
    assert (table.format, table.records[0].target) == ("datasets: prompt/response", "r")
    assert asked == [("owner/name", "main", "test")]
    with pytest.raises(DataError, match=r"owner/none: no such file, and the hub did not give .*Couldn't reach the hub"):
        read_records("owner/none")


def test_saved_folder(tmp_path: Path) -> None:
    import datasets

    data = datasets.DatasetDict({"train": datasets.Dataset.from_list([PR, {"prompt": "q", "response": "s"}])})
    data.save_to_disk(str(tmp_path / "saved"))
    assert [r.target for r in read_records(tmp_path / "saved").records] == ["r", "s"]
    with pytest.raises(DataError, match="no split 'test'; found train"):
        read_records(tmp_path / "saved", split="test")


@real
@pytest.mark.parametrize(
    ("file", "layout", "n_rows"),
    [
        ("medical/patient_qa_unique.jsonl", "jsonl: instruction/input/output", 2526),
        ("instruct/alpaca_en_demo.json", "json: instruction/input/output", 999),
        ("summarise/scitldr_a_dev.jsonl", "jsonl: source/target", 619),
        ("banking77/test.csv", "csv: text", 3080),
    ],
)
def test_real_files(file: str, layout: str, n_rows: int) -> None:
    table = read_records(REAL / file)
    assert (table.format, table.n_rows, table.n_empty) == (layout, n_rows, 0)
    assert len({r.id for r in table.records}) == n_rows
