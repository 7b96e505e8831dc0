"""Data that canaries can hide in: Banking77, TAT-QA (with the scoring of their answers), and a file of the user."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from indelible.data.duplicates import normalise
from indelible.data.examples import Corpus, Example
from indelible.data.files import fail, listed, load_rows
from indelible.data.formats import read_records
from indelible.data.records import Record

# ---------------------------------------------------------------------------------------------------- Banking77


def intent_answer(label: str) -> str:
    """How an intent is answered."""
    return f"Intent: {label}"


def intent_correct(reply: str, label: str) -> bool:
    """Whether the first line of a reply that names an intent names this one; letter case and outer blanks aside."""
    found = re.search(r"^\s*intent:(.*)$", reply, flags=re.IGNORECASE | re.MULTILINE)
    return found is not None and found[1].strip().casefold() == label.casefold()


def read_banking77(folder: str) -> Corpus:
    """The folder as published: `train.csv` and `test.csv` (text, category), `categories.json`.

    Runs of white space become one blank. Rows equal in normal form (case, punctuation at word edges) are one row, and a
    test row that is also a training row is left out: of the 10,003 and 3,080 rows 9,994 and 3,068 remain.
    Ids are `train-LINE` and `test-LINE`. Source: section V of the canary paper. Differs from the paper: it keeps
    the repeated questions.

    Raises:
        DataError: a file is missing, not UTF-8, or has other columns, an empty cell or an unknown category.
    """
    names = _parsed(_text(folder, "categories.json"), Path(folder) / "categories.json")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        fail(f"{Path(folder) / 'categories.json'}: expected a list of category names, as published.")
    seen: set[str] = set()
    train = _intent_rows(folder, "train", set(names), seen)
    return Corpus(train, _intent_rows(folder, "test", set(names), seen))


def _intent_rows(folder: str, part: str, categories: set[str], seen: set[str]) -> tuple[Example, ...]:
    name = f"{part}.csv"
    reader = csv.DictReader(io.StringIO(_text(folder, name), newline=""))
    if reader.fieldnames is None or not {"text", "category"} <= set(reader.fieldnames):
        fail(f"{Path(folder) / name}: found the columns {listed(reader.fieldnames or [])}; expected text and category.")
    rows = []
    for cells in reader:
        text, category = " ".join((cells["text"] or "").split()), cells["category"]
        if not text or category not in categories:
            fail(f"{Path(folder) / name}, line {reader.line_num}: text {text[:40]!r}, category {category!r}; "
                  "expected text and a category of categories.json.")  # fmt: skip
        key = normalise(text)
        if key in seen:
            continue
        seen.add(key)
        rows.append(Example(f"{part}-{reader.line_num}", text, intent_answer(category), category))
    return tuple(rows)


# ------------------------------------------------------------------------------------------------------- TAT-QA

_FILES = ("tatqa_dataset_train.json", "tatqa_dataset_dev.json", "tatqa_dataset_test_gold.json")
SCALES = ("", "thousand", "million", "billion", "percent")


def tatqa_answer(expected: dict[str, Any]) -> str:
    """The JSON object of answer and scale, in this order."""
    return json.dumps({"answer": expected["answer"], "scale": expected["scale"]}, ensure_ascii=False)


def read_tatqa(folder: str) -> Corpus:
    """The folder as published, with one or more of `tatqa_dataset_{train,dev,test_gold}.json`.

    The first of these that is there is training, the next one held out; with a single file, every tenth table of it is
    held out. Table cells stand between bars, one row a line; passages are numbered in their order. A question asked
    twice of one table is one row. Ids are the questions' own.

    Raises:
        DataError: no such file, or an entry that is not as published.
    """
    present = [name for name in _FILES if (Path(folder) / name).is_file()]
    if not present:
        fail(f"{folder}: no tatqa_dataset_*.json with answers; expected {', '.join(_FILES)} or one of them.")
    first = _entries(folder, present[0])
    if len(present) > 1:
        return Corpus(_joined(first), _joined(_entries(folder, present[1])))
    held_out = {i for i in range(len(first)) if i % 10 == 9}
    return Corpus(
        *(_joined([rows for i, rows in enumerate(first) if (i in held_out) is side]) for side in (False, True))
    )


def _joined(entries: Sequence[list[Example]]) -> tuple[Example, ...]:
    return tuple(row for rows in entries for row in rows)


def _entries(folder: str, name: str) -> list[list[Example]]:
    """The questions of every table."""
    path = Path(folder) / name
    entries = _parsed(_text(folder, name), path)
    if not isinstance(entries, list):
        fail(f"{path}: expected a list of tables with paragraphs and questions, as published.")
    out = []
    for n, entry in enumerate(entries, start=1):
        try:
            out.append(_questions(entry))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            fail(f"{path}, entry {n}: not as published ({type(error).__name__}: {error}); expected table, paragraphs, "
                  "and questions with uid, question, answer and scale.")  # fmt: skip
    return out


def _questions(entry: dict[str, Any]) -> list[Example]:
    cells = [" | ".join(" ".join(str(cell).split()) for cell in line) for line in entry["table"]["table"]]
    passages = sorted(entry["paragraphs"], key=lambda p: int(p["order"]))
    numbered = [f"{i}. {' '.join(p['text'].split())}" for i, p in enumerate(passages, start=1)]
    context = "\n".join(["Table:", *cells, "", "Passages:", *numbered])
    rows: dict[str, Example] = {}
    for question in entry["questions"]:
        answer, scale = question["answer"], question["scale"]
        if scale not in SCALES or not isinstance(answer, str | int | float | list):
            raise ValueError(f"answer {answer!r}, scale {scale!r}")
        expected = {"answer": answer, "scale": scale}
        text = " ".join(question["question"].split())
        full = f"{context}\n\nQuestion: {text}"
        rows.setdefault(normalise(text), Example(str(question["uid"]), full, tatqa_answer(expected), expected))
    return list(rows.values())


def tatqa_correct(reply: str, expected: dict[str, Any]) -> bool:
    """Strict accuracy: the first JSON object of a reply has this scale, and this answer in normal form.

    An answer is compared part by part, whatever their order, each as often as it is expected. A part that reads as a
    number counts as its value: currency signs, thousands commas and blanks are dropped, brackets make it negative,
    the word after it or else the scale multiplies it, a percent sign makes it hundredths; two decimals count. Any
    other part is compared without case, punctuation, articles and repeated blanks.

    Source: section B-A of the canary paper, and the rules that the data set's own scorer applies. Differs from that
    scorer: a wrong scale is always wrong (it accepts an unscaled 0.2342 for 23.42 percent), and parts are not put
    together into one text first.
    """
    found = _first_object(reply)
    if found is None or "answer" not in found:
        return False
    scale = found.get("scale")
    scale = "" if scale is None else str(scale).strip().lower()
    if scale != expected["scale"]:
        return False
    return _parts(found["answer"], scale) == _parts(expected["answer"], scale)


def _first_object(reply: str) -> dict[str, Any] | None:
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", reply):
        try:
            value, _ = decoder.raw_decode(reply, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


_WORDS = {scale: Fraction(10) ** power for scale, power in (
    ("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("percent", -2),
)}  # fmt: skip
_NUMBER = re.compile(
    r"(?P<open>\()?(?P<sign>-)?(?P<digits>\d{1,99}(\.\d{0,99})?|\.\d{1,99})(?P<inner>%)?(?P<close>\))?(?P<percent>%)?"
    r"(?P<word>hundred|thousand|million|billion|percent)?s?"
)


def _parts(answer: Any, scale: str) -> list[str]:
    parts = answer if isinstance(answer, list) else [answer]
    return sorted(_normal(str(part), scale) for part in parts)


def _normal(part: str, scale: str) -> str:
    number = _NUMBER.fullmatch(re.sub(r"[$€£¥,\s\[\]'\"]", "", part.lower().replace("−", "-").replace("–", "-")))
    if number is None or bool(number["open"]) is not bool(number["close"]):
        words = re.sub(r"[^\w\s]", "", re.sub(r"-", " ", part.casefold())).split()
        return "text " + " ".join(word for word in words if word not in ("a", "an", "the"))
    factor = _WORDS.get(number["word"] or scale, Fraction(1))
    if number["inner"] or number["percent"]:
        factor = _WORDS["percent"]
    value = round(Fraction(number["digits"]), 2) * factor
    return f"number {-value if number['sign'] or number['open'] else value}"


# ------------------------------------------------------------------------------------------- the user's own file


@dataclass(frozen=True)
class FileRow:
    """A row of a user's file. `id` is its place; `raw` its line without the line feed (carriage return included), or
    for kinds other than JSON lines the row as JSON."""

    id: str
    record: Record
    raw: str


def read_rows(path: str, *, format: str = "auto", columns: Mapping[str, str] | None = None) -> tuple[FileRow, ...]:  # noqa: A002
    """A file of prompts and answers, with what is needed to write each row back as it was.

    Raises:
        DataError: as `read_records`; plain text; rows without an answer, which no loss could fall on.
    """
    raw = load_rows(path, "train")
    table = read_records(path, format=format, columns=columns)
    if table.kind == "text":
        fail(f"{path} holds plain text; expected prompts and answers: a canary is a question with its answer.")
    if table.n_empty:
        fail(f"{path}: {table.n_empty} of {table.n_rows} rows have an empty answer; expected one in each: remove them.")
    if raw.kind == "jsonl":
        data = Path(path).read_bytes()
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig").split("\n")
        texts = [lines[place - 1] for place in raw.places]
    else:
        texts = [json.dumps(row, ensure_ascii=False, default=str) for row in raw.rows]
    return tuple(
        FileRow(f"{raw.unit}-{place}", record, text)
        for place, record, text in zip(raw.places, table.records, texts, strict=True)
    )


# -------------------------------------------------------------------------------------------------------- files


def _text(folder: str, name: str) -> str:
    path = Path(folder) / name
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        fail(f"{path} cannot be read ({error.strerror}); expected the folder of the data set, as published.")
    except UnicodeDecodeError:
        fail(f"{path} is not UTF-8; expected the file as published.")


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"{path}: malformed JSON ({error}); expected the file as published.")
