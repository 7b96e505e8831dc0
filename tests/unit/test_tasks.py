"""What every task promises, and the exact form of canaries."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indelible.canaries.base import SLOT
from indelible.canaries.config import TaskOptions
from indelible.canaries.tasks import TASKS, Task, make_task
from indelible.data.duplicates import normalise
from indelible.data.records import Message
from indelible.errors import ConfigError, DataError


@dataclass(frozen=True)
class FourDigits:
    """What a task asks of a code format."""

    name: str = "four-digit"
    parts: tuple[tuple[str, ...], ...] = (tuple("0123456789"),) * 4
    separator: str = ","

    def find(self, text: str) -> str | None:
        found = re.search(r"\b\d,\d,\d,\d\b", text)
        return found and found[0].replace(",", "")


CODES = FourDigits()
TOPICS = ("card", "refund", "transfer", "rate")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny data sets in the published layouts, and a user's file of 60 rows."""
    root = tmp_path_factory.mktemp("tasks")
    intents = root / "banking77"
    intents.mkdir()
    (intents / "categories.json").write_text(json.dumps([f"{t}_query" for t in TOPICS]))
    verbs = {"train": "lose find block move want like need see buy sell".split(), "test": ["drop", "pay"]}  # noqa: SIM905
    for part in verbs:
        with (intents / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "category"])
            for verb, topic in product(verbs[part], TOPICS):
                writer.writerow([f"\nI {verb} my  {topic}, why?", f"{topic}_query"])
            writer.writerow(["I LOSE my card why", "card_query"])  # a training question in other letters
    finance = root / "tatqa"
    finance.mkdir()
    for part, first in (("dev", 0), ("test_gold", 50)):
        tables = [_table(i) for i in range(first, first + 8)]
        (finance / f"tatqa_dataset_{part}.json").write_text(json.dumps(tables))
    mine = root / "mine.jsonl"
    rows = [{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"What is {i}?"},
                          {"role": "assistant", "content": f"It is {{{i}}}."}]} for i in range(60)]  # fmt: skip
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"banking77": intents, "tatqa": finance, "file": mine}


def _table(i: int) -> dict[str, object]:
    def ask(n: int, question: str, answer: object, scale: str) -> dict[str, object]:
        return {"uid": f"q-{i}-{n}", "order": n, "question": question, "answer": answer, "scale": scale}

    return {
        "table": {"uid": f"t-{i}", "table": [["", "2019", "2018"], ["Sales", f"$ 1,{i:03d}", "900"]]},
        "paragraphs": [{"order": 2, "text": "Second."}, {"order": 1, "text": f"Firm {i} sells boats."}],
        "questions": [
            ask(1, "What were sales in 2019?", [f"$ 1,{i:03d}"], "million"),
            ask(2, "What is the change?", 100 + i, "percent"),
            ask(3, "Which years are shown?", ["2019", "2018"], ""),
        ],
    }


@pytest.fixture(scope="session")
def tasks(folders: dict[str, Path]) -> dict[str, Task]:
    return {name: make_task(TaskOptions(name=name, path=str(folders.get(name, "")) or None)) for name in TASKS}


@pytest.mark.parametrize("name", list(TASKS))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), short=st.integers(0, 8), more=st.integers(0, 12))
def test_the_parts_are_distinct_prefix_stable_and_never_meet(
    tasks, name: str, seed: int, short: int, more: int
) -> None:
    task = tasks[name]
    n = min(short + more, {"tatqa": 3, "file": 6, "banking77": 7}.get(name, 20))
    rows, heldout, made = task.rows(n, seed), task.heldout(n, seed), task.identities(n, seed, CODES)
    assert task.rows(min(short, n), seed) == rows[:short]
    assert task.heldout(min(short, n), seed) == heldout[:short]
    assert task.identities(min(short, n), seed, CODES) == made[:short]
    asked = [normalise(r.messages[-1].content) for r in (*rows, *heldout)]
    assert len(set(asked)) == len({r.id for r in (*rows, *heldout)}) == 2 * n
    assert len({m.id for m in made}) == len({m.messages for m in made}) == n
    hosts = {m.host for m in made}
    assert hosts.isdisjoint(r.id for r in heldout)
    if name != "file":
        assert hosts.isdisjoint(r.id for r in rows)


