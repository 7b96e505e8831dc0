"""A peer's scoring speed: lm-evaluation-harness's log-likelihood of tokenised requests, timed at its best batch size.

    PYTHON benchmarks/peer_lm_eval.py REQUESTS.json --model FOLDER --dtype float32 --batch-sizes 1,4,8 --out RESULT.json

PYTHON has an environment of its own; nothing of this toolkit is imported here. To make it, PyTorch first, so that pip
takes the build you want of it:

    python -m venv benchmarks/.venv-lm-eval
    benchmarks/.venv-lm-eval/bin/pip install torch==2.13.0
    benchmarks/.venv-lm-eval/bin/pip install -r benchmarks/requirements-lm-eval.txt

REQUESTS.json is {"requests": [[context_ids, continuation_ids], ...]}. The ids go to `HFLM._loglikelihood_tokens`, which
is what `HFLM.loglikelihood` calls after encoding, so nothing is tokenised again and no special token is added.

Each batch size is first tried on the same sample, and the whole set is timed once with the quickest. HFLM sorts by
length before it cuts batches, so the sample is made of runs of neighbours in that order: requests picked far apart
would be padded far more than in the whole set and would speak against large batches. "auto" is not offered: on a CPU
it takes the largest size allowed (64) without timing anything, after five passes of that size, and only memory that
cannot be allocated makes it take less.

HFLM takes the log-softmax and its sum over the answer in the model's dtype; in bfloat16 a sum of -300 is off by up to
one nat from that rounding alone. `--softmax-dtype float32` asks HFLM for both in float32.

HFLM's logits cache, on by default there, is off here unless asked for: in 0.4.13 two requests of the same tokens with
their continuations beginning at different places share a pass, and the shorter continuation gets a wrong sum.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
import transformers
from lm_eval.models.huggingface import HFLM

Request = tuple[list[int], list[int]]
"""The tokens of a context and of its continuation."""


def read_requests(path: str) -> list[Request]:
    """The requests of the file.

    Raises:
        SystemExit: there are none, or one has an empty side.
    """
    requests = [(context, continuation) for context, continuation in json.loads(Path(path).read_text())["requests"]]
    if not requests:
        raise SystemExit(f"{path}: no requests")
    for i, (context, continuation) in enumerate(requests):
        if not context or not continuation:
            raise SystemExit(f"{path}: request {i} has an empty context or continuation")
    return requests


def length(request: Request) -> int:
    """Tokens that the model reads; it never reads the last one of a request."""
    return len(request[0]) + len(request[1]) - 1


def load(folder: str, dtype: str, softmax_dtype: str | None, logits_cache: bool) -> HFLM:
    """The model as lm-evaluation-harness loads it, on the CPU."""
    transformers.utils.logging.disable_progress_bar()
    return HFLM(
        pretrained=folder,
        backend="causal",
        device="cpu",
        dtype=dtype,
        softmax_dtype=softmax_dtype,
        logits_cache=logits_cache,
    )


@torch.inference_mode()
def timed(lm: HFLM, requests: Sequence[Request], batch_size: int) -> tuple[list[float], float]:
    """Each request's summed log-probability in the order given, and the seconds it all took."""
    lm.batch_size_per_gpu = batch_size
    # A request's first part is the text that its answer is stored under; None keeps it out of every store.
    named = [(None, context, continuation) for context, continuation in requests]
    start = time.perf_counter()
    answers = lm._loglikelihood_tokens(named, disable_tqdm=True)
    seconds = time.perf_counter() - start
    return [logprob for logprob, _ in answers], seconds


