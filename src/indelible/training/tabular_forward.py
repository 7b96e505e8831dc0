"""TabICL's logits under many sets of weights at once, laid out for speed.

`models.tabular_network` says what is computed; here it is computed for S sets of weights side by side, every product
a batched one over the sets, and cheaper where that changes nothing but rounding:

- A norm's scale and shift are folded into the weights behind it, so that rows are only standardised.
- In the column stage, projections of queries, keys and values are folded into the few inducing points' side. With q, K
  of one head, (x Wq) K' = x (Wq K'), and P (x Wv) Wo = (P x) (Wv Wo): thousands of cells then pass through two products
  for all heads together instead of five with one head at a time. What a key's bias adds is the same for all keys
  and cancels in the softmax; where the points look it is left out (its gradient is then exactly zero). A row stage of
  one block is computed likewise, from the class tokens' side.
- Rotary embedding turns pairs of coordinates: the turned copy comes out of the same product as the coordinates, by
  weights whose rows are swapped.

`benchmarks/tabular_grid.py` measures it. It is used only after it was found equal to the model's own logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from indelible.models.tabular_network import Layout, grouped

Weights = Mapping[str, Tensor]
"""Parameters by the package's names, each with S in front."""


def is_supported(layout: Layout, parameters: Weights) -> bool:
    """Whether a TabICL network of this layout, with these parameters (of one set), is one that is written out here."""
    scaling = {name.partition("ssmax_layer.") for name in parameters if "ssmax_layer." in name}
    return (
        layout.target_aware and not layout.affine and layout.norm_first and not layout.relu
        and all(kind.startswith(("base_mlp", "query_mlp")) for _, _, kind in scaling)
        and all("multihead_attn1" in at or "tf_icl" in at for at, _, _ in scaling)
        and not parameters["row_interactor.tf_row.rope.freqs"].requires_grad
    )  # fmt: skip


def stacked_logits(w: Weights, layout: Layout, context_x: Tensor, context_y: Tensor, query_x: Tensor) -> Tensor:
    """Logits of S networks of one layout, each for its own context and queries.

    Args:
        w: parameters (S, ...).
        context_x: (S, C, F) float32.
        context_y: (S, C) integer codes below `max_classes`.
        query_x: (S, Q, F) float32.

    Returns:
        (S, Q, max_classes).
    """
    labels = F.one_hot(context_y.long(), layout.max_classes).to(context_x.dtype)  # (S, C, classes)
    cells = _columns(w, layout, torch.cat([context_x, query_x], dim=1), labels)  # (S, G, T, E)
    rows = _rows(w, layout, cells)  # (S, T, D)
    n_context = labels.shape[1]
    labelled = rows[:, :n_context] + _linear(w, "icl_predictor.y_encoder", labels)
    x = torch.cat([labelled, rows[:, n_context:]], dim=1)
    for i in range(layout.context_blocks):
        # What context rows become after the last block is never read.
        first = n_context if i == layout.context_blocks - 1 else 0
        x = _in_context(w, f"icl_predictor.tf_icl.blocks.{i}.", layout.context_heads, x, n_context, first)
    x = F.gelu(_linear(w, "icl_predictor.decoder.0", _normed(w, "icl_predictor.ln", x)))
    return _linear(w, "icl_predictor.decoder.2", x)


def _columns(w: Weights, layout: Layout, x: Tensor, labels: Tensor) -> Tensor:
    """Rows x (S, T, F) and labels (S, C, classes) to embedded cells (S, G, T, E)."""
    values = grouped(x, layout).transpose(1, 2)  # (S, G, T, size)
    cells = _linear(w, "col_embedder.in_linear", values.flatten(1, 2)).view(*values.shape[:3], -1)
    added = _linear(w, "col_embedder.y_encoder", labels)  # (S, C, E)
    cells = cells + F.pad(added, (0, 0, 0, x.shape[1] - labels.shape[1]))[:, None]
    for i in range(layout.column_blocks):
        block = f"col_embedder.tf_col.blocks.{i}."
        cells = _induced(w, block, layout.column_heads, cells, labels.shape[1])
    return cells


