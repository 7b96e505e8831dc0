"""From hidden states to log-probabilities: float32, in chunks small enough to stay in the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.models.base import TokenLogprobs

CHUNK = 32
"""Rows of the vocabulary-wide matrix held at once: 32 x 50,000 float32 is 6 MB."""

_FLOOR = -1e4  # a padded vocabulary has logits of -inf; 0 * inf would poison the moments


@torch.inference_mode()
def target_logprobs(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> TokenLogprobs:
    """Log-probabilities of `targets` with the moments of the whole distribution.

    Args:
        head: maps hidden states (n, D) to logits (n, V).
        hidden: (N, D), the states that predict the targets.
        targets: (N,) token ids.

    Returns:
        log p of each target; mean = sum_v p_v log p_v; std = sqrt(sum_v p_v (log p_v - mean)^2); argmax.
        The log-softmax is float32 whatever the model's dtype.
    """
    out = torch.empty(3, len(targets), dtype=torch.float32)
    argmax = torch.empty(len(targets), dtype=torch.int32)
    for start in range(0, len(targets), CHUNK):
        rows = slice(start, start + CHUNK)
        logp = head(hidden[rows]).float()  # (n, V)
        logp -= torch.logsumexp(logp, dim=-1, keepdim=True)
        logp.clamp_(min=_FLOOR)
        out[0, rows] = logp.gather(1, targets[rows, None])[:, 0].cpu()
        argmax[rows] = logp.argmax(-1).to(torch.int32).cpu()
        p = logp.exp()
        mean = torch.linalg.vecdot(p, logp)
        out[1, rows] = mean.cpu()
        logp -= mean[:, None]
        out[2, rows] = torch.linalg.vecdot(p, logp.square_()).sqrt().cpu()
    logprobs, mean_, std = out.numpy()
    return TokenLogprobs(logprobs, mean_, std, argmax.numpy())


@torch.inference_mode()
def chosen_logprobs(
    head: Callable[[Tensor], Tensor], hidden: Tensor, rows: NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Log-probability of token `ids[k]` after state `rows[k]`, for any number of tokens a state.

    Args:
        hidden: (N, D).
        rows: (M,) ascending or not; `ids` (M,).

    Returns:
        (M,) float32 log-softmax, widened for summation.
    """
    out = np.empty(len(rows), dtype=np.float64)
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], np.arange(0, len(hidden) + CHUNK, CHUNK))
    for chunk, (a, b) in enumerate(itertools.pairwise(bounds)):
        if a == b:
            continue
        start = chunk * CHUNK
        logits = head(hidden[start : start + CHUNK]).float()  # (n, V)
        normaliser = torch.logsumexp(logits, dim=-1)
        at = torch.from_numpy(rows[order[a:b]] - start).to(logits.device)
        picked = logits[at, torch.from_numpy(ids[order[a:b]]).to(logits.device)] - normaliser[at]
        out[order[a:b]] = picked.cpu().numpy()
    return out
