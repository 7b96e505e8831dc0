"""Tokens a second on whatever device there is, a GPU above all, in a minute or two: scoring and a training step.

    python benchmarks/throughput.py [--device cuda] [--model M] [--batch-tokens 2048,8192]

Scoring: records of 256 tokens, a quarter of them target, by ours and by plain padded batches with full logits; and
the same number in groups of eight that share their first half. Training: one step of 32 such rows, forward, backward
and optimiser. On a GPU, operations are waited for. The last line is JSON; `ratio` is ours over plain batches, in
tokens a second, `max_abs_diff` the largest difference to scoring one by one, nats a token.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from indelible.config import TrainConfig
from indelible.data.chat import Encoded
from indelible.drift import one_by_one
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.training import sft

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
def batched(model: CausalModel, encoded: list[Encoded], batch_tokens: int) -> float:
    """Seconds of plain transformers batches: rows of one length, full logits, log-softmax."""
    wait(model.device)
    start = time.perf_counter()
    n = max(1, batch_tokens // LENGTH)
    for i in range(0, len(encoded), n):
        ids = torch.from_numpy(np.stack([e.input_ids for e in encoded[i : i + n]])).to(model.device)
        logp = model.module(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        logp[:, :-1].gather(2, ids[:, 1:, None]).cpu()
    wait(model.device)
    return time.perf_counter() - start


def training_step(args: argparse.Namespace, encoded: list[Encoded]) -> float:
    """Seconds of the second of two steps."""
    model, _ = load_model(args.model, LoadOptions(device=args.device, dtype="float32", trainable=True))
    config = TrainConfig(model=args.model, train="", out="", epochs=2, batch_size=len(encoded))
    ends = []
    for _ in sft.optimise(model, encoded, config):
        wait(model.device)
        ends.append(time.perf_counter())
    return ends[1] - ends[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of scoring on this machine's device.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--batch-tokens", default="2048,8192")
    args = parser.parse_args()
    model, _ = load_model(args.model, LoadOptions(device=args.device, dtype=args.dtype))
    transformers, _ = load_model(args.model, LoadOptions(device=args.device, dtype=args.dtype, trainable=True))
    vocabulary = int(model.module.config.get_text_config().vocab_size)
    plain, groups = (rows(args.rows, shared, 8, vocabulary) for shared in (0, LENGTH // 2))
    results = []
    for batch_tokens in map(int, args.batch_tokens.split(",")):
        asked = replace(model, batch_tokens=batch_tokens)
        scored(asked, plain[:8])
        scored(asked, groups[:8])
        batched(transformers, plain[:8], batch_tokens)
        batched_s = batched(transformers, plain, batch_tokens)
        plain_s, _ = scored(asked, plain)
        shared_s, found = scored(asked, groups)
        diff = max(
            float(np.abs(one_by_one(transformers, groups[i]) - found[i].logprobs).max())
            for i in range(0, args.rows, 16)
        )
        results.append(
            {
                "batch_tokens": batch_tokens,
                "tokens_per_s_plain_batches": round(args.rows * LENGTH / batched_s),
                "tokens_per_s": round(args.rows * LENGTH / plain_s),
                "requests_per_s": round(args.rows / plain_s, 1),
                "requests_per_s_shared": round(args.rows / shared_s, 1),
                "max_abs_diff": diff,
            }
        )
        print(results[-1])
    best = max(results, key=lambda r: r["tokens_per_s"])
    step_s = training_step(args, plain[:32])
    print(f"training: {32 * LENGTH / step_s:.0f} tokens a second")
    print(
        json.dumps(
            {
                "name": "throughput",
                "ratio": round(best["tokens_per_s"] / max(r["tokens_per_s_plain_batches"] for r in results), 2),
                "max_abs_diff": max(r["max_abs_diff"] for r in results),
                "what": f"{args.model}, {args.rows} rows of {LENGTH} tokens, {model.dtype}, packs: {model.packs}",
                "device": torch.cuda.get_device_name(model.device)
                if model.device.type == "cuda"
                else str(model.device),
                "training_tokens_per_s": round(32 * LENGTH / step_s),
                "runs": results,
            }
        )
    )


if __name__ == "__main__":
    main()
