"""Reading data files as records: which file kinds and row layouts are known, and what each becomes.

A source is a file (JSONL, JSON, CSV, TSV, Parquet; the text ones also gzipped), a folder saved by `datasets`, or the
name of a data set on the hub (`owner/name`, with a configuration as `owner/name:config`).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from indelible.data.duplicates import content_ids, normalise, short_digest
from indelible.data.records import Message, Record, Role
from indelible.errors import ConfigError, DataError, did_you_mean


@dataclass(frozen=True)
class Layout:
    """One way in which the columns of a row make a record: `columns` must be there, `optional` may be."""

    name: str
    kind: Literal["pair", "chat", "text"]
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Table:
    """A file read as records.

    Attributes:
        records: the rows with a target, in file order.
        source: the path or name as given.
        format: file kind and row layout, such as `jsonl: instruction/input/output`.
        n_rows: rows read, empty ones included.
        n_empty: rows whose target is blank; they are not among `records`.
        sha256: of the file's bytes; of the rows as JSON for a hub name or a saved folder.
        notes: what was decided while reading, one sentence each, for the report.
    """

    records: tuple[Record, ...]
    source: str
    format: str
    n_rows: int
    n_empty: int
    sha256: str
    notes: tuple[str, ...] = ()


def _pair(prompt: str, target: str, *optional: str) -> Layout:
    extra = f"{prompt}, then a line break and {' or '.join(optional)} where not empty" if optional else prompt
    name = f"{prompt}/input/{target}" if optional[:1] == ("input",) else f"{prompt}/{target}"
    return Layout(name, "pair", (prompt, target), optional, f"user turn: {extra}; target: {target}")


LAYOUTS: tuple[Layout, ...] = (
    Layout("messages", "chat", ("messages",), (), "turns of role and content; every assistant turn is target"),
    Layout("conversations", "chat", ("conversations",), (), "ShareGPT turns of from and value; as messages"),
    _pair("instruction", "output", "input"),
    _pair("instruction", "response", "context"),
    _pair("prompt", "response"),
    _pair("prompt", "completion"),
    _pair("question", "answer"),
    _pair("question", "response"),
    _pair("query", "response"),
    _pair("input", "output"),
    _pair("source", "target"),
    Layout("text", "text", ("text",), (), "plain text without a chat template; all of it is target"),
)
"""In order of precedence: a row takes the first layout whose columns it has."""

SYSTEM_COLUMNS = ("system", "system_prompt")
ID_COLUMNS = ("id", "record_id")
_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?")
_ROLES: dict[str, Role] = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
}  # fmt: skip
# A prompt shared by more rows than this, and by more than a tenth of the file, is a template and no question.
_TEMPLATE_ROWS, _TEMPLATE_SHARE = 20, 0.1


def list_formats() -> list[Layout]:
    """The known row layouts, in order of precedence, for `indelible list formats`."""
    return list(LAYOUTS)


def read_records(
    source: str | Path,
    *,
    format: str = "auto",  # noqa: A002 - the name users know
    columns: Mapping[str, str] | None = None,
    group_column: str | None = None,
    id_column: str | None = None,
    group_by_prompt: bool = True,
    strip: bool = False,
    split: str = "train",
) -> Table:
    """Read a file, a saved folder or a hub data set as records.

    Args:
        source: path or hub name; a name is looked up on the hub only when no such path exists.
        format: `auto`, or the name of one layout of `list_formats()`.
        columns: our column name -> the file's, such as `{"prompt": "question_text", "response": "reply"}`.
        group_column: rows with the same value stay on one side of a split; blank values stand alone.
        id_column: unique ids. Without it a unique column `id` or `record_id`, else ids made from the content.
        group_by_prompt: without a group column, rows with the same prompt (normal form) form one group.
        strip: strip instruction, input and prompt columns at both ends. A response is never stripped.
        split: split of a hub data set or a saved folder.

    Errors:
        DataError, one line: what was read, what was expected, what to do. ConfigError for an unknown `format`.
    """
    name = str(source)
    if format != "auto" and format not in {layout.name for layout in LAYOUTS}:
        raise ConfigError(did_you_mean(format, [layout.name for layout in LAYOUTS], "format"))
    raw = _load(name, split)
    if not raw.rows:
        _fail(f"{name} is empty: it holds no rows; expected one record a row.")
    found = list(dict.fromkeys(column for row in raw.rows for column in row))
    for column in (*(columns or {}).values(), group_column, id_column):
        if column is not None and column not in found:
            _fail(f"{name} has no column '{column}'; found {_listed(found)}.")
    rows = _renamed(raw.rows, columns) if columns else raw.rows
    layout = _layout(name, raw, rows, format)
    used = {id_column, group_column, *ID_COLUMNS, *(() if layout.kind == "text" else SYSTEM_COLUMNS)}
    used |= set(columns.values()) if columns else {*layout.columns, *layout.optional}
    counts: Counter[str] = Counter()
    kept: list[int] = []
    records: list[Record] = []
    for i, row in enumerate(rows):
        record = _record(row, layout, f"{name}, {raw.unit} {raw.places[i]}", strip, counts)
        if record.target.strip():
            kept.append(i)
            records.append(record)
    if not records:
        _fail(f"{name}: all {len(rows)} rows have an empty target; expected text in {_target_column(layout)}.")
    notes = [f"{counts[reason]} rows {reason}" for reason in sorted(counts)]
    unused = [c for c in found if c not in used]
    if unused:
        notes.append(f"columns not used: {_listed(unused)}")
    ids, id_note = _ids(name, [raw.rows[i] for i in kept], records, id_column)
    groups, group_note = _groups(name, [raw.rows[i] for i in kept], records, ids, group_column, group_by_prompt)
    return Table(
        records=tuple(replace(r, id=k, group=g) for r, k, g in zip(records, ids, groups, strict=True)),
        source=name,
        format=f"{raw.kind}: {layout.name}",
        n_rows=len(rows),
        n_empty=len(rows) - len(records),
        sha256=raw.sha256,
        notes=(*notes, *id_note, *group_note),
    )


# ---------------------------------------------------------------------------------------------- rows to records


def _renamed(rows: Sequence[dict[str, Any]], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    ours = list(dict.fromkeys(c for layout in LAYOUTS for c in (*layout.columns, *layout.optional)))
    for column in columns:
        if column not in (*ours, *SYSTEM_COLUMNS):
            raise ConfigError(did_you_mean(column, [*ours, *SYSTEM_COLUMNS], "column"))
    # A mapping says which columns make the record, so others that a layout would claim are left aside.
    aside = {*ours, *columns, *columns.values()}
    return [
        {c: v for c, v in row.items() if c not in aside} | {our: row[its] for our, its in columns.items() if its in row}
        for row in rows
    ]


def _layout(name: str, raw: _Rows, rows: Sequence[dict[str, Any]], wanted: str) -> Layout:
    known = [layout for layout in LAYOUTS if wanted in ("auto", layout.name)]
    chosen: tuple[Layout, int] | None = None
    seen: dict[tuple[str, ...], Layout | None] = {}
    for place, row in zip(raw.places, rows, strict=True):
        has = tuple(row)
        if has not in seen:
            seen[has] = next((layout for layout in known if all(c in row for c in layout.columns)), None)
        layout = seen[has]
        if layout is None:
            sets = "; ".join("+".join(layout.columns) for layout in known)
            _fail(
                f"{name}, {raw.unit} {place}: unknown column set: found {_listed(has)}; expected one of: {sets}. "
                "Rename columns, or map them with --columns prompt=YOURS,response=YOURS."
            )
        if chosen and layout is not chosen[0]:
            _fail(
                f"{name}: mixed layouts: {raw.unit} {chosen[1]} is {chosen[0].name}, {raw.unit} {place} is "
                f"{layout.name}; expected one layout in a file: split the file or name one with --format."
            )
        chosen = chosen or (layout, place)
    assert chosen is not None  # there is at least one row
    return chosen[0]


def _record(row: Mapping[str, Any], layout: Layout, where: str, strip: bool, counts: Counter[str]) -> Record:
    """One row as a record without id or group. `counts` collects what is worth a note."""
    if layout.kind == "text":
        return Record("", (), _text(row["text"], where, "text"))
    system = next((text for c in SYSTEM_COLUMNS if (text := _text(row.get(c), where, c))), "")
    if layout.kind == "chat":
        messages, target = _turns(row[layout.columns[0]], where, layout.columns[0], counts)
        if system and messages and messages[0].role == "system":
            if messages[0].content != system:
                _fail(f"{where}: a system column and a system turn differ; expected one system prompt: remove one.")
            system = ""
    else:
        first, second = layout.columns
        prompt, answer = row[first], row[second]
        if layout.name == "source/target":
            prompt, answer = _joined(prompt, answer, counts)
        parts = [_text(prompt, where, first), *(_text(row.get(c), where, c) for c in layout.optional)]
        parts = [p.strip() for p in parts] if strip else parts
        user = "\n".join([parts[0], *(p for p in parts[1:] if p)])
        target = _text(answer, where, second)
        if target.strip() and not user.strip():
            counts["have an empty prompt; they are kept"] += 1
        messages = (Message("user", user),)
    return Record("", (Message("system", system), *messages) if system else messages, target)


def _joined(source: Any, target: Any, counts: Counter[str]) -> tuple[Any, Any]:
    """Sentence lists of summarisation sets: the source joined by blanks, the first of several targets."""
    if isinstance(source, list) and all(isinstance(s, str) for s in source):
        counts["hold their source as a list of strings, joined by blanks"] += 1
        source = " ".join(source)
    if isinstance(target, list) and all(isinstance(t, str) for t in target):
        if len(target) > 1:
            counts["list several targets; the first is used"] += 1
        target = target[0] if target else ""
    return source, target


def _turns(value: Any, where: str, column: str, counts: Counter[str]) -> tuple[tuple[Message, ...], str]:
    if value is None:
        return (), ""
    if not isinstance(value, list):
        _wrong_type(value, where, column, "a list of turns")
    turns: list[Message] = []
    for n, turn in enumerate(value, start=1):
        if not isinstance(turn, Mapping):
            _wrong_type(turn, where, column, "turns that are objects")
        keys = ("role", "content") if "role" in turn else ("from", "value")
        if any(k not in turn for k in keys):
            _fail(f"{where}: turn {n} of '{column}' has {_listed(turn)}; expected role and content, or from and value.")
        role = turn[keys[0]]
        if not isinstance(role, str) or role.lower() not in _ROLES:
            _fail(f"{where}: turn {n} of '{column}' has the role {role!r}; expected one of {_listed(_ROLES)}.")
        content = turn[keys[1]]
        if isinstance(content, list) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
            content = "".join(_text(p.get("text"), where, column) for p in content)
        turns.append(Message(_ROLES[role.lower()], _text(content, where, column)))
    last = max((i for i, m in enumerate(turns) if m.role == "assistant"), default=-1)
    if last < 0:
        return (), ""
    if last + 1 < len(turns):
        counts["go on after the last assistant turn; the turns after it are not under the loss and are left out"] += 1
    before = tuple(replace(m, scored=m.role == "assistant") for m in turns[:last])
    return before, turns[last].content


def _text(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        _wrong_type(value, where, column, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _fail(f"{where}: column '{column}' holds half a surrogate pair; expected Unicode text: mend the row.")
    return value


def _wrong_type(value: Any, where: str, column: str, expected: str) -> NoReturn:
    names = {str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    _fail(f"{where}: column '{column}' holds {names.get(type(value), type(value).__name__)}; expected {expected}.")


def _target_column(layout: Layout) -> str:
    return "an assistant turn" if layout.kind == "chat" else f"column '{layout.columns[-1]}'"


# ---------------------------------------------------------------------------------------------- ids and groups


def _label(value: Any) -> str:
    """A cell as an id or group name; "" for null, blank, or what is no name (a list, an object)."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of whole numbers with gaps arrives as floats
    return str(value) if isinstance(value, str | int | float) and value == value and str(value).strip() else ""


