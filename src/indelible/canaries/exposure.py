"""A model is asked the probes: where the code ranks among its candidates, and what comes out when it goes on itself."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from indelible.canaries.codes import CodeFormat
from indelible.canaries.config import ProbeOptions
from indelible.canaries.design import Design
from indelible.canaries.probes import Probe
from indelible.data.records import Message, Query
from indelible.errors import ConfigError, DataError, Unscorable
from indelible.models.base import LanguageModel
from indelible.progress import Progress
from indelible.scoring.candidates import standing
from indelible.scoring.engine import ENGINE_VERSION

ENUMERATED = 20_000
"""Code spaces up to this size are ranked whole; larger ones against a bank of decoys."""

REPLIES_TOGETHER = 16
BARE = (Message("user", "?"),)
NEW_CODE_PROBES = ("unseen", "plain")


@dataclass(frozen=True)
class Reading:
    """The answer to a probe; no text of the model's in it.

    Attributes:
        rank, rank_optimistic: of the assigned code among all candidates (of the supplied one for the probes `unseen`
            and `plain`, whose assigned code is not in question); NaN where there is none.
        supplied_rank: of the code that the cue supplies, where that is another one; NaN otherwise.
        logprob: of the ranked code with the fixed rest of the answer, nats.
        recovered: the reply's first code is the assigned one. copied: it is the supplied one; None where none is
            supplied.
        full_response: the reply is the whole rest of the answer and nothing else.
        positions_correct: symbols of the ranked code that are right in the reply's first code; 0 without a code.
        reason: why there is no rank.
    """

    rank: float
    rank_optimistic: float
    n_candidates: int
    supplied_rank: float
    logprob: float
    recovered: bool
    copied: bool | None
    full_response: bool
    positions_correct: int
    n_positions: int
    reason: str | None = None


@dataclass(frozen=True)
class Bank:
    """The candidates that a code is ranked among: all codes, or shared decoys that are nobody's code."""

    codes: CodeFormat
    decoys: tuple[str, ...]
    enumerated: bool

    @property
    def n_candidates(self) -> int:
        """The ranked code included."""
        return len(self.decoys) + (0 if self.enumerated else 1)

    def among(self, *ranked: str) -> list[str]:
        """Written candidates, the ranked codes at the end unless all codes are candidates."""
        named = self.decoys if self.enumerated else (*self.decoys, *dict.fromkeys(ranked))
        return [self.codes.written(code) for code in named]

    @property
    def digest(self) -> str:
        """Changes with the candidates."""
        named = [self.codes.name, *map(self.codes.written, self.decoys)]
        return hashlib.sha256("\n".join(named).encode()).hexdigest()


def make_bank(design: Design, n_decoys: int) -> Bank:
    """All codes where there are at most `ENUMERATED`; else `n_decoys` drawn once for the design.

    Assigned and new codes are never decoys (section C-B2).
    """
    if design.codes.size <= ENUMERATED:
        return Bank(design.codes, tuple(design.codes.space()), enumerated=True)
    taken = {c.code for c in design.canaries} | {code for codes in design.new_codes.values() for code in codes}
    rng = random.Random(f"{design.codes_seed}:decoys")
    return Bank(design.codes, tuple(design.codes.bank(n_decoys, rng, exclude=taken)), enumerated=False)


def ask_probes(
    model: LanguageModel, bank: Bank, asked: Sequence[Probe], options: ProbeOptions, memo: Memo, *, stage: str
) -> list[Reading]:
    """Ask a model. What the memo holds is not asked again; every answer goes there as soon as it is had."""
    limit = new_tokens(model, bank.codes, asked, options)
    settings = json.dumps([ENGINE_VERSION, model.fingerprint, bank.digest, limit])
    keys = [_key(settings, probe) for probe in asked]
    distinct = dict(zip(reversed(keys), reversed(asked), strict=True))  # equal questions are asked once
    order = list(dict.fromkeys(keys))
    n_new = sum(key not in memo for key in order)
    with Progress(stage, total=n_new, unit="probes") as progress:
        for start in range(0, len(order), REPLIES_TOGETHER):
            part = order[start : start + REPLIES_TOGETHER]
            if all(key in memo for key in part):
                continue
            # Replies are made together as they were before an interruption, so that none depends on it.
            queries = [
                Query(asked.messages, bank.codes.written(asked.assigned), asked.images)
                for asked in (distinct[key] for key in part)
            ]
            replies = model.generate(queries, limit, begun=[distinct[key].begun for key in part])
            for key, query, reply in zip(part, queries, replies, strict=True):
                if key not in memo:
                    memo.add(key, _read(model, bank, distinct[key], query, reply))
                    progress.advance(1)
    return [memo[key] for key in keys]


