"""Rewriting a text in place: single words put in, spans cut out and filled, words swapped. No model is needed here.

Everything is done by character offsets in the text as it is: what is not rewritten stays as it was, white space and
all, so that a rewritten text differs from its original by the rewriting alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from indelible.data.perturb import word_spans
from indelible.data.records import Message

Span = tuple[int, int]

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could stand in another's place: in answer `turn`, for the characters `start` to `end`, the other's
    own blank included.

    Attributes:
        written: the token as it is written after a word: with a blank in front where it begins a new word.
        weight: log of p(candidate) / (1 - p(original)): how well it fits there, were the original not allowed.
    """

    turn: int
    start: int
    end: int
    written: str
    weight: float


def with_blank(text: str, start: int, end: int, written: str) -> Span:
    """Where a token stands, with the blank that belongs to it: some tokenizers' offsets leave it out.

    Args:
        written: the token as it is written after a word.
    """
    own = written[:1] == " " and text[start - 1 : start] == " " and not text[start:end][:1].isspace()
    return (start - 1 if own else start, end)


def substitute(text: str, start: int, end: int, written: str) -> str:
    """The text with the token at `start:end`, its blank included, replaced.

    A token that begins a word is set off from what stands before; one that continues a word is joined to it: the blank
    of the token that it replaces goes. All other white space stays.
    """
    token = text[start:end]
    head, new = text[: end - len(token.lstrip())], written.strip()
    if written[:1].isspace():
        head = head if not head or head[-1].isspace() else f"{head} "
    elif token[:1].isspace() and head.endswith(" "):
        head = head[:-1]
    return head + new + text[end:]


def best_substitutions(texts: Sequence[str], candidates: Iterable[Candidate], n: int) -> list[tuple[str, ...]]:
    """The n rewritings of heaviest weight, heaviest first, each with one token of one text replaced.

    Ties go to the earlier text, place and word. Rewritings that are equal to the original or to one another count once.

    Args:
        texts: a record's answers. candidates: for any of their tokens.
    """
    original = tuple(texts)
    found: dict[tuple[str, ...], None] = {}
    for c in sorted(candidates, key=lambda c: (-c.weight, c.turn, c.start, c.written)):
        if len(found) == n:
            break
        new = list(original)
        new[c.turn] = substitute(new[c.turn], c.start, c.end, c.written)
        if tuple(new) != original:
            found[tuple(new)] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class Blanks:
    """A text with places to fill: ascending `spans` of it; `messages` stand before it; `seed` is of the draw."""

    messages: tuple[Message, ...]
    text: str
    spans: tuple[Span, ...]
    seed: int


def count_spans(n_words: int, rate: float, span: int, buffer: int) -> int:
    """How many spans of `span` words are cut out of a text: max(1, floor(rate n / (span + 2 buffer))); 0 where the text
    has no word beside a span."""
    return max(1, int(rate * n_words / (span + 2 * buffer))) if n_words > span else 0


def choose_spans(
    text: str, rate: float, span: int, buffer: int, rng: random.Random, *, n_kept: int = 0
) -> tuple[Span, ...]:
    """Spans of `span` words to cut out, at least `buffer` words apart; every such choice is as likely.

    Args:
        n_kept: words at the start that stay: there is nothing before them to write on from.

    Returns:
        ascending character spans; none where the text is too short (see `count_spans`).
    """
    words = word_spans(text)[n_kept:]
    n = count_spans(len(words), rate, span, buffer)
    if not n:
        return ()
    # Squeezed to one place a span, with the buffers taken out, spans are distinct places: no draw has to be repeated.
    places = len(words) - n * (span - 1) - (n - 1) * buffer
    starts = [at + i * (span - 1 + buffer) for i, at in enumerate(sorted(rng.sample(range(places), n)))]
    return tuple((words[i][0], words[i + span - 1][1]) for i in starts)


def put_fills(text: str, spans: Sequence[Span], fills: Sequence[str]) -> str:
    """The text with each ascending span replaced by its fill."""
    out: list[str] = []
    cursor = 0
    for (start, end), fill in zip(spans, fills, strict=True):
        out += [text[cursor:start], fill]
        cursor = end
    return "".join([*out, text[cursor:]])


def group_spans(text: str, spans: Sequence[Span], *, max_spans: int, max_words: int) -> list[tuple[Span, list[Span]]]:
    """Spans in groups small enough for one question to a filler.

    Args:
        max_spans: sentinels that the filler knows. max_words: about as many words of the text from the first to the
            last span of a group.

    Returns:
        for each group the part of the text to show, and its spans. A part reaches from the end of the group before to
        the start of the next, so that each word outside the spans is shown.
    """
    groups: list[list[Span]] = []
    for span in spans:
        near = groups and len(text[groups[-1][0][0] : span[1]].split()) <= max_words
        if near and len(groups[-1]) < max_spans:
            groups[-1].append(span)
        else:
            groups.append([span])
    starts = [0, *(group[-1][1] for group in groups)]
    ends = [*(group[0][0] for group in groups[1:]), len(text)]
    return [((starts[i], ends[i]), group) for i, group in enumerate(groups)]


def with_sentinels(text: str, part: Span, spans: Sequence[Span]) -> str:
    """A part of a text with its spans as T5 writes what is to be filled: <extra_id_0>, <extra_id_1>, ..."""
    shifted = [(start - part[0], end - part[0]) for start, end in spans]
    return put_fills(text[part[0] : part[1]], shifted, [f"<extra_id_{i}>" for i in range(len(spans))]).strip()


def read_fills(reply: str, n: int) -> tuple[str, ...] | None:
    """The n fills in a T5 reply `<extra_id_0> fill <extra_id_1> fill ... <extra_id_n>`, without blanks around.

    None where a sentinel is missing or out of order, or a fill is empty. The last fill must be closed by a sentinel:
    whoever asks puts one in place of the end marker, so that a reply cut short has no last fill.
    """
    pieces = _SENTINEL.split(reply)  # text before, then by turns a number and the text after it
    numbers, fills = [int(i) for i in pieces[1::2]], [piece.strip() for piece in pieces[2::2]]
    if numbers[: n + 1] != list(range(n + 1)) or not all(fills[:n]):
        return None
    return tuple(fills[:n])


def swap_words(text: str, n: int, rng: random.Random) -> str:
    """The text after n swaps of two random words, with the white space between words as it was.

    A text of fewer than two words stays as it is.
    """
    spans = word_spans(text)
    words = [text[start:end] for start, end in spans]
    if len(words) < 2:
        return text
    for _ in range(n):
        i, j = rng.sample(range(len(words)), 2)
        words[i], words[j] = words[j], words[i]
    return put_fills(text, spans, words)