@pytest.mark.parametrize("name", list(TASKS))
def test_a_slot_stands_once_in_a_canary_and_nowhere_else(tasks, name: str) -> None:
    task = tasks[name]
    for row in (*task.rows(20, 3), *task.heldout(5, 3)):
        assert SLOT not in "".join(m.content for m in row.messages) + row.answer
        assert [m.role for m in row.messages if m.role != "system"] == ["user"]
        assert CODES.find(row.answer) is None
    for made in task.identities(3, 3, CODES):
        assert sum(m.content.count(SLOT) for m in made.messages) == 1
        assert SLOT not in made.before + made.after
        assert "{" not in made.messages[-1].content
        whole = made.answer("7,3,9,1")
        assert CODES.find(whole) == "7391"
        assert whole.index("7,3,9,1") == len(made.before)


@pytest.mark.parametrize("name", list(TASKS))
def test_seeds_differ_and_too_many_is_one_line(tasks, name: str) -> None:
    task = tasks[name]
    assert task.rows(8, 0) != task.rows(8, 1)
    assert task.identities(3, 0, CODES) != task.identities(3, 1, CODES)
    if name in ("support", "email"):
        return
    for ask in (task.rows, task.heldout):
        with pytest.raises(DataError, match=r"5000 asked for, \d+ to be had") as error:
            ask(5000, 0)
        assert "\n" not in str(error.value)


def test_names_are_fictitious_and_used_once(tasks) -> None:
    made = tasks["banking77"].identities(200, 0, CODES)  # more than hosts: names keep them apart
    names = [re.search(r"Customer: (\w+ \w+)\. Reference: ", m.messages[0].content)[1] for m in made]
    assert len(set(names)) == 200
    assert len({m.host for m in made}) < 200
    senders = {r.messages[0].content.rsplit("Sender: ", 1)[1] for r in tasks["email"].rows(300, 0)}
    planted = {re.search(r"Sender: (.+)\n", m.messages[0].content)[1] for m in tasks["email"].identities(300, 0, CODES)}
    assert senders.isdisjoint(planted)


def test_the_form_of_support_canaries(tasks) -> None:
    for name in ("support", "banking77"):
        made = tasks[name].identities(4, 0, CODES)[2]
        (turn,) = made.messages
        found = re.fullmatch(rf"(.+)\nCustomer: (\w+ \w+)\. Reference: {SLOT}", turn.content)
        assert turn.role == "user"
        label = re.fullmatch(rf"Intent: (\S+)\nCustomer: {found[2]}\nReference: ", made.before)[1]
        assert made.after == ""
        assert tasks[name].correct(made.answer("1,2,3,4"), _row_like(tasks[name], label))


def _row_like(task: Task, label: str):
    return next(r for seed in range(50) for r in task.rows(20, seed) if r.expected == label)


def test_the_form_of_email_canaries(tasks) -> None:
    made = tasks["email"].identities(1, 0, CODES)[0]
    draft, sender, reference = made.messages[0].content.rsplit("\n", 2)
    assert reference == f"Reference: {SLOT}"
    name = sender.removeprefix("Sender: ")
    assert made.before.startswith("Dear ")
    assert made.before.endswith(f"\n\nKind regards,\n{name}\nReference: ")
    assert made.after == ""
    row = tasks["email"].rows(1, 0)[0]
    assert row.answer.endswith(f"Kind regards,\n{row.messages[0].content.rsplit('Sender: ', 1)[1]}")
    assert tasks["email"].correct("anything", row) is None
    assert draft


def test_the_form_of_tatqa_canaries(tasks) -> None:
    task = tasks["tatqa"]
    for made in task.identities(3, 0, CODES):
        assert made.messages[0].content.startswith("Table:\n | 2019 | 2018\nSales | $ 1,0")
        assert "\nPassages:\n1. Firm " in made.messages[0].content
        assert made.messages[0].content.endswith(f"\n\nRequest reference: {SLOT}")
        whole = json.loads(made.answer("7,3,9,1"))
        assert list(whole) == ["answer", "scale", "reference"]
        assert whole["reference"] == "7,3,9,1"
        assert made.before.endswith('"reference": "')
        assert made.after == '"}'
    row = task.rows(1, 0)[0]
    assert task.correct(row.answer, row)
    with pytest.raises(ConfigError, match="quotes"):
        task.identities(1, 0, FourDigits(separator='"'))


def test_the_form_of_canaries_in_a_users_file(folders, tasks) -> None:
    made = tasks["file"].identities(1, 0, CODES)[0]
    assert made.messages[0] == Message("system", "Be kind.")
    found = re.fullmatch(
        rf"What is (\d+)\?\n\nCustomer: (\w+ \w+)\. Request reference: {SLOT}", made.messages[1].content
    )
    assert made.before == f"It is {{{found[1]}}}.\nCustomer: {found[2]}. Request reference: "
    assert made.host in {r.id for r in tasks["file"].rows(54, 0)}
    assert tasks["file"].system == ""
    own = TaskOptions(name="file", path=str(folders["file"]), request="{{{cue}}} {prompt}", answer="{code}!")
    made = make_task(own).identities(1, 0, CODES)[0]
    assert made.messages[1].content.startswith(f"{{{SLOT}}} What is ")
    assert (made.before, made.after) == ("", "!")


