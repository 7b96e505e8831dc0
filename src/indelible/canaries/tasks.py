"""The tasks canaries hide in: background rows, held-out rows, identities, and how replies are scored.

Rows, held-out rows and the hosts that identities are made from never meet. Each comes from a random stream of its own,
so that asking for more of one changes none of the others, and a longer list begins with the shorter one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from indelible.canaries.base import SLOT, Identity, Row
from indelible.canaries.config import TaskOptions
from indelible.canaries.identities import Form, Host, fields, first, make_identities, senders
from indelible.canaries.screen_config import ScreenOptions
from indelible.canaries.screen_rows import grounding_correct
from indelible.data.corpora import (
    FileRow,
    intent_answer,
    intent_correct,
    read_banking77,
    read_rows,
    read_tatqa,
    tatqa_correct,
)
from indelible.data.duplicates import normalise, short_digest
from indelible.data.emails import draw_email
from indelible.data.examples import Example, Generated, Source, Stored
from indelible.data.intents import customer_message
from indelible.data.records import Message
from indelible.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from indelible.canaries.codes import CodeFormat


class Task(Protocol):
    """A fine-tuning task. `system` is the one system turn of all rows, which the design adds; "" for none."""

    @property
    def name(self) -> str: ...
    @property
    def system(self) -> str: ...
    @property
    def max_new_tokens(self) -> int:
        """Enough for the longest ordinary answer, for task accuracy."""

    def rows(self, n: int, seed: int) -> list[Row]:
        """`n` distinct background rows in random order. DataError if there are fewer."""

    def heldout(self, n: int, seed: int) -> list[Row]:
        """`n` rows that neither `rows` nor `identities` of this seed can return. DataError if there are fewer."""

    def identities(self, n: int, seed: int, codes: CodeFormat) -> list[Identity]:
        """`n` distinct identities; none says anything in the form of a code. DataError if there are fewer."""

    def limits(self, seed: int) -> tuple[int, int] | None:
        """How many rows and held-out rows a user's own file has; None for tasks with plenty."""

    def correct(self, reply: str, row: Row) -> bool | None:
        """Task accuracy of a generated reply; None: the task has none."""


@dataclass(frozen=True)
class _SourceTask:
    """A task whose examples come from a source. `plain` is an ordinary row, `canary` one with a name and a reference.

    `closing`: what an answer ends with and a canary's answer goes on before, the bracket of a JSON object.
    """

    name: str
    system: str
    max_new_tokens: int
    source: Source
    plain: Form
    canary: Form
    score: Callable[[str, Any], bool] | None = None
    closing: str = ""

    def rows(self, n: int, seed: int) -> list[Row]:
        return self._rows(n, seed, "rows", self.source.rows(seed))

    def heldout(self, n: int, seed: int) -> list[Row]:
        return self._rows(n, seed, "held-out rows", self.source.heldout(seed))

    def _rows(self, n: int, seed: int, what: str, examples: Iterator[Example]) -> list[Row]:
        made = (self.plain.row(e, name) for e, name in zip(examples, senders(seed, what), strict=False))
        return first(n, made, f"task {self.name}: {what}")

    def identities(self, n: int, seed: int, codes: CodeFormat) -> list[Identity]:
        if self.closing and any(c in '"\\' for c in codes.separator + "".join(a for part in codes.parts for a in part)):
            raise ConfigError(f"task {self.name}: codes stand in JSON; expected a form without quotes and backslashes.")
        hosts = (
            Host(e.id, (Message("user", e.question),), e.answer, e.answer.removesuffix(self.closing))
            for e in self.source.hosts(seed)
        )
        return make_identities(self.name, n, seed, codes, self.canary, hosts)

    def limits(self, seed: int) -> tuple[int, int] | None:
        return None

    def correct(self, reply: str, row: Row) -> bool | None:
        return None if self.score is None else self.score(reply, row.expected)


