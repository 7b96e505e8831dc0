"""Exchanging the attention of a transformers model for a while; the rest of the model stays its own code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


@contextlib.contextmanager
def exchanged(config: Any, name: str, attend: Callable[..., Any]) -> Iterator[None]:
    """Within it, a model with this config attends through `attend`, which gets what its forward pass was given besides.

    Args:
        config: the module's own.
        name: under which transformers knows `attend`.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, attend)
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def refuse_unknown(query: Tensor, asked: Mapping[str, Any]) -> None:
    """Stop where an architecture asks for something that attention over packs does not do.

    Raises:
        NotImplementedError: a cap on the scores, sinks, a position bias, or a batch.
    """
    unknown = sorted(k for k in ("softcap", "s_aux", "position_bias", "sinks") if asked.get(k) is not None)
    if unknown or query.shape[0] != 1:
        raise NotImplementedError(f"attention over packs does not know {unknown or 'batches'}")
