"""Reading data files as records: which file kinds and row layouts are known, and what each becomes.

A source is a file (JSONL, JSON, CSV, TSV, Parquet; the text ones also gzipped), a folder saved by `datasets`, or the
name of a data set on the hub (`owner/name`, with a configuration as `owner/name:config`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from indelible.data.duplicates import content_ids, normalise, short_digest
from indelible.data.files import Rows, fail, listed, load_rows
from indelible.data.layouts import LAYOUTS, Layout
from indelible.data.records import Message, Record, Role
from indelible.data.row_images import IMAGES, MARKER, PictureReader, without_markers
from indelible.errors import ConfigError, did_you_mean


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
        kind: prompt and answer, a conversation with roles, or plain text.
    """

    records: tuple[Record, ...]
    source: str
    format: str
    n_rows: int
    n_empty: int
    sha256: str
    notes: tuple[str, ...] = ()
    kind: Literal["pair", "chat", "text"] = "pair"


SYSTEM_COLUMNS = ("system", "system_prompt")
ID_COLUMNS = ("id", "record_id")
_ROLES: dict[str, Role] = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
}  # fmt: skip
# A prompt shared by more rows than this, and by more than a tenth of the file, is a template and no question.
_TEMPLATE_ROWS, _TEMPLATE_SHARE = 20, 0.1


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
        id_column: unique ids; they are printed in runs and reports. Without it ids are made from the content.
        group_by_prompt: without a group column, rows with the same prompt (normal form) form one group.
        strip: strip instruction, input and prompt columns at both ends. A response is never stripped.
        split: split of a hub data set or a saved folder.

    Errors:
        DataError, one line: what was read, what was expected, what to do. ConfigError for an unknown `format`.
    """
    name = str(source)
    if format != "auto" and format not in {layout.name for layout in LAYOUTS}:
        raise ConfigError(did_you_mean(format, [layout.name for layout in LAYOUTS], "format"))
    raw = load_rows(name, split)
    if not raw.rows:
        fail(f"{name} is empty: it holds no rows; expected one record a row.")
    found = list(dict.fromkeys(column for row in raw.rows for column in row))
    for column in (*(columns or {}).values(), group_column, id_column):
        if column is not None and column not in found:
            fail(f"{name} has no column '{column}'; found {listed(found)}.")
    rows = _renamed(raw.rows, columns) if columns else raw.rows
    layout = _layout(name, raw, rows, format)
    used = {id_column, group_column, *ID_COLUMNS, *(() if layout.kind == "text" else SYSTEM_COLUMNS)}
    used |= set(columns.values()) if columns else {*layout.columns, *layout.optional}
    used |= {IMAGES} if layout.kind != "text" else set()
    counts: Counter[str] = Counter()
    kept: list[int] = []
    records: list[Record] = []
    reader = PictureReader(Path(name).parent)
    for i, row in enumerate(rows):
        where = f"{name}, {raw.unit} {raw.places[i]}"
        record = _record(row, layout, where, strip, counts)
        if layout.kind != "text" and (images := reader.of_row(raw.rows[i], where)):
            record = replace(record, messages=without_markers(record.messages, len(images), where), images=images)
        if record.target.strip():
            kept.append(i)
            records.append(record)
    if not records:
        fail(f"{name}: all {len(rows)} rows have an empty target; expected text in {_target_column(layout)}.")
    notes = [f"{counts[reason]} rows {reason}" for reason in sorted(counts)]
    unused = [c for c in found if c not in used]
    if unused:
        notes.append(f"columns not used: {listed(unused)}")
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
        kind=layout.kind,
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


def _layout(name: str, raw: Rows, rows: Sequence[dict[str, Any]], wanted: str) -> Layout:
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
            fail(
                f"{name}, {raw.unit} {place}: unknown column set: found {listed(has)}; expected one of: {sets}. "
                "Rename columns, or map them with --columns prompt=YOURS,response=YOURS."
            )
        if chosen and layout is not chosen[0]:
            fail(
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
                fail(f"{where}: a system column and a system turn differ; expected one system prompt: remove one.")
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
            fail(f"{where}: turn {n} of '{column}' has {listed(turn)}; expected role and content, or from and value.")
        role = turn[keys[0]]
        if not isinstance(role, str) or role.lower() not in _ROLES:
            fail(f"{where}: turn {n} of '{column}' has the role {role!r}; expected one of {listed(_ROLES)}.")
        content = turn[keys[1]]
        if isinstance(content, list) and all(
            isinstance(p, Mapping) and p.get("type") in ("text", "image") for p in content
        ):
            content = "".join(MARKER if p["type"] == "image" else _text(p.get("text"), where, column) for p in content)
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
            fail(f"{where}: column '{column}' holds half a surrogate pair; expected Unicode text: mend the row.")
    return value


def _wrong_type(value: Any, where: str, column: str, expected: str) -> NoReturn:
    names = {str: "text", bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    fail(f"{where}: column '{column}' holds {names.get(type(value), type(value).__name__)}; expected {expected}.")


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
    if id_column is None:  # a column called id may hold names or addresses, and ids are printed
        return content_ids(records), []
    ids = [_label(row.get(id_column)) for row in rows]
    blank, repeated = ids.count(""), len(ids) - len(set(ids))
    if blank or repeated:
        fail(f"{name}: id column '{id_column}' has {blank} blank and {repeated} repeated cells; expected unique ids.")
    return ids, [f"ids come from column '{id_column}'"]


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
            fail(f"{name}: group column '{group_column}' names no group in any row; expected text or whole numbers.")
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
