from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indelible.attacks import make_attack
from indelible.attacks.base import Resources
from indelible.data.chat import TokenSpan
from indelible.data.perturb import (
    mask_as_released,
    mask_by_likelihood,
    mask_randomly,
    probe_from,
    read_probes,
    replace_spans,
    tokens_by_turn,
    word_spans,
)
from indelible.data.records import Message, Record
from indelible.errors import DataError

words = st.lists(st.text("ab é\t", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=12)
rates = st.floats(0.01, 1.0)


def rec(name: str, target: str, prompt: str = "Q?") -> Record:
    return Record(name, (Message("user", prompt),), target)


@settings(max_examples=150, deadline=None)
@given(pieces=words, gap=st.sampled_from([" ", "\n", "  "]), rate=rates, seed=st.integers(0, 99))
def test_random_masks_cover_exactly_the_floor_and_leave_the_rest(pieces, gap, rate: float, seed: int) -> None:
    text = gap.join(pieces)
    spans = word_spans(text)
    assert [text[a:b] for a, b in spans] == text.split()
    masked = mask_randomly(text, spans, rate, "[MASK]", random.Random(seed))
    n = math.floor(rate * len(spans))
    if n == 0:
        assert masked is None
        return
    assert masked is not None
    after = masked.split()
    assert after.count("[MASK]") == n
    assert all(new in ("[MASK]", old) for new, old in zip(after, text.split(), strict=True))
    blanks = [c for c in text if c.isspace()]
    assert [c for c in masked if c.isspace()] == blanks


@pytest.mark.parametrize(
    ("n_words", "rate", "n_masked"), [(10, 0.5, 5), (9, 0.5, 4), (3, 0.3, 0), (1, 1.0, 1), (10, 0.7, 7)]
)
def test_the_number_of_masked_words(n_words: int, rate: float, n_masked: int) -> None:
    text = " ".join("abcdefghij"[:n_words])
    masked = mask_randomly(text, word_spans(text), rate, "_", random.Random(0))
    assert (masked or "").count("_") == n_masked


def test_each_word_is_masked_equally_often() -> None:
    text, rng = "a b c d", random.Random(0)
    counts = dict.fromkeys("abcd", 0)
    for _ in range(2000):
        masked = mask_randomly(text, word_spans(text), 0.5, "_", rng) or ""
        for word in "abcd":
            counts[word] += word not in masked
    assert all(abs(n - 1000) < 120 for n in counts.values())  # 5 standard deviations


def test_a_spans_leading_white_space_stays_and_a_span_met_twice_is_replaced_once() -> None:
    assert replace_spans("one two six", [(3, 7), (7, 11)], "_") == "one _ _"
    assert replace_spans("a世b", [(1, 2), (1, 2)], "_") == "a_b"
    assert replace_spans("ab", [(1, 1)], "_") == "ab"


# Tokens " the" ... of "the cat sat on": two tokens make "cat"; sums decide.
TEXT = "the cat sat on"
TOKENS = [((0, 3), -1.0), ((3, 5), -2.0), ((5, 7), -2.5), ((7, 11), -4.0), ((11, 14), -0.5)]


@pytest.mark.parametrize(
    ("rate", "lowest", "expected"),
    [
        (0.25, True, "the _ sat on"),  # cat: -4.5 < sat: -4
        (0.5, True, "the _ _ on"),
        (0.75, True, "_ _ _ on"),
        (0.25, False, "the cat sat _"),
        (0.5, False, "_ cat sat _"),
        (1.0, False, "_ _ _ _"),
        (0.2, True, None),
    ],
)
def test_likelihood_masks_pick_the_words_by_the_sum_over_their_tokens(rate: float, lowest: bool, expected: str) -> None:
    assert mask_by_likelihood(TEXT, word_spans(TEXT), TOKENS, rate, "_", lowest=lowest) == expected


def test_likelihood_masks_of_tokens_pick_the_tokens() -> None:
    spans = [span for span, _ in TOKENS]
    assert mask_by_likelihood(TEXT, spans, TOKENS, 0.4, "_", lowest=True) == "the c_ _ on"
    assert mask_by_likelihood(TEXT, spans, TOKENS, 0.4, "_", lowest=False) == "_ cat sat _"


def test_likelihood_ties_are_masked_from_the_left_and_blank_tokens_count_for_the_word_they_precede() -> None:
    blank = [((0, 1), -1.0), ((1, 2), -9.0), ((2, 3), -1.0), ((3, 5), -1.0)]
    tied = [((0, 1), -1.0), ((1, 3), -1.0), ((3, 5), -1.0)]
    assert mask_by_likelihood("a b c", word_spans("a b c"), blank, 0.4, "_", lowest=True) == "a _ c"
    assert mask_by_likelihood("a b c", word_spans("a b c"), tied, 0.4, "_", lowest=True) == "_ b c"


def test_the_tokens_of_one_character_share_its_likelihood() -> None:
    """Byte-level tokens of one character have the same span; neither may count as certain (log-probability 0)."""
    tokens = [((0, 1), -0.1), ((1, 2), -3.0), ((1, 2), -4.0), ((2, 3), -0.2)]
    spans = [span for span, _ in tokens]
    assert mask_by_likelihood("a世b", spans, tokens, 0.34, "_", lowest=False) == "_世b"


def test_the_released_codes_masking() -> None:
    text = "Take  2 pills\nof 世界 daily 50mg"  # words with an ASCII letter: Take pills of daily 50mg
    for seed in range(20):
        masked = mask_as_released(text, 0.7, "word", random.Random(seed)).split(" ")
        assert masked.count("word") == math.floor(0.7 * 5)
        assert (masked[1], masked[4]) == ("2", "世界")
        assert all(new in ("word", old) for new, old in zip(masked, text.split(), strict=True))
    assert mask_as_released("a  b", 0.4, "word", random.Random(0)) == "a  b", "nothing to mask: the text as it stands"


def test_a_probe_is_the_records_own_conversation_unscored_and_without_its_system_turn() -> None:
    turns = (Message("system", "S"), Message("user", "a"), Message("assistant", "b", scored=True), Message("user", "c"))
    assert probe_from(Record("r", turns, "d"), ["B", "D"]) == (
        Message("user", "a"),
        Message("assistant", "B"),
        Message("user", "c"),
        Message("assistant", "D"),
    )
    assert probe_from(Record("r", (), "d"), ["D"]) == (Message("text", "D\n"),)


def test_tokens_are_sorted_into_their_turns_without_end_markers() -> None:
    record = Record("r", (Message("user", "a"), Message("assistant", "bc", scored=True), Message("user", "c")), "d")
    spans = [TokenSpan(0, 0, 1), TokenSpan(0, 1, 2), None, TokenSpan(1, 0, 1), None]
    assert tokens_by_turn(record, spans, [-1, -2, -3, -4, -5]) == [[((0, 1), -1), ((1, 2), -2)], [((0, 1), -4)]]


@pytest.mark.parametrize("unit", ["word", "icp-mia"])
def test_masks_are_seeded_by_record_id_whatever_stands_around(unit: str) -> None:
    attack = make_attack("icp-sp", {"k": 3, "unit": unit})
    records = [rec(str(i), f"one two three four five six seven {i}") for i in range(8)]

    def variants(order: list[Record], seed: int = 0) -> dict:
        return {r.id: r.variants for r in attack.prepare(order, Resources(seed=seed))}

    made = variants(records)
    assert variants(records[::-1]) == made
    assert variants(records[3:4]) == {"3": made["3"]}
    assert variants(records, seed=1) != made
    same_text = variants([rec("x", records[0].target), rec("y", records[0].target)])
    assert same_text["x"] != same_text["y"]
    assert all(len(set(contexts)) > 1 for v in made.values() for contexts in v.values()), "k masks, drawn anew"


def write(path: Path, rows: object) -> str:
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
    return str(path)


OURS = {"prompt": "Q?", "target": "A", "probes": ["A1", "A2"]}
RELEASED = {
    "target_example": {"instruction": "Q?", "input": " ", "output": "B"},
    "mask_perturbations": ["B1"],
}
WITH_INPUT = {"target_example": {"instruction": "I", "input": "x", "output": "C"}, "mask_perturbations": ["C1"]}
EXPECTED = {("Q?", "A"): ("A1", "A2"), ("Q?", "B"): ("B1",), ("I x", "C"): ("C1",)}


def test_a_probe_file_is_an_array_or_lines_in_either_layout(tmp_path: Path) -> None:
    rows = [OURS, RELEASED, WITH_INPUT]
    assert read_probes(write(tmp_path / "a.json", rows)) == EXPECTED
    assert read_probes(write(tmp_path / "a.jsonl", "\n".join(json.dumps(r) for r in rows) + "\n")) == EXPECTED


def test_probes_from_a_file_are_matched_on_prompt_and_target_both(tmp_path: Path) -> None:
    attack = make_attack("icp-sp", {"probe_file": write(tmp_path / "a.json", [OURS, RELEASED])})
    records = [rec("a", "A"), rec("b", "B"), rec("other target", "C"), rec("other prompt", "A", prompt="Q")]
    made = {r.id: next(iter(r.variants.values())) for r in attack.prepare(records, Resources())}
    assert [c[-1] for c in made["a"]] == [Message("assistant", "A1"), Message("assistant", "A2")]
    assert [c[-1] for c in made["b"]] == [Message("assistant", "B1")]
    assert made["other target"] == made["other prompt"] == ()


def test_a_probe_file_is_no_crash_for_a_record_of_several_answers(tmp_path: Path) -> None:
    turns = (Message("user", "Q?"), Message("assistant", "A", scored=True), Message("user", "And?"))
    record = Record("r", turns, "B")
    row = {"prompt": record.prompt, "target": "B", "probes": ["B1"]}
    attack = make_attack("icp-sp", {"probe_file": write(tmp_path / "a.json", [row])})
    try:
        made = attack.prepare([record], Resources())
    except DataError:
        return
    assert all(c[-1] == Message("assistant", "B1") for c in next(iter(made[0].variants.values())))


@pytest.mark.parametrize(
    "content",
    [
        "{not json",
        [{"prompt": "Q?", "target": "A"}],
        [{"prompt": "Q?", "probes": ["x"]}],
        [{"target_example": {"instruction": "Q?"}, "mask_perturbations": ["x"]}],
        [{"target_example": "Q?", "mask_perturbations": ["x"]}],
        ["a string"],
        [3],
        [{"prompt": "Q?", "target": "A", "probes": "not a list"}],
        [{"prompt": "Q?", "target": "A", "probes": [1, 2]}],
        [{"prompt": "Q?", "target": "A", "probes": None}],
        [{"prompt": ["Q?"], "target": "A", "probes": ["x"]}],
    ],
    ids=lambda c: c if isinstance(c, str) else json.dumps(c)[:60],
)
def test_a_malformed_probe_file_is_one_clear_line(tmp_path: Path, content: object) -> None:
    with pytest.raises(DataError, match=r"p\.json.*expected") as caught:
        read_probes(write(tmp_path / "p.json", content))
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_probe_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x93")
    for name in ("nowhere.json", "binary", "."):
        with pytest.raises(DataError, match="cannot be read") as caught:
            read_probes(str(tmp_path / name))
        assert "\n" not in str(caught.value)
