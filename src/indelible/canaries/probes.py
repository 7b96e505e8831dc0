"""What a model is asked about a canary: the same context with the code hidden, shown, or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indelible.canaries.base import Canary
from indelible.canaries.config import PROBES, SCREEN_PROBES
from indelible.canaries.design import N_NEW_CODES, Design
from indelible.data.pictures import Picture
from indelible.data.records import Message


@dataclass(frozen=True)
class Probe:
    """One question: the turns before the answer, how the answer begins, and which code would be right.

    Attributes:
        probe: its name.
        repeat: 0, or which of a canary's new codes.
        messages: the turns before the answer, the system turn included.
        before, after: the fixed rest of the answer around the code.
        assigned: the canary's own code.
        supplied: the code that the cue shows or encodes; None where the cue is redacted.
        images: the screen, for a canary on one.
    """

    canary_id: str
    probe: str
    repeat: int
    messages: tuple[Message, ...]
    before: str
    after: str
    assigned: str
    supplied: str | None
    images: tuple[Picture, ...] = ()

    @property
    def begun(self) -> str:
        """How a reply is begun for the model: on screens it is not, the action is generated whole (C-B2)."""
        return "" if self.images else self.before

    def reply(self, written: str) -> str:
        """The reply that says a written code and nothing else."""
        return f"{self.before.removeprefix(self.begun)}{written}{self.after}"


def probes(design: Design, names: Sequence[str] | None = None) -> list[Probe]:
    """Probes of a design's canaries; without `names` all that its task has.

    `redacted` is asked of every canary, the never-inserted ones among them; the others of the focal ones, and on
    screens `visible` of the controls too (C-A3). A cue that is redacted in training carries no code, so what is
    supplied to such a canary instead is shown plainly.
    """
    focal = design.of("focal")
    known = SCREEN_PROBES if design.on_screens else PROBES
    made = []
    for canary in [*focal, *design.of("control", "coin")]:
        for name in known if names is None else names:
            asked = ("redacted", "visible") if design.on_screens and canary.role == "control" else ("redacted",)
            if name not in asked and canary.role != "focal":
                continue
            for repeat, (cue, code) in enumerate(_shown(design, canary, focal, name)):
                text = None if cue is None else design.cue(cue).encode(code)
                shown = canary.identity.shown(text or "")
                supplied = None if cue in (None, "redacted") else code
                made.append(
                    Probe(
                        canary.id,
                        name,
                        repeat,
                        design.turns(shown),
                        canary.identity.before,
                        canary.identity.after,
                        canary.code,
                        supplied,
                        canary.identity.pictures(text),
                    )
                )
    return made


def _shown(design: Design, canary: Canary, focal: Sequence[Canary], name: str) -> list[tuple[str | None, str]]:
    """Cue and code that a probe shows, one a repeat; no cue where the pane is absent."""
    carrying = "visible" if canary.cue == "redacted" else canary.cue
    if name == "redacted":
        return [("redacted", canary.code)]
    if name == "as-trained":
        return [(canary.cue, canary.code)]
    if name == "visible":
        return [("visible", canary.code)]
    if name == "absent":
        return [(None, canary.code)] if design.on_screens else []
    new = design.new_codes.get(canary.id, ())
    if name == "substituted" and design.on_screens:
        return [(carrying, code) for code in new[N_NEW_CODES:]]
    if name == "substituted":
        other = substitute(design, canary, focal)
        return [] if other is None else [(carrying, other.code)]
    return [(carrying if name == "unseen" else "visible", code) for code in new[:N_NEW_CODES]]


def substitute(design: Design, canary: Canary, focal: Sequence[Canary]) -> Canary | None:
    """The next focal canary in cyclic order whose code has the same prefix; None if there is no other.

    Source: section A-B (the next sample's cue) and C-D1 (a donor of the same prefix).
    """
    alike = [c for c in focal if design.codes.prefix(c.code) == design.codes.prefix(canary.code)]
    at = [c.id for c in alike].index(canary.id)
    other = alike[(at + 1) % len(alike)]
    return None if other.id == canary.id else other
