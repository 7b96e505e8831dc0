"""Data sets by name: those of the papers, from the `datasets` hub or from files in the same layout.

    named:NAME                   from the hub
    named:NAME:CONFIG            another configuration of it
    named:NAME@PATH              a file or folder on this machine with the set's own columns
    named:NAME#SPLIT             of either a split, a stretch of one (`#train[:1000]`, `#test[10%:20%]`, `#[:1000]`)

A folder is one that `datasets` saved, or holds a file a split (`train.json`, `NAME_train.json`, or the hub's own
`train-00000-of-00002.parquet` and the like). Only the columns that make the record are read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indelible.data.files import Rows, fail, listed, load_rows
from indelible.errors import DataError, did_you_mean

_SPLIT = re.compile(r"([\w.-]*)(?:\[(\d+%?)?:(\d+%?)?\])?")
_KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_SAVED = ("dataset_dict.json", "state.json")  # what `datasets` leaves in a folder that it saved


@dataclass(frozen=True)
class Named:
    """A data set and how its rows become records.

    Attributes:
        hub: its id on the hub.
        columns: our column -> the set's.
        config: configuration on the hub.
        split: the one to take where none is named.
        fixed: our column -> a text that all rows get. Where the set brings no instruction: the paper prints none
            either, so that the words are ours.
        where: only rows with these values.
        completion: the set's text is cut in the middle: its first half of words is the prompt, the rest the target.
        meaning: one line.
    """

    hub: str
    columns: Mapping[str, str]
    config: str | None = None
    split: str = "train"
    fixed: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    completion: bool = False
    meaning: str = ""


_ALPACA = {"instruction": "instruction", "input": "input", "output": "output"}
_DOCTOR = "If you are a doctor, please answer the medical questions based on the patient's description."
_SUMMARISE = "Summarize the following article."
_COMPLETE = "Complete the following news article."

# Ids, configurations, splits and columns are those that public code which loads these sets names (of Alpaca and Dolly:
# those that they are commonly known by); no set could be downloaded where this was written, so that a set's owner may
# have changed any of them since. That AG News is cut at
# half its words, and all wording of `fixed` but the doctor's (which HealthCareMagic's own rows carry), is our choice.
NAMED: dict[str, Named] = {
    "healthcaremagic": Named(
        "lavita/ChatDoctor-HealthCareMagic-100k", _ALPACA, meaning="patients' questions and doctors' answers"
    ),
    "medinstruct": Named("lavita/AlpaCare-MedInstruct-52k", _ALPACA, meaning="generated medical instructions"),
    "icliniq": Named(
        "lavita/ChatDoctor-iCliniq",
        {"input": "input", "output": "answer_icliniq"},
        fixed={"instruction": _DOCTOR},
        meaning="patients' questions and doctors' answers",
    ),
    "cnn-dm": Named(
        "abisee/cnn_dailymail",
        {"input": "article", "output": "highlights"},
        config="3.0.0",
        fixed={"instruction": _SUMMARISE},
        meaning="articles and their highlights",
    ),
    "xsum": Named(
        "EdinburghNLP/xsum",
        {"input": "document", "output": "summary"},
        fixed={"instruction": _SUMMARISE},
        meaning="BBC articles and a sentence on each",
    ),
    "ag-news": Named(
        "fancyzhx/ag_news",
        {"text": "text"},
        fixed={"instruction": _COMPLETE},
        completion=True,
        meaning="short news; the second half of the words after the first",
    ),
    "alpaca": Named("tatsu-lab/alpaca", _ALPACA, meaning="generated instructions of all kinds"),
    "dolly": Named(
        "databricks/databricks-dolly-15k",
        {"instruction": "instruction", "context": "context", "response": "response"},
        meaning="instructions and answers written by people",
    ),
    "tofu": Named(
        "locuslab/TOFU",
        {"question": "question", "answer": "answer"},
        config="full",
        meaning="questions about authors who do not exist; configurations such as forget10, retain90",
    ),
    "bbc-news": Named("SetFit/bbc-news", {"text": "text"}, meaning="articles of 2004 and 2005, plain text"),
    "bbc-real-time": Named(
        "RealTimeData/bbc_news_alltime",
        {"text": "content"},
        config="2024-01",
        meaning="articles, plain text; a month a configuration",
    ),
    "wikimia-members": Named(
        "swj0419/WikiMIA",
        {"text": "input"},
        split="WikiMIA_length64",
        where={"label": 1},
        meaning="Wikipedia before 2017, plain text; splits WikiMIA_length32, 64, 128, 256",
    ),
    "wikimia-nonmembers": Named(
        "swj0419/WikiMIA",
        {"text": "input"},
        split="WikiMIA_length64",
        where={"label": 0},
        meaning="Wikipedia on events of 2023, plain text; the same splits",
    ),
}


def list_named() -> str:
    """Plain lines on the data sets, for `indelible list`."""
    lines = []
    for name, known in NAMED.items():
        columns = ", ".join(dict.fromkeys([*known.columns.values(), *known.where]))
        config = f" ({known.config})" if known.config else ""
        lines.append(f"named:{name}\n    {known.meaning}\n    {known.hub}{config}: {columns}")
    return "\n".join(lines)


def load_named(given: str, split: str) -> Rows:
    """The rows of a named data set, in our columns.

    Args:
        given: see the module.
        split: where `given` names none; "train", the setting's own default, leaves the choice to the set.

    Raises:
        DataError: one line: an unknown name, no such file or split, other columns, no row left.
    """
    rest, _, wanted = given.removeprefix("named:").partition("#")
    head, _, path = rest.partition("@")
    name, _, config = head.partition(":")
    if name not in NAMED:
        raise DataError(did_you_mean(name, list(NAMED), "data set"))
    known = NAMED[name]
    found = _SPLIT.fullmatch(wanted)
    if found is None:
        fail(f"{given}: '#{wanted}' names no split; expected #SPLIT, #SPLIT[FROM:TO] or #[FROM:TO] in rows or percent.")
    chosen = found[1] or (split if split != "train" else known.split)
    if path:
        read = _local(given, Path(path).expanduser(), chosen, is_named=bool(found[1]))
    else:
        config = config or known.config or ""
        read = load_rows(f"{known.hub}:{config}" if config else known.hub, chosen)
    stretch = slice(_row(found[2], len(read.rows), 0), _row(found[3], len(read.rows), len(read.rows)))
    rows, places = read.rows[stretch], list(read.places)[stretch]
    digest = read.sha256
    if known.where or found[2] or found[3]:  # a part of a file is other data than all of it
        digest = hashlib.sha256(f"{digest} {name} {found[2]}:{found[3]}".encode()).hexdigest()
    out = replace(read, rows=rows, places=places, kind=f"{name} ({read.kind})", sha256=digest)
    return _mapped(given, known, out)


def _row(given: str | None, n: int, default: int) -> int:
    if given is None:
        return default
    return round(n * int(given[:-1]) / 100) if given.endswith("%") else min(int(given), n)


def _local(given: str, path: Path, split: str, *, is_named: bool) -> Rows:
    if not path.exists():
        fail(f"{given}: no such file or folder; check the path.")
    if not path.is_dir():
        if is_named:
            fail(f"{given}: a file has no splits; expected #[FROM:TO], or a folder with a file a split.")
        return load_rows(str(path), split)
    if any((path / saved).exists() for saved in _SAVED):
        return load_rows(str(path), split)
    files = [p for folder in (path, path / "data") if folder.is_dir() for p in sorted(folder.iterdir())]
    stems = {p: p.name.lower().removesuffix(".gz") for p in files if p.is_file()}
    stems = {p: next((n.removesuffix(k) for k in _KINDS if n.endswith(k)), "") for p, n in stems.items()}
    whole = re.compile(rf"(?:.*_)?{re.escape(split.lower())}(-\d+-of-\d+)?")
    parts = {p: match[1] for p, stem in stems.items() if (match := whole.fullmatch(stem))}
    if not parts or (len(parts) > 1 and None in parts.values()):
        what = f"{len(parts)} files" if parts else "no file"
        fail(f"{given}: {what} of split '{split}' in the folder; found {listed([p.name for p in files])}.")
    read = [load_rows(str(p), split) for p in parts]
    if len(read) == 1:
        return read[0]
    rows = [row for part in read for row in part.rows]
    digest = hashlib.sha256("".join(part.sha256 for part in read).encode()).hexdigest()
    return Rows(rows, range(1, len(rows) + 1), "row", read[0].kind, digest)


def _mapped(given: str, known: Named, read: Rows) -> Rows:
    """Rows of the set as rows of one of our layouts."""
    needed = [*known.columns.values(), *known.where]
    kept: list[dict[str, Any]] = []
    places: list[int] = []
    for row, place in zip(read.rows, read.places, strict=True):
        missing = [c for c in needed if c not in row]
        if missing:
            where = f"{given}, {read.unit} {place}"
            fail(f"{where}: no column '{missing[0]}'; found {listed(row)}; expected {listed(needed)}.")
        if any(str(row[c]) != str(value) for c, value in known.where.items()):
            continue
        ours = {**known.fixed, **{our: row[its] for our, its in known.columns.items()}}
        kept.append(_completion(ours) if known.completion else ours)
        places.append(place)
    if read.rows and not kept:
        fail(f"{given}: none of {len(read.rows)} rows has {', '.join(f'{c} {v}' for c, v in known.where.items())}.")
    return replace(read, rows=kept, places=places)


def _completion(row: Mapping[str, Any]) -> dict[str, Any]:
    """A text as instruction, its first half of words, and what follows; one word or none has no target."""
    text = row["text"]
    if not isinstance(text, str):
        return dict(row)  # the reader says what is wrong with it
    ends = [m.end() for m in re.finditer(r"\S+", text)]
    cut = ends[len(ends) // 2 - 1] if len(ends) > 1 else len(text)
    return {"instruction": row["instruction"], "input": text[:cut], "output": text[cut:].lstrip()}
