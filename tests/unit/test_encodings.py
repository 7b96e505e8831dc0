from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.canaries.codes import LETTERS, CodeFormat, code_format
from indelible.canaries.encodings import CUE_NAMES, FRUITS, make_cue
from indelible.errors import ConfigError, DataError

FOUR = code_format("four-digit")
ALNUM = code_format("AAA-XXXX-XXXX")
OWN = code_format("id/@##-*")
DATED = code_format("No. ##/## (#)")
FORMATS = (FOUR, ALNUM, OWN, DATED)
GRID = [f"reverse-{w}-shift-{s}" for w in (1, 2, 4, 8) for s in (0, 1, 4)]
MOVED = ("reverse-1", "reverse-2", "reverse-4", "reverse-8", "shift-0", "shift-1", "shift-4", "shift-135", *GRID)
DECODABLE = ("visible", "binary", "chained-fruit", "direct-fruit", *MOVED)


def any_code(codes: CodeFormat) -> st.SearchStrategy[str]:
    return st.tuples(*(st.sampled_from(part) for part in codes.parts)).map("".join)


def decoded(name: str, codes: CodeFormat, text: str) -> str:
    decode = make_cue(name, codes).decode
    assert decode is not None
    return decode(text)


def test_the_worked_example_of_the_paper() -> None:
    cue = make_cue("reverse-4-shift-4", ALNUM)
    assert cue.encode("FIL-RX9Y-P6PW") == "FIL-U5TN-SL2L"
    assert decoded("reverse-4-shift-4", ALNUM, "FIL-U5TN-SL2L") == "FIL-RX9Y-P6PW"
    # Its intermediate step: reversed, not yet shifted. NT5U-L2LS is the image of the source, the source of the target.
    assert make_cue("shift-4", ALNUM).encode("FIL-RX9Y-P6PW") == "FIL-NT5U-L2LS"
    assert make_cue("reverse-4", ALNUM).encode("FIL-NT5U-L2LS") == "FIL-U5TN-SL2L"


@pytest.mark.parametrize(
    ("name", "code", "shown"),
    [
        ("visible", "7391", "7,3,9,1"),
        ("redacted", "7391", "[redacted]"),
        ("binary", "7391", "01110011011111"),
        ("binary", "0000", "00000000000000"),
        ("binary", "9999", "10011100001111"),
        ("direct-fruit", "7391", "kiwi date mango banana"),
        ("direct-fruit", "0123", "apple banana cherry date"),
        ("direct-fruit", "4567", "elderberry fig grape kiwi"),
        ("direct-fruit", "8900", "lemon mango apple apple"),
        # 7, 3 + 7 = 10, 9 + 3 = 12, 1 + 9 = 10
        ("chained-fruit", "7391", "kiwi apple cherry apple"),
        ("chained-fruit", "0099", "apple apple mango lemon"),
        ("reverse-2", "7391", "3,7,1,9"),
        ("reverse-4", "7391", "1,9,3,7"),
        ("reverse-8", "7391", "1,9,3,7"),
        ("shift-4", "7391", "3,9,5,7"),
        ("reverse-2-shift-1", "7391", "2,6,0,8"),
    ],
)
def test_four_digits(name: str, code: str, shown: str) -> None:
    assert make_cue(name, FOUR).encode(code) == shown


@pytest.mark.parametrize(
    ("name", "code", "shown"),
    [
        ("visible", "FIL-RX9Y-P6PW", "FIL-RX9Y-P6PW"),
        ("redacted", "FIL-RX9Y-P6PW", "[redacted]"),
        ("binary", "PRJ-A2Z9-AAAA", "PRJ-01000001 00110010 01011010 00111001-01000001 01000001 01000001 01000001"),
        ("direct-fruit", "PRJ-ABCJ-AAA9", "PRJ-apple banana cherry lemon-apple apple apple mulberry"),
        # 31, 31 + 31 = 30 (mod 32), 1 + 31 = 0, 0 + 1: the chain goes on across the hyphen, so the fifth is 2 + 0.
        ("chained-fruit", "PRJ-99BA-CAAA", "PRJ-mulberry gooseberry apple banana-cherry cherry apple apple"),
        ("reverse-2", "PRJ-ABCD-EFGH", "PRJ-BADC-FEHG"),
        ("reverse-4", "PRJ-ABCD-EFGH", "PRJ-DCBA-HGFE"),
        ("reverse-8", "PRJ-ABCD-EFGH", "PRJ-HGFE-DCBA"),
        # Outside the payload's alphabet, which has neither O nor 1.
        ("shift-1", "PRJ-PJA2-ZZ99", "PRJ-OIZ1-YY88"),
    ],
)
def test_alphanumeric(name: str, code: str, shown: str) -> None:
    assert make_cue(name, ALNUM).encode(code) == shown


