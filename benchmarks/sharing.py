"""Does computing a shared beginning once ever cost more than it saves? Small groups, with and without sharing.

    python benchmarks/sharing.py [--min-saved N] [--model M] [--dtype auto] [--tokens 2048]

Groups of 2 or 8 queries share their first s tokens and have 8, 32 or 128 of their own, one of them target. Both ways
answer the same queries by turns; the figure is the median over `--repeat` turns of time without over time with sharing.
The last line is JSON: `ratio` is the least of the grid where something was shared (below 1 means sharing made it
slower), `max_abs_diff` the largest difference of a log-probability between both ways, nats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import torch

from indelible.data.chat import Encoded
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring import network
from indelible.scoring.network import Work, run


def queries(n_groups: int, size: int, shared: int, own: int, vocabulary: int) -> list[Encoded]:
    """Random queries in groups."""
    rng = np.random.default_rng(0)
    mask = np.arange(shared + own) == shared + own - 1
    out = []
    for _ in range(n_groups):
        beginning = rng.integers(10, vocabulary, shared)
        out += [
            Encoded(np.concatenate([beginning, rng.integers(10, vocabulary, own)]), mask, (None,)) for _ in range(size)
        ]
    return out


def work(model: CausalModel, asked: list[Encoded], *, packs: bool) -> Work:
    """The plan; without packs nothing is shared."""
    return network.lay_out_work(asked, packs=packs, batch_tokens=model.batch_tokens, kv_tokens=1 << 40)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sharing beginnings against not sharing them.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--min-saved", type=int, default=network.MIN_SAVED_TOKENS)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    network.MIN_SAVED_TOKENS = args.min_saved
    model, _ = load_model(args.model, LoadOptions(dtype=args.dtype))
    rows, worst = [], 0.0
    for size in (2, 8):
        for own in (8, 32, 128):
            for shared in (8, 16, 32, 64, 128):
                n_groups = max(1, args.tokens // (size * (shared + own)))
                asked = queries(n_groups, size, shared, own, int(model.module.config.vocab_size))
                plans = {packs: work(model, asked, packs=packs) for packs in (False, True)}
                n_computed = sum(plans[True].plan.costs)
                if n_computed == sum(map(len, asked)):
                    continue  # the rule shares nothing here
                seconds: dict[bool, list[float]] = {False: [], True: []}
                answers: dict[bool, dict[int, float]] = {}
                for _ in range(args.repeat + 1):
                    for packs, made in plans.items():
                        start = time.perf_counter()
                        answers[packs] = {i: float(a.logprobs[0]) for i, a in run(model.network, asked, made)}
                        seconds[packs].append(time.perf_counter() - start)
                ratios = [a / b for a, b in zip(seconds[False][1:], seconds[True][1:], strict=True)]  # first: warm-up
                worst = max(worst, *(abs(answers[False][i] - answers[True][i]) for i in answers[True]))
                rows.append(
                    {
                        "group": size,
                        "own": own,
                        "shared": shared,
                        "tokens_ratio": round(sum(map(len, asked)) / n_computed, 2),
                        "ratio": round(statistics.median(ratios), 2),
                    }
                )
                print(rows[-1], flush=True)
    print(
        json.dumps(
            {
                "name": "sharing",
                "ratio": min(float(r["ratio"]) for r in rows),
                "max_abs_diff": worst,
                "what": f"{args.model}, {model.dtype}, stretches that save {args.min_saved} tokens and more",
                "threads": torch.get_num_threads(),
                "grid": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
