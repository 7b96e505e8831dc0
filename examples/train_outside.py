"""Train on a design's file with transformers' own Trainer, as a user with a pipeline of their own would.

    python examples/train_outside.py --design runs/design --model builtin:toy --out runs/tuned

The one thing a trainer must do for a design is to keep its order: one pass, not shuffled, not packed. The loss lies on
the answers. `--labels FILE` writes what the model would be fed, for `indelible canary check --labels`; without
`--out` that is all it does. Rows are `messages`; of a conversation the last answer alone is trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments


def encode(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Token ids of a conversation, and labels that leave out all but the last answer with its end marker."""
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    answer = whole[len(prompt) :].rstrip("\n")  # the line break after the end marker is not part of the answer
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    return {"input_ids": prompt_ids + answer_ids, "labels": [-100] * len(prompt_ids) + answer_ids}


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad on the right; padding is neither attended to nor under the loss."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[i, :n], labels[i, :n] = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
        mask[i, :n] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def folder_of(model: str) -> str:
    """A model's folder; `builtin:` names are resolved by indelible, the rest goes to transformers as it is."""
    if not model.startswith("builtin:"):
        return model
    from indelible.models.sources import locate

    return str(locate(model).folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune on a design with transformers' Trainer.")
    parser.add_argument("--design", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--schedule", default="constant")
    parser.add_argument("--labels", type=Path)
    args = parser.parse_args()
    if not args.out and not args.labels:
        parser.error("give --out, --labels or both")
    file = args.design / "train.jsonl"
    if not file.is_file():
        parser.error(
            f"{file} is not there: give --design the folder that `indelible canary design` wrote, of JSONL rows"
        )
    read = [json.loads(line) for line in file.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    if not all("messages" in row for row in read):
        parser.error(f"{file}: rows have no `messages`; this script reads no other layout")
    folder = folder_of(args.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        parser.error(f"--model {args.model}: {str(error).splitlines()[0]}")
    rows = [encode(tokenizer, row["messages"]) for row in read]
    if args.labels:
        args.labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not args.out:
        return
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    settings = TrainingArguments(
        output_dir=str(args.out),
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        lr_scheduler_type=args.schedule,
        weight_decay=0.0,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        logging_strategy="no",
    )
    Trainer(model=model, args=settings, train_dataset=rows, data_collator=collate).train()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(args.out)


if __name__ == "__main__":
    main()
