"""Before anything is trained: does every code survive tokenisation and truncation, and does it lie under the loss?

A canary whose code is cut off or masked teaches nothing, and its low exposure would be taken for safety.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from indelible.canaries.base import Canary
from indelible.canaries.design import Design
from indelible.canaries.formats import TrainingRow
from indelible.canaries.probes import probes
from indelible.canaries.screen_preflight import Eyes, check_screens, load_eyes
from indelible.data.chat import ChatFormat, Encoded
from indelible.data.records import Query, Record
from indelible.errors import DataError


class Renderer(Protocol):
    """What turns a question into tokens: a chat format, or for questions with pictures `screen_preflight.Eyes`."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def name(self) -> str: ...
    @property
    def encode(self) -> Callable[[Query], Encoded]: ...


def load_chat(model: str, *, template: str | None, trust_remote_code: bool, chat_data: bool) -> tuple[ChatFormat, int]:
    """The chat format of a model, and the most tokens it takes, without loading its weights.

    Raises:
        ModelError: no such model, or no usable tokenizer or template.
    """
    from transformers import AutoConfig

    from indelible.data.chat import chat_format
    from indelible.models.load import context_length, load_tokenizer, quiet
    from indelible.models.sources import locate, trained_system

    quiet()
    source = locate(model)
    under = locate(source.base) if source.kind == "adapter" and source.base else source
    tokenizer = load_tokenizer(source, under, trust_remote_code=trust_remote_code)
    config = AutoConfig.from_pretrained(under.folder, trust_remote_code=trust_remote_code)
    system = trained_system(source.folder)
    chat = chat_format(tokenizer, template=template, system=system, chat_data=chat_data)
    return chat, context_length(config, tokenizer)


def survival(design: Design, chat: Renderer, *, max_tokens: int) -> dict[str, Any]:
    """Check every canary that is in training, and that every probe fits.

    Args:
        max_tokens: longer rows are cut or left out by the trainer.

    Returns:
        counts for the report: canaries and rows inserted, and of the canaries how many keep their code through
        tokenisation, within `max_tokens`, and under the loss; the longest row and probe, in tokens.

    Raises:
        DataError: a code does not survive, or a probe does not fit.
    """
    planted = {i.canary_id for i in design.insertions}
    checked = [c for c in design.canaries if c.id in planted]
    whole = fits = supervised = longest = 0
    for canary in checked:
        n_tokens, readable, under_loss = _check(design, canary, design.row_of(canary), chat)
        whole += readable
        fits += n_tokens <= max_tokens
        supervised += under_loss
        longest = max(longest, n_tokens)
    facts = {
        "canaries": len(checked),
        "rows_inserted": len(design.insertions),
        "tokenised": whole,
        "untruncated": fits,
        "supervised": supervised,
        "longest_row_tokens": longest,
        "max_tokens": max_tokens,
        "template": chat.name,
    }
    if checked and min(whole, fits, supervised) < len(checked):
        raise DataError(
            f"of {len(checked)} canaries {whole} keep their code through tokenisation, {fits} lie within {max_tokens} "
            f"tokens (the longest row has {longest}), {supervised} have their code under the loss; expected all: "
            "shorten the rows, raise --max-tokens, or give the trainer's own --template"
        )
    asked = [
        Query(p.messages, design.codes.written(p.assigned), p.images)
        for p in probes(design, ("redacted", "as-trained"))
    ]
    most = max((len(chat.encode(q)) for q in asked), default=0)
    if most > max_tokens:
        raise DataError(f"a probe has {most} tokens, the model takes {max_tokens}: shorten the rows")
    facts |= {"longest_probe_tokens": most}
    if isinstance(chat, Eyes):
        facts |= check_screens(design, chat)
    return facts


