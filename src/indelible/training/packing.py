"""Training rows side by side in one pass: no padding in the network, and a beginning that rows share computed once.

All but attention treats a token by itself, so that part of the network runs over the distinct tokens of the rows, a
token being the same where everything before it is. Attention alone gathers the tokens of every row, beginning and all,
into rows of about one length. The gradient of a shared beginning is then the sum over the rows that share it, as it is
when each row computes it anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.data.chat import Encoded
from indelible.models.attention import exchanged, refuse_unknown
from indelible.scoring.prefix import Stretch, token_tree

NAME = "indelible_training"
MIN_FILL = 0.75
"""Rows attend together if the shortest of them has at least this share of the longest one's tokens."""
EXPLICIT_LENGTH = 512
"""Up to here attention is two matrix products and a softmax on a CPU: in bfloat16 a third of the time of torch's fused
kernel, whose backward pass is slow there. Its weights are kept for the backward pass, hence the limit."""


@dataclass(frozen=True)
class PackedRows:
    """T distinct tokens that spell R rows.

    Attributes:
        ids, positions: (T,) each token, and its position in its rows.
        stretches: which tokens of which row stand one after the other.
        paths: for each group of rows, (B, L) which token of the pack stands where; short rows end in token 0, which
            nothing that counts attends to.
        pick: (T,) where each token stands first when all groups are written one after the other, row by row.
        predicting: (N,) for each supervised token of each row, the token of the pack that predicts it.
        targets: (N,) the supervised tokens' ids, row by row.
    """

    ids: Tensor
    positions: Tensor
    paths: tuple[Tensor, ...]
    pick: Tensor
    predicting: Tensor
    targets: Tensor
    stretches: tuple[Stretch, ...]


def pack_rows(rows: Sequence[Encoded], *, share: bool, device: torch.device) -> PackedRows:
    """Lay rows out. `share` computes equal beginnings once; without it every row has all its tokens."""
    sequences = [e.input_ids for e in rows]
    tree = token_tree(sequences, [len(s) if share else 0 for s in sequences], min_saved=1)
    stretches = tree.stretches
    begins = np.cumsum([0, *map(len, stretches)])
    n_tokens = int(begins[-1])
    places = [np.arange(begins[k], begins[k + 1]) for k in range(len(stretches))]
    paths = [np.concatenate([places[k] for k in tree.chain(i)]) for i in range(len(rows))]
    pick = np.zeros(n_tokens, dtype=np.int64)
    grids: list[NDArray[np.int64]] = []
    written = 0
    for group in _alike([len(s) for s in sequences]):
        grid = np.zeros((len(group), max(len(paths[i]) for i in group)), dtype=np.int64)  # (B, L)
        for b, i in enumerate(group):
            grid[b, : len(paths[i])] = paths[i]
            pick[paths[i]] = written + b * grid.shape[1] + np.arange(len(paths[i]))
        written += grid.size
        grids.append(grid)

    def tensor(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return PackedRows(
        ids=tensor(np.concatenate([sequences[s.source][s.start : s.stop] for s in stretches])),
        positions=tensor(np.concatenate([np.arange(s.start, s.stop) for s in stretches])),
        paths=tuple(map(tensor, grids)),
        pick=tensor(pick),
        predicting=tensor(np.concatenate([p[e.target_positions - 1] for p, e in zip(paths, rows, strict=True)])),
        targets=tensor(np.concatenate([e.input_ids[e.target_positions] for e in rows])),
        stretches=stretches,
    )


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[i] >= MIN_FILL * lengths[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def row_attention(config: Any) -> contextlib.AbstractContextManager[None]:
    """Within it, a model with this config takes `pack=PACK` in its forward pass and attends row by row."""
    return exchanged(config, NAME, attend)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    pack: PackedRows,
    **unknown: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over a pack, as transformers calls it; differentiable.

    Args:
        query: (1, H, T, D); `key` and `value` (1, H_kv, T, D), rotated already.
        sliding_window: a token sees this many positions, itself included.

    Returns:
        (1, T, H, D).

    Raises:
        NotImplementedError: the architecture asks for something else in its attention (a cap, sinks, a bias).
    """
    refuse_unknown(query, unknown)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    # The rotary embedding leaves queries and keys in float32 under autocast; values tell the arithmetic that is meant.
    q, k, v = (t[0].transpose(0, 1).to(value.dtype) for t in (query, key, value))  # (T, heads, D)
    out = []
    with torch.autocast(query.device.type, enabled=False):
        for grid in pack.paths:
            rows = [t.index_select(0, grid.flatten()).unflatten(0, grid.shape).transpose(1, 2) for t in (q, k, v)]
            window = sliding_window if sliding_window is not None and sliding_window < grid.shape[1] else None
            explicit = query.device.type == "cpu" and grid.shape[1] <= EXPLICIT_LENGTH
            attention = _explicit if explicit else _fused
            part = attention(rows[0], rows[1], rows[2], scale, dropout, window)  # (B, H, L, D)
            out.append(part.transpose(1, 2).flatten(0, 1))
    return torch.cat(out).index_select(0, pack.pick)[None], None


def _explicit(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, window: int | None) -> Tensor:
    n_rows, n_heads, length, width = q.shape
    n_groups = n_heads // k.shape[1]  # heads that read the same keys: one product for all of them
    hidden = torch.zeros(length, length, dtype=q.dtype, device=q.device)
    hidden.masked_fill_(~_visible(length, window, q.device), -torch.inf)
    q, k, v = q.reshape(-1, n_groups * length, width), k.flatten(0, 1), v.flatten(0, 1)
    weights = torch.baddbmm(hidden.repeat(n_groups, 1), q, k.transpose(1, 2), alpha=scale).softmax(-1)
    if dropout:
        weights = torch.nn.functional.dropout(weights, dropout)
    return torch.bmm(weights, v).view(n_rows, n_heads, length, width)


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, window: int | None) -> Tensor:
    n_groups = q.shape[1] // k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(
        q,
        k.repeat_interleave(n_groups, dim=1),
        v.repeat_interleave(n_groups, dim=1),
        attn_mask=None if window is None else _visible(q.shape[2], window, q.device),
        dropout_p=dropout,
        is_causal=window is None,
        scale=scale,
    )


def _visible(length: int, window: int | None, device: torch.device) -> Tensor:
    """(L, L) bool: token i sees itself and what precedes it, `window` tokens in all."""
    sees = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return sees if window is None else sees.triu(1 - window)
