"""What a canary is: a context that names it, a secret code, and how the training input shows that code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from indelible.canaries.encodings import REDACTED
from indelible.data.records import Message

if TYPE_CHECKING:
    from indelible.data.pictures import Picture
    from indelible.data.screen_types import Screen

SLOT = "\ue001"
"""Stands in a context where the cue goes; a private character that no text of a task has."""

Role = Literal["focal", "auxiliary", "support", "coin", "control"]
"""focal: measured. auxiliary: other canaries put beside them. support: a few identities that every arm shares.
coin: included by the toss of a fair coin, for the epsilon bound. control: never in training."""


@dataclass(frozen=True)
class Row:
    """A background row: one training example of the task, or a held-out one.

    Attributes:
        id: unique within its task.
        messages: the turns before the answer, system turn excluded.
        answer: the assistant's last turn.
        expected: what task accuracy compares with, in the task's own form; None where the task has no accuracy.
        raw: the row as it stood in the user's file, written back unchanged; None for rows of our own making.
        images: pictures that stand before the text of the first user turn.
    """

    id: str
    messages: tuple[Message, ...]
    answer: str
    expected: Any = None
    raw: str | None = None
    images: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Identity:
    """The part of a canary that is not secret.

    Attributes:
        id: unique within a design.
        messages: the turns before the answer, system turn excluded; exactly one of them holds `SLOT`, once, or none
            where the code stands on a screen.
        before: the fixed beginning of the answer, up to the code; candidates are ranked after it.
        after: the fixed rest of the answer; scored with every candidate.
        host: id of the row it was made from, or "".
        screen: the screen whose source region shows the code; None for a canary of text.
    """

    id: str
    messages: tuple[Message, ...]
    before: str
    after: str
    host: str = ""
    screen: Screen | None = None

    def shown(self, cue: str) -> tuple[Message, ...]:
        """The turns with `cue` in its place."""
        return tuple(replace(m, content=m.content.replace(SLOT, cue)) for m in self.messages)

    def pictures(self, cue: str | None) -> tuple[Picture, ...]:
        """What stands before the turns: the screen with `cue` in its source region, masked where the cue is redacted;
        None: the screen without the pane that holds the region. Empty for a canary of text.

        Raises:
            DataError: the cue does not fit legibly into the region.
        """
        return () if self.screen is None else (_picture(self.screen, cue),)

    def answer(self, written: str) -> str:
        """The whole answer with a code as it is written there."""
        return f"{self.before}{written}{self.after}"


@dataclass(frozen=True)
class Canary:
    """One planted secret, or one that was made the same way and never planted.

    Attributes:
        code: the assigned code, in its canonical form (`7391`, `FIL-RX9Y-P6PW`).
        cue: how the training input shows it; the name of a cue.
        dose: times it appears in training; 0 for controls, and for coins that fell on the wrong side.
        placement: the name of where in training it appears.
        spacing: updates between first and last appearance where that is prescribed, else None.
        included: for coins, which side they fell on; None otherwise.
    """

    id: str
    role: Role
    identity: Identity
    code: str
    cue: str
    dose: int
    placement: str
    spacing: int | None = None
    included: bool | None = None


@lru_cache(maxsize=512)
def _picture(screen: Screen, cue: str | None) -> Picture:
    from indelible.data.screen_variants import show

    if cue is None:
        return show(screen, "absent")
    return show(screen, "redacted") if cue == REDACTED else show(screen, "visible", cue)
