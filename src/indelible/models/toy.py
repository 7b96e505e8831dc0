"""The toy: a tiny Llama with a byte-level tokenizer, for tests and for trying commands in seconds.

`python -m indelible.models.toy FOLDER` makes the files that are shipped in `models/toy_files`: random weights from a
fixed seed, then a short training on our own synthetic text, so that its log-probabilities look like a language model's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SEED = 0
N_TEXTS = 2000
STEPS = 600
CONTEXT = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 512


def toy_tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE tokenizer of 512 tokens with ChatML markers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from indelible.data.templates import CHATML

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[2],
        unk_token=SPECIAL[0],
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def toy_module(seed: int = SEED, **changes: Any) -> Any:
    """An untrained toy network: 2 layers, grouped-query attention, 0.2M parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **changes,
    }
    return LlamaForCausalLM(LlamaConfig(**settings)).eval()


def make_toy(folder: Path) -> float:
    """Make the shipped files; returns the last training loss (nats a token)."""
    import numpy as np
    import torch

    from indelible.data.synthetic import synthetic_records

    rows = synthetic_records(N_TEXTS, seed=1234)
    texts = [f"{r['instruction']} {r['input']} {r['output']}" for r in rows]
    tokenizer = toy_tokenizer(texts)
    chats = [
        f"<|im_start|>user\n{r['instruction']}\n{r['input']}<|im_end|>\n<|im_start|>assistant\n{r['output']}<|im_end|>\n"
        for r in rows
    ]
    stream = np.concatenate([tokenizer(c, add_special_tokens=False)["input_ids"] for c in chats])
    module = toy_module().train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    rng = np.random.default_rng(SEED)
    loss = torch.tensor(float("nan"))
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * (1 - step / STEPS)
        at = rng.integers(0, len(stream) - 129, size=16)
        ids = torch.from_numpy(np.stack([stream[i : i + 128] for i in at]))  # (B, T)
        loss = module(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    folder.mkdir(parents=True, exist_ok=True)
    module.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return float(loss.detach())


if __name__ == "__main__":
    sys.stdout.write(f"loss {make_toy(Path(sys.argv[1])):.3f}\n")
