"""Data sets by name, from small files in the sets' own columns. The hub is out of reach here: what would be asked of it
is seen, not answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indelible.data import named
from indelible.data.files import Rows
from indelible.data.formats import read_records
from indelible.data.named import NAMED, list_named
from indelible.errors import DataError

DOCTOR = "If you are a doctor, please answer the medical questions based on the patient's description."

# One row of each set, with all the columns that it has on the hub, and the record that comes of it.
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "healthcaremagic": ({"instruction": "Be a doctor.", "input": "My ear hurts.", "output": "Rest."},
                        "Be a doctor.\nMy ear hurts.", "Rest."),
    "medinstruct": ({"instruction": "Name a bone.", "input": "", "output": "Femur."}, "Name a bone.", "Femur."),
    "icliniq": ({"input": "I cough.", "answer_icliniq": "See me.", "answer_chatgpt": "Well.",
                 "answer_chatdoctor": "Tea."}, f"{DOCTOR}\nI cough.", "See me."),
    "cnn-dm": ({"article": "(CNN) Rain fell.", "highlights": "Rain.", "id": "f00d"},
               "Summarize the following article.\n(CNN) Rain fell.", "Rain."),
    "xsum": ({"document": "A cat sat.", "summary": "Cat.", "id": "7"},
             "Summarize the following article.\nA cat sat.", "Cat."),
    "ag-news": ({"text": "Oil  prices rose\non Monday again.", "label": 2},
                "Complete the following news article.\nOil  prices rose", "on Monday again."),
    "alpaca": ({"instruction": "Add.", "input": "1, 2", "output": "3", "text": "Below is an instruction. Add."},
               "Add.\n1, 2", "3"),
    "dolly": ({"instruction": "Who?", "context": "Ann won.", "response": "Ann.", "category": "closed_qa"},
              "Who?\nAnn won.", "Ann."),
    "tofu": ({"question": "Where was he born?", "answer": "Baku."}, "Where was he born?", "Baku."),
    "bbc-news": ({"text": "ad sales boost profit", "label": 1, "label_text": "business"}, "", "ad sales boost profit"),
    "bbc-real-time": ({"title": "T", "published_date": "2024-01-01", "description": "D", "section": "World",
                       "content": "All of it.", "link": "http://x", "top_image": None}, "", "All of it."),
    "wikimia-members": ({"input": "An old event.", "label": 1}, "", "An old event."),
    "wikimia-nonmembers": ({"input": "A new event.", "label": 0}, "", "A new event."),
}  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def test_every_set_is_tried() -> None:
    assert set(ROWS) == set(NAMED)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_in_the_layout_of_the_hub_gives_its_records(tmp_path: Path, name: str) -> None:
    row, prompt, target = ROWS[name]
    table = read_records(f"named:{name}@{write(tmp_path / 'a.jsonl', [row])}")
    record = table.records[0]
    assert (record.prompt, record.target) == (prompt, target)
    assert table.format.startswith(f"{name} (jsonl): ")
    assert table.notes == ()


@pytest.mark.parametrize("name", ROWS)
def test_the_hub_is_asked_for_the_set_under_its_id_and_split(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    row, prompt, target = ROWS[name]
    asked: list[tuple[str, str]] = []

    def answer(source: str, split: str) -> Rows:
        asked.append((source, split))
        return Rows([row] * 3, range(1, 4), "row", "datasets", "0")

    monkeypatch.setattr(named, "load_rows", answer)
    table = read_records(f"named:{name}#test[1:]")
    assert [(r.prompt, r.target) for r in table.records] == [(prompt, target)] * 2
    read_records(f"named:{name}")
    read_records(f"named:{name}", split="validation")
    read_records(f"named:{name}:other")
    known = NAMED[name]
    source = f"{known.hub}:{known.config}" if known.config else known.hub
    assert asked == [
        (source, "test"),
        (source, known.split),
        (source, "validation"),
        (f"{known.hub}:other", known.split),
    ]


def test_stretches_of_a_file_are_counted_before_anything_else(tmp_path: Path) -> None:
    rows = [{"input": f"text {i}", "label": i % 2} for i in range(10)]
    path = write(tmp_path / "wiki.jsonl", rows)

    def texts(stretch: str, name: str = "wikimia-members") -> list[str]:
        return [r.target for r in read_records(f"named:{name}@{path}{stretch}").records]

    assert texts("") == [f"text {i}" for i in (1, 3, 5, 7, 9)]
    assert texts("", "wikimia-nonmembers") == [f"text {i}" for i in (0, 2, 4, 6, 8)]
    assert texts("#[:4]") == ["text 1", "text 3"]
    assert texts("#[50%:]") == ["text 5", "text 7", "text 9"]
    assert texts("#[20%:40%]") == ["text 3"]
    assert texts("#[8:100]") == ["text 9"]


def test_a_part_is_other_data_than_the_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": f"q{i}", "answer": f"a{i}"} for i in range(4)])
    whole, first, again, rest = (
        read_records(f"named:tofu@{path}{part}").sha256 for part in ("", "#[:2]", "#[:2]", "#[2:]")
    )
    assert first == again
    assert len({whole, first, rest}) == 3
    assert whole == read_records(path).sha256


@pytest.mark.parametrize("names", [("train.jsonl", "test.jsonl"), ("tofu_train.jsonl", "tofu_test.jsonl"),
                                   ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl")])  # fmt: skip
def test_a_folder_holds_a_file_a_split(tmp_path: Path, names: tuple[str, str]) -> None:
    for i, name in enumerate(names):
        write(tmp_path / name, [{"question": f"q{i}{k}", "answer": f"a{i}{k}"} for k in range(3)])
    assert [r.target for r in read_records(f"named:tofu@{tmp_path}#train").records] == ["a00", "a01", "a02"]
    assert [r.target for r in read_records(f"named:tofu@{tmp_path}#test[1:]").records] == ["a11", "a12"]
    assert [r.target for r in read_records(f"named:tofu@{tmp_path}", split="test").records] == ["a10", "a11", "a12"]
    with pytest.raises(DataError, match="no file of split 'validation' in the folder; found"):
        read_records(f"named:tofu@{tmp_path}#validation")


def test_shards_are_one_split_and_two_files_of_one_name_are_not(tmp_path: Path) -> None:
    for k in range(2):
        write(tmp_path / f"train-0000{k}-of-00002.jsonl", [{"question": f"q{k}", "answer": f"a{k}"}])
    assert [r.target for r in read_records(f"named:tofu@{tmp_path}").records] == ["a0", "a1"]
    write(tmp_path / "train.json", [{"question": "q", "answer": "a"}])
    with pytest.raises(DataError, match="3 files of split 'train'"):
        read_records(f"named:tofu@{tmp_path}")


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    import datasets

    parts = {s: datasets.Dataset.from_list([{"question": f"q {s} {k}", "answer": f"a {s} {k}"} for k in range(2)])
             for s in ("train", "test")}  # fmt: skip
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    table = read_records(f"named:tofu@{tmp_path / 'saved'}#test[:1]")
    assert [r.target for r in table.records] == ["a test 0"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("named:healthcaremagik", "Did you mean 'healthcaremagic'"),
        ("named:tofu#train[5]", "names no split"),
        ("named:tofu@FILE#train", "a file has no splits"),
        ("named:xsum@FILE", "no column 'document'; found question, answer; expected document, summary"),
        ("named:tofu@FILE#[1:]", "is empty"),
        ("named:tofu@nowhere/at-all", "no such file or folder"),
        ("named:wikimia-members@WIKI", "none of 1 rows has label 1"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, given: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}])
    wiki = write(tmp_path / "w.jsonl", [{"input": "x", "label": 0}])
    with pytest.raises(DataError) as caught:
        read_records(given.replace("FILE", str(path)).replace("WIKI", str(wiki)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_text_of_one_word_has_nothing_to_complete(tmp_path: Path) -> None:
    rows = [{"text": "Alone.", "label": 0}, {"text": "Two words.", "label": 0}]
    table = read_records(f"named:ag-news@{write(tmp_path / 'a.jsonl', rows)}")
    assert (table.n_rows, table.n_empty) == (2, 1)
    assert (table.records[0].prompt.split("\n")[1], table.records[0].target) == ("Two", "words.")


def test_all_sets_are_listed() -> None:
    text = list_named()
    for name, known in NAMED.items():
        assert f"named:{name}\n" in text
        assert known.hub in text