def _induced(w: Weights, block: str, heads: int, cells: Tensor, n_context: int) -> Tensor:
    """One block of the column stage on cells (S, G, T, E)."""
    n_sets, n_columns, n_rows, width = cells.shape
    size = width // heads
    seen = _standardised(cells).view(n_sets * n_columns, n_rows, width)
    context = seen[:, :n_context]

    # The points look at the context's cells. Their questions are the same for all columns.
    attn = block + "multihead_attn1.attn."
    points = w[block + "ind_vectors"]  # (S, m, E)
    n_points = points.shape[1]
    (ask, ask_0), (key, _), (value, value_0) = _folded(w, block + "multihead_attn1.norm1", attn)
    q = _heads(_product(_standardised(points), ask, ask_0), heads)  # (S, heads, m, size)
    q = _sharpened(w, attn + "ssmax_layer.", q, n_context) / math.sqrt(size)
    asked = q @ key.mT.unflatten(1, (heads, size))  # (S, heads, m, E): what is looked for in a cell
    asked = asked.flatten(1, 2)[:, None].expand(-1, n_columns, -1, -1).flatten(0, 1)  # (S G, heads m, E)
    found = torch.softmax(asked @ context.mT, dim=-1) @ context  # (S G, heads m, E)
    found = found.view(n_sets, n_columns, heads, n_points, width).transpose(2, 3).reshape(n_sets, -1, heads * width)
    told, told_0 = _told(w, attn, heads, value, value_0)
    hidden = points.repeat(1, n_columns, 1) + _product(found, told, told_0)  # (S, G m, E)
    hidden = _fed(w, block + "multihead_attn1.", hidden)

    # All cells look at the points of their column.
    attn = block + "multihead_attn2.attn."
    (ask, ask_0), (key, key_0), (value, value_0) = _folded(w, block + "multihead_attn2.norm1", attn)
    known = _product(_standardised(hidden), torch.cat([key, value], dim=2), torch.cat([key_0, value_0], dim=2))
    k, v = (_heads(part, heads) for part in known.split(width, dim=2))  # (S, heads, G m, size)
    k = k / math.sqrt(size)
    look = torch.cat([ask, ask_0], dim=1).unflatten(2, (heads, size)).transpose(1, 2) @ k.mT  # (S, heads, E + 1, G m)
    look = _by_column(look, n_columns)
    out = w[attn + "out_proj.weight"].mT
    told = v @ out.unflatten(1, (heads, size))  # (S, heads, G m, E)
    # A head's shares sum to 1, so that the bias may stand, in equal parts, with what the points tell.
    told = told + w[attn + "out_proj.bias"][:, None, None] / heads
    scores = torch.baddbmm(look[:, width:], seen, look[:, :width])  # (S G, T, heads m)
    shares = torch.softmax(scores.unflatten(2, (heads, n_points)), dim=-1).flatten(2)  # (S G, T, heads m)
    told = (
        told.unflatten(2, (n_columns, n_points)).transpose(1, 2).reshape(n_sets * n_columns, -1, width)
    )  # (S G, heads m, E)
    x = torch.baddbmm(cells.reshape(n_sets * n_columns, n_rows, width), shares, told)  # told: (S G, heads m, E)
    return _fed(w, block + "multihead_attn2.", x.view(n_sets, -1, width)).view(cells.shape)


def _by_column(x: Tensor, n_columns: int) -> Tensor:
    """(S, heads, L, G m) to (S G, L, heads m)."""
    n_sets, heads, length, _ = x.shape
    parts = x.reshape(n_sets, heads, length, n_columns, -1)
    return parts.permute(0, 3, 2, 1, 4).reshape(n_sets * n_columns, length, -1)


def _rows(w: Weights, layout: Layout, cells: Tensor) -> Tensor:
    """Cells (S, G, T, E) to rows (S, T, n_tokens * E)."""
    n_sets, n_columns, n_rows, width = cells.shape
    freqs, length = w["row_interactor.tf_row.rope.freqs"][0], layout.n_tokens + n_columns
    angles = torch.arange(length, device=cells.device, dtype=cells.dtype)[:, None] * freqs
    angles = angles.repeat_interleave(2, dim=1) if layout.interleaved else angles.repeat(1, 2)
    cos, sin = (turn(angles).repeat(1, layout.row_heads) for turn in (torch.cos, torch.sin))  # (L, E)
    tokens = w["row_interactor.cls_tokens"]  # (S, n_tokens, E)
    if layout.row_blocks == 1:
        x = _summed_up(w, "row_interactor.tf_row.blocks.0.", layout, tokens, cells, cos, sin)
        return _normed(w, "row_interactor.out_ln", x).flatten(2)
    x = torch.cat([tokens[:, None].expand(-1, n_rows, -1, -1), cells.transpose(1, 2)], dim=2)  # (S, T, L, E)
    for i in range(layout.row_blocks):
        block = f"row_interactor.tf_row.blocks.{i}."
        last = i == layout.row_blocks - 1  # of it only the class tokens are read
        n_asking = layout.n_tokens if last else length
        ask, key, value = _folded(w, block + "norm1", block + "attn.")
        seen = _standardised(x)
        q = _turned(seen[:, :, :n_asking] if last else seen, ask, cos, sin, layout)
        k = _turned(seen, key, cos, sin, layout)
        v = _product(seen.flatten(1, 2), *value).view(x.shape)
        q, k, v = (_heads(part.flatten(0, 1), layout.row_heads) for part in (q, k, v))  # (S T, heads, ., size)
        got = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n_sets, -1, width)
        x = (x[:, :, :n_asking] if last else x).reshape(n_sets, -1, width)
        x = x + _linear(w, block + "attn.out_proj", got)
        x = _fed(w, block, x).view(n_sets, n_rows, n_asking, width)
    return _normed(w, "row_interactor.out_ln", x).flatten(2)