def load_renderer(
    model: str, *, on_screens: bool, template: str | None, trust_remote_code: bool = False
) -> tuple[Renderer, int]:
    """What a design is checked with: `load_chat`, or for one on screens `load_eyes`."""
    if on_screens:
        return load_eyes(model, template=template, trust_remote_code=trust_remote_code)
    return load_chat(model, template=template, trust_remote_code=trust_remote_code, chat_data=True)


def check_lengths(rows: Iterable[TrainingRow | Record], chat: Renderer, *, max_tokens: int) -> None:
    """Every row of a training file must fit: a row that the trainer leaves out moves all that follow it.

    Raises:
        DataError: a row is too long.
    """
    lengths = [len(chat.encode(Query(row.messages, _answer(row), row.images))) for row in rows]
    long = [number for number, n in enumerate(lengths) if n > max_tokens]
    if long:
        raise DataError(
            f"{len(long)} of {len(lengths)} rows are longer than {max_tokens} tokens (the first is row {long[0]} with "
            f"{lengths[long[0]]}): a trainer that leaves them out moves every later row to another update; take "
            "shorter rows, or a higher --max-tokens"
        )


def _answer(row: TrainingRow | Record) -> str:
    return row.answer if isinstance(row, TrainingRow) else row.target


def _check(design: Design, canary: Canary, row: TrainingRow, chat: Renderer) -> tuple[int, bool, bool]:
    """Tokens of a canary's row; whether its code reads back; whether all of it is under the loss."""
    encoded = chat.encode(Query(row.messages, row.answer, row.images))
    written = design.codes.written(canary.code)
    target = encoded.input_ids[encoded.is_target].tolist()
    readable = written in chat.tokenizer.decode(target)
    start = len(canary.identity.before)
    covered: set[int] = set()
    last = max((span.turn for span in encoded.spans if span is not None), default=0)  # the code is in the last answer
    for span in encoded.spans:
        if span is not None and span.turn == last:
            covered |= set(range(span.start, span.end))
    return len(encoded), readable, covered >= set(range(start, start + len(written)))


def survival_of_labels(design: Design, chat: Renderer, dump: Path) -> dict[str, Any]:
    """The same check on what a trainer really fed its model: one JSON line a training row, in order, with `input_ids`
    and `labels` (-100 where there is no loss).

    Raises:
        DataError: the dump does not fit the design, or a code is not under the loss.
    """
    try:
        lines = [json.loads(line) for line in dump.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{dump} cannot be read as JSON lines of input_ids and labels: {error}") from error
    if len(lines) != design.n_rows:
        raise DataError(f"{dump} has {len(lines)} rows, the design {design.n_rows}: dump all rows in order, unpacked")
    by_id = {c.id: c for c in design.canaries}
    lost: list[str] = []
    for insertion in design.insertions:
        shown = design.row_of(by_id[insertion.canary_id]).messages[-1].content.strip()
        read = chat.tokenizer.decode(lines[insertion.row].get("input_ids") or [])
        if " ".join(shown.split()) not in " ".join(str(read).split()):
            raise DataError(
                f"{dump}, row {insertion.row}: its input is not that of {insertion.canary_id} in this design; dump "
                "the rows of this design's own training file, in order"
            )
        written = design.codes.written(by_id[insertion.canary_id].code)
        if written not in _supervised_text(lines[insertion.row], chat, f"{dump}, row {insertion.row}"):
            lost.append(f"{insertion.canary_id} at row {insertion.row}")
    if lost:
        raise DataError(
            f"{dump}: {len(lost)} of {len(design.insertions)} canary rows have no loss on their code, first {lost[0]}: "
            "look at the trainer's truncation, mask and order"
        )
    return {"rows_checked": len(design.insertions), "supervised": len(design.insertions)}


def _supervised_text(row: dict[str, Any], chat: Renderer, where: str) -> str:
    labels: Sequence[int] | None = row.get("labels")
    if labels is None or "input_ids" not in row or len(labels) != len(row["input_ids"]):
        raise DataError(f"{where}: expected `input_ids` and `labels` of one length")
    return str(chat.tokenizer.decode([token for token in labels if token != -100]))
