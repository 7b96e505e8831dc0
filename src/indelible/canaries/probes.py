"""What a model is asked about a canary: the same context with the code hidden, shown, or replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indelible.canaries.base import Canary
from indelible.canaries.config import PROBES
from indelible.canaries.design import Design
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
    """

    canary_id: str
    probe: str
    repeat: int
    messages: tuple[Message, ...]
    before: str
    after: str
    assigned: str
    supplied: str | None


def probes(design: Design, names: Sequence[str] = PROBES) -> list[Probe]:
    """All probes of a design's canaries.

    `redacted` is asked of every canary, the never-inserted ones among them; the others of the focal ones. A cue that is
    redacted in training carries no code, so what is supplied to such a canary instead is shown plainly.
    """
    focal = design.of("focal")
    made = []
    for canary in [*focal, *design.of("control", "coin")]:
        for name in names:
            if name != "redacted" and canary.role != "focal":
                continue
            for repeat, (cue, code) in enumerate(_shown(design, canary, focal, name)):
                shown = canary.identity.shown(design.cue(cue).encode(code))
                supplied = None if cue == "redacted" else code
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
                    )
                )
    return made


def _shown(design: Design, canary: Canary, focal: Sequence[Canary], name: str) -> list[tuple[str, str]]:
    """Cue and code that a probe shows, one a repeat."""
    carrying = "visible" if canary.cue == "redacted" else canary.cue
    if name == "redacted":
        return [("redacted", canary.code)]
    if name == "as-trained":
        return [(canary.cue, canary.code)]
    if name == "substituted":
        other = substitute(design, canary, focal)
        return [] if other is None else [(carrying, other.code)]
    new = design.new_codes.get(canary.id, ())
    return [(carrying if name == "unseen" else "visible", code) for code in new]


def substitute(design: Design, canary: Canary, focal: Sequence[Canary]) -> Canary | None:
    """The next focal canary in cyclic order whose code has the same prefix; None if there is no other.

    Source: section A-B (the next sample's cue) and C-D1 (a donor of the same prefix).
    """
    alike = [c for c in focal if design.codes.prefix(c.code) == design.codes.prefix(canary.code)]
    at = [c.id for c in alike].index(canary.id)
    other = alike[(at + 1) % len(alike)]
    return None if other.id == canary.id else other
