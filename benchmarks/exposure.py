"""Ranking a secret among its candidates: the token trie against one sequence a candidate, in one run.

    python benchmarks/exposure.py [--model M] [--dtype auto] [--sample 200] [--bank 20000] [--canaries 3]

Two banks after a prompt of about 90 tokens: all 10,000 four-digit codes written as comma-separated digits, and 20,000
codes AAA-XXXX-XXXX (eight prefixes, 32-character alphabet). One by one: each candidate as its own sequence, batch 1,
full logits, encoded beforehand; a sample of them is timed and scaled to the bank. The differences are between those
sampled candidates' values and the trie's. The last line is JSON; `ratio` and `max_abs_diff` are those of the first
dtype and bank, all candidates' values (no pruning).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from indelible.data.answers import encode_answers
from indelible.data.files import fail
from indelible.data.records import Message, Query
from indelible.data.synthetic import synthetic_records
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.candidates import Ranking

PREFIXES = ("FIL", "CRN", "REF", "TKT", "ORD", "INV", "CSE", "ACC")
ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
PREFIX_TEXT = "The reference code is "


@dataclass(frozen=True)
class Measured:
    """One bank."""

    n_prompt_tokens: int
    scaled_one_by_one_s: float
    everything_s: float
    pruned_s: float
    ratio: float
    ratio_pruned: float
    max_abs_diff: float
    tokens_everything: int
    tokens_pruned: int
    ranks: list[tuple[int, int, int]]  # of each canary: with all values, pruned, optimistic


def four_digits() -> list[str]:
    """All comma-separated four-digit codes."""
    return [",".join(f"{i:04d}") for i in range(10_000)]


def alphanumeric(n: int, seed: int) -> list[str]:
    """Distinct codes AAA-XXXX-XXXX."""
    rng = random.Random(seed)
    codes: dict[str, None] = {}
    while len(codes) < n:
        body = "".join(rng.choices(ALPHABET, k=8))
        codes[f"{rng.choice(PREFIXES)}-{body[:4]}-{body[4:]}"] = None
    return list(codes)


def prompt_of(model: CausalModel, n_tokens: int) -> tuple[Message, ...]:
    """A user turn that makes about `n_tokens` prompt tokens, the answer's fixed beginning included."""
    words = " ".join(str(r["instruction"]) + " " + str(r["input"]) for r in synthetic_records(8, seed=1)).split()
    turns: tuple[Message, ...] = ()
    for n in range(1, len(words)):
        turns = (Message("user", " ".join(words[:n])),)
        if len(encode_answers(model.chat, turns, [f"{PREFIX_TEXT}1"], len(PREFIX_TEXT))[0]) >= n_tokens:
            break
    return turns


@torch.inference_mode()
def one_by_one(model: CausalModel, prompt: np.ndarray, codes: Sequence[np.ndarray]) -> list[float]:
    """log p of each code, encoded, as its own sequence."""
    out = []
    for ids in codes:
        whole = torch.from_numpy(np.concatenate([prompt, ids]))
        logp = model.module(input_ids=whole[None], use_cache=False).logits[0].float().log_softmax(-1)
        at = torch.arange(len(prompt), len(whole))
        out.append(float(logp[at - 1, whole[at]].double().sum()))
    return out


def measure(model: CausalModel, plain: CausalModel, bank: list[str], args: argparse.Namespace) -> Measured:
    """Time both ways on one bank."""
    turns = prompt_of(model, 90)
    rng = random.Random(3)
    sample = rng.sample(range(len(bank)), args.sample)
    prompt, encoded = encode_answers(model.chat, turns, [PREFIX_TEXT + code for code in bank], len(PREFIX_TEXT))
    model.rank(Query(turns, bank[0]), bank[:50], prefix=PREFIX_TEXT)  # warm-up
    one_by_one(plain, prompt, encoded[:1])
    whole: list[Ranking] = []
    pruned: list[Ranking] = []
    seconds = {True: 0.0, False: 0.0}
    slow: list[float] = []
    slow_s = 0.0
    for turn, true in enumerate(rng.sample(range(len(bank)), args.canaries)):  # interleaved: all meet the same machine
        for everything, results in ((True, whole), (False, pruned)):
            if everything and turn >= args.whole:
                continue
            start = time.perf_counter()
            results.append(model.rank(Query(turns, bank[true]), bank, prefix=PREFIX_TEXT, everything=everything))
            seconds[everything] += (time.perf_counter() - start) / (args.whole if everything else args.canaries)
        part = [encoded[i] for i in sample[turn :: args.canaries]]
        start = time.perf_counter()
        slow += one_by_one(plain, prompt, part)
        slow_s += time.perf_counter() - start
    values = whole[0].logprobs
    assert values is not None
    order = [i for turn in range(args.canaries) for i in sample[turn :: args.canaries]]
    scaled = slow_s / len(sample) * len(bank)
    return Measured(
        n_prompt_tokens=len(prompt),
        scaled_one_by_one_s=round(scaled, 1),
        everything_s=round(seconds[True], 2),
        pruned_s=round(seconds[False], 2),
        ratio=round(scaled / seconds[True], 1),
        ratio_pruned=round(scaled / seconds[False], 1),
        max_abs_diff=float(np.abs(values[order] - np.array(slow)).max()),
        tokens_everything=whole[0].tokens_computed,
        tokens_pruned=pruned[0].tokens_computed,
        ranks=[(w.rank, p.rank, p.rank_optimistic) for w, p in zip(whole, pruned, strict=False)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Ranking a secret: token trie against one sequence a candidate.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32,auto", help="comma-separated")
    parser.add_argument("--sample", type=int, default=120)
    parser.add_argument("--banks", default="four digits,AAA-XXXX-XXXX", help="which of the two")
    parser.add_argument("--bank", type=int, default=20_000)
    parser.add_argument("--canaries", type=int, default=3, help="codes ranked in each bank")
    parser.add_argument("--whole", type=int, default=1, help="of these, with all candidates' values as well")
    args = parser.parse_args()
    if not 1 <= args.whole <= args.canaries:
        fail("--whole: from 1 to --canaries")
    results: dict[str, dict[str, object]] = {}
    for dtype in args.dtype.split(","):
        model, _ = load_model(args.model, LoadOptions(dtype=dtype))
        plain, _ = load_model(args.model, LoadOptions(dtype=dtype, trainable=True))  # weights as transformers has them
        name = str(model.dtype).removeprefix("torch.")
        banks = {"four digits": four_digits, "AAA-XXXX-XXXX": lambda: alphanumeric(args.bank, 0)}
        for what in args.banks.split(","):
            bank = banks[what]()
            found = measure(model, plain, bank, args)
            print(f"{name}, {what}: {found}")
            results.setdefault(name, {})[what] = vars(found)
    first = next(iter(next(iter(results.values())).values()))
    assert isinstance(first, dict)
    print(
        json.dumps(
            {
                "name": "exposure",
                "ratio": first["ratio"],
                "max_abs_diff": first["max_abs_diff"],
                "what": f"{args.model}, {args.banks}, {args.sample} candidates one by one, scaled",
                "seconds_per_canary": first["everything_s"],
                "threads": torch.get_num_threads(),
                "by_dtype": results,
            }
        )
    )


if __name__ == "__main__":
    main()