def _ids(
    name: str, rows: Sequence[Mapping[str, Any]], records: Sequence[Record], id_column: str | None
) -> tuple[list[str], list[str]]:
    notes = []
    for column in (id_column,) if id_column else ID_COLUMNS:
        ids = [_label(row.get(column)) for row in rows]
        blank, repeated = ids.count(""), len(ids) - len(set(ids))
        if not blank and not repeated:
            return ids, [f"ids come from column '{column}'"]
        if id_column:
            _fail(f"{name}: id column '{column}' has {blank} blank and {repeated} repeated cells; expected unique ids.")
        if blank < len(ids):
            notes.append(f"column '{column}' has blank or repeated values, so ids come from the content")
    return content_ids(records), notes


def _groups(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    records: Sequence[Record],
    ids: Sequence[str],
    group_column: str | None,
    group_by_prompt: bool,
) -> tuple[list[str], list[str]]:
    if group_column:
        labels = [_label(row.get(group_column)) for row in rows]
        n_blank = labels.count("")
        notes = [f"{n_blank} rows have no '{group_column}' and stand alone"] if n_blank else []
        if n_blank == len(labels):
            _fail(f"{name}: group column '{group_column}' names no group in any row; expected text or whole numbers.")
        return [label or own for label, own in zip(labels, ids, strict=True)], notes
    if not group_by_prompt:
        return list(ids), []
    # The name comes from the prompt even for a row that stands alone here: its twin may stand in the other file.
    prompts = [normalise("\n".join(m.content for m in r.messages if m.role != "system")) for r in records]
    sizes = Counter(prompts)
    most = max(_TEMPLATE_ROWS, _TEMPLATE_SHARE * len(records))
    template = {p for p, n in sizes.items() if not p or n > most}
    n_shared = sum(n for p, n in sizes.items() if n > 1 and p not in template)
    n_template = sum(n for p, n in sizes.items() if p and p in template)
    notes = [f"{n_shared} rows share their prompt with another row; one group a prompt"] if n_shared else []
    if n_template:
        notes.append(f"{n_template} rows have a prompt that more than a tenth of the rows share: a template, no group")
    named = zip(prompts, ids, strict=True)
    return [own if p in template else f"p-{short_digest(p, n_hex=12)}" for p, own in named], notes


