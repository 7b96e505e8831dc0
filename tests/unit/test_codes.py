from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.canaries.codes import ALPHABET, PREFIXES, CodeFormat, code_format
from indelible.errors import ConfigError, DataError

FOUR = code_format("four-digit")
ALNUM = code_format("AAA-XXXX-XXXX")
OWN = code_format("id/@##-*")
FORMATS = (FOUR, ALNUM, OWN)
formats = st.sampled_from(FORMATS)
quick = settings(max_examples=60, deadline=None)


def any_code(codes: CodeFormat) -> st.SearchStrategy[str]:
    return st.tuples(*(st.sampled_from(part) for part in codes.parts)).map("".join)


def is_balanced(codes: CodeFormat, drawn: Sequence[str]) -> bool:
    rows = [codes.split(code) for code in drawn]
    for place, part in enumerate(codes.parts):
        times = Counter(row[place] for row in rows)
        if max(times[a] for a in part) - min(times[a] for a in part) > 1:
            return False
    return True


def test_sizes_and_entropies_of_the_paper() -> None:
    assert (FOUR.size, FOUR.n_positions) == (10_000, 4)
    assert (ALNUM.size, ALNUM.n_positions, ALNUM.entropy_bits) == (2**43, 8, 43.0)
    assert len(ALPHABET) == 32
    assert not {*"IO01"} & {*ALPHABET}
    assert code_format("INV-####@").entropy_bits == pytest.approx(17.988, abs=1e-3)


def test_forms_of_a_code() -> None:
    assert FOUR.written("7391") == "7,3,9,1"
    assert ALNUM.written("FIL-RX9Y-P6PW") == "FIL-RX9Y-P6PW"
    assert (ALNUM.prefix("FIL-RX9Y-P6PW"), ALNUM.payload("FIL-RX9Y-P6PW")) == ("FIL", "RX9YP6PW")
    assert (FOUR.prefix("7391"), FOUR.payload("7391")) == ("", "7391")
    assert OWN.payload("id/Q07-K") == "Q07K"
    # A code displayed under a shift may leave the alphabet; its form is still that of a code.
    assert ALNUM.with_payload("FIL-RX9Y-P6PW", "IO01ABCD") == "FIL-IO01-ABCD"
    assert ALNUM.payload("FIL-IO01-ABCD") == "IO01ABCD"
    assert not ALNUM.is_code("FIL-IO01-ABCD")


@pytest.mark.parametrize("text", ["", "739", "73911", "7,3,9,1", "XYZ-RX9Y-P6PW", "FIL-RX9Y-P6P", "FIL_RX9Y-P6PW"])
def test_other_texts_are_refused(text: str) -> None:
    assert not FOUR.is_code(text)
    assert not ALNUM.is_code(text)
    for codes in (FOUR, ALNUM):
        with pytest.raises(DataError, match="has not the form"):
            codes.written(text)


def test_a_payload_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(DataError, match="has 3 characters; expected 4"):
        FOUR.with_payload("7391", "123")


@pytest.mark.parametrize(
    ("codes", "text", "found"),
    [
        (FOUR, "Reference: 7,3,9,1", "7391"),
        (FOUR, "7391", None),
        (FOUR, "7, 3, 9, 1", None),
        (FOUR, "1,2,3,4,5 and 6,7,8,9", "1234"),
        (FOUR, "٧,3,9,1", None),
        (FOUR, "", None),
        (ALNUM, 'type("fil-rx9y-p6pw")', "FIL-RX9Y-P6PW"),
        (ALNUM, "FIL-RX0Y-P6PW, then DOC-AAAA-2222", "DOC-AAAA-2222"),
        (ALNUM, "FIL RX9Y P6PW", None),
        (ALNUM, "REF-ſSSS-SSSS", None),
        (OWN, "ID/q07-k", "id/Q07-K"),
    ],
)
def test_find(codes: CodeFormat, text: str, found: str | None) -> None:
    assert codes.find(text) == found


