"""Cues: what the training input shows of a code, from the code itself over encodings of it to nothing.

Every cue but `redacted` says the whole code, so a model could read it off the input: by copying, or by a rule that is
harder to learn than copying. Prefix and fixed text are shown unchanged; only the payload is encoded.

Differs from the paper: its prompts are not printed for every encoding, so spaces between units and the fruits after the
tenth are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from indelible.canaries.codes import DIGITS, LETTERS, CodeFormat, one_of
from indelible.errors import ConfigError, DataError, did_you_mean

REDACTED = "[redacted]"
CUE_NAMES = ("visible", "redacted", "binary", "chained-fruit", "direct-fruit")
"""The fixed names; `make_cue` also takes reverse-W, shift-S and reverse-W-shift-S."""

FRUITS = (
    *("apple", "banana", "cherry", "date", "elderberry", "fig", "grape", "kiwi", "lemon", "mango", "nectarine"),
    *("orange", "papaya", "quince", "raspberry", "strawberry", "tangerine", "apricot", "blueberry", "cranberry"),
    *("coconut", "pear", "peach", "plum", "pineapple", "pomegranate", "lime", "lychee", "melon", "guava"),
    *("gooseberry", "mulberry", "olive", "persimmon", "blackberry", "clementine"),
)
"""No name begins with another, so a sequence reads in one way only. An alphabet of k symbols uses the first k."""

_MOVED = re.compile(
    r"reverse-(?P<width>[1248])(?:-shift-(?P<after>0|[1-9][0-9]{0,2}))?|shift-(?P<alone>0|[1-9][0-9]{0,2})"
)
_STAYS = "leave everything around them unchanged"


@dataclass(frozen=True)
class Cue:
    """One way to show a code.

    Attributes:
        name: of the cue, and of the arm that uses it.
        encode: canonical code -> the text that is shown. DataError for what is not a code.
        decode: shown text -> canonical code, the inverse of `encode`; DataError for what `encode` never shows. None
            where the text does not determine the code.
        rule: one sentence that says how to get the code from the cue.
    """

    name: str
    encode: Callable[[str], str]
    decode: Callable[[str], str] | None
    rule: str


def make_cue(name: str, codes: CodeFormat) -> Cue:
    """The cue of a name for the codes of a format.

    - `visible`: the code as it is written. `redacted`: `[redacted]`, prefix included.
    - `binary`: where the payload has digits only, its number in base 2 with as many bits as the largest one needs (14
      for four digits), in place of everything from the first digit to the last; else the eight-bit ASCII code of each
      payload symbol.
    - `direct-fruit`: a fruit for each payload symbol, the i-th for the i-th symbol of the payload's alphabet (digits: 0
      is apple). `chained-fruit`: with x_i the index of payload symbol i in an alphabet of k symbols, the fruits of
      y_0 = x_0 and y_i = (x_i + x_(i-1)) mod k.
    - `reverse-W` (W 1, 2, 4, 8): the order is reversed inside each block of W payload symbols, the last one possibly
      shorter. `shift-S` (S 0 to 999): letters move S places on within A-Z and digits within 0-9, around the end.
      `reverse-W-shift-S`: both. These are rules from what is shown to the code: the cue is the code's inverse image
      (`FIL-U5TN-SL2L` under reverse-4-shift-4 is the cue of `FIL-RX9Y-P6PW`), so under a shift it may hold symbols
      outside the payload's alphabet. It is written as codes are.

    The alphabet of a pattern whose places differ is the symbols of all of them, in the order in which they first come.
    Binary groups and fruits are parted by spaces. Source: the canary paper, section IV and appendix A-B (four digits),
    sections V-C and VI-A, appendices C-C6 and C-D1 (alphanumeric); patterns are our own.

    Errors:
        ConfigError: an unknown name; fruits for an alphabet of more than 36 symbols; ASCII or shifts for other symbols.
    """
    if name == "visible":
        return _moved(name, codes, 1, 0, "Copy the reference as it is shown.")
    if name == "redacted":
        encode, _ = _checked(name, codes, lambda code: REDACTED, lambda text: "")
        return Cue(name, encode, None, "The reference is not shown.")
    if name == "binary":
        in_digits = all(symbol in DIGITS for symbol in _alphabet(codes))
        return _binary_number(name, codes) if in_digits else _ascii(name, codes)
    if name in ("direct-fruit", "chained-fruit"):
        return _fruits(name, codes, chained=name == "chained-fruit")
    match = _MOVED.fullmatch(name)
    if match is None:
        known = [*CUE_NAMES, *(f"reverse-{w}" for w in (1, 2, 4, 8)), "shift-1", "shift-4", "reverse-4-shift-4"]
        raise ConfigError(did_you_mean(name, known, "cue"))
    width, shift = int(match["width"] or 1), int(match["after"] or match["alone"] or 0)
    steps = []
    if match["width"]:
        steps.append(f"reverse the order of the characters inside each group of {width}")
    if len(steps) == 0 or match["after"]:
        steps.append(
            f"move letters {shift} places on within A-Z and digits {shift} within 0-9, from the end to the start"
        )
    rule = f"Take the shown characters without prefix and punctuation, {', then '.join(steps)}; {_STAYS}."
    return _moved(name, codes, width, shift, rule)


def _checked(
    name: str, codes: CodeFormat, show: Callable[[str], str], read: Callable[[str], str]
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """`show` and `read` for codes only, and for what `show` shows only."""

    def encode(code: str) -> str:
        if not codes.is_code(code):
            raise DataError(f"'{code}' is not a code of the format '{codes.name}'; expected one in canonical form.")
        return show(code)

    def decode(text: str) -> str:
        try:
            code = read(text)
        except DataError:
            code = ""
        if not codes.is_code(code) or show(code) != text:
            raise DataError(f"'{text}' is not the {name} cue of a code of the format '{codes.name}'; expected one.")
        return code

    return encode, decode


def _alphabet(codes: CodeFormat) -> tuple[str, ...]:
    return tuple(dict.fromkeys(symbol for i in codes.payload_places for symbol in codes.parts[i]))


def _moved(name: str, codes: CodeFormat, width: int, shift: int, rule: str) -> Cue:
    """Block reversal and cyclic shift, as written; the two commute, so their order plays no part in the inverse."""
    if shift and not {*_alphabet(codes)} <= {*DIGITS, *LETTERS}:
        raise ConfigError(f"cue '{name}': the codes '{codes.name}' have other symbols than A-Z and 0-9.")

    def reverse(payload: str) -> str:
        return "".join(payload[i : i + width][::-1] for i in range(0, len(payload), width))

    def shifted(payload: str, by: int) -> str:
        return "".join(_shifted(symbol, by) for symbol in payload) if by else payload

    def show(code: str) -> str:
        return codes.written(codes.with_payload(code, shifted(reverse(codes.payload(code)), -shift)))

    def read(text: str) -> str:
        shown = "".join(codes.split(text, written=True))
        return codes.with_payload(shown, shifted(reverse(codes.payload(shown)), shift))

    return Cue(name, *_checked(name, codes, show, read), rule)


def _shifted(symbol: str, by: int) -> str:
    for ring in (LETTERS, DIGITS):
        if symbol in ring:
            return ring[(ring.index(symbol) + by) % len(ring)]
    raise DataError(f"'{symbol}' is no capital letter or digit; expected one to shift.")


def _ascii(name: str, codes: CodeFormat) -> Cue:
    if not all(symbol.isascii() for symbol in _alphabet(codes)):
        raise ConfigError(f"cue '{name}': the codes '{codes.name}' have symbols outside ASCII.")

    def encode(payload: str) -> list[str]:
        return [f"{ord(symbol):08b}" for symbol in payload]

    def decode(units: Sequence[str]) -> str:
        return "".join(chr(int(unit, 2)) for unit in units)

    rule = f"Read each group of eight bits as the ASCII code of one character and {_STAYS}."
    return _units(name, codes, "[01]{8}", encode, decode, rule)


def _fruits(name: str, codes: CodeFormat, *, chained: bool) -> Cue:
    alphabet = _alphabet(codes)
    k = len(alphabet)
    if k > len(FRUITS):
        raise ConfigError(
            f"cue '{name}': the codes '{codes.name}' have {k} payload symbols; expected at most {len(FRUITS)}."
        )
    index = {symbol: i for i, symbol in enumerate(alphabet)}
    index_of_fruit = {fruit: i for i, fruit in enumerate(FRUITS[:k])}

    def encode(payload: str) -> list[str]:
        x = [index[symbol] for symbol in payload]
        y = [x[0], *((b + a) % k for a, b in pairwise(x))] if chained else x
        return [FRUITS[i] for i in y]

    def decode(units: Sequence[str]) -> str:
        x: list[int] = []
        for unit in units:
            before = x[-1] if chained and x else 0
            x.append((index_of_fruit[unit] - before) % k)
        return "".join(alphabet[i] for i in x)

    listed = ", ".join(f"{fruit} {symbol}" for fruit, symbol in zip(FRUITS, alphabet, strict=False))
    if not chained:
        rule = f"Replace each fruit by its character ({listed}) and {_STAYS}."
    else:
        rule = (
            f"Replace each fruit by its place, counted from 0, in the list {listed}; subtract from every place but the "
            f"first the place found just before it, modulo {k}; write the characters at these places and {_STAYS}."
        )
    return _units(name, codes, one_of(FRUITS[:k]), encode, decode, rule)


def _units(
    name: str,
    codes: CodeFormat,
    unit: str,
    encode: Callable[[str], list[str]],
    decode: Callable[[Sequence[str]], str],
    rule: str,
) -> Cue:
    """A cue with one unit (a regular expression) in place of each payload symbol."""
    places = codes.payload_places
    expression = re.compile(
        " ?".join(f"({unit if i in places else one_of(part)})" for i, part in enumerate(codes.parts)), re.DOTALL
    )

    def show(code: str) -> str:
        pieces = list(codes.split(code))
        for i, shown in zip(places, encode(codes.payload(code)), strict=True):
            pieces[i] = shown
        return _joined(pieces)

    def read(text: str) -> str:
        match = expression.fullmatch(text)
        if match is None:
            raise DataError(f"'{text}' is not a {name} cue.")
        pieces = list(match.groups())
        for i, symbol in zip(places, decode([pieces[i] for i in places]), strict=True):
            pieces[i] = symbol
        return "".join(pieces)

    return Cue(name, *_checked(name, codes, show, read), rule)


def _binary_number(name: str, codes: CodeFormat) -> Cue:
    """A payload of digits as one binary number."""
    n_digits = codes.n_positions
    n_bits = (10**n_digits - 1).bit_length()
    first, last = codes.payload_places[0], codes.payload_places[-1]
    around = [f"({one_of(part)})" for part in codes.parts]
    expression = re.compile(" ?".join([*around[:first], f"([01]{{{n_bits}}})", *around[last + 1 :]]))

    def show(code: str) -> str:
        pieces = codes.split(code)
        return _joined([*pieces[:first], f"{int(codes.payload(code)):0{n_bits}b}", *pieces[last + 1 :]])

    def read(text: str) -> str:
        match = expression.fullmatch(text)
        if match is None:
            raise DataError(f"'{text}' is not a {name} cue.")
        pieces = match.groups()
        inside = [part[0] for part in codes.parts[first : last + 1]]
        payload = f"{int(pieces[first], 2):0{n_digits}d}"
        if len(payload) > n_digits:
            raise DataError(f"'{text}' is not a {name} cue.")
        return codes.with_payload("".join([*pieces[:first], *inside, *pieces[first + 1 :]]), payload)

    rule = f"Read the {n_bits} bits as one binary number and write it in decimal with {n_digits} digits."
    return Cue(name, *_checked(name, codes, show, read), rule)


def _joined(pieces: Sequence[str]) -> str:
    """The pieces with a space wherever two letters or digits would touch."""
    text = pieces[0]
    for before, piece in pairwise(pieces):
        text += f" {piece}" if before[-1].isalnum() and piece[0].isalnum() else piece
    return text