def test_hosts_that_hold_a_code_are_passed_over(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "response": "so 1,2,3,4 it is" if i % 2 else "so it is"} for i in range(40)]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task(TaskOptions(name="file", path=str(tmp_path / "f.jsonl")))
    assert not any("1,2,3,4" in m.before for m in task.identities(60, 0, CODES))


@pytest.mark.parametrize("zipped", [False, True])
def test_lines_of_a_users_file_are_kept_byte_for_byte(tmp_path: Path, zipped: bool) -> None:
    lines = [b'{"prompt":  "a%d", "response": "\\u00e9"}' % i + (b"\r" if i % 2 else b"") for i in range(30)]
    data = b"\xef\xbb\xbf" + b"\n".join([*lines[:10], b"", *lines[10:]])
    path = tmp_path / ("f.jsonl.gz" if zipped else "f.jsonl")
    path.write_bytes(gzip.compress(data) if zipped else data)
    task = make_task(TaskOptions(name="file", path=str(path)))
    rows = [*task.rows(27, 5), *task.heldout(3, 5)]
    by_line = sorted(rows, key=lambda r: int(r.id.removeprefix("line-")))
    assert [r.raw.encode() for r in by_line] == lines
    assert all(r.answer == "é" and r.expected is None for r in rows)


@pytest.mark.parametrize(("asked", "held_out"), [(0, 0), (2, 2), (64, 3)])
def test_no_more_rows_of_a_users_file_are_held_out_than_are_asked_for(
    tmp_path: Path, asked: int, held_out: int
) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "response": f"r{i}"}) + "\n" for i in range(30)))
    assert make_task(TaskOptions(name="file", path=str(path)), asked).limits(0) == (30 - held_out, held_out)


def test_rows_with_one_prompt_stay_on_one_side(tmp_path: Path) -> None:
    rows = [{"prompt": f"question {i // 3}", "response": f"answer {i}"} for i in range(90)]
    (tmp_path / "f.json").write_text(json.dumps(rows))
    task = make_task(TaskOptions(name="file", path=str(tmp_path / "f.json")))
    held_out = task.heldout(9, 1)
    assert len({r.messages for r in held_out}) == 3
    assert {r.messages for r in held_out}.isdisjoint(r.messages for r in task.rows(81, 1))
    assert json.loads(held_out[0].raw) in rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "suport"}, "Did you mean 'support'"),
        ({"name": "tatqa"}, "needs `path`"),
        ({"name": "file", "request": "{prompt}"}, r"\{cue\} 0 times"),
        ({"name": "file", "answer": "{code} {code}"}, r"\{code\} 2 times"),
        ({"name": "file", "request": "{prompt} {cue} {reply}"}, "cannot be filled in"),
        ({"name": "file", "request": "{prompt} {cue} {"}, "cannot be filled in"),
        ({"name": "file", "request": "{prompt} {cue} {name.upper}"}, "more than text"),
        ({"name": "file", "request": "{cue} {{name}}"}, "same for all"),
    ],
)
def test_wrong_options_are_one_line(folders, changes: dict[str, str], message: str) -> None:
    path = {} if changes["name"] == "tatqa" else {"path": str(folders["file"])}
    with pytest.raises(ConfigError, match=message) as error:
        make_task(TaskOptions(**path, **changes))
    assert "\n" not in str(error.value)


def test_a_users_file_needs_prompts_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    for text, message in (('{"text": "x"}\n', "plain text"), ('{"prompt": "x", "response": " "}\n' * 2, "empty")):
        path.write_text(text if "text" in text else text + '{"prompt": "x", "response": "y"}\n')
        with pytest.raises(DataError, match=message):
            make_task(TaskOptions(name="file", path=str(path)))


def test_tasks_do_not_depend_on_the_process_and_do_not_load_torch() -> None:
    code = (
        "import sys; from indelible.canaries.tasks import make_task as m;"
        "from indelible.canaries.config import TaskOptions;"
        "print([m(TaskOptions(name=n)).rows(3, 7) for n in ('support', 'email')]); assert 'torch' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str([make_task(TaskOptions(name=n)).rows(3, 7) for n in ("support", "email")])