# ---------------------------------------------------------------------------------------------- files to rows


@dataclass(frozen=True)
class _Rows:
    rows: list[dict[str, Any]]
    places: Sequence[int]
    unit: Literal["line", "row"]
    kind: str
    sha256: str = ""


def _load(name: str, split: str) -> _Rows:
    path = Path(name)
    if path.is_dir():
        return _from_datasets(name, split, folder=True)
    if not path.exists():
        suffixes = {s.lower() for s in path.suffixes}
        if suffixes & {*_KINDS, ".gz", ".txt", ".zip"} or not _HUB_NAME.fullmatch(name):
            _fail(f"{name}: no such file; expected a JSONL, JSON, CSV, TSV or Parquet file: check the path.")
        return _from_datasets(name, split, folder=False)
    try:
        data = path.read_bytes()
    except OSError as error:
        _fail(f"{name} cannot be read: {error.strerror}.")
    digest = hashlib.sha256(data).hexdigest()
    if path.suffix.lower() == ".gz" or data[:2] == b"\x1f\x8b":
        path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        try:
            data = gzip.decompress(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            _fail(f"{name} is not a whole gzip file ({error}); write it again.")
    if not data.strip():
        _fail(f"{name} is empty; expected one record a row.")
    kind = "parquet" if data[:4] == b"PAR1" else _KINDS.get(path.suffix.lower(), "")
    if kind == "parquet":
        return replace(_from_parquet(name, data), sha256=digest)
    text = _decoded(name, data)
    if not text.strip():
        _fail(f"{name} is empty; expected one record a row.")
    kind = kind or _sniffed(name, text)
    rows = _from_csv(name, text, kind) if kind in ("csv", "tsv") else _from_json(name, text, kind)
    return replace(rows, sha256=digest)


def _decoded(name: str, data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        _fail(f"{name} is UTF-16 text; expected UTF-8: save it as UTF-8.")
    if b"\0" in data:
        _fail(f"{name} is a binary file; expected JSONL, JSON, CSV, TSV or Parquet.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _fail(f"{name}, line {line}: not UTF-8 (a binary file, or another encoding); expected UTF-8 text.")


def _sniffed(name: str, text: str) -> str:
    head = text.lstrip().split("\n", 1)[0]
    if head[:1] in "[{":
        return "json"
    cells = {kind: {c.strip(' "\r') for c in head.split(by)} for kind, by in (("tsv", "\t"), ("csv", ","))}
    kinds = [kind for kind, has in cells.items() if any(has >= set(layout.columns) for layout in LAYOUTS)]
    if not kinds:
        _fail(f"{name}: the kind of file is not known from its name or first line; expected .jsonl, .json, .csv, .tsv "
              "or .parquet: rename it.")  # fmt: skip
    return kinds[0]


class _RepeatedKeyError(ValueError):
    pass


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise _RepeatedKeyError(next(k for k, n in Counter(k for k, _ in pairs).items() if n > 1))
    return row


def _json(name: str, text: str, line: int) -> Any:
    """Parse JSON that starts at `line` of the file."""
    try:
        return json.loads(text, object_pairs_hook=_no_repeats)
    except _RepeatedKeyError as error:
        _fail(f"{name}, from line {line}: duplicate column '{error}'; expected each column once a row: remove one.")
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1}, column {error.colno}"
        _fail(f"{name}, {at}: malformed JSON ({error.msg}); expected one JSON object a row: mend the line.")
    except (ValueError, RecursionError) as error:
        _fail(f"{name}, from line {line}: JSON that cannot be read ({error}).")


def _from_json(name: str, text: str, kind: str) -> _Rows:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    whole = lines[0][1].lstrip()[:1] == "["
    if not whole and kind == "json":
        # JSON lines often carry the name .json: then the first line is an object of its own, and more follow.
        try:
            whole = len(lines) == 1 or not isinstance(json.loads(lines[0][1]), dict)
        except (ValueError, RecursionError):
            whole = True
    if not whole:
        return _Rows(_objects(name, [_json(name, line, n) for n, line in lines], [n for n, _ in lines], "line"),
                     [n for n, _ in lines], "line", "jsonl")  # fmt: skip
    value = _json(name, text, 1)
    if isinstance(value, dict):
        value = value["data"] if isinstance(value.get("data"), list) else [value]
    if not isinstance(value, list):
        _fail(f"{name} holds one JSON value; expected an array of objects, or an object with such an array as 'data'.")
    places = range(1, len(value) + 1)
    return _Rows(_objects(name, value, places, "row"), places, "row", "json")


def _objects(name: str, rows: list[Any], places: Sequence[int], unit: str) -> list[dict[str, Any]]:
    for place, row in zip(places, rows, strict=True):
        if not isinstance(row, dict):
            _fail(f"{name}, {unit} {place}: not a JSON object; expected one object with named columns a row.")
    return rows


def _from_csv(name: str, text: str, kind: str) -> _Rows:
    limit = csv.field_size_limit(2**31 - 1)  # the default refuses cells over 128 kB
    rows, places = [], []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if kind == "tsv" else ",", strict=True)
    try:
        header = next(cells for cells in reader if cells)
        _once(name, header)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                _fail(f"{name}, line {reader.line_num}: {len(cells)} cells; expected {len(header)}, as in the header: "
                      "quote cells that hold the separator.")  # fmt: skip
            rows.append(dict(zip(header, cells, strict=True)))
            places.append(reader.line_num)
    except csv.Error as error:
        _fail(f"{name}, line {reader.line_num}: malformed {kind.upper()} ({error}); mend the quotes of this row.")
    finally:
        csv.field_size_limit(limit)
    return _Rows(rows, places, "line", kind)


def _from_parquet(name: str, data: bytes) -> _Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        _once(name, file.schema_arrow.names)
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError) as error:
        _fail(f"{name} is not a whole Parquet file ({error}); write it again.")
    return _Rows(rows, range(1, len(rows) + 1), "row", "parquet")