def test_patterns() -> None:
    assert make_cue("binary", DATED).encode("No. 01/23 (4)") == "No. 00000010011010010)"
    assert make_cue("binary", code_format("###X")).encode("007X") == "0000000111 X"
    assert make_cue("direct-fruit", code_format("X##")).encode("X07") == "X apple kiwi"
    assert make_cue("binary", OWN).encode("id/A01-B") == "id/01000001 00110000 00110001-01000010"
    assert make_cue("reverse-2", OWN).encode("id/Q07-K") == "id/0QK-7"


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(FORMATS))
@pytest.mark.parametrize("name", DECODABLE)
def test_every_cue_can_be_undone(name: str, data: st.DataObject, codes: CodeFormat) -> None:
    cue, code = make_cue(name, codes), data.draw(any_code(codes))
    shown = cue.encode(code)
    assert decoded(name, codes, shown) == code
    assert cue.encode(decoded(name, codes, shown)) == shown


@settings(max_examples=60, deadline=None)
@given(st.text("#@*#@*aX-/ .", min_size=1, max_size=7), st.integers(), st.sampled_from(DECODABLE))
def test_every_cue_of_any_pattern_can_be_undone(spec: str, seed: int, name: str) -> None:
    try:
        codes = code_format(spec)
    except ConfigError:
        return
    for code in codes.draw(3, random.Random(seed)):
        assert decoded(name, codes, make_cue(name, codes).encode(code)) == code


@pytest.mark.parametrize("name", DECODABLE)
def test_different_codes_have_different_cues(name: str) -> None:
    codes = code_format("#-@")
    assert len({*map(make_cue(name, codes).encode, codes.space())}) == codes.size
    assert len({*map(make_cue(name, FOUR).encode, FOUR.space())}) == 10_000


@given(any_code(FOUR))
def test_chained_fruit_is_the_formula_of_the_paper(code: str) -> None:
    d = [int(c) for c in code]
    shown = [d[0], (d[1] + d[0]) % 10, (d[2] + d[1]) % 10, (d[3] + d[2]) % 10]
    assert make_cue("chained-fruit", FOUR).encode(code).split() == [FRUITS[i] for i in shown]


@given(any_code(ALNUM), st.sampled_from((1, 2, 4, 8)), st.sampled_from((0, 1, 4)))
def test_the_transformation_of_what_is_shown_gives_the_code(code: str, width: int, shift: int) -> None:
    shown = make_cue(f"reverse-{width}-shift-{shift}", ALNUM).encode(code)
    assert shown[:4] + shown[8] == code[:4] + "-"
    payload = list(shown[4:8] + shown[9:])
    turned = [c for i in range(0, 8, width) for c in reversed(payload[i : i + width])]
    moved = [
        str((int(c) + shift) % 10) if c.isdigit() else chr((ord(c) - ord("A") + shift) % 26 + ord("A")) for c in turned
    ]
    assert "".join(moved[:4]) + "-" + "".join(moved[4:]) == code[4:]


@given(any_code(ALNUM))
def test_the_fruit_rule_suffices_to_read_the_cue(code: str) -> None:
    cue = make_cue("chained-fruit", ALNUM)
    listed = re.findall(r"([a-z]+) ([A-Z2-9])[,;]", cue.rule)
    assert len(listed) == 32
    place = {fruit: i for i, (fruit, _) in enumerate(listed)}
    shown = [place[fruit] for fruit in re.findall("[a-z]+", cue.encode(code))]
    found = list(itertools.accumulate(shown, lambda before, y: (y - before) % 32))
    assert "".join(listed[x][1] for x in found) == ALNUM.payload(code)


