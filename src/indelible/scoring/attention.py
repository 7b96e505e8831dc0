"""Attention over a pack: every token sees its own path through the token tree and nothing else.

transformers lets a model's attention be replaced by name; the models' own code keeps everything else (projections,
rotary embedding, norms). On a CPU the work is cut by stretch: causal attention within each stretch, full attention of
everything below a shared stretch to that stretch, and the parts joined by their log-sum-exp, which is exact (as in
cascade attention, Hydragen). No key is copied for the sequences that share it. On other devices one masked call does
the same over the whole pack.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor

from indelible.models.attention import exchanged, refuse_unknown
from indelible.scoring.layout import Layout

NAME = "indelible_tree"
SHORT = 8
"""Stretches up to this length, such as those of short codes, attend in whole matrices: the fused kernel takes 2 to 8
times as long on them."""
BLOCK = 192
"""Queries that attend together where attention is causal: the fused kernel takes keys 512 at a time and computes all of
them, so that half of a square of 512 is for nothing. From 192 queries on it works in larger pieces."""


def tree_attention(config: Any) -> contextlib.AbstractContextManager[None]:
    """Within it, a model with this config takes `tree=LAYOUT` in its forward pass and attends accordingly."""
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
    tree: Layout,
    **unknown: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over a pack, as transformers calls it.

    Args:
        query: (1, H, T, D); `key` and `value` (1, H_kv, T, D), rotated already.
        sliding_window: a token sees this many positions, itself included.

    Returns:
        (1, T, H, D).

    Raises:
        NotImplementedError: the architecture asks for something else in its attention (a cap, sinks, a bias).
    """
    refuse_unknown(query, unknown)
    for stretch, place in tree.keep.items():
        tree.kept.setdefault(stretch, []).append((key[:, :, place].clone(), value[:, :, place].clone()))
    windowed = sliding_window is not None and tree.longest > sliding_window
    if cuts_by_stretch(query) and not windowed:
        return _by_stretch(module.layer_idx, query[0], key[0], value[0], scaling, tree), None
    return _masked(module.layer_idx, query, key, value, scaling, tree, sliding_window if windowed else None), None


def cuts_by_stretch(query: Tensor) -> bool:
    """Whether the work is cut by stretch: on a CPU, where one call more costs little."""
    return query.device.type == "cpu"


def _masked(
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    tree: Layout,
    window: int | None,
) -> Tensor:
    carried = [s.carried[layer] for s in tree.spans if s.carried is not None]
    keys = torch.cat([*(k for k, _ in carried), key], dim=2)  # (1, H_kv, K, D)
    values = torch.cat([*(v for _, v in carried), value], dim=2)
    n_groups = query.shape[1] // key.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        keys.repeat_interleave(n_groups, dim=1),
        values.repeat_interleave(n_groups, dim=1),
        attn_mask=tree.visible(window),
        scale=scaling,
    )
    return out.transpose(1, 2)


def _by_stretch(layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Layout) -> Tensor:
    n_kv, n, d = key.shape
    q = query.unflatten(0, (n_kv, -1))  # (H_kv, G, T, D): heads that share a key stand together
    with_lse = bool(tree.spans)
    out = query.new_empty(n, n_kv, q.shape[1], d)  # (T, H_kv, G, D)
    lse = torch.empty(n, n_kv, q.shape[1], dtype=torch.float32) if with_lse else None
    for length, tokens in tree.by_length:
        n_same = len(tokens) // length
        if n_same == 1:
            place = slice(int(tokens[0]), int(tokens[0]) + length)
            part, part_lse = _flash(q[:, :, place], key[:, place], value[:, place], scaling, causal=True)
            out[place] = part.permute(2, 0, 1, 3)
            if lse is not None:
                lse[place] = part_lse.permute(2, 0, 1)
            continue
        # (H_kv, G, n * L, D) -> (n * H_kv, G, L, D): equal stretches are a batch
        own = [t[..., tokens, :].unflatten(-2, (n_same, length)) for t in (q, key, value)]
        q_, k_, v_ = (t.movedim(-3, 0).flatten(0, 1) for t in own)
        if length <= SHORT:
            part, part_lse = _short(q_, k_, v_, scaling)
        else:
            part, part_lse = _flash(q_, k_, v_, scaling, causal=True)
        out[tokens] = part.unflatten(0, (n_same, n_kv)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        if lse is not None:
            lse[tokens] = part_lse.unflatten(0, (n_same, n_kv)).permute(0, 3, 1, 2).flatten(0, 1)
    if lse is None:
        return out.view(1, n, -1, d)
    return _join(layer, q, key, value, scaling, tree, out, lse).view(1, n, -1, d)


def _join(
    layer: int,
    q: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    tree: Layout,
    own: Tensor,
    own_lse: Tensor,
) -> Tensor:
    """Attention to own and shared stretches together: each part weighs as much as its sum of exponentials."""
    parts = own.new_zeros(tree.n_levels + 1, *own.shape)  # a token has at most one stretch of each level above it
    weights = torch.full((tree.n_levels + 1, *own_lse.shape), -torch.inf)
    parts[0], weights[0] = own, own_lse
    for span in tree.spans:
        if span.carried is not None:
            k, v = (t[0] for t in span.carried[layer])
        else:
            k, v = key[:, span.keys], value[:, span.keys]
        part, lse = _flash(q[:, :, span.queries], k, v, scaling, causal=False)
        parts[span.level + 1, span.queries] = part.permute(2, 0, 1, 3)
        weights[span.level + 1, span.queries] = lse.permute(2, 0, 1)
    weights = torch.softmax(weights, dim=0)
    out = parts[0] * weights[0, ..., None]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out.addcmul_(part, weight[..., None])
    return out.to(own.dtype)


def _short(q: Tensor, k: Tensor, v: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
    """As `_flash`, causal, for many stretches of a few tokens: whole score matrices, in two batched products."""
    n_groups, length = q.shape[1:3]
    hidden = torch.full((length, length), -torch.inf).triu(1).repeat(n_groups, 1)  # (G * L, L)
    scale = scaling if scaling is not None else q.shape[-1] ** -0.5
    scores = torch.bmm(q.flatten(1, 2).float() * scale, k.transpose(1, 2).float()).add_(hidden)
    lse = scores.logsumexp(-1, keepdim=True)
    out = torch.bmm(scores.sub_(lse).exp_().to(v.dtype), v)
    return out.view_as(q), lse.view(q.shape[:-1])


def _flash(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Fused attention with its log-sum-exp. q (B, G, L, D), k and v (B, K, D): G heads read the same keys.

    Returns:
        (B, G, L, D) and (B, G, L) float32.
    """
    n_groups, length = q.shape[1:3]
    k, v = (t[:, None].expand(-1, n_groups, -1, -1) for t in (k, v))  # no copy: stride 0
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if not causal or length <= BLOCK:
        out, lse = fused(q, k, v, 0.0, causal, scale=scaling)
        return out, lse
    out, lse = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32)
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        at, seen = slice(start, stop), slice(0, stop)
        mask = _hidden(start, q.dtype)[: stop - start, :stop]
        out[:, :, at], lse[:, :, at] = fused(
            q[:, :, at], k[:, :, seen], v[:, :, seen], 0.0, False, attn_mask=mask, scale=scaling
        )
    return out, lse


@functools.lru_cache(maxsize=32)
def _hidden(before: int, dtype: torch.dtype) -> Tensor:
    """(BLOCK, before + BLOCK), added to scores: of a block of queries that has `before` keys ahead of it."""
    return torch.full((BLOCK, before + BLOCK), -torch.inf, dtype=dtype).triu_(before + 1)