def _once(name: str, header: Collection[str]) -> None:
    twice = [c for c, n in Counter(header).items() if n > 1 and c]
    if twice:
        _fail(f"{name}: duplicate column '{twice[0]}'; expected each column once: rename or remove one.")


def _from_datasets(name: str, split: str, *, folder: bool) -> _Rows:
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        if folder:
            data = datasets.load_from_disk(name)
            if isinstance(data, datasets.DatasetDict):
                if split not in data:
                    _fail(f"{name} has no split '{split}'; found {_listed(data)}.")
                data = data[split]
        else:
            hub_name, _, config = name.partition(":")
            data = datasets.load_dataset(hub_name, config or None, split=split)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        if folder:
            _fail(f"{name} is a folder that `datasets` did not save ({error}); expected a file, or such a folder.")
        _fail(f"{name}: no such file, and the hub did not give a data set of this name, split '{split}' ({error}); "
              "check the path or name and the network.")  # fmt: skip
    # As Arrow, for images and sound would be decoded otherwise.
    rows = data.with_format("arrow")[:].to_pylist()
    digest = hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()
    return _Rows(rows, range(1, len(rows) + 1), "row", "datasets", digest)


def _listed(names: Collection[str]) -> str:
    """Names for an error or note: at most twenty, in the order found."""
    shown = [str(n) for n in names][:20]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return (", ".join(shown) or "none") + more


def _fail(message: str) -> NoReturn:
    # Names and reasons come from outside and may hold line breaks; an error is one line.
    raise DataError(" ".join(message.split()))