def test_fruits() -> None:
    assert " ".join(FRUITS[:10]) == "apple banana cherry date elderberry fig grape kiwi lemon mango"
    assert len({*FRUITS}) == 36
    assert not any(a != b and b.startswith(a) for a in FRUITS for b in FRUITS)
    assert all(re.fullmatch("[a-z]+", fruit) for fruit in FRUITS)


def test_the_grid_begins_with_the_code_itself() -> None:
    for name in ("reverse-1", "shift-0", "reverse-1-shift-0", "shift-130"):
        assert make_cue(name, ALNUM).encode("FIL-RX9Y-P6PW") == "FIL-RX9Y-P6PW"


@pytest.mark.parametrize("name", ["binary", "chained-fruit", "direct-fruit"])
def test_encoded_cues_do_not_hold_the_code(name: str) -> None:
    for code in FOUR.draw(300, random.Random(1)):
        assert FOUR.find(make_cue(name, FOUR).encode(code)) is None


@pytest.mark.parametrize("codes", FORMATS)
def test_the_redacted_cue_says_nothing(codes: CodeFormat) -> None:
    cue = make_cue("redacted", codes)
    assert {cue.encode(code) for code in codes.draw(50, random.Random(0))} == {"[redacted]"}
    assert cue.decode is None


@pytest.mark.parametrize("name", [*DECODABLE, "redacted"])
def test_every_cue_has_its_name_and_a_rule_of_one_sentence(name: str) -> None:
    for codes in FORMATS:
        cue = make_cue(name, codes)
        assert cue.name == name
        assert re.fullmatch(r"[A-Z][^\n.]*\.", cue.rule)
        with pytest.raises(DataError, match="expected one in canonical form"):
            cue.encode("no code")


@pytest.mark.parametrize(
    ("name", "codes", "text"),
    [
        ("visible", FOUR, "7391"),
        ("visible", ALNUM, "FIL-RX0Y-P6PW"),
        ("binary", FOUR, "10011100010000"),
        ("binary", FOUR, "1110011011111"),
        ("binary", ALNUM, "FIL-01001001 01011000 00111001 01011001-01010000 00110110 01010000 01010111"),
        ("direct-fruit", FOUR, "kiwi date mango"),
        ("direct-fruit", FOUR, "kiwi date mango nectarine"),
        ("direct-fruit", FOUR, "kiwidate mango banana"),
        ("chained-fruit", OWN, "id/tangerine tangerine plum-kiwi"),
        ("shift-1", ALNUM, "FIL-rX9Y-P6PW"),
        ("shift-1", ALNUM, "FIL-HX9Y-P6PW"),
        ("reverse-4", FOUR, "1937"),
    ],
)
def test_what_is_no_cue_of_a_code_is_refused(name: str, codes: CodeFormat, text: str) -> None:
    with pytest.raises(DataError, match=r"is not the .* cue of a code"):
        decoded(name, codes, text)


@pytest.mark.parametrize(
    "name",
    ["", "redact", "reverse", "reverse-3", "reverse-04", "reverse-4-", "-shift-4", "shift-", "shift-04", "shift--4"],
)
def test_unknown_names(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"unknown cue '{name}'")):
        make_cue(name, FOUR)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'chained-fruit'"):
        make_cue("chain-fruit", FOUR)
    assert all(make_cue(name, FOUR).name == name for name in CUE_NAMES)


def test_codes_of_other_symbols() -> None:
    wide = CodeFormat("wide", ((*LETTERS, *"0123456789+"),) * 2)
    with pytest.raises(ConfigError, match="37 payload symbols; expected at most 36"):
        make_cue("direct-fruit", wide)
    with pytest.raises(ConfigError, match="other symbols than A-Z and 0-9"):
        make_cue("reverse-2-shift-1", wide)
    assert decoded("reverse-2", wide, "+A") == "A+"
    with pytest.raises(ConfigError, match="outside ASCII"):
        make_cue("binary", CodeFormat("greek", (("α", "β"),) * 7))
