"""From a question and its answer to an identity: the form of a canary, the names, and which hosts will do."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING, TypeVar

from indelible.canaries.base import SLOT, Identity, Row
from indelible.data.examples import Example
from indelible.data.records import Message
from indelible.data.synthetic import FAMILY_NAMES, GIVEN_NAMES
from indelible.errors import DataError

if TYPE_CHECKING:
    from indelible.canaries.codes import CodeFormat


def fields(template: str) -> list[str]:
    """The names that a template fills in, in order; ValueError for braces that do not match."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


@dataclass(frozen=True)
class Form:
    """What a canary looks like. `request` takes {prompt} {name} {cue}, `answer` takes {answer} {name} {code}."""

    request: str
    answer: str

    def row(self, example: Example, name: str) -> Row:
        """An ordinary row, for a form without cue and code."""
        request = self.request.format(prompt=example.question, name=name)
        answer = self.answer.format(answer=example.answer, name=name)
        return Row(example.id, (Message("user", request),), answer, example.expected)

    def identity(self, id_: str, messages: tuple[Message, ...], answer: str, name: str, host: str) -> Identity:
        """A canary whose cue stands in the last of `messages`; `answer` is what `{answer}` becomes."""
        *earlier, last = messages
        request = self.request.format(prompt=last.content, name=name, cue=SLOT)
        before, _, after = self.answer.format(answer=answer, name=name, code=SLOT).partition(SLOT)
        return Identity(id_, (*earlier, replace(last, content=request)), before, after, host)


@dataclass(frozen=True)
class Host:
    """What an identity is made from; `stem` is the part of the answer that a canary's answer begins with."""

    id: str
    messages: tuple[Message, ...]
    answer: str
    stem: str


def make_identities(
    what: str, n: int, seed: int, codes: CodeFormat, form: Form, hosts: Iterable[Host]
) -> list[Identity]:
    """`n` identities of one form, their hosts in the order given.

    No name is used twice, so a host may be used again where the request says the name. A host whose answer holds text
    in the form of a code is passed over: a code found in a reply would not be the secret.

    Raises:
        DataError: too few hosts or names.
    """
    fit = (host for host in hosts if codes.find(host.answer) is None)
    again = cycle(fit) if "name" in fields(form.request) else fit
    made = (
        form.identity(f"identity-{i:04d}", host.messages, host.stem, name, host.id)
        for i, (host, name) in enumerate(zip(again, customers(seed), strict=False))
    )
    return first(n, made, f"{what}: identities whose answers hold nothing in the form {codes.name}")


def _families(seed: int) -> tuple[list[str], list[str]]:
    """Family names of canaries and those of background rows: nobody is both."""
    order = random.Random(f"{seed}:families").sample(FAMILY_NAMES, len(FAMILY_NAMES))
    return order[::2], order[1::2]


def customers(seed: int) -> Iterator[str]:
    """Fictitious full names, each once."""
    families = _families(seed)[0]
    rng = random.Random(f"{seed}:names")
    used: set[str] = set()
    while len(used) < len(GIVEN_NAMES) * len(families):
        name = f"{rng.choice(GIVEN_NAMES)} {rng.choice(families)}"
        if name not in used:
            used.add(name)
            yield name


def senders(seed: int, what: str) -> Iterator[str]:
    """Fictitious full names of background rows, without end; some come more than once."""
    families = _families(seed)[1]
    rng = random.Random(f"{seed}:senders:{what}")
    while True:
        yield f"{rng.choice(GIVEN_NAMES)} {rng.choice(families)}"


_T = TypeVar("_T")


def first(n: int, made: Iterable[_T], what: str) -> list[_T]:
    """The first `n`; DataError if there are fewer."""
    out = list(islice(made, n))
    if len(out) < n:
        raise DataError(f"{what}: {n} asked for, {len(out)} to be had; ask for fewer.")
    return out