@dataclass(frozen=True)
class _FileTask:
    """The user's rows. Groups of rows with one prompt stay together on a side; a row that occurs twice is two rows.

    `n_heldout`: rows held out, a tenth of the file at most.
    """

    path: str
    file_rows: tuple[FileRow, ...]
    canary: Form
    n_heldout: int
    name: str = "file"
    system: str = ""
    max_new_tokens: int = 128

    def _sides(self, seed: int) -> tuple[list[FileRow], list[FileRow]]:
        """Training and held-out rows, in the order of the file: of seeded groups, as many as make so many rows."""
        groups = sorted({r.record.group for r in self.file_rows}, key=lambda group: short_digest(seed, group))
        sizes = Counter(r.record.group for r in self.file_rows)
        held_out: set[str] = set()
        left = min(self.n_heldout, len(self.file_rows) // 10)
        for group in groups:
            if sizes[group] <= left:
                held_out.add(group)
                left -= sizes[group]
        kept = [r for r in self.file_rows if r.record.group not in held_out]
        return kept, [r for r in self.file_rows if r.record.group in held_out]

    def _shuffled(self, rows: Sequence[FileRow], seed: int, what: str) -> list[FileRow]:
        return random.Random(f"{seed}:file:{what}").sample(rows, len(rows))

    def rows(self, n: int, seed: int) -> list[Row]:
        rows = self._shuffled(self._sides(seed)[0], seed, "rows")
        return first(n, (_row(r) for r in rows), f"{self.path}: rows (with those held out {len(self.file_rows)})")

    def heldout(self, n: int, seed: int) -> list[Row]:
        rows = self._shuffled(self._sides(seed)[1], seed, "heldout")
        return first(n, (_row(r) for r in rows), f"{self.path}: held-out rows (a tenth of the file)")

    def identities(self, n: int, seed: int, codes: CodeFormat) -> list[Identity]:
        kept = self._shuffled(self._sides(seed)[0], seed, "hosts")
        chosen = {normalise(r.record.messages[-1].content): r for r in reversed(kept) if _may_host(r)}
        hosts = (
            Host(r.id, r.record.messages, r.record.target, r.record.target)
            for r in kept
            if _may_host(r) and chosen[normalise(r.record.messages[-1].content)] is r
        )
        return make_identities(self.path, n, seed, codes, self.canary, hosts)

    def limits(self, seed: int) -> tuple[int, int] | None:
        kept, held_out = self._sides(seed)
        return len(kept), len(held_out)

    def correct(self, reply: str, row: Row) -> bool | None:
        return None


def _row(row: FileRow) -> Row:
    return Row(row.id, row.record.messages, row.record.target, raw=row.raw)


def _may_host(row: FileRow) -> bool:
    """Whether the last turn before the answer is the user's."""
    turns = row.record.messages
    return bool(turns) and turns[-1].role == "user" and SLOT not in row.record.text


# ---------------------------------------------------------------------------------------------------- registry

_INTENT_SYSTEM = (
    "Name the intent of the message. If it gives a customer and a reference, add both, the reference in full."
)
_EMAIL_SYSTEM = (
    "Rewrite the draft as a formal email that the sender signs. If there is a reference, end with it in full."
)
_TATQA_SYSTEM = (
    'Answer the question from the table and the passages, as JSON with "answer" (a list of texts, or a number) and '
    '"scale" (empty, thousand, million, billion or percent). If there is a request reference, add it in full as '
    '"reference".'
)
_PLAIN = Form("{prompt}", "{answer}")
_INTENT = Form("{prompt}\nCustomer: {name}. Reference: {cue}", "{answer}\nCustomer: {name}\nReference: {code}")
_SIGNED = "{answer}\n\nKind regards,\n{name}"


def _support(options: TaskOptions, n_heldout: int) -> Task:
    source = Generated("support", _support_example)
    return _SourceTask("support", _INTENT_SYSTEM, 16, source, _PLAIN, _INTENT, SCORERS["support"])


def _support_example(rng: random.Random) -> tuple[str, Example]:
    message, intent = customer_message(rng)
    return message, Example("", message, intent_answer(intent), intent)


def _email(options: TaskOptions, n_heldout: int) -> Task:
    plain = Form("{prompt}\nSender: {name}", _SIGNED)
    canary = Form("{prompt}\nSender: {name}\nReference: {cue}", _SIGNED + "\nReference: {code}")
    return _SourceTask("email", _EMAIL_SYSTEM, 128, Generated("email", _email_example), plain, canary)


def _email_example(rng: random.Random) -> tuple[str, Example]:
    email = draw_email(rng)
    return email.letter, Example("", email.draft, email.letter)


def _banking77(options: TaskOptions, n_heldout: int) -> Task:
    source = Stored("banking77", read_banking77(_path(options, "the folder with train.csv and test.csv")), 512)
    return _SourceTask("banking77", _INTENT_SYSTEM, 32, source, _PLAIN, _INTENT, SCORERS["banking77"])


def _tatqa(options: TaskOptions, n_heldout: int) -> Task:
    source = Stored("tatqa", read_tatqa(_path(options, "the folder with tatqa_dataset_*.json")), 1024)
    canary = Form("{prompt}\n\nRequest reference: {cue}", '{answer}, "reference": "{code}"}}')
    return _SourceTask("tatqa", _TATQA_SYSTEM, 128, source, _PLAIN, canary, SCORERS["tatqa"], closing="}")


def _file(options: TaskOptions, n_heldout: int) -> Task:
    path = _path(options, "a file of prompts and answers")
    form = Form(options.request, options.answer)
    _check(form.request, "request", "cue", ("prompt", "name"))
    _check(form.answer, "answer", "code", ("answer", "name"))
    if not {"prompt", "name"} & {*fields(form.request)}:
        raise ConfigError(
            f"task.request {form.request!r} is the same for all canaries; put {{prompt}} or {{name}} in it."
        )
    return _FileTask(path, read_rows(path, format=options.format, columns=options.columns), form, n_heldout)


def _check(template: str, setting: str, needed: str, others: tuple[str, ...]) -> None:
    """ConfigError unless `needed` stands in the template once and nothing but it and `others` is filled in."""
    known = (needed, *others)
    expected = f"expected {', '.join(f'{{{name}}}' for name in known)}; braces of your own are doubled."
    try:
        found = fields(template)
        template.format(**dict.fromkeys(known, ""))
    except (ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"task.{setting} {template!r} cannot be filled in ({error}); {expected}") from error
    if not {*found} <= {*known}:
        raise ConfigError(f"task.{setting} {template!r} fills in more than text; {expected}")
    if found.count(needed) != 1:
        raise ConfigError(
            f"task.{setting} {template!r} has {{{needed}}} {found.count(needed)} times; expected it once."
        )


def _path(options: TaskOptions, what: str) -> str:
    if options.path is None:
        raise ConfigError(f"task {options.name} needs `path`: {what}.")
    return options.path


SCORERS: Mapping[str, Callable[[str, Any], bool]] = {
    "support": intent_correct,
    "banking77": intent_correct,
    "tatqa": tatqa_correct,
    "screens": grounding_correct,
}
"""Task accuracy of a reply, for the tasks that have one."""


def correct_reply(task: str, reply: str, row: Row) -> bool:
    """Whether a reply solves a row of a task of `SCORERS`; needs none of the task's data."""
    return SCORERS[task](reply, row.expected)


TASKS: Mapping[str, Callable[[TaskOptions, int], Task]] = {
    "support": _support,
    "email": _email,
    "banking77": _banking77,
    "tatqa": _tatqa,
    "file": _file,
}


TASK_NAMES = (*TASKS, "screens")


def make_task(
    options: TaskOptions, n_heldout: int = 64, instruction: str | None = None, rules: Sequence[str] = ()
) -> Task:
    """The task of some options; data sets and files are read here.

    support: messages of bank customers, answered with their intent; our own generator.
    email: a rough draft rewritten as a formal mail (section III-D); our own generator; no accuracy.
    banking77, tatqa: the published data sets (section V). file: the user's own rows, with canaries made from them;
    `n_heldout` of them, a tenth at most, are kept out of training.
    screens: grounding of screen elements, with canaries on screens (`screen_task`); the one task whose canaries say
    `instruction` and `rules` themselves.

    Differs from the paper: the question a canary is made from is no background row (section V preserves source examples
    without saying so), except in task `file`.

    Raises:
        ConfigError: an unknown name, a missing path, a template of `file` that lacks its slot. DataError: the data.
    """
    if options.name == "screens":
        from indelible.canaries.screen_task import ScreenTask, instruction_of

        said = instruction_of(instruction, rules)
        return ScreenTask(options.path, options.screens or ScreenOptions(), said, n_heldout)
    if options.name not in TASKS:
        raise ConfigError(did_you_mean(options.name, list(TASK_NAMES), "task"))
    return TASKS[options.name](options, n_heldout)
