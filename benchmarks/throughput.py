"""Tokens a second on whatever device there is, a GPU above all: scoring and training, a minute or two.

    python benchmarks/throughput.py [--device cuda] [--model M] [--batch-tokens 4096,8192,16384]

Scoring: records of 256 tokens, a quarter of them target, and the same records in groups of eight that share their
first half. Training: steps of 32 such rows. On a GPU, operations are waited for. The last line is JSON; `ratio` is
shared over plain scoring, in requests a second, `max_abs_diff` the largest difference to scoring one by one, nats a
token.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from indelible.data.chat import Encoded
from indelible.models.causal import CausalModel, default_device
from indelible.models.load import LoadOptions, load_model

LENGTH = 256


def rows(n: int, shared: int, group: int, vocabulary: int) -> list[Encoded]:
    """Random rows; in each group the first `shared` tokens are the same."""
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) >= LENGTH - LENGTH // 4
    out = []
    for i in range(n):
        ids = rng.integers(10, vocabulary, LENGTH)
        if i % group:
            ids[:shared] = out[-1].input_ids[:shared]
        out.append(Encoded(ids, mask, (None,) * int(mask.sum())))
    return out


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def scored(model: CausalModel, encoded: list[Encoded]) -> tuple[float, dict[int, Any]]:
    """Seconds, and the answers."""
    wait(model.device)
    start = time.perf_counter()
    found = dict(model.stream(encoded))
    wait(model.device)
    return time.perf_counter() - start, found


@torch.inference_mode()
def slowly(model: CausalModel, e: Encoded) -> np.ndarray:
    """Log-probabilities one by one with full logits."""
    ids = torch.from_numpy(e.input_ids)[None].to(model.device)
    logp = model.module(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    at = torch.from_numpy(e.target_positions).to(model.device)
    return np.asarray(logp[at - 1, ids[0, at]].cpu())


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of scoring on this machine's device.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--batch-tokens", default="2048,8192")
    args = parser.parse_args()
    model, _ = load_model(args.model, LoadOptions(device=args.device, dtype=args.dtype))
    vocabulary = int(model.module.config.get_text_config().vocab_size)
    plain, groups = (rows(args.rows, shared, 8, vocabulary) for shared in (0, LENGTH // 2))
    results = []
    for batch_tokens in map(int, args.batch_tokens.split(",")):
        asked = replace(model, batch_tokens=batch_tokens)
        scored(asked, plain[:8])
        plain_s, _ = scored(asked, plain)
        shared_s, found = scored(asked, groups)
        diff = max(float(np.abs(slowly(model, groups[i]) - found[i].logprobs).max()) for i in range(0, args.rows, 16))
        results.append(
            {
                "batch_tokens": batch_tokens,
                "tokens_per_s": round(args.rows * LENGTH / plain_s),
                "requests_per_s": round(args.rows / plain_s, 1),
                "requests_per_s_shared": round(args.rows / shared_s, 1),
                "max_abs_diff": diff,
            }
        )
        print(results[-1])
    best = max(results, key=lambda r: r["requests_per_s"])
    print(
        json.dumps(
            {
                "name": "throughput",
                "ratio": round(best["requests_per_s_shared"] / best["requests_per_s"], 2),
                "max_abs_diff": max(r["max_abs_diff"] for r in results),
                "what": f"{args.model}, {args.rows} rows of {LENGTH} tokens, {model.dtype}, packs: {model.packs}",
                "device": torch.cuda.get_device_name() if model.device.type == "cuda" else str(default_device()),
                "runs": results,
            }
        )
    )


if __name__ == "__main__":
    main()
