"""The secret codes of canaries: their format, how they are drawn, written and found again in a reply.

A code has a canonical form (`7391`, `FIL-RX9Y-P6PW`) and a written one (`7,3,9,1`, `FIL-RX9Y-P6PW`). Its payload is the
symbols at the places that have a choice (`7391`, `RX9YP6PW`); prefix and fixed text stand around them.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from indelible.canaries.balance import draw_balanced, too_few
from indelible.errors import ConfigError, DataError, did_you_mean

DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
ALPHABET = tuple("ABCDEFGHJKLMNPQRSTUVWXYZ23456789")
"""32 symbols, without those that look alike (I, O, 0, 1); appendix C-B1 of the canary paper."""
PREFIXES = ("RPT", "DOC", "TKT", "REF", "ORD", "PRJ", "FIL", "ACC")
FORMAT_NAMES = ("four-digit", "AAA-XXXX-XXXX")
MIN_CODES = 100
MAX_ENUMERATED = 100_000

_PLACEHOLDERS = {"#": DIGITS, "@": LETTERS, "*": ALPHABET}


@dataclass(frozen=True)
class CodeFormat:
    """What the codes of one design look like. Make one with `code_format`.

    Attributes:
        name: as the user gave it.
        parts: the alternatives at each place, in order; a place with one alternative is fixed text.
        separator: written between the parts ("," for comma-separated digits); not in the canonical form.
        n_prefix: that many leading parts are the prefix, which cues leave unchanged.

    Errors:
        ConfigError: a place has no or equal alternatives (case ignored), or an alternative of the payload has not one
        character.
    """

    name: str
    parts: tuple[tuple[str, ...], ...]
    separator: str = ""
    n_prefix: int = 0

    def __post_init__(self) -> None:
        for place, part in enumerate(self.parts):
            unusable = not part or not all(part) or len({alternative.upper() for alternative in part}) < len(part)
            if unusable or (place >= self.n_prefix and len(part) > 1 and max(map(len, part)) > 1):
                raise ConfigError(
                    f"code '{self.name}': the choices at place {place + 1} are {list(part)}; expected non-empty texts "
                    "that differ by more than case, and single characters after the prefix."
                )

    @property
    def size(self) -> int:
        """Number of different codes, prefixes included."""
        return math.prod(len(part) for part in self.parts)

    @property
    def entropy_bits(self) -> float:
        """log2 of `size`: the entropy of a uniformly drawn code."""
        return math.log2(self.size)

    @property
    def n_positions(self) -> int:
        """Number of payload symbols."""
        return len(self.payload_places)

    @cached_property
    def payload_places(self) -> tuple[int, ...]:
        """Indices into `parts` of the payload symbols."""
        return tuple(i for i, part in enumerate(self.parts) if i >= self.n_prefix and len(part) > 1)

    @cached_property
    def _any(self) -> re.Pattern[str]:
        return re.compile(self._expression("", any_payload=True), re.DOTALL)

    @cached_property
    def _any_written(self) -> re.Pattern[str]:
        return re.compile(self._expression(self.separator, any_payload=True), re.DOTALL)

    @cached_property
    def _written_any_case(self) -> re.Pattern[str]:
        # ASCII, or the long s and the Kelvin sign would pass for S and K.
        return re.compile(self._expression(self.separator, any_payload=False), re.IGNORECASE | re.ASCII)

    def _expression(self, separator: str, *, any_payload: bool) -> str:
        free = self.payload_places if any_payload else ()
        parts = ("(.)" if i in free else f"({one_of(part)})" for i, part in enumerate(self.parts))
        return re.escape(separator).join(parts)

    def split(self, text: str, *, written: bool = False) -> tuple[str, ...]:
        """The parts of a code in canonical (or written) form.

        Payload places take any character: a code displayed under a cyclic shift may leave the payload alphabet.

        Errors:
            DataError: the text has not the form of a code.
        """
        match = (self._any_written if written else self._any).fullmatch(text)
        if match is None:
            form = "as they are written" if written else "in canonical form"
            raise DataError(f"'{text}' has not the form of the codes '{self.name}' {form}; expected a code of these.")
        return match.groups()

    def is_code(self, text: str) -> bool:
        """Whether the text is a code in canonical form, exactly."""
        match = self._any.fullmatch(text)
        return match is not None and all(a in part for a, part in zip(match.groups(), self.parts, strict=True))

    def written(self, code: str) -> str:
        """The code as it stands in training rows and replies."""
        return self.separator.join(self.split(code))

    def prefix(self, code: str) -> str:
        """The prefix without what joins it to the payload (`FIL`), or "" where the format has none."""
        return "".join(self.split(code)[: self.n_prefix])

    def payload(self, code: str) -> str:
        """The payload symbols (`RX9YP6PW` of `FIL-RX9Y-P6PW`)."""
        parts = self.split(code)
        return "".join(parts[i] for i in self.payload_places)

    def with_payload(self, code: str, payload: str) -> str:
        """The code with another payload around which prefix and fixed text stay.

        Errors:
            DataError: the payload has not `n_positions` characters. Its characters are not checked; see `split`.
        """
        if len(payload) != self.n_positions:
            raise DataError(
                f"payload '{payload}' has {len(payload)} characters; expected {self.n_positions} for '{self.name}'."
            )
        parts = list(self.split(code))
        for i, symbol in zip(self.payload_places, payload, strict=True):
            parts[i] = symbol
        return "".join(parts)

    def find(self, text: str) -> str | None:
        """The first stretch of a text that is a code as written, in canonical form; None where there is none.

        Case is ignored (ASCII letters). The stretch may lie inside a longer one: `1,2,3,4,5` holds `1234`. Source: the
        canary paper, appendix C-B2.
        """
        match = self._written_any_case.search(text)
        if match is None:
            return None
        found = zip(self.parts, match.groups(), strict=True)
        return "".join(next(a for a in part if a.upper() == text.upper()) for part, text in found)

    def positions_correct(self, found: str | None, code: str) -> tuple[bool, ...]:
        """For each payload symbol of `code`, whether `found` has the same one; a reply without a code has none right.

        Source: the canary paper, appendix A-D (per-position accuracy; an invalid output is wrong at every position).
        """
        if found is None or not self.is_code(found):
            return (False,) * self.n_positions
        return tuple(a == b for a, b in zip(self.payload(found), self.payload(code), strict=True))

    def space(self) -> list[str]:
        """Every code, in the order of `parts` (the last place changes fastest).

        Errors:
            ConfigError: there are more than 100,000; rank among a bank of decoys instead.
        """
        if self.size > MAX_ENUMERATED:
            raise ConfigError(
                f"code '{self.name}' has {self.size:,} codes; expected at most {MAX_ENUMERATED:,} to list them all: "
                "use a bank of decoys."
            )
        return list(self.all())

    def all(self) -> Iterator[str]:
        """Every code, in order, one by one."""
        return map("".join, itertools.product(*self.parts))

    def draw(self, n: int, rng: random.Random, *, exclude: Collection[str] = (), balanced: bool = False) -> list[str]:
        """n different codes in random order, none of `exclude` (canonical forms).

        Unbalanced, every code is equally likely, and a shorter draw is the beginning of a longer one. `balanced`: at
        every place, prefixes included, each alternative is used equally often, give or take one. Source: the canary
        paper, appendices B-A (32 four-digit codes hold each digit three or four times a position), C-A3 (prefixes) and
        C-B1 (codes drawn without replacement).

        Errors:
            DataError: there are not enough codes, or no balanced choice of them was found.
        """
        left_out = set(exclude)
        if n < 0 or n > self.size:
            raise DataError(f"{n:,} codes of the format '{self.name}' asked for; expected 0 to {self.size:,}.")
        if not balanced:
            return list(itertools.islice(self._shuffled(n, rng, left_out), n))
        return draw_balanced(self, n, rng, {code for code in left_out if self.is_code(code)})

    def _shuffled(self, n: int, rng: random.Random, left_out: set[str]) -> Iterator[str]:
        # A Fisher-Yates shuffle of the whole space that only stores the places it has touched.
        moved: dict[int, int] = {}
        n_given = 0
        for i in range(self.size):
            j = rng.randrange(i, self.size)
            picked = moved.get(j, j)
            moved[j] = moved.get(i, i)
            code = self._code_at(picked)
            if code not in left_out:
                n_given += 1
                yield code
            if n_given == n:
                return
        raise too_few(self, n, n_given)

    def _code_at(self, index: int) -> str:
        chosen = []
        for part in reversed(self.parts):
            if len(part) > 1:
                index, k = divmod(index, len(part))
                chosen.append(part[k])
            else:
                chosen.append(part[0])
        return "".join(reversed(chosen))

    def bank(self, n: int, rng: random.Random, *, exclude: Collection[str] = ()) -> list[str]:
        """n different decoys drawn uniformly from the whole space, so that prefix and payload vary; none of `exclude`.

        `exclude` holds every code that is ever ranked against the bank: assigned, substituted and new ones. Source: the
        canary paper, appendix C-B2 (19,999 shared decoys).

        Errors:
            DataError: there are not enough codes.
        """
        return self.draw(n, rng, exclude=exclude)


def code_format(spec: str, prefixes: tuple[str, ...] | None = None) -> CodeFormat:
    """The format of a name or a pattern.

    `four-digit`: 10,000 codes, written as comma-separated digits. `AAA-XXXX-XXXX`: one of `prefixes` (eight of them
    unless given) and two groups of four symbols of the 32-letter `ALPHABET`, 43 bits with eight prefixes. Anything else
    is a pattern: `#` is a digit, `@` a capital letter, `*` a symbol of `ALPHABET`, every other character is fixed text.
    `INV-####@` has 260,000 codes, 18.0 bits. A pattern's codes are written as they are. Source: the canary paper,
    sections III-B and V, appendix C-B1; patterns are our own.

    Errors:
        ConfigError: fewer than 100 codes (6.6 bits), control characters or spaces at an end, prefixes that are not
        different words of ASCII letters and digits, or prefixes for another format than `AAA-XXXX-XXXX`.
    """
    if spec == "AAA-XXXX-XXXX":
        words = PREFIXES if prefixes is None else tuple(prefixes)
        if not words or not all(word.isascii() and word.isalnum() for word in words):
            raise ConfigError(f"prefixes are {list(words)}; expected one or more words of ASCII letters and digits.")
        group = (ALPHABET,) * 4
        return CodeFormat(spec, (words, ("-",), *group, ("-",), *group), n_prefix=1)
    if prefixes is not None:
        raise ConfigError(f"prefixes are given for the code '{spec}'; only AAA-XXXX-XXXX has prefixes: leave them out.")
    if spec == "four-digit":
        return CodeFormat(spec, (DIGITS,) * 4, separator=",")
    if not any(character in _PLACEHOLDERS for character in spec):
        raise ConfigError(
            f"{did_you_mean(spec, list(FORMAT_NAMES), 'code')} Or give a pattern: # a digit, @ a capital letter, "
            "* a letter or digit, anything else fixed text."
        )
    if not spec.isprintable() or spec != spec.strip():
        raise ConfigError(f"code pattern {spec!r}: expected printable characters and no space at either end.")
    parts: list[tuple[str, ...]] = []
    for placeholder, characters in itertools.groupby(spec, key=lambda c: c if c in _PLACEHOLDERS else ""):
        text = "".join(characters)
        parts.extend([_PLACEHOLDERS[placeholder]] * len(text) if placeholder else [(text,)])
    made = CodeFormat(spec, tuple(parts))
    if made.size < MIN_CODES:
        raise ConfigError(
            f"code pattern '{spec}' has {made.size} codes, {made.entropy_bits:.1f} bits; expected at least {MIN_CODES} "
            "(6.6 bits): add # (a digit), @ (a capital letter) or * (a letter or digit)."
        )
    return made


def one_of(texts: Sequence[str]) -> str:
    """A regular expression that matches one of the texts, the longest that fits."""
    if max(map(len, texts)) == 1:
        return f"[{''.join(map(re.escape, texts))}]"
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