def neighbours(requests: Sequence[Request], n: int, run: int) -> list[Request]:
    """About `n` requests, as runs of `run` that follow each other by length, spread evenly over all lengths."""
    ordered = sorted(requests, key=length, reverse=True)
    runs = max(1, n // run)
    if len(ordered) <= runs * run:
        return ordered
    starts = [round((i + 0.5) * len(ordered) / runs - run / 2) for i in range(runs)]
    return [r for start in starts for r in ordered[start : start + run]]


def fitting(lm: HFLM, requests: Sequence[Request], batch_sizes: Sequence[int]) -> list[int]:
    """The batch sizes that leave memory for what HFLM holds at once: logits, their log-softmax, the previous batch's.

    The smallest size always stays.
    """
    vocabulary = lm.model.get_output_embeddings().weight.shape[0]
    wide = max(lm.model.dtype.itemsize, (lm.softmax_dtype or lm.model.dtype).itemsize)
    row = 3 * max(map(length, requests)) * vocabulary * wide
    free = psutil.virtual_memory().available
    out = [size for size in batch_sizes if size == min(batch_sizes) or size * row < free]
    for size in sorted(set(batch_sizes) - set(out)):
        print(f"batch size {size}: left out, needs about {size * row / 2**30:.1f} of {free / 2**30:.1f} GiB")
    return out


def tune(lm: HFLM, sample: Sequence[Request], batch_sizes: Sequence[int]) -> dict[int, float]:
    """Seconds on the sample by batch size."""
    out = {}
    for size in batch_sizes:
        _, out[size] = timed(lm, sample, size)
        print(f"batch size {size}: {out[size]:.2f} s on {len(sample)} requests", flush=True)
    return out


def sizes(text: str) -> list[int]:
    """The batch sizes of a comma-separated list."""
    out = [int(part) for part in text.split(",")]
    if min(out) < 1:
        raise argparse.ArgumentTypeError("batch sizes start at 1")
    return out


def main() -> None:
    """Read, load, tune, time, write."""
    parser = argparse.ArgumentParser(description="The log-likelihood speed of lm-evaluation-harness.")
    parser.add_argument("requests", help="JSON of tokenised requests")
    parser.add_argument("--model", required=True, help="folder of a causal model in Hugging Face's format")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    parser.add_argument("--softmax-dtype", choices=["bfloat16", "float32"], help="default: the model's, as HFLM has it")
    parser.add_argument("--batch-sizes", type=sizes, default=[1, 4, 8, 16, 32])
    parser.add_argument("--tune-on", type=int, default=40, help="about how many requests each batch size is tried on")
    parser.add_argument(
        "--logits-cache",
        action="store_true",
        help="let HFLM answer requests that differ in their last token only from one pass, as it does by default",
    )
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    requests = read_requests(args.requests)
    lm = load(args.model, args.dtype, args.softmax_dtype, args.logits_cache)
    longest = max(map(length, requests))
    if longest > lm.max_length:
        raise SystemExit(f"a request has {longest} input tokens; the model takes {lm.max_length} and HFLM would cut it")
    passes = len({tuple(context + continuation[:-1]) for context, continuation in requests})
    print(f"{len(requests)} requests, {passes} different up to their last token, {torch.get_num_threads()} threads")

    batch_sizes = fitting(lm, requests, args.batch_sizes)
    sample = neighbours(requests, args.tune_on, max(batch_sizes))
    timed(lm, sample[: batch_sizes[0]], batch_sizes[0])  # the warm-up
    tuning = tune(lm, sample, batch_sizes) if len(batch_sizes) > 1 else {}
    best = min(tuning, key=tuning.__getitem__, default=batch_sizes[0])
    loglikelihoods, seconds = timed(lm, requests, best)
    print(f"all requests at batch size {best}: {seconds:.2f} s")

    result = {
        "tool": "lm-eval",
        "version": version("lm_eval"),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": args.dtype,
        "softmax_dtype": args.softmax_dtype or args.dtype,
        "logits_cache": args.logits_cache,
        "batch_size": best,
        "tuning": tuning,
        "seconds": seconds,
        "loglikelihoods": loglikelihoods,
        "n_tokens": sum(len(context) + len(continuation) for context, continuation in requests),
        "n_scored_tokens": sum(len(continuation) for _, continuation in requests),
        "n_different": passes,
    }
    Path(args.out).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
