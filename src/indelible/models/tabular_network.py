"""TabICL's computation as a function of its weights.

J. Qu et al., "TabICL: A Tabular Foundation Model for In-Context Learning on Large Data", ICML 2025, section 3, and its
second version as the package `tabicl` (2.2) lays it out. The package's own module cannot serve an audit as it is: in
eval mode it answers in bfloat16 through a memory manager, and it reads labels off the tensors (`.item()`, `unique`)
and writes into them, which neither `torch.func.vmap` nor a repeated backward pass allows. Here is the same computation
over the same parameter names, in float32, without state, the same in train and eval mode (dropout is never applied).

Three stages:
1. columns: every column is a set of cells; inducing points attend to the context's cells, all cells to them;
2. rows: the cells of one row and a few class tokens attend to each other; the class tokens stand for the row;
3. in context: rows attend to context rows, which carry their labels; query rows are decoded.
No query is ever attended to, so that a query's logits do not depend on the other queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from indelible.errors import ModelError

Weights = Mapping[str, Tensor]
Grouping = Literal["none", "same", "valid"]


@dataclass(frozen=True)
class Layout:
    """What of a TabICL network is not in its weights.

    Attributes:
        max_classes: outputs of the decoder.
        n_tokens: class tokens of the row stage.
        column_blocks, row_blocks, context_blocks: blocks of the three stages.
        column_heads, row_heads, context_heads: their attention heads.
        grouping: columns a cell is made of: one ("none"), `group_size` neighbours of each ("same": the (i + 2^j)-th,
            around the end), or every `group_size` in turn ("valid", zeros where they run out).
        group_size: columns of a cell; 1 where `grouping` is "none".
        target_aware: whether the context's labels are added to its cells in the column stage.
        affine: whether cells are scaled and shifted by the column stage's output, rather than replaced by it.
        norm_first: whether blocks normalise before attention and before the feed-forward part, rather than after.
        relu: whether feed-forward parts use ReLU rather than GELU.
        interleaved: whether rotary pairs are neighbours, rather than the halves of a head.
    """

    max_classes: int
    n_tokens: int
    column_blocks: int
    row_blocks: int
    context_blocks: int
    column_heads: int
    row_heads: int
    context_heads: int
    grouping: Grouping
    group_size: int
    target_aware: bool
    affine: bool
    norm_first: bool
    relu: bool
    interleaved: bool


def layout_of(module: nn.Module) -> Layout:
    """The layout of a `tabicl` module.

    Raises:
        ModelError: a regression network, or an activation other than gelu and relu.
    """
    net: Any = module
    if net.max_classes < 2:
        raise ModelError("this TabICL checkpoint is a regression network; expected a classifier's")
    if net.activation not in ("gelu", "relu"):
        raise ModelError(f"this TabICL network has the activation {net.activation!r}; expected gelu or relu")
    given = net.col_feature_group
    grouping: Grouping = "none" if not given else "valid" if given == "valid" else "same"
    return Layout(
        max_classes=net.max_classes,
        n_tokens=net.row_num_cls,
        column_blocks=net.col_num_blocks,
        row_blocks=net.row_num_blocks,
        context_blocks=net.icl_num_blocks,
        column_heads=net.col_nhead,
        row_heads=net.row_nhead,
        context_heads=net.icl_nhead,
        grouping=grouping,
        group_size=1 if grouping == "none" else net.col_feature_group_size,
        target_aware=net.col_target_aware,
        affine=net.col_affine,
        norm_first=net.norm_first,
        relu=net.activation == "relu",
        interleaved=net.row_interactor.tf_row.rope.interleaved,
    )


def tabicl_logits(w: Weights, layout: Layout, context_x: Tensor, context_y: Tensor, query_x: Tensor) -> Tensor:
    """Logits of the queries, one for each class the network knows.

    Args:
        w: the network's parameters by the package's names.
        context_x: (B, C, F) float32.
        context_y: (B, C) integer codes below `max_classes`.
        query_x: (B, Q, F) float32.

    Returns:
        (B, Q, max_classes).
    """
    n_context = context_x.shape[-2]
    labels = (context_y[..., None] == torch.arange(layout.max_classes, device=context_y.device)).to(context_x.dtype)
    cells = _columns(w, layout, torch.cat([context_x, query_x], dim=-2), labels)  # (B, G, T, E)
    rows = _rows(w, layout, cells.transpose(-3, -2))  # (B, T, D)
    labelled = _linear(w, "icl_predictor.y_encoder", labels)  # (B, C, D)
    x = rows + F.pad(labelled, (0, 0, 0, rows.shape[-2] - n_context))
    for i in range(layout.context_blocks):
        last = i == layout.context_blocks - 1  # what becomes of context rows there is never read
        first = n_context if last else 0
        x = _within(w, f"icl_predictor.tf_icl.blocks.{i}.", layout, layout.context_heads, x, first, None, n_context)
    if layout.norm_first:
        x = _norm(w, "icl_predictor.ln", x)
    x = F.gelu(_linear(w, "icl_predictor.decoder.0", x))
    return _linear(w, "icl_predictor.decoder.2", x)


def grouped(x: Tensor, layout: Layout) -> Tensor:
    """Rows (..., F) as cells of one or more columns (..., G, group_size)."""
    if layout.grouping == "none":
        return x[..., None]
    n, size = x.shape[-1], layout.group_size
    if layout.grouping == "same":
        at = torch.arange(n, device=x.device)
        return torch.stack([x[..., (at + 2**j) % n] for j in range(size)], dim=-1)
    padded: Tensor = F.pad(x, (0, -n % size)).unflatten(-1, (-1, size))
    return padded


def _columns(w: Weights, layout: Layout, x: Tensor, labels: Tensor) -> Tensor:
    """Stage 1: rows x (B, T, F) and labels (B, C, classes) to embedded cells (B, G, T, E)."""
    values = grouped(x, layout).transpose(-3, -2)  # (B, G, T, size)
    cells = _linear(w, "col_embedder.in_linear", values)
    n_context, n_rows = labels.shape[-2], x.shape[-2]
    if layout.target_aware:
        embedded = _linear(w, "col_embedder.y_encoder", labels)  # (B, C, E)
        cells = cells + F.pad(embedded, (0, 0, 0, n_rows - n_context))[..., None, :, :]
    for i in range(layout.column_blocks):
        block = f"col_embedder.tf_col.blocks.{i}."
        points = w[block + "ind_vectors"]  # (m, E)
        heads, context = layout.column_heads, cells[..., :n_context, :]
        points = _across(w, block + "multihead_attn1.", layout, heads, points, context)  # (B, G, m, E)
        cells = _across(w, block + "multihead_attn2.", layout, heads, cells, points)
    if not layout.affine:
        return cells
    scale, shift = _linear(w, "col_embedder.out_w", cells), _linear(w, "col_embedder.out_b", cells)
    if layout.norm_first:
        scale, shift = _norm(w, "col_embedder.ln_w", scale), _norm(w, "col_embedder.ln_b", shift)
    return values * scale + shift


def _rows(w: Weights, layout: Layout, cells: Tensor) -> Tensor:
    """Stage 2: cells (B, T, G, E) to rows (B, T, n_tokens * E)."""
    tokens = w["row_interactor.cls_tokens"].expand(*cells.shape[:-2], -1, -1)
    x = torch.cat([tokens, cells], dim=-2)  # (B, T, n_tokens + G, E)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * w["row_interactor.tf_row.rope.freqs"]
    rope = (angles.cos(), angles.sin(), layout.interleaved)
    for i in range(layout.row_blocks):
        last = i == layout.row_blocks - 1  # of it only the class tokens are read
        end = layout.n_tokens if last else None
        x = _within(w, f"row_interactor.tf_row.blocks.{i}.", layout, layout.row_heads, x, 0, end, None, rope)
    if layout.norm_first:
        x = _norm(w, "row_interactor.out_ln", x)
    return x.flatten(-2)


Rope = tuple[Tensor, Tensor, bool]
"""Cosines and sines (L, head size / 2) by position, and whether pairs are neighbours."""


def _within(
    w: Weights,
    block: str,
    layout: Layout,
    heads: int,
    x: Tensor,
    first: int,
    end: int | None,
    n_keys: int | None,
    rope: Rope | None = None,
) -> Tensor:
    """A block in which positions first..end of a sequence x (..., L, E) attend to its first `n_keys`, or to all."""
    seen = _norm(w, block + "norm1", x) if layout.norm_first else x
    asking, keys = seen[..., first:end, :], seen[..., :n_keys, :]
    return _finish(w, block, layout, x[..., first:end, :], _attention(w, block + "attn.", heads, asking, keys, rope))


def _across(w: Weights, block: str, layout: Layout, heads: int, x: Tensor, other: Tensor) -> Tensor:
    """A block in which x (..., L, E) attends to another sequence (..., S, E)."""
    seen, keys = x, other
    if layout.norm_first:
        seen, keys = _norm(w, block + "norm1", x), _norm(w, block + "norm1", other)
    return _finish(w, block, layout, x, _attention(w, block + "attn.", heads, seen, keys, None))


def _finish(w: Weights, block: str, layout: Layout, x: Tensor, attended: Tensor) -> Tensor:
    """Residuals, norms and the feed-forward part of a block."""
    x = x + attended
    if not layout.norm_first:
        x = _norm(w, block + "norm1", x)
    inner = _linear(w, block + "linear1", _norm(w, block + "norm2", x) if layout.norm_first else x)
    x = x + _linear(w, block + "linear2", F.relu(inner) if layout.relu else F.gelu(inner))
    return x if layout.norm_first else _norm(w, block + "norm2", x)


def _attention(w: Weights, at: str, heads: int, asking: Tensor, keys: Tensor, rope: Rope | None) -> Tensor:
    """Multi-head attention of (..., L, E) over (..., S, E), projections included."""
    weight, bias, width = w[at + "in_proj_weight"], w[at + "in_proj_bias"], asking.shape[-1]
    q = _heads(F.linear(asking, weight[:width], bias[:width]), heads)  # (..., heads, L, size)
    both = F.linear(keys, weight[width:], bias[width:])
    k, v = _heads(both[..., :width], heads), _heads(both[..., width:], heads)
    if rope is not None:
        q, k = _rotated(q, rope), _rotated(k, rope)
    q = _scaled(w, at + "ssmax_layer.", q, k.shape[-2])
    shares = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
    return _linear(w, at + "out_proj", (shares @ v).transpose(-3, -2).flatten(-2))


def _scaled(w: Weights, at: str, q: Tensor, n_keys: int) -> Tensor:
    """Scalable softmax: queries (..., heads, L, size) made longer with the number of keys, so that attention over many
    stays as sharp as over few. K. M. Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025; the variants with
    small networks are tabicl's.
    """
    log_n = math.log(max(n_keys, 1))
    if at + "scales" in w:
        return q * (w[at + "scales"] * log_n)[..., None, None]
    name = next((name for name in ("mlp", "base_mlp") if f"{at}{name}.0.weight" in w), None)
    if name is None:
        return q
    given = torch.full((1,), log_n, device=q.device, dtype=q.dtype)
    scale = _small(w, f"{at}{name}.", given)  # (heads,) or (heads * size,)
    scale = scale.unflatten(-1, (q.shape[-3], 1, -1))  # (heads, 1, 1 or size)
    if name == "base_mlp":
        scale = scale * (1 + torch.tanh(_small(w, at + "query_mlp.", q)))
    scaled: Tensor = q * scale
    return scaled


def _small(w: Weights, at: str, x: Tensor) -> Tensor:
    return _linear(w, at + "2", F.gelu(_linear(w, at + "0", x)))


def _rotated(x: Tensor, rope: Rope) -> Tensor:
    """Rotary position embedding of (..., L, size), position i at place i."""
    cos, sin, interleaved = rope
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def _heads(x: Tensor, heads: int) -> Tensor:
    """(..., L, E) to (..., heads, L, E / heads)."""
    split: Tensor = x.unflatten(-1, (heads, -1)).transpose(-3, -2)
    return split


def _linear(w: Weights, at: str, x: Tensor) -> Tensor:
    return F.linear(x, w[at + ".weight"], w[at + ".bias"])


def _norm(w: Weights, at: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[at + ".weight"], w.get(at + ".bias"))