@quick
@given(st.data(), formats, st.text("xyz \n:.-", max_size=9), st.text("xyz \n:.-", max_size=9))
def test_a_written_code_is_found_whatever_its_case(data: st.DataObject, codes: CodeFormat, a: str, b: str) -> None:
    code = data.draw(any_code(codes))
    written = codes.written(code)
    for text in (written, written.lower(), written.upper()):
        assert codes.find(f"{a}{text}{b}") == code


@quick
@given(st.data(), formats)
def test_the_forms_hang_together(data: st.DataObject, codes: CodeFormat) -> None:
    code, other = data.draw(any_code(codes)), data.draw(any_code(codes))
    assert codes.is_code(code)
    assert len(codes.payload(code)) == codes.n_positions
    mixed = codes.with_payload(code, codes.payload(other))
    assert (codes.prefix(mixed), codes.payload(mixed)) == (codes.prefix(code), codes.payload(other))
    assert "".join(codes.split(codes.written(code), written=True)) == code


def test_prefixes_of_different_lengths() -> None:
    codes = code_format("AAA-XXXX-XXXX", ("A", "ABC", "BC"))
    assert codes.prefix("ABC-2222-3333") == "ABC"
    assert codes.find("see abc-2222-3333") == "ABC-2222-3333"
    assert {codes.prefix(code) for code in codes.draw(60, random.Random(1))} == {"A", "ABC", "BC"}


@quick
@given(formats, st.integers(0, 60), st.integers(0, 60), st.integers(), st.booleans())
def test_a_draw_is_distinct_and_avoids_what_is_excluded(
    codes: CodeFormat, n: int, n_before: int, seed: int, balanced: bool
) -> None:
    before = codes.draw(n_before, random.Random(seed), balanced=balanced)
    # The same stream again, which would give the same codes if nothing were excluded.
    drawn = codes.draw(n, random.Random(seed), exclude=before, balanced=balanced)
    assert len({*drawn, *before}) == n + n_before
    assert all(codes.is_code(code) for code in drawn)
    assert drawn == codes.draw(n, random.Random(seed), exclude=set(before), balanced=balanced)
    if balanced:
        assert is_balanced(codes, drawn)


@quick
@given(formats, st.integers(0, 40), st.integers(0, 40), st.integers())
def test_a_shorter_draw_begins_a_longer_one(codes: CodeFormat, a: int, b: int, seed: int) -> None:
    short, long = sorted((a, b))
    assert codes.draw(long, random.Random(seed))[:short] == codes.draw(short, random.Random(seed))


def test_the_same_seed_gives_these_codes_everywhere() -> None:
    assert FOUR.draw(4, random.Random("0:codes")) == ["7004", "5730", "2431", "8550"]
    assert FOUR.draw(4, random.Random("0:codes"), balanced=True) == ["6360", "2604", "5292", "4028"]
    assert ALNUM.draw(2, random.Random("0:codes")) == ["PRJ-VBYZ-DCLE", "DOC-F858-4LCQ"]


def test_32_codes_hold_each_digit_three_or_four_times_a_position() -> None:
    drawn = FOUR.draw(32, random.Random(5), balanced=True)
    for place in range(4):
        assert {*Counter(code[place] for code in drawn).values()} == {3, 4}


def test_balanced_codes_have_balanced_prefixes() -> None:
    drawn = ALNUM.draw(72, random.Random(5), balanced=True)
    assert Counter(map(ALNUM.prefix, drawn)) == dict.fromkeys(PREFIXES, 9)
    assert is_balanced(ALNUM, drawn)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100), st.integers())
def test_any_number_of_codes_can_be_balanced(n: int, seed: int) -> None:
    codes = code_format("##")
    drawn = codes.draw(n, random.Random(seed), balanced=True)
    assert len({*drawn}) == n
    assert is_balanced(codes, drawn)


def test_the_whole_space_can_be_drawn() -> None:
    for balanced in (False, True):
        drawn = FOUR.draw(10_000, random.Random(2), balanced=balanced)
        assert drawn != FOUR.space()
        assert sorted(drawn) == FOUR.space()


