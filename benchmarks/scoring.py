"""Scoring speed: the naive loop and ours on the same requests, in one run, with the largest score difference.

    python benchmarks/scoring.py [--data FILE.jsonl] [--records 12] [--k 5]

Requests: every record once by itself and once after each of K masked copies of its answer (`icp-sp`). Naive: one query
at a time, full float32 logits over all positions, as most public tools ask. Ours runs without its answer cache. The
last line is JSON: ratio is naive time over ours, max_abs_diff the largest difference of a mean log-likelihood (nats a
token).
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from indelible.attacks import make_attack
from indelible.attacks.base import Resources
from indelible.data.files import fail
from indelible.data.formats import read_records
from indelible.data.records import Message, Query, Record
from indelible.data.synthetic import synthetic_records
from indelible.interview import prepare
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import Answers, answer


def requests(args: argparse.Namespace) -> list[Query]:
    """All queries of ICP-SP on the records."""
    if args.data:
        records = list(read_records(args.data).records[: args.records])
    else:
        rows = synthetic_records(args.records, seed=0)
        records = [
            Record(f"r{i}", (Message("user", f"{r['instruction']}\n{r['input']}"),), r["output"])
            for i, r in enumerate(rows)
        ]
    if not records:
        fail("no records to score")
    attack = make_attack("icp-sp", {"k": args.k})
    prepared = prepare([attack], records, Resources())
    return [q for r in prepared for q in attack.queries(r, Answers({}))]


@torch.inference_mode()
def naive(model: CausalModel, queries: list[Query]) -> list[float]:
    """One query at a time, full logits."""
    out = []
    for query in queries:
        encoded = model.encode(query)
        ids = torch.from_numpy(encoded.input_ids)[None].to(model.device)  # (1, T)
        logp = model.module(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)[0]  # (T, V)
        at = torch.from_numpy(encoded.target_positions).to(model.device)
        out.append(float(logp[at - 1, ids[0, at]].mean()))
    return out


def ours(model: CausalModel, queries: list[Query]) -> list[float]:
    """The engine."""
    answers, _ = answer(model, queries)
    return [float(np.mean(answers[q].logprobs)) for q in queries]


def timed(function, *args):  # type: ignore[no-untyped-def]
    """The function's result and how long it took."""
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Scoring speed against the naive loop.")
    parser.add_argument("--data")
    parser.add_argument("--records", type=int, default=12)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    args = parser.parse_args()
    queries = requests(args)
    results = {}
    reference: list[float] = []
    reference_s = 0.0
    for dtype in ("float32", "auto"):
        model, _ = load_model(args.model, LoadOptions(dtype=dtype))
        name = str(model.dtype).removeprefix("torch.")
        if name in results:
            continue
        encoded = [model.encode(q) for q in queries]
        n_asked, n_computed = sum(len(e) for e in encoded), sum(model.costs(encoded))
        ours(model, queries[:4])  # warm-up
        fast, fast_s = timed(ours, model, queries)
        slow, slow_s = timed(naive, model, queries)
        reference, reference_s = (slow, slow_s) if not reference else (reference, reference_s)
        results[name] = {
            "naive_s": round(slow_s, 2),
            "ours_s": round(fast_s, 2),
            "ratio_equal_dtype": round(slow_s / fast_s, 2),
            "ratio_to_float32_naive": round(reference_s / fast_s, 2),
            "max_abs_diff_equal_dtype": float(np.max(np.abs(np.subtract(fast, slow)))),
            "max_abs_diff_to_float32_naive": float(np.max(np.abs(np.subtract(fast, reference)))),
            "tokens_asked": n_asked,
            "tokens_computed": n_computed,
        }
        print(name, results[name])
    first = results["float32"]
    print(
        json.dumps(
            {
                "name": "scoring",
                "ratio": first["ratio_equal_dtype"],
                "max_abs_diff": first["max_abs_diff_equal_dtype"],
                "n_queries": len(queries),
                "threads": torch.get_num_threads(),
                "by_dtype": results,
            }
        )
    )


if __name__ == "__main__":
    main()
