"""Replies whose prompts begin alike: what they share is computed once, and put before each as keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from indelible.models.causal import CausalModel

Ids = NDArray[np.int64]

LEFT = 8
"""Tokens of a prompt that may lie beyond what it shares with the longest of its family."""


@dataclass(frozen=True)
class Family:
    """Prompts that all but a few last tokens of are the beginning of one of them, the trunk.

    Attributes:
        trunk: the longest prompt.
        members: indices of the prompts. shared: for each of them, how many tokens it has in common with the trunk.
    """

    trunk: Ids
    members: list[int]
    shared: list[int]


def families(prompts: Sequence[Ids]) -> list[Family]:
    """Every prompt in one family, in the order of their tokens. A prompt alone is a family of its own."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].astype(">u4").tobytes(), reverse=True)
    out: list[Family] = []
    for i in order:  # a beginning comes after what it is the beginning of
        ids = prompts[i]
        common = _common(ids, out[-1].trunk) if out else 0
        if out and len(ids) - common <= LEFT and len(ids) <= len(out[-1].trunk):
            out[-1].members.append(i)
            out[-1].shared.append(common)
        else:
            out.append(Family(ids, [i], [len(ids)]))
    return out


def _common(one: Ids, other: Ids) -> int:
    n = min(len(one), len(other))
    unlike = np.flatnonzero(one[:n] != other[:n])
    return int(unlike[0]) if len(unlike) else n


def prefilled(model: CausalModel, prompts: Sequence[Ids]) -> Any:
    """Keys and values of all but the last few tokens of each prompt, as transformers takes them beside prompts that are
    padded on the left; None where they share too little for that to pay, or this architecture keeps something else.

    Each family's trunk is computed once, so that positions and what stands before a token are the prompt's own.
    """
    from transformers import DynamicCache

    found = families(prompts)
    if 2 * len(found) > len(prompts):
        return None
    left = max(1, *(len(prompts[i]) - n for f in found for i, n in zip(f.members, f.shared, strict=True)))
    longest, shortest = max(map(len, prompts)), min(map(len, prompts))
    if shortest <= left:
        return None
    layers: list[tuple[torch.Tensor, torch.Tensor]] = []
    for family in found:
        n_trunk = max(len(prompts[i]) for i in family.members) - left
        ids = torch.from_numpy(family.trunk[:n_trunk]).to(model.device)[None]
        said = model.causal(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        if type(said) is not DynamicCache or any(type(one).__name__ != "DynamicLayer" for one in said.layers):
            return None
        if not layers:
            shapes = [(len(prompts), one.keys.shape[1], longest - left, one.keys.shape[3]) for one in said.layers]
            layers = [
                (one.keys.new_zeros(s), one.values.new_zeros(s)) for one, s in zip(said.layers, shapes, strict=True)
            ]
        for i in family.members:
            n = len(prompts[i]) - left
            for (keys, values), one in zip(layers, said.layers, strict=True):
                keys[i, :, longest - left - n :] = one.keys[0, :, :n]
                values[i, :, longest - left - n :] = one.values[0, :, :n]
    cache = DynamicCache()
    for index, (keys, values) in enumerate(layers):
        cache.update(keys, values, index)
    return cache