def new_tokens(model: LanguageModel, codes: CodeFormat, asked: Sequence[Probe], options: ProbeOptions) -> int:
    """Tokens of a reply: 12 for codes of up to five symbols, else 24 (sections A-B and C-B2), and never fewer than what
    is to be replied has.

    Raises:
        ConfigError: fewer were asked for than that.
    """
    rests = dict.fromkeys(p.reply(codes.written(p.assigned)) for p in asked)
    needed = max((int(model.encode(Query(BARE, rest)).is_target.sum()) for rest in rests), default=1)
    if options.max_new_tokens is None:
        return max(12 if codes.n_positions <= 5 else 24, needed)
    if options.max_new_tokens < needed:
        raise ConfigError(
            f"probe.max_new_tokens {options.max_new_tokens}: the rest of an answer has {needed} tokens with this model"
        )
    return options.max_new_tokens


def _read(model: LanguageModel, bank: Bank, probe: Probe, query: Query, reply: str) -> Reading:
    codes = bank.codes
    fresh = probe.probe in NEW_CODE_PROBES
    ranked = probe.supplied if fresh and probe.supplied is not None else probe.assigned
    other = probe.supplied if probe.supplied not in (None, ranked) else None
    found = codes.find(reply)
    reading = Reading(
        rank=math.nan,
        rank_optimistic=math.nan,
        n_candidates=bank.n_candidates,
        supplied_rank=math.nan,
        logprob=math.nan,
        recovered=found == probe.assigned,
        copied=None if probe.supplied is None else found == probe.supplied,
        full_response=reply.strip() == probe.reply(codes.written(ranked)).strip(),
        positions_correct=sum(codes.positions_correct(found, ranked)),
        n_positions=codes.n_positions,
    )
    candidates = bank.among(*(code for code in (ranked, other) if code is not None))
    query = replace(query, target=codes.written(ranked))
    try:
        made = model.rank(query, candidates, probe.after, prefix=probe.before, everything=other is not None)
    except (Unscorable, DataError) as error:
        return replace(reading, reason=str(error))
    if other is None or made.logprobs is None:
        return replace(reading, rank=made.rank, rank_optimistic=made.rank_optimistic, logprob=made.logprob)
    at = {text: i for i, text in enumerate(candidates)}
    own, foreign = at[query.target], at[codes.written(other)]
    values = made.logprobs
    if not bank.enumerated:  # a bank ranks one code at a time: the other one is not among the candidates
        rank, optimistic = standing(np.delete(values, foreign), own - (foreign < own))
        supplied, _ = standing(np.delete(values, own), foreign - (own < foreign))
    else:
        (rank, optimistic), (supplied, _) = standing(values, own), standing(values, foreign)
    return replace(reading, rank=rank, rank_optimistic=optimistic, supplied_rank=supplied, logprob=float(values[own]))


def _key(settings: str, probe: Probe) -> str:
    facts = asdict(replace(probe, images=())) | {"probe": probe.probe in NEW_CODE_PROBES}
    facts.pop("images")
    if probe.images:  # a picture counts by its hash
        facts["images"] = [image.sha256 for image in probe.images]
    for name in ("canary_id", "repeat"):  # the same question about the same codes is one question, whoever asks
        facts.pop(name)
    return hashlib.sha256((settings + json.dumps(facts)).encode()).hexdigest()


class Memo:
    """Readings by question on disk, one JSON line each; what was had before a crash is not asked again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.utility: dict[Any, Any] = {}  # in memory alone: a few seconds to ask again
        self._found: dict[str, Reading] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, stored = json.loads(line)
                except ValueError:  # the last line of a killed process
                    continue
                self._found[key] = Reading(**stored)

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __getitem__(self, key: str) -> Reading:
        return self._found[key]

    def add(self, key: str, reading: Reading) -> None:
        """Keep a reading, in memory and on disk."""
        self._found[key] = reading
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(mode=0o600)  # what a model said of secrets: for its owner alone
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, asdict(reading)]) + "\n")
