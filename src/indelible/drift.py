"""How far a run's arithmetic is from the plain one: a few records again, one by one, full logits, float32."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from indelible.data.records import Query
from indelible.models.base import TokenLogprobs
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.progress import say

COPY_FACTOR = 1.3
"""Memory that a float32 copy needs, over the bytes of its weights."""


def measure_drift(
    model: CausalModel,
    options: LoadOptions,
    answers: Mapping[Query, TokenLogprobs],
    *,
    n: int,
    seed: int,
    base: str | None,
) -> dict[str, Any]:
    """Re-score some of a model's answers the slow plain way.

    Args:
        model: the one that answered; `options` and `base` are how it was loaded.
        answers: what it said.
        n: how many to check, drawn at random by `seed`.

    Returns:
        for the manifest: `n_queries`; `max_abs_logprob_nats`, the largest difference of a token's log-probability;
        `max_abs_mean_nats`, that of a query's mean; or `not_measured`, the reason.
    """
    facts: dict[str, Any] = {"reference": "float32, one query at a time, full logits, no shared beginnings"}
    if n == 0:
        return facts | {"not_measured": "switched off"}
    if options.quantise != "none":
        return facts | {"not_measured": "a quantised model has no float32 form to compare with"}
    plain = model
    if model.dtype != torch.float32:
        needed, free = int(COPY_FACTOR * 4 * model.n_parameters), _free_memory(model.device)
        if needed > free:
            why = f"a float32 copy needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
            return facts | {"not_measured": why}
        say("checking a few answers in float32, one by one")
        plain, _ = load_model(model.name, replace(options, dtype="float32", trainable=True), base=base)
        plain = replace(plain, chat=model.chat)
    queries = sorted(answers, key=lambda q: q.digest())
    chosen = random.Random(f"{seed}:drift").sample(queries, min(n, len(queries)))
    tokens, means = [0.0], [0.0]
    for query in chosen:
        slow, fast = one_by_one(plain, query), answers[query].logprobs
        tokens.append(float(np.abs(slow - fast).max()))
        means.append(float(abs(slow.mean() - fast.mean(dtype=np.float64))))
    return facts | {"n_queries": len(chosen), "max_abs_logprob_nats": max(tokens), "max_abs_mean_nats": max(means)}


@torch.inference_mode()
def one_by_one(model: CausalModel, query: Query) -> np.ndarray:
    """Log-probabilities of a query's target tokens by the module's own forward pass: batch 1, full float32 logits."""
    encoded = model.encode(query)
    ids = torch.from_numpy(encoded.input_ids)[None].to(model.device)  # (1, T)
    with model.network.context():
        logp = model.module(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)  # (T, V)
    at = torch.from_numpy(encoded.target_positions).to(model.device)
    return np.asarray(logp[at - 1, ids[0, at]].double().cpu())


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
