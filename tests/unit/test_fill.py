"""Rewriting texts in place: what is put in, where, and what stays."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.data.fill import (
    Candidate,
    best_substitutions,
    choose_spans,
    count_spans,
    group_spans,
    put_fills,
    read_fills,
    substitute,
    swap_words,
    with_blank,
    with_sentinels,
)

TEXT = "The cat sat.\n\tIt walked  home, slowly."
TEXTS = st.text(alphabet="ab \n\té,", max_size=60)


@pytest.mark.parametrize(
    ("old", "written", "expected"),
    [
        ("cat", " dog", "The dog sat.\n\tIt walked  home, slowly."),
        (" cat", " dog", "The dog sat.\n\tIt walked  home, slowly."),  # offsets with the blank, as byte-level tokens
        (" cat", "n", "Then sat.\n\tIt walked  home, slowly."),  # it continues the word before
        ("cat", "n", "The n sat.\n\tIt walked  home, slowly."),  # the blank is another token's
        ("ed", "ing", "The cat sat.\n\tIt walking  home, slowly."),
        ("ed", " far", "The cat sat.\n\tIt walk far  home, slowly."),  # it begins a word of its own
        ("The", " A", "A cat sat.\n\tIt walked  home, slowly."),  # no blank at the start of a text
        ("It", " He", "The cat sat.\n\tHe walked  home, slowly."),  # nor after a tab
        (" home", "s", "The cat sat.\n\tIt walked s, slowly."),  # one blank belongs to the token, the other does not
        (".", "!", "The cat sat!\n\tIt walked  home, slowly."),
    ],
)
def test_a_token_is_replaced_as_a_writer_would_and_nothing_else_moves(old: str, written: str, expected: str) -> None:
    start = TEXT.index(old)
    assert substitute(TEXT, start, start + len(old), written) == expected


@pytest.mark.parametrize(
    ("token", "written", "expected"),
    [
        ("cat", " cat", " cat"),
        (" cat", " cat", " cat"),
        ("ed", "ed", "ed"),
        ("It", " It", "It"),
        ("The", " The", "The"),
    ],
)
def test_a_blank_before_a_token_that_begins_a_word_is_its_own(token: str, written: str, expected: str) -> None:
    start = TEXT.index(token)
    a, b = with_blank(TEXT, start, start + len(token), written)
    assert TEXT[a:b] == expected


def test_the_heaviest_rewritings_of_all_answers_come_first_and_each_once() -> None:
    texts = ("one two", "one")
    candidates = [
        Candidate(0, 0, 3, " ten", -3.0),
        Candidate(0, 4, 7, " six", -1.0),
        Candidate(1, 0, 3, " ten", -2.0),
        Candidate(0, 0, 3, " one", 5.0),  # it changes nothing
        Candidate(0, 4, 7, " six", -4.0),  # the same rewriting again
        Candidate(1, 0, 3, " nil", -2.0),  # a tie: by the word
        Candidate(0, 0, 3, " nil", -9.0),
    ]
    expected = [("one six", "one"), ("one two", "nil"), ("one two", "ten"), ("ten two", "one"), ("nil two", "one")]
    assert best_substitutions(texts, candidates, 4) == expected[:4]
    assert best_substitutions(texts, candidates[::-1], 99) == expected
    assert best_substitutions(texts, [], 3) == []


@pytest.mark.parametrize(
    ("n_words", "expected"), [(0, 0), (1, 0), (2, 0), (3, 1), (13, 1), (14, 1), (26, 1), (27, 2), (40, 3)]
)
def test_the_number_of_spans_is_that_of_the_papers_code_but_at_least_one(n_words: int, expected: int) -> None:
    assert count_spans(n_words, 0.3, 2, 1) == expected


@given(st.integers(0, 70), st.integers(1, 3), st.integers(0, 2), st.floats(0.01, 1), st.integers(0, 1), st.integers())
def test_spans_are_whole_words_and_keep_their_distance(
    n_words: int, span: int, buffer: int, rate: float, n_kept: int, seed: int
) -> None:
    text = "  ".join(f"w{i}" for i in range(n_words))
    spans = choose_spans(text, rate, span, buffer, random.Random(seed), n_kept=n_kept)
    assert len(spans) == count_spans(max(n_words - n_kept, 0), rate, span, buffer)
    words = [[int(w[1:]) for w in text[start:end].split()] for start, end in spans]
    for own in words:
        assert own == list(range(own[0], own[0] + span))
        assert own[0] >= n_kept
    assert all(b[0] - a[-1] > buffer for a, b in itertools.pairwise(words))


def test_every_choice_of_spans_is_as_likely() -> None:
    """10 words, two spans of two, one word apart: their starts (a, b) have b >= a + 3, which is 21 choices."""
    text = " ".join("abcdefghij")
    rng = random.Random(0)
    n = 6300
    seen = Counter(choose_spans(text, 0.8, 2, 1, rng) for _ in range(n))
    starts = {(spans[0][0] // 2, spans[1][0] // 2) for spans in seen}
    assert starts == {(a, b) for a in range(10) for b in range(a + 3, 9)}
    assert len(starts) == 21
    assert all(abs(count - n / 21) < 5 * math.sqrt(n / 21) for count in seen.values())


@given(TEXTS, st.integers(0, 2**32))
def test_filling_spans_with_what_they_held_changes_nothing(text: str, seed: int) -> None:
    spans = choose_spans(text, 0.9, 1, 0, random.Random(seed))
    held = [text[start:end] for start, end in spans]
    assert put_fills(text, spans, held) == text
    marked = put_fills(text, spans, ["#"] * len(spans))
    assert marked.count("#") == len(spans)
    assert [c for c in marked if c.isspace()] == [c for c in text if c.isspace()]


def test_parts_show_every_word_outside_the_spans_and_hold_so_many_of_them() -> None:
    words = [f"w{i}" for i in range(30)]
    text = " ".join(words)
    at = [text.index(f"w{i} ") for i in (2, 6, 10, 14, 26)]
    spans = [(start, start + len(text[start:].split()[0])) for start in at]
    groups = group_spans(text, spans, max_spans=2, max_words=9)
    assert [own for _, own in groups] == [spans[:2], spans[2:4], spans[4:]]
    shown = {w for (start, end), own in groups for w in with_sentinels(text, (start, end), own).split()}
    assert shown - {"<extra_id_0>", "<extra_id_1>"} == set(words) - {text[a:b] for a, b in spans}
    assert with_sentinels(text, groups[0][0], spans[:2]) == "w0 w1 <extra_id_0> w3 w4 w5 <extra_id_1> w7 w8 w9"
    assert with_sentinels(text, groups[2][0], spans[4:]).startswith("w15 w16")
    assert [len(own) for _, own in group_spans(text, spans, max_spans=9, max_words=9)] == [3, 1, 1]
    assert group_spans(text, [], max_spans=2, max_words=9) == []


@pytest.mark.parametrize(
    ("reply", "n", "expected"),
    [
        ("<pad> <extra_id_0> a cat<extra_id_1> sat <extra_id_2>", 2, ("a cat", "sat")),
        ("<pad><extra_id_0> a <extra_id_1> b <extra_id_2> c <extra_id_3>", 1, ("a",)),  # it went on
        ("<pad><extra_id_0> a <extra_id_1> b", 2, None),  # cut short: the last fill is not closed
        ("<pad><extra_id_0> a <extra_id_2> b <extra_id_1>", 2, None),
        ("<pad><extra_id_0> <extra_id_1> b <extra_id_2>", 2, None),  # an empty fill
        ("a cat", 1, None),
        ("", 1, None),
    ],
)
def test_a_reply_has_its_fills_in_order_or_none(reply: str, n: int, expected: tuple[str, ...] | None) -> None:
    assert read_fills(reply, n) == expected


@given(TEXTS, st.integers(0, 5), st.integers())
def test_swaps_move_words_and_nothing_else(text: str, n: int, seed: int) -> None:
    swapped = swap_words(text, n, random.Random(seed))
    assert sorted(swapped.split()) == sorted(text.split())
    assert [c for c in swapped if c.isspace()] == [c for c in text if c.isspace()]
    if n == 0 or len(text.split()) < 2:
        assert swapped == text


def test_one_swap_exchanges_two_words_and_all_pairs_come() -> None:
    rng = random.Random(0)
    seen = {swap_words("a b\nc", 1, rng) for _ in range(200)}
    assert seen == {"b a\nc", "c b\na", "a c\nb"}
