"""Peak memory of a 2,000-query run, ours against the naive loop, each in a process of its own.

    python benchmarks/memory.py [--queries 2000] [--kv-memory BYTES] [--dtype auto]

The queries: half are records after a constant prefix of seven demonstrations (as ReCaLL asks), half records after
masked copies of their answers (as ICP-SP asks). The naive loop (batch 1, full logits) asks only the longest 40 of
them: its peak is that of its longest query. Peak is the resident set's high-water mark, weights included. The last
line is JSON; `ratio` is ours over the naive peak plus `--kv-memory` (at most 1 is wanted), `max_abs_diff` that of the
queries both asked.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from indelible.attacks import make_attack
from indelible.attacks.base import Resources
from indelible.data.records import Message, Query, Record
from indelible.data.synthetic import synthetic_records
from indelible.drift import one_by_one
from indelible.interview import prepare
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import Answers, answer

N_NAIVE = 40


def queries(n: int) -> list[Query]:
    """The run's questions."""
    rows = synthetic_records(n // 2 + 20, seed=5)
    records = [
        Record(f"r{i}", (Message("user", f"{r['instruction']}\n{r['input']}"),), r["output"])
        for i, r in enumerate(rows)
    ]
    pool, rest = tuple(records[:20]), records[20:]
    recall, masked = make_attack("recall", {}), make_attack("icp-sp", {"k": 10})
    constant = [
        q
        for r in prepare([recall], rest, Resources(pool))
        for q in recall.queries(r, Answers({}))
        if len(q.messages) > 2
    ]
    probes = [
        q for r in prepare([masked], rest[: n // 20 + 1], Resources(pool)) for q in masked.queries(r, Answers({}))
    ]
    return list(dict.fromkeys([*constant[: n // 2], *probes]))[:n]


def one_side(args: argparse.Namespace) -> dict[str, Any]:
    """Load, ask, and read the high-water mark."""
    fast = args.side == "ours"
    options = LoadOptions(dtype=args.dtype, kv_memory=args.kv_memory, trainable=not fast)
    model, _ = load_model(args.model, options)
    asked = queries(args.queries)
    longest = sorted(asked, key=lambda q: -len(model.encode(q)))[:N_NAIVE]
    if fast:
        answers, counts = answer(model, asked)
        scores = {q.digest().hex(): float(np.mean(answers[q].logprobs)) for q in longest}
        n_tokens = counts.tokens_computed
    else:
        scores = {q.digest().hex(): float(one_by_one(model, model.encode(q)).mean()) for q in longest}
        n_tokens = sum(len(model.encode(q)) for q in longest)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, "n_queries": len(asked), "tokens": n_tokens, "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory against the naive loop.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--kv-memory", type=int, default=256 << 20)
    parser.add_argument("--side", choices=["ours", "naive"], help="used by the script itself")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(one_side(args)))
        return
    found: dict[str, Any] = {}
    for side in ("naive", "ours"):
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--side", side]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        found[side] = json.loads(lines[-1])
        print(f"{side}: {found[side]['peak_bytes'] / 2**20:.0f} MiB, {found[side]['tokens']:,} tokens computed")
    scores = {side: found[side].pop("scores") for side in found}
    allowed = found["naive"]["peak_bytes"] + args.kv_memory
    print(
        json.dumps(
            {
                "name": "memory",
                "ratio": round(found["ours"]["peak_bytes"] / allowed, 3),
                "max_abs_diff": max(abs(scores["ours"][k] - scores["naive"][k]) for k in scores["naive"]),
                "what": f"{found['ours']['n_queries']} queries, {args.model}, {args.dtype}",
                "n_naive": N_NAIVE,
                "kv_memory": args.kv_memory,
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
