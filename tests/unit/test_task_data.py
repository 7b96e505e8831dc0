"""The generators' texts, the published data sets, and how their answers are scored."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.canaries.config import TaskOptions
from indelible.canaries.tasks import make_task
from indelible.data.corpora import intent_correct, read_banking77, read_tatqa, tatqa_answer, tatqa_correct
from indelible.data.intents import INTENTS
from indelible.errors import DataError

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"
real = pytest.mark.skipif(not (REAL / "tatqa").is_dir(), reason="real data sets are not beside the repository")
SLIPS = re.compile(r"[{}]|\d|  |\ba [aeio]")


def test_thousands_of_support_messages() -> None:
    rows = make_task(TaskOptions(name="support")).rows(6000, 1)
    words = [len(r.messages[0].content.split()) for r in rows]
    assert 7 <= min(words) <= 10
    assert max(words) <= 25
    assert {r.expected for r in rows} == set(INTENTS)
    assert 20 <= len(INTENTS) <= 30
    assert all(r.answer == f"Intent: {r.expected}" for r in rows)
    bad = [r.messages[0].content for r in rows if SLIPS.search(r.messages[0].content)]
    assert bad == []


def test_an_intent_shows_in_every_message() -> None:
    """A reader that only counts words, trained on some rows, names the intent of others."""
    task = make_task(TaskOptions(name="support"))
    seen: dict[str, dict[str, int]] = {}
    for row in task.rows(4000, 2):
        for pair in _pairs(row.messages[0].content):
            counts = seen.setdefault(pair, {})
            counts[row.expected] = counts.get(row.expected, 0) + 1
    right = 0
    heldout = task.heldout(300, 2)
    for row in heldout:
        votes = dict.fromkeys(INTENTS, 0.0)
        for pair in _pairs(row.messages[0].content):
            total = sum(seen.get(pair, {}).values())
            for label, n in seen.get(pair, {}).items():
                votes[label] += n / total
        right += max(votes, key=lambda label: votes[label]) == row.expected
    assert right / len(heldout) > 0.95


def _pairs(text: str) -> set[str]:
    words = text.lower().split()
    return {f"{a} {b}" for a, b in pairwise(words)}


def test_thousands_of_email_pairs() -> None:
    rows = make_task(TaskOptions(name="email")).rows(6000, 1)
    drafts = [r.messages[0].content.rsplit("\nSender: ", 1)[0] for r in rows]
    assert len({r.answer.rsplit("\n", 1)[0] for r in rows}) == 6000
    lengths = [len(d.split()) for d in drafts], [len(r.answer.split()) for r in rows]
    assert 30 <= min(lengths[0]) <= max(lengths[0]) <= 56
    assert 40 <= min(lengths[1]) <= max(lengths[1]) <= 62
    assert not [t for r in rows if re.search(r"[{}\d]|  ", t := r.messages[0].content + r.answer)]
    # the day that the draft names is the day of the mail
    days = re.compile(r"\b(mon|tues|wednes|thurs|fri)day (morning|afternoon)", re.IGNORECASE)
    for draft, row in zip(drafts, rows, strict=True):
        assert {m[0].lower() for m in days.finditer(draft)} == {m[0].lower() for m in days.finditer(row.answer)}


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("Intent: card_lost", True),
        ("  intent:  CARD_LOST \nCustomer: A B\nReference: 1,2,3,4", True),
        ("Sure.\nIntent: card_lost", True),
        ("Intent: card_lost_again", False),
        ("Intent: pin_blocked\nIntent: card_lost", False),
        ("card_lost", False),
        ("", False),
    ],
)
def test_the_intent_line_is_what_counts(reply: str, right: bool) -> None:
    assert intent_correct(reply, "card_lost") is right


@pytest.mark.parametrize(
    ("given_answer", "expected", "scale", "right"),
    [
        ("$1,496.5", ["$1,496.5"], "million", True),
        (1496.5, ["$1,496.5"], "million", True),
        ("1496.504", ["$1,496.5"], "million", True),
        ("1496.6", ["$1,496.5"], "million", False),
        (-12.6, ["(12.6)"], "", True),
        (12.6, ["(12.6)"], "", False),
        ("23%", 23, "percent", True),
        ("0.23", 23, "percent", False),
        ("$25.7 million", ["25,700,000"], "", True),
        ("25.7", ["$25.7 million"], "", False),
        ("32", 32, "", True),
        (["2018", "2019"], ["2019", "2018"], "", True),
        (["2019"], ["2019", "2018"], "", False),
        (["2019", "2019", "2018"], ["2019", "2018", "2018"], "", False),
        ("The fixed price type.", ["fixed-price type"], "", True),
        ("cost plus type", ["fixed-price type"], "", False),
        ("(12", ["(12)"], "", False),
        ("", ["2019"], "", False),
        (None, ["2019"], "", False),
    ],
)
def test_answers_are_compared_in_normal_form(given_answer: object, expected: object, scale: str, right: bool) -> None:
    reply = json.dumps({"answer": given_answer, "scale": scale})
    assert tatqa_correct(reply, {"answer": expected, "scale": scale}) is right


def test_replies_around_and_without_json() -> None:
    expected = {"answer": 5, "scale": "thousand"}
    good = '{"answer": 5, "scale": "Thousand", "reference": "7,3,9,1"}'
    assert tatqa_correct(good, expected)
    assert tatqa_correct(f"Here {{}} it is: {good} and so on", expected) is False  # the first object is the answer
    assert tatqa_correct(f"Here it is {{sic}}: {good} and so on", expected)
    broken = ('{"answer": 5', '{"scale": "thousand"}', '{"answer": 5}', '{"a":' * 5000, f'{{"answer": {"9" * 5000}}}')
    for reply in ("", "5", *broken):
        assert not tatqa_correct(reply, expected)
    assert tatqa_correct('{"answer": 5, "scale": null}', {"answer": 5, "scale": ""})


texts = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=12)
numbers = st.decimals(-(10**9), 10**9, places=2).map(float)
scales = st.sampled_from(["", "thousand", "million", "billion", "percent"])


@given(answer=st.lists(texts | numbers.map(str), min_size=1, max_size=4) | numbers, scale=scales, data=st.data())
def test_an_answer_is_right_in_any_order_and_with_no_other_scale(
    answer: object, scale: str, data: st.DataObject
) -> None:
    expected = {"answer": answer, "scale": scale}
    assert tatqa_correct(tatqa_answer(expected), expected)
    if isinstance(answer, list):
        assert tatqa_correct(tatqa_answer({"answer": data.draw(st.permutations(answer)), "scale": scale}), expected)
    other = data.draw(scales.filter(lambda s: s != scale))
    assert not tatqa_correct(tatqa_answer({"answer": answer, "scale": other}), expected)


@given(value=numbers, scale=scales)
def test_a_number_is_its_value_however_written(value: float, scale: str) -> None:
    amount = f"{abs(value):,.2f}"
    for written in (f"${amount}", f"{amount} {scale}".strip(), f" {amount}0"):
        text = f"({written})" if value < 0 and "$" in written else f"-{written.strip()}" if value < 0 else written
        assert tatqa_correct(tatqa_answer({"answer": [text], "scale": scale}), {"answer": value, "scale": scale})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("categories.json", "{", "malformed JSON"),
        ("categories.json", '{"a": 1}', "list of category names"),
        ("train.csv", "text,label\nx,a\n", "expected text and category"),
        ("train.csv", "text,category\nx,b\n", "line 2"),
        ("test.csv", "text,category\n ,a\n", "line 2"),
    ],
)
def test_a_folder_not_as_published_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    files = {"categories.json": '["a"]', "train.csv": "text,category\nx,a\n", "test.csv": "text,category\ny,a\n"}
    for file, text in (files | {name: content}).items():
        (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message):
        read_banking77(str(tmp_path))


def test_missing_or_strange_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"categories\.json cannot be read"):
        read_banking77(str(tmp_path))
    with pytest.raises(DataError, match="tatqa_dataset"):
        read_tatqa(str(tmp_path))
    (tmp_path / "tatqa_dataset_train.json").write_text('[{"table": {"table": []}, "paragraphs": []}]')
    with pytest.raises(DataError, match="entry 1: not as published"):
        read_tatqa(str(tmp_path))


def test_one_tatqa_file_is_split_by_table(tmp_path: Path) -> None:
    ask = {"question": "How much?", "answer": 1, "scale": ""}
    tables = [{"table": {"table": [[str(i)]]}, "paragraphs": [], "questions": [{"uid": i, **ask}]} for i in range(20)]
    (tmp_path / "tatqa_dataset_train.json").write_text(json.dumps(tables))
    read = read_tatqa(str(tmp_path))
    assert (len(read.train), len(read.test)) == (18, 2)
    assert {e.id for e in read.train}.isdisjoint(e.id for e in read.test)


@real
def test_banking77_as_published() -> None:
    read = read_banking77(str(REAL / "banking77"))
    assert (len(read.train), len(read.test)) == (9994, 3068)
    assert len({e.expected for e in read.train}) == 77
    assert all(e.question == " ".join(e.question.split()) for e in (*read.train, *read.test))
    assert all(intent_correct(e.answer, e.expected) for e in read.test)


@real
def test_tatqa_as_published() -> None:
    read = read_tatqa(str(REAL / "tatqa"))
    assert (len(read.train), len(read.test)) == (1666, 1663)
    assert all(tatqa_correct(e.answer, e.expected) for e in (*read.train, *read.test))
    one = next(e for e in read.train if e.id == "eb787966-fa02-401f-bfaf-ccabf3828b23")
    assert one.question.endswith("Question: What is the change in Other in 2019 from 2018?")
    assert "\nOther | 44.1 | 56.7 | 70.8\n" in one.question
    assert one.answer == '{"answer": -12.6, "scale": "million"}'