def test_every_code_is_drawn_equally_often() -> None:
    codes, rng = code_format("##"), random.Random(3)
    times = Counter(code for _ in range(2_000) for code in codes.draw(10, rng, exclude=("00", "11")))
    assert len(times) == 98
    expected = 20_000 / 98
    # Chi-square with 97 degrees of freedom: mean 97, standard deviation 13.9; six of them above the mean.
    assert sum((n - expected) ** 2 / expected for n in times.values()) < 181


def test_too_many_codes_are_refused() -> None:
    codes = code_format("##")
    for balanced in (False, True):
        with pytest.raises(DataError, match="101 codes of the format '##' asked for; expected 0 to 100"):
            codes.draw(101, random.Random(0), balanced=balanced)
        with pytest.raises(DataError, match="11 codes of the format '##' asked for, but 10 are not yet in use"):
            codes.draw(11, random.Random(0), exclude=codes.space()[:90], balanced=balanced)
    assert sorted(codes.draw(10, random.Random(0), exclude=codes.space()[:90])) == codes.space()[90:]


@pytest.mark.parametrize(("n", "n_excluded"), [(10, 10), (60, 10)])
def test_what_cannot_be_balanced_is_refused(n: int, n_excluded: int) -> None:
    codes = code_format("##")
    sevens = codes.space()[70 : 70 + n_excluded]
    assert len(codes.draw(n, random.Random(0), exclude=sevens)) == n
    with pytest.raises(DataError, match=r"no .* balanced codes .* balance: false"):
        codes.draw(n, random.Random(0), exclude=sevens, balanced=True)


def test_what_is_no_code_excludes_nothing() -> None:
    codes = code_format("##")
    assert len(codes.draw(100, random.Random(0), exclude=("7", "abc"), balanced=True)) == 100


def test_the_bank_varies_in_prefix_and_payload() -> None:
    assigned = ALNUM.draw(100, random.Random(0))
    bank = ALNUM.bank(19_999, random.Random(0), exclude=assigned)
    assert len({*bank}) == 19_999
    assert not {*bank} & {*assigned}
    # 2,500 a prefix and 625 a symbol and place are expected; 47 and 25 are one standard deviation.
    assert all(2_200 < n < 2_800 for n in Counter(map(ALNUM.prefix, bank)).values())
    for place in range(8):
        times = Counter(ALNUM.payload(code)[place] for code in bank)
        assert len(times) == 32
        assert all(450 < n < 800 for n in times.values())


def test_the_space_is_listed_in_order_or_refused() -> None:
    assert FOUR.space()[:2] + FOUR.space()[-1:] == ["0000", "0001", "9999"]
    assert len({*FOUR.space()}) == 10_000
    with pytest.raises(ConfigError, match="use a bank of decoys"):
        ALNUM.space()


def test_positions_correct() -> None:
    assert FOUR.positions_correct("7491", "7391") == (True, False, True, True)
    assert FOUR.positions_correct(None, "7391") == (False,) * 4
    assert FOUR.positions_correct("739", "7391") == (False,) * 4
    assert ALNUM.positions_correct("DOC-RX9Y-P6PX", "FIL-RX9Y-P6PW") == (True,) * 7 + (False,)


@pytest.mark.parametrize(
    ("spec", "prefixes", "message"),
    [
        ("four-digits", None, "Did you mean 'four-digit'"),
        ("", None, "unknown code ''"),
        ("#", None, "has 10 codes, 3.3 bits; expected at least 100"),
        ("@A", None, "has 26 codes, 4.7 bits"),
        ("## ", None, "no space at either end"),
        ("#\n#", None, "printable"),
        ("four-digit", ("FIL",), "leave them out"),
        ("##", ("FIL",), "leave them out"),
        ("AAA-XXXX-XXXX", (), "one or more words"),
        ("AAA-XXXX-XXXX", ("FIL", "A-B"), "one or more words"),
        ("AAA-XXXX-XXXX", ("FIL", "fil"), "differ by more than case"),
    ],
)
def test_formats_that_cannot_be_used(spec: str, prefixes: tuple[str, ...] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        code_format(spec, prefixes)


def test_choices_of_several_characters_belong_to_the_prefix() -> None:
    with pytest.raises(ConfigError, match="single characters after the prefix"):
        CodeFormat("own", (("AB", "C"), ("1", "2")))
