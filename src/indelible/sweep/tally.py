"""Comparisons counted: the expected way, the other way, too close to tell; and the word for how they stand."""

from __future__ import annotations

from dataclasses import dataclass

AGREES, IN_PART, DISAGREES, CANNOT_TELL = "agrees", "agrees in part", "disagrees", "cannot tell"

BY_CHANCE = 0.05
"""The share of clear comparisons that may go the other way where all in truth go the expected way."""


@dataclass
class Tally:
    """Comparisons of numbers whose way the paper, or a study of ours, foretells: ours go it, the other, or neither."""

    same: int = 0
    against: int = 0
    unclear: int = 0

    def add(self, sign: int) -> None:
        """1: the expected way; -1: the other; 0: too close to tell."""
        self.same += sign > 0
        self.against += sign < 0
        self.unclear += sign == 0

    @property
    def total(self) -> int:
        return self.same + self.against + self.unclear

    @property
    def word(self) -> str:
        """cannot tell, where most are too close to tell; else agrees (at most one clear one in twenty against), agrees
        in part (fewer against than not), or disagrees."""
        clear = self.same + self.against
        if clear == 0 or self.unclear > clear:
            return CANNOT_TELL
        if self.against <= BY_CHANCE * clear:
            return AGREES
        return IN_PART if self.same > self.against else DISAGREES

    def __str__(self) -> str:
        if self.total == 0:
            return "no two numbers to compare"
        close = f", {self.unclear} too close to tell" if self.unclear else ""
        pairs = f"{self.total} pair{'s' * (self.total != 1)}"
        return f"of {pairs} {self.same} the expected way, {self.against} against it{close}"
