"""Scoring speed: the naive loop, lm-evaluation-harness and ours on the same requests, in one run.

    python benchmarks/scoring.py --data FILE.jsonl [--records 60] [--k 20] [--naive-every 3] [--lm-eval-python PYTHON]

Requests: every record once by itself and once after each of K masked copies of its answer (`icp-sp`). Naive: one
query at a time, full float32 logits over all positions, as most public tools ask; with `--naive-every n` it is timed
on every n-th request and scaled to all, by tokens. Ours answers all, without its answer cache. Both take turns, ten
records at a time, so that both meet the same machine. lm-evaluation-harness runs in an environment of its own
(`peer_lm_eval.py` says how to make it), with its best batch size, in our default dtype, on the same tokens;
`--peer-every n` as for naive.

The last line is JSON: `ratio` is naive time over ours in float32, `max_abs_diff` the largest difference of a mean
log-likelihood there (nats a token).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from indelible.models.sources import locate
from indelible.scoring.engine import Answers, answer

RECORDS_A_TURN = 10


@dataclass
class Timed:
    """Seconds, tokens and mean log-likelihoods (by request number) of one way of asking."""

    seconds: float = 0.0
    tokens: int = 0
    scores: dict[int, float] = field(default_factory=dict)


def read(args: argparse.Namespace) -> list[Record]:
    """The first records of the file that are at most `--max-chars` long, or synthetic ones."""
    if args.data:
        records = [r for r in read_records(args.data).records if len(r.text) <= args.max_chars][: args.records]
    else:
        rows = synthetic_records(args.records, seed=0)
        records = [
            Record(f"r{i}", (Message("user", f"{r['instruction']}\n{r['input']}"),), r["output"])
            for i, r in enumerate(rows)
        ]
    if len(records) < args.records:
        fail(f"{len(records)} records of at most {args.max_chars} characters, {args.records} wanted")
    return records


def requests(records: Sequence[Record], k: int) -> list[Query]:
    """All queries of ICP-SP on the records, record by record."""
    attack = make_attack("icp-sp", {"k": k})
    prepared = prepare([attack], list(records), Resources())
    return list(dict.fromkeys(q for r in prepared for q in attack.queries(r, Answers({}))))


@torch.inference_mode()
def naive(model: CausalModel, query: Query) -> float:
    """One query, full logits."""
    encoded = model.encode(query)
    ids = torch.from_numpy(encoded.input_ids)[None].to(model.device)  # (1, T)
    logp = model.module(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)[0]  # (T, V)
    at = torch.from_numpy(encoded.target_positions).to(model.device)
    return float(logp[at - 1, ids[0, at]].mean())


def compare(args: argparse.Namespace, dtype: str, records: Sequence[Record]) -> tuple[str, dict[str, Timed], int]:
    """Naive and ours by turns; the name of the dtype, both, and the tokens ours computed."""
    plain, _ = load_model(args.model, LoadOptions(dtype=dtype, trainable=True))  # weights as transformers has them
    model, _ = load_model(args.model, LoadOptions(dtype=dtype))
    slow, fast, n_computed = Timed(), Timed(), 0
    answer(model, requests(records[:1], args.k)[:4])
    naive(plain, requests(records[:1], 1)[0])
    number = 0
    for start in range(0, len(records), RECORDS_A_TURN):
        queries = requests(records[start : start + RECORDS_A_TURN], args.k)
        sizes = [len(model.encode(q)) for q in queries]
        begin = time.perf_counter()
        answers, counts = answer(model, queries)
        fast.seconds += time.perf_counter() - begin
        fast.tokens += sum(sizes)
        n_computed += counts.tokens_computed
        fast.scores |= {number + i: float(np.mean(answers[q].logprobs)) for i, q in enumerate(queries)}
        for i in range(number % args.naive_every, len(queries), args.naive_every):
            begin = time.perf_counter()
            slow.scores[number + i] = naive(plain, queries[i])
            slow.seconds += time.perf_counter() - begin
            slow.tokens += sizes[i]
        number += len(queries)
    slow.seconds *= fast.tokens / slow.tokens
    return str(model.dtype).removeprefix("torch."), {"naive": slow, "ours": fast}, n_computed


def peer(args: argparse.Namespace, dtype: str, queries: Sequence[Query]) -> dict[str, Any]:
    """lm-evaluation-harness on the same tokens, as a process of its own."""
    model, source = load_model(args.model, LoadOptions(dtype=dtype))
    pairs = []
    for query in queries:
        e = model.encode(query)
        first = int(e.target_positions[0])
        if not e.is_target[first:].all():
            fail("lm-evaluation-harness scores one stretch at the end; these records have several")
        pairs.append((e.input_ids[:first].tolist(), e.input_ids[first:].tolist()))
    del model
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder, "requests.json"), Path(folder, "result.json")
        asked.write_text(json.dumps({"requests": pairs}))
        script = Path(__file__).with_name("peer_lm_eval.py")
        command = [args.lm_eval_python, script, asked, "--model", source.folder, "--dtype", dtype, "--out", out]
        subprocess.run([*map(str, command), "--batch-sizes", args.lm_eval_batch_sizes, "--tune-on", "96"], check=True)
        found: dict[str, Any] = json.loads(out.read_text())
    found["means"] = [s / len(p[1]) for s, p in zip(found.pop("loglikelihoods"), pairs, strict=True)]
    return found


def difference(a: dict[int, float], b: dict[int, float]) -> float:
    """Largest difference over the requests that both scored."""
    return max(abs(a[i] - b[i]) for i in a.keys() & b.keys())


def main() -> None:
    parser = argparse.ArgumentParser(description="Scoring speed against the naive loop and lm-evaluation-harness.")
    parser.add_argument("--data")
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--max-chars", type=int, default=1000)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--naive-every", type=int, default=1)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--lm-eval-python", help="python of the environment that has lm_eval")
    parser.add_argument("--peer-every", type=int, default=1)
    parser.add_argument("--lm-eval-batch-sizes", default="1,2,4,8,16")
    args = parser.parse_args()
    locate(args.model)  # a wrong name fails before anything is read
    records = read(args)
    queries = requests(records, args.k)
    print(f"{len(records)} records, {len(queries)} requests; naive on every {args.naive_every}")
    by_dtype: dict[str, dict[str, Any]] = {}
    first: dict[str, Timed] = {}
    last: dict[str, Timed] = {}
    for dtype in ("float32", "auto"):
        name, last, n_computed = compare(args, dtype, records)
        first = first or last
        by_dtype[name] = {
            "naive_s": round(last["naive"].seconds, 1),
            "ours_s": round(last["ours"].seconds, 1),
            "ratio_equal_dtype": round(last["naive"].seconds / last["ours"].seconds, 2),
            "ratio_to_float32_naive": round(first["naive"].seconds / last["ours"].seconds, 2),
            "max_abs_diff_equal_dtype": difference(last["naive"].scores, last["ours"].scores),
            "max_abs_diff_to_float32_naive": difference(first["naive"].scores, last["ours"].scores),
            "tokens_asked": last["ours"].tokens,
            "tokens_computed": n_computed,
        }
        print(name, by_dtype[name], flush=True)
    result: dict[str, Any] = {
        "name": "scoring",
        "ratio": by_dtype["float32"]["ratio_equal_dtype"],
        "max_abs_diff": by_dtype["float32"]["max_abs_diff_equal_dtype"],
        "what": f"icp-sp, K={args.k}, {len(records)} records of {args.data or 'the generator'}, {args.model}",
        "n_requests": len(queries),
        "naive_every": args.naive_every,
        "peer_every": args.peer_every,
        "threads": torch.get_num_threads(),
        "by_dtype": by_dtype,
    }
    if args.lm_eval_python:
        numbers = range(0, len(queries), args.peer_every)
        found = peer(args, name, [queries[i] for i in numbers])
        means = dict(zip(numbers, found.pop("means"), strict=True))
        found["seconds"] *= last["ours"].tokens / found["n_tokens"]
        found["ratio"] = round(found["seconds"] / last["ours"].seconds, 2)
        found["max_abs_diff"] = difference(means, last["ours"].scores)
        result["lm_eval"] = found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
