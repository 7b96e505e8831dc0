"""What is proved about a model when it is loaded, on a few tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from indelible.errors import ModelError
from indelible.models.causal import CausalModel
from indelible.scoring.batching import plan
from indelible.scoring.network import hidden_states
from indelible.scoring.prefix import token_tree


def _packable(config: Any) -> bool:
    """Whether every layer attends over plain keys and values, whole or through a sliding window.

    Recurrent layers, chunked attention and the like keep a state that paths of a tree cannot share.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    text = config.get_text_config()
    if getattr(text, "attention_chunk_size", None) or not getattr(config, "use_cache", False):
        return False
    layers = DynamicCache(config=config).layers
    return all(type(layer) in {DynamicLayer, DynamicSlidingWindowLayer} for layer in layers)


@torch.inference_mode()
def check_network(model: CausalModel) -> None:
    """Prove on a few tokens that head(backbone(ids)) is what the model itself computes.

    Some architectures scale or cap logits after the head; scoring them through the parts would be wrong.

    Raises:
        ModelError: they differ.
    """
    network = model.network
    ids = torch.arange(3, 11, device=model.device)[None]
    with network.context():
        whole = model.module(input_ids=ids, use_cache=False).logits.float()
        parts = network.head(network.backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    if not whole.isfinite().all():
        raise ModelError(f"{model.name}: its logits are not finite; the weights are broken (did training diverge?)")
    if not torch.allclose(
        whole.log_softmax(-1), parts.log_softmax(-1), atol=1e-3 if model.dtype == torch.float32 else 0.1
    ):
        raise ModelError(
            f"{model.name}: its logits are not its head applied to its decoder's output; this architecture "
            "post-processes logits and cannot be scored yet"
        )


@torch.inference_mode()
def runs_packs(model: CausalModel) -> bool:
    """Prove on a small tree, with keys and values carried from pass to pass, that packs give what plain passes give.

    An architecture whose attention does something that packs do not know (a cap, sinks, position biases) fails here and
    runs padded, one beginning as often as it is asked.
    """
    if not _packable(model.module.config):
        return False
    rng = np.random.default_rng(0)
    vocabulary = min(int(model.module.config.get_text_config().vocab_size), 20_000)
    start, middle, *ends = (rng.integers(3, vocabulary, n) for n in (9, 5, 4, 6, 6, 1))
    sequences = [np.concatenate(parts) for parts in [(start, middle, e) for e in ends] + [(start, e) for e in ends]]
    tree = token_tree(sequences, [len(s) for s in sequences], min_saved=1)
    network = replace(model.network, packs=True)
    have: dict[int, Any] = {}
    with network.context():
        for pack in plan(tree, batch_tokens=12, kv_tokens=1 << 30).packs:
            try:
                states = hidden_states(network, sequences, tree, pack, have)
            except (NotImplementedError, TypeError, RuntimeError, AttributeError):
                return False
            for i, (begin, got) in zip(pack.members, states, strict=True):
                ids = torch.from_numpy(sequences[i])[None].to(model.device)
                want = network.backbone(input_ids=ids, use_cache=False).last_hidden_state[0, begin:]
                error = (got - want).float().abs().max() / want.float().abs().max()
                if not error < (1e-4 if model.dtype == torch.float32 else 0.05):
                    return False
    return True


@torch.inference_mode()
def check_adapter(model: CausalModel) -> None:
    """An adapter that changes no logit would make an audit of the base model look like one of the tuned model.

    Raises:
        ModelError: logits with and without the adapter are equal.
    """
    ids = torch.arange(3, 19, device=model.device)[None]
    with_adapter = model.module(input_ids=ids, use_cache=False).logits
    with model.module.disable_adapter():
        without = model.module(input_ids=ids, use_cache=False).logits
    if torch.equal(with_adapter, without):
        raise ModelError(
            f"{model.name}: the adapter changes no logit (untrained, or not applied to this base); "
            "auditing it would audit the base model"
        )
