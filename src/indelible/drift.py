"""How far a run's arithmetic is from the plain one: a few records again, one by one, full logits, float32."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indelible.data.chat import Encoded
from indelible.data.records import Query
from indelible.errors import UserError
from indelible.models.base import LanguageModel, TokenLogprobs
from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model
from indelible.progress import say

COPY_FACTOR = 1.1
"""Memory that a float32 copy needs, over the bytes of its weights."""


def measure_drift(
    model: LanguageModel,
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
    if not isinstance(model, CausalModel):
        return facts | {"not_measured": "a server's model cannot be asked another way"}
    if options.quantise != "none":
        return facts | {"not_measured": "a quantised model has no float32 form to compare with"}
    queries = sorted(answers, key=lambda q: q.digest())
    chosen = random.Random(f"{seed}:drift").sample(queries, min(n, len(queries)))
    if not chosen:
        return facts | {"not_measured": "the model answered nothing"}
    longest = max(len(model.encode(q)) for q in chosen)
    logits = 3 * 4 * longest * int(model.module.config.get_text_config().vocab_size)
    copy = 0 if model.dtype == torch.float32 else int(COPY_FACTOR * 4 * model.n_parameters)
    free = _free_memory(model.device)
    if copy + logits > free:
        why = f"the check needs {(copy + logits) / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return facts | {"not_measured": why}
    try:
        plain = model if not copy else _in_float32(model, options, base)
        slow = [one_by_one(plain, model.encode(q)) for q in chosen]
    except (RuntimeError, OSError, UserError) as error:  # a check that fails must not cost the run
        return facts | {"not_measured": f"the check failed: {str(error).splitlines()[0] if str(error) else error!r}"}
    fast = [answers[q].logprobs.astype(np.float64) for q in chosen]
    token = np.max([np.abs(a - b).max() for a, b in zip(slow, fast, strict=True)])
    mean = np.max([abs(a.mean() - b.mean()) for a, b in zip(slow, fast, strict=True)])
    if not np.isfinite(token):
        return facts | {"not_measured": "a log-probability is not a number"}
    return facts | {"n_queries": len(chosen), "max_abs_logprob_nats": float(token), "max_abs_mean_nats": float(mean)}


def _in_float32(model: CausalModel, options: LoadOptions, base: str | None) -> CausalModel:
    say("checking a few answers in float32, one by one")
    plain, _ = load_model(model.name, replace(options, dtype="float32", trainable=True), base=base)
    return replace(plain, chat=model.chat)


@torch.inference_mode()
def one_by_one(model: CausalModel, encoded: Encoded) -> NDArray[np.float64]:
    """Log-probabilities of the target tokens by the module's own forward pass: batch 1, full float32 logits."""
    ids = encoded.input_ids[None]  # (1, T)
    given = model.generation_inputs(ids, np.ones_like(ids))  # with the pixels of the pictures it shows
    with model.network.context():
        logp = model.module(**given, use_cache=False).logits[0].float().log_softmax(-1)  # (T, V)
    at = torch.from_numpy(encoded.target_positions).to(model.device)
    targets = torch.from_numpy(encoded.target_ids).to(model.device)
    return np.asarray(logp[at - 1, targets].double().cpu())


def _free_memory(device: torch.device) -> int:
    import psutil  # type: ignore[import-untyped]

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
