"""What is proved about a model when it is loaded, on a few tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from indelible.errors import ModelError
from indelible.models.attention import exchanged
from indelible.models.causal import CausalModel
from indelible.models.prepack import prepack
from indelible.progress import say
from indelible.scoring.batching import plan
from indelible.scoring.network import hidden_states, out_of_memory
from indelible.scoring.prefix import token_tree


def _packable(model: CausalModel) -> bool:
    """Whether every layer attends over plain keys and values, whole or through a sliding window that attention is told.

    Recurrent layers, chunked attention and the like keep a state that paths of a tree cannot share; a window that lives
    in the mask alone would be lost.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    config = model.network.config
    if getattr(config.get_text_config(), "attention_chunk_size", None):
        return False
    kinds = [type(layer) for layer in DynamicCache(config=config).layers]
    told: dict[int, int | None] = {}

    def listen(module: Any, query: Any, key: Any, value: Any, mask: Any, sliding_window: Any = None, **_: Any) -> Any:
        told[module.layer_idx] = sliding_window
        return query.transpose(1, 2), None

    with model.network.context(), exchanged(config, "indelible_listen", listen):
        model.network.backbone(input_ids=torch.arange(3, 7, device=model.device)[None], use_cache=False)
    for i, kind in enumerate(kinds):
        windowed = kind is DynamicSlidingWindowLayer
        if kind not in {DynamicLayer, DynamicSlidingWindowLayer} or i not in told or windowed != (told[i] is not None):
            return False
    return True


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
    try:
        return _packable(model) and _agrees(model)
    except (NotImplementedError, TypeError, RuntimeError, AttributeError, ValueError) as error:
        if out_of_memory(error):
            raise
        say(f"{model.name}: attention over packs failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})")
        return False


def _agrees(model: CausalModel) -> bool:
    rng = np.random.default_rng(0)
    vocabulary = min(int(model.module.config.get_text_config().vocab_size), 20_000)
    start, middle, *ends = (rng.integers(3, vocabulary, n) for n in (9, 5, 4, 6, 6, 1))
    sequences = [np.concatenate(parts) for parts in [(start, middle, e) for e in ends] + [(start, e) for e in ends]]
    tree = token_tree(sequences, [len(s) for s in sequences], min_saved=1)
    network = replace(model.network, packs=True)
    have: dict[int, Any] = {}
    with network.context():
        for pack in plan(tree, batch_tokens=12, kv_tokens=1 << 30).packs:
            states = hidden_states(network, sequences, tree, pack, have)
            for i, (begin, got) in zip(pack.members, states, strict=True):
                ids = torch.from_numpy(sequences[i])[None].to(model.device)
                want = network.backbone(input_ids=ids, use_cache=False).last_hidden_state[0, begin:]
                error = ((got - want).float().norm(dim=-1) / want.float().norm(dim=-1)).max()
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


@torch.inference_mode()
def prepack_checked(model: CausalModel) -> None:
    """Lay the model's weights out for the processor, and prove that it computes what it did.

    Raises:
        ModelError: it does not.
    """
    ids = torch.arange(3, 35, device=model.device)[None]
    with model.network.context():
        before = model.module(input_ids=ids, use_cache=False).logits.float()
        prepack(model.module)
        after = model.module(input_ids=ids, use_cache=False).logits.float()
    error = ((after - before).norm(dim=-1) / before.norm(dim=-1)).max()
    if not error < (1e-3 if model.dtype == torch.float32 else 0.05):  # a wrong layout is off by its whole size
        raise ModelError(f"{model.name}: laid out for this processor, its weights answer otherwise; use --device cuda")


def rotary_limit(config: Any) -> int:
    """Tokens up to which a token's rotary embedding does not depend on what else is in the pass.

    "dynamic" and "longrope" choose their frequencies by the longest position of a pass.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_scaling", None) or getattr(text, "rope_parameters", None) or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) not in {"dynamic", "longrope"}:
        return 1 << 62
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    return int(original or text.max_position_embeddings)
