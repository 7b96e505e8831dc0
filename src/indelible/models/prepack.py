"""Linear layers with their weights laid out for the processor once, instead of at every call.

oneDNN multiplies faster from its own blocked layout (docs/performance.md). The products are the same sums in another
order. It replaces the weights of a model that only answers; training keeps plain layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ROWS_HINT = 1024
"""Rows for which the layout is chosen; any number of rows works."""


class PackedLinear(nn.Module):
    """`nn.Linear` for inference on a CPU. The weight is opaque: it can be multiplied by, not read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        weight = linear.weight.detach()
        self.dtype = weight.dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., in) to (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.packed, self.bias, "none", [], "")
        return out

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


def can_prepack(module: Any, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch and this processor have the layout, and nothing reads the weights (DoRA does)."""
    if any(name.endswith("lora_magnitude_vector") for name, _ in module.named_modules()):
        return False
    known = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or not known:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def prepack(module: Any) -> int:
    """Replace every plain linear layer below `module`, those under an adapter included; how many there were.

    A weight shared with the input embedding (a tied head) is copied; the rest is replaced layer by layer, so that
    memory grows by one layer at most besides.
    """
    n = 0
    for parent in list(module.modules()):
        if isinstance(parent, nn.ModuleDict):  # an adapter's own small matrices, which it reads
            continue
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
                n += 1
    return n
