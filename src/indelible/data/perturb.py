"""Masked copies of an answer: the probes of self-perturbation in-context probing."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from indelible.data.chat import TokenSpan
from indelible.data.records import Context, Message, Record, Role
from indelible.errors import DataError

Unit = Literal["word", "token", "icp-mia"]
"""What is masked: whitespace words, the model's tokens, or the released ICP-MIA code's words (those with an ASCII
letter; white space is folded to single spaces; nothing is masked where the rate rounds to zero)."""

_WORD = re.compile(r"\S+")
_ASCII_LETTER = re.compile(r"[A-Za-z]")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the whitespace-separated words of a text stand."""
    return [m.span() for m in _WORD.finditer(text)]


def replace_spans(text: str, spans: Sequence[tuple[int, int]], placeholder: str) -> str:
    """Put `placeholder` in the place of each span; white space at a span's start stays.

    Spans are ascending and do not overlap. (A byte-level token may be part of a character; two tokens of one character
    report the same span, which is replaced once.)
    """
    out: list[str] = []
    cursor = 0
    for start, end in spans:
        if start < cursor or start == end:
            continue
        token = text[start:end]
        lead = token[: len(token) - len(token.lstrip())]
        out += [text[cursor:start], lead, placeholder]
        cursor = end
    return "".join([*out, text[cursor:]])


def mask_randomly(
    text: str, spans: Sequence[tuple[int, int]], rate: float, placeholder: str, rng: random.Random
) -> str | None:
    """Mask floor(rate * L) of the L spans, chosen uniformly without replacement (ICP-MIA, Sec. V-B2).

    Returns:
        the masked text, or None where floor(rate * L) is 0: a probe that shows the whole answer is no probe.
    """
    n = math.floor(rate * len(spans))
    if n == 0:
        return None
    chosen = sorted(rng.sample(range(len(spans)), n))
    return replace_spans(text, [spans[i] for i in chosen], placeholder)


def mask_as_released(text: str, rate: float, placeholder: str, rng: random.Random) -> str:
    """The released ICP-MIA code's masking, for `compat="icp-mia"`; unmasked where the rate gives 0 words."""
    words = text.split()
    eligible = [i for i, w in enumerate(words) if _ASCII_LETTER.search(w)]
    n = math.floor(rate * len(eligible))
    if n == 0:
        return text
    for i in rng.sample(eligible, n):
        words[i] = placeholder
    return " ".join(words)


def mask_by_likelihood(
    text: str,
    spans: Sequence[tuple[int, int]],
    tokens: Sequence[tuple[tuple[int, int], float]],
    rate: float,
    placeholder: str,
    *,
    lowest: bool,
) -> str | None:
    """Mask the floor(rate * L) spans of lowest (or highest) log-likelihood (ICP-MIA, Sec. V-B2, LL-based masking).

    `tokens` are the text's tokens, each with where it stands and its log-probability. A span's log-likelihood is
    the sum over the tokens that start in it (leading white space aside). Ties are masked from the left.
    """
    spans = list(dict.fromkeys(spans))  # tokens that are bytes of one character stand at the same place: one unit
    n = math.floor(rate * len(spans))
    if n == 0:
        return None
    totals = [0.0] * len(spans)
    at = 0
    for (start, end), logp in tokens:
        first = min(start + len(text[start:end]) - len(text[start:end].lstrip()), end - 1)
        while at < len(spans) - 1 and first >= spans[at][1]:
            at += 1
        totals[at] += logp
    order = sorted(range(len(spans)), key=lambda i: (totals[i] if lowest else -totals[i], i))
    chosen = sorted(order[:n])
    return replace_spans(text, [spans[i] for i in chosen], placeholder)


def probe_from(record: Record, answers: Sequence[str]) -> Context:
    """The record's own conversation with other texts in its answers' places: the probe (x, y'), nothing scored.

    Args:
        answers: one text a scored turn of the record, in order, the target's last.
    """
    replaced = iter(answers)
    turns = [Message(m.role, next(replaced) if m.scored else m.content) for m in record.messages if m.role != "system"]
    role: Role = "text" if all(m.role == "text" for m in record.messages) else "assistant"
    last = next(replaced)
    return (*turns, Message(role, last + "\n" if role == "text" else last))


def tokens_by_turn(
    record: Record, spans: Sequence[TokenSpan | None], logprobs: Sequence[float] | None = None
) -> list[list[tuple[tuple[int, int], float]]]:
    """Target tokens sorted into the record's answers, end markers left out: where each stands, and its log-probability
    (0 where none are given)."""
    out: list[list[tuple[tuple[int, int], float]]] = [[] for _ in record.responses]
    for span, logp in zip(spans, logprobs or [0.0] * len(spans), strict=True):
        if span is None:
            continue
        turn = out[span.turn]
        where = (span.start, span.end)
        if turn and turn[-1][0] == where:  # tokens that are bytes of one character stand at the same place
            turn[-1] = (where, turn[-1][1] + logp)
        else:
            turn.append((where, logp))
    return out


def probe_key(prompt: str, target: str) -> tuple[str, str]:
    """What probes are matched by: both texts, white space aside (some readers strip it)."""
    return " ".join(prompt.split()), " ".join(target.split())


def _texts(probes: object) -> tuple[str, ...]:
    if not isinstance(probes, list) or not all(isinstance(p, str) for p in probes):
        raise TypeError("probes are not a list of strings")
    return tuple(probes)


def read_probes(path: str) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Probes made elsewhere: `probe_key(prompt, target)` -> probe answers.

    One JSON object a line, or a JSON array: `{"prompt": ..., "target": ..., "probes": [...]}`, or as the released
    ICP-MIA code writes them, `{"target_example": {"instruction", "input", "output"}, "mask_perturbations": [...]}`.
    Records are matched on prompt and target both (the released code matches on the prompt alone, and then uses one
    answer's probes for another).

    Raises:
        DataError: missing file, malformed JSON, or other keys.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"probe file {path} cannot be read: {error}") from error
    try:
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(s) for s in text.splitlines() if s.strip()]
        )
        out: dict[tuple[str, str], tuple[str, ...]] = {}
        for row in rows:
            if "target_example" in row:
                example = row["target_example"]
                given = example.get("input") or ""
                prompt = f"{example['instruction']}\n{given}" if given.strip() else example["instruction"]
                out[probe_key(prompt, example["output"])] = _texts(row["mask_perturbations"])
            else:
                out[probe_key(row["prompt"], row["target"])] = _texts(row["probes"])
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"probe file {path}: expected objects with prompt, target and probes (or target_example and "
            f"mask_perturbations); found a problem at {error!r}"
        ) from error
    return out
