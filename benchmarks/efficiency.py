"""How much of the processor a scoring run uses: useful operations over wall time, against a plain matrix product.

    python benchmarks/efficiency.py [--model M] [--lengths 64,256,1024] [--tokens 16384]

A run scores records of one length, a quarter of whose tokens are target, through the whole engine (`answer`: encoding
apart, planning, forward passes, head, log-probabilities and moments). Useful operations: the weights' products for
unique, unpadded tokens, causal attention, the head on target positions; nothing else counts. The plain rate is that
of 2048-cubed matrix products of the same dtype in the same process, before and after. The last line is JSON; `ratio`
is the least efficiency at length 256 over dtypes, `max_abs_diff` the largest difference to scoring one by one, nats a
token.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from indelible.data.chat import Encoded
from indelible.data.records import Query
from indelible.drift import one_by_one
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.scoring.engine import answer

SIDE = 2048


def product_rate(dtype: torch.dtype, n: int = 8) -> float:
    """Operations a second of plain matrix products."""
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    a @ b
    start = time.perf_counter()
    for _ in range(n):
        a @ b
    return n * 2 * SIDE**3 / (time.perf_counter() - start)


def useful(config, length: int, n_target: int) -> float:  # type: ignore[no-untyped-def]
    """Operations a record needs."""
    d, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    width = getattr(config, "head_dim", None) or d // config.num_attention_heads
    q, kv = config.num_attention_heads * width, config.num_key_value_heads * width
    weights = layers * (d * q + 2 * d * kv + q * d + 3 * d * inner)
    attention = layers * 2 * q * length * (length + 1)  # scores and values: 2 * 2 * q * L * (L + 1) / 2
    return 2.0 * weights * length + attention + 2.0 * n_target * d * config.vocab_size


def records(length: int, n: int, vocabulary: int) -> list[Encoded]:
    """Random token sequences; the last quarter is target."""
    rng = np.random.default_rng(length)
    mask = np.arange(length) >= length - length // 4
    return [Encoded(rng.integers(10, vocabulary, length), mask, (None,) * int(mask.sum())) for _ in range(n)]


class Encodes:
    """A model for `answer` whose queries are numbers of encoded records."""

    def __init__(self, model: CausalModel, encoded: Sequence[Encoded]) -> None:
        self._model, self._encoded = model, encoded
        self.name, self.fingerprint, self.context_length = model.name, model.fingerprint, model.context_length
        self.costs = model.costs

    def encode(self, query: Query) -> Encoded:
        """The record of this number."""
        return self._encoded[int(query.target)]

    def stream(self, encoded: Sequence[Encoded]) -> Iterator:  # type: ignore[type-arg]
        """The model's own."""
        return self._model.stream(encoded)


def main() -> None:
    parser = argparse.ArgumentParser(description="Efficiency of a scoring run against plain matrix products.")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--lengths", default="64,256,1024")
    parser.add_argument("--tokens", type=int, default=16_384, help="Tokens of each run.")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int)
    args = parser.parse_args()
    rows = []
    worst = 0.0
    for dtype in ("float32", "bfloat16"):
        model, _ = load_model(args.model, LoadOptions(dtype=dtype))
        if args.batch_tokens:
            model = replace(model, batch_tokens=args.batch_tokens)
        for length in map(int, args.lengths.split(",")):
            encoded = records(length, args.tokens // length, model.module.config.vocab_size)
            asked = [Query((), str(i)) for i in range(len(encoded))]
            ready = Encodes(model, encoded)
            answer(ready, asked[: 2048 // length])  # warm-up
            best = (0.0, 0.0, 0.0)
            for _ in range(args.repeat):
                before = product_rate(model.dtype)
                start = time.perf_counter()
                found, _ = answer(ready, asked)
                seconds = time.perf_counter() - start
                rate = (before + product_rate(model.dtype)) / 2
                done = useful(model.module.config, length, length // 4) * len(encoded)
                best = max(best, (done / seconds / rate, seconds, rate))
            diff = max(
                float(np.abs(one_by_one(model, encoded[i]) - found[asked[i]].logprobs).max())
                for i in range(0, len(asked), 8)
            )
            worst = float(np.max([worst, diff]))
            rows.append(
                {
                    "dtype": dtype,
                    "length": length,
                    "efficiency": round(best[0], 3),
                    "tokens_per_s": round(len(encoded) * length / best[1]),
                    "plain_gflops": round(best[2] / 1e9),
                    "max_abs_diff": diff,
                }
            )
            print(rows[-1])
    print(
        json.dumps(
            {
                "name": "efficiency",
                "ratio": min(float(r["efficiency"]) for r in rows if r["length"] == 256),
                "max_abs_diff": worst,
                "what": f"{args.model}, runs of {args.tokens} tokens, best of {args.repeat}",
                "encoding": "excluded",
                "threads": torch.get_num_threads(),
                "runs": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
