"""From hidden states to log-probabilities: float32, in chunks small enough to stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
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