def _summed_up(
    w: Weights, block: str, layout: Layout, tokens: Tensor, cells: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """The row stage of one block: tokens (S, A, E), the same for all rows, look at cells (S, G, T, E); (S, T, A, E).

    A token asks the same of the cells of a column, whatever the row: what it looks for in them, turned by the column's
    position, is folded into one matrix a column, as in `_induced`.
    """
    heads, n_tokens, (n_sets, n_columns, n_rows, width) = layout.row_heads, layout.n_tokens, cells.shape
    size = width // heads
    (ask, ask_0), (key, key_0), (value, value_0) = _folded(w, block + "norm1", block + "attn.")
    seen, own = _standardised(cells), _standardised(tokens)
    q = _turned(own[:, None], (ask, ask_0), cos, sin, layout)[:, 0] / math.sqrt(size)  # (S, A, E)
    back = torch.addcmul(q[:, :, None] * cos, _swapped(q, layout)[:, :, None], -sin)  # (S, A, L, E)
    back = back.unflatten(3, (heads, size)).permute(0, 3, 2, 1, 4).flatten(2, 3)  # (S, heads, L A, size)
    look = torch.cat([key, key_0], dim=1).unflatten(2, (heads, size)).transpose(1, 2) @ back.mT
    look = _by_column(look, n_tokens + n_columns).unflatten(0, (n_sets, -1))  # (S, L, E + 1, heads A)
    look_own, look = look.split((n_tokens, n_columns), dim=1)
    look = look.flatten(0, 1)
    scores = torch.baddbmm(look[:, width:], seen.flatten(0, 1), look[:, :width]).unflatten(0, (n_sets, n_columns))
    scores_own = own[:, :, None] @ look_own[:, :, :width] + look_own[:, :, width:]  # (S, A, 1, heads A)
    shares = torch.softmax(
        torch.cat([scores_own.expand(-1, -1, n_rows, -1), scores], dim=1), dim=1
    )  # (S, L, T, heads A)
    of_tokens, of_cells = shares.permute(0, 2, 3, 1).split((n_tokens, n_columns), dim=3)  # (S, T, heads A, .)
    found = of_cells.flatten(0, 1) @ seen.transpose(1, 2).flatten(0, 1)  # (S T, heads A, E)
    found = found.view(n_sets, -1, width) + of_tokens.flatten(1, 2) @ own
    found = found.view(n_sets, n_rows, heads, n_tokens, width).transpose(2, 3).reshape(n_sets, -1, heads * width)
    told, told_0 = _told(w, block + "attn.", heads, value, value_0)
    x = tokens.repeat(1, n_rows, 1) + _product(found, told, told_0)  # (S, T A, E)
    return _fed(w, block, x).view(n_sets, n_rows, n_tokens, width)


def _told(w: Weights, attn: str, heads: int, value: Tensor, value_0: Tensor) -> tuple[Tensor, Tensor]:
    """Projections of values and outputs as one map (S, heads E, E) of what each head's shares sum up, and its bias."""
    out = w[attn + "out_proj.weight"].mT
    each = value.unflatten(2, (heads, -1)).transpose(1, 2) @ out.unflatten(1, (heads, -1))
    return each.flatten(1, 2), torch.baddbmm(w[attn + "out_proj.bias"][:, None], value_0, out)


def _turned(x: Tensor, projection: tuple[Tensor, Tensor], cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Project x (S, T, L, E) and turn it by position: coordinates (a, b) become (a cos - b sin, b cos + a sin)."""
    both = [torch.cat([part, _swapped(part, layout)], dim=2) for part in projection]
    plain, other = _product(x.flatten(1, 2), *both).view(*x.shape[:3], -1).chunk(2, dim=3)
    return torch.addcmul(plain * cos[: x.shape[2]], other, sin[: x.shape[2]])


def _swapped(x: Tensor, layout: Layout) -> Tensor:
    """Of every pair of coordinates (a, b) along the last axis of (S, ., E), (-b, a)."""
    pairs = x.unflatten(2, (layout.row_heads, -1, 2) if layout.interleaved else (layout.row_heads, 2, -1))
    a, b = pairs.unbind(-1 if layout.interleaved else 3)
    return torch.stack([-b, a], dim=-1 if layout.interleaved else 3).flatten(2)


def _in_context(w: Weights, block: str, heads: int, x: Tensor, n_context: int, first: int) -> Tensor:
    """Rows from the first-th on of x (S, T, D) look at the context's rows."""
    seen = _normed(w, block + "norm1", x)
    weight, bias = w[block + "attn.in_proj_weight"].mT, w[block + "attn.in_proj_bias"][:, None]
    width = x.shape[2]
    asking, knowing = zip(*(part.split((width, 2 * width), dim=2) for part in (weight, bias)), strict=True)
    q = _heads(_product(seen[:, first:] if first else seen, *asking), heads)
    q = _sharpened(w, block + "attn.ssmax_layer.", q, n_context)
    known = _product(seen[:, :n_context], *knowing)
    k, v = (_heads(part, heads) for part in known.chunk(2, dim=2))
    got = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    x = x[:, first:] if first else x
    return _fed(w, block, x + _linear(w, block + "attn.out_proj", got))


def _sharpened(w: Weights, at: str, q: Tensor, n_keys: int) -> Tensor:
    """Queries (S, heads, L, size) scaled by the number of keys and by themselves (`tabular_network._scaled`)."""
    if at + "base_mlp.0.weight" not in w:
        return q
    log_n = torch.full((len(q), 1, 1), math.log(max(n_keys, 1)), device=q.device, dtype=q.dtype)
    base = _linear(w, at + "base_mlp.2", F.gelu(_linear(w, at + "base_mlp.0", log_n)))  # (S, 1, heads or heads size)
    own = _linear(w, at + "query_mlp.2", F.gelu(_linear(w, at + "query_mlp.0", q.flatten(1, 2)))).view(*q.shape[:3], -1)
    return q * (base.view(len(q), q.shape[1], 1, -1) * (1 + torch.tanh(own)))


def _fed(w: Weights, block: str, x: Tensor) -> Tensor:
    """The feed-forward part with its residual on x (S, N, E)."""
    if x.shape[1] > w[block + "linear1.weight"].shape[1]:
        inner = _product(
            _standardised(x), *_fold(w, block + "norm2", w[block + "linear1.weight"], w[block + "linear1.bias"])
        )
    else:  # fewer rows than weights
        inner = _linear(w, block + "linear1", _normed(w, block + "norm2", x))
    out = torch.baddbmm(x, F.gelu(inner), w[block + "linear2.weight"].mT)
    return out.add_(w[block + "linear2.bias"][:, None])


def _normed(w: Weights, norm: str, x: Tensor) -> Tensor:
    """Layer norm of x (S, ..., E) with scale and shift."""
    shape = (len(x), *[1] * (x.dim() - 2), -1)
    scale, shift = w[norm + ".weight"].view(shape), w.get(norm + ".bias")
    x = _standardised(x)
    return x * scale if shift is None else torch.addcmul(shift.view(shape), x, scale)


def _folded(w: Weights, norm: str, attn: str) -> list[tuple[Tensor, Tensor]]:
    """Projections of queries, keys and values (S, E, E) with biases (S, 1, E), a norm's scale and shift folded in."""
    weight, bias = _fold(w, norm, w[attn + "in_proj_weight"], w[attn + "in_proj_bias"])
    return list(zip(weight.chunk(3, dim=2), bias.chunk(3, dim=2), strict=True))


def _fold(w: Weights, norm: str, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    shift = w.get(norm + ".bias")
    moved = bias[:, None] if shift is None else torch.baddbmm(bias[:, None], shift[:, None], weight.mT)
    return weight.mT * w[norm + ".weight"][:, :, None], moved


def _standardised(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _heads(x: Tensor, heads: int) -> Tensor:
    """(S, L, E) to (S, heads, L, E / heads)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _linear(w: Weights, at: str, x: Tensor) -> Tensor:
    return _product(x, w[at + ".weight"].mT, w[at + ".bias"][:, None])


def _product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (S, N, in) by weight (S, in, out), plus bias (S, 1, out)."""
    return torch.baddbmm(bias, x, weight)
