"""The training file in the format a trainer reads, in the order it must keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indelible.data.pictures import Picture
from indelible.data.records import Message
from indelible.data.row_images import IMAGES, MARKER
from indelible.errors import ConfigError, DataError
from indelible.runs import write_bytes

TRAIN_FILE = "train.jsonl"
PICTURES = "images"
"""Folder of a design's pictures, each once under its hash."""


@dataclass(frozen=True)
class TrainingRow:
    """One line of the training file. `raw` is a user's own line, written back as it is."""

    messages: tuple[Message, ...]
    answer: str
    raw: str | None = None
    images: tuple[Picture, ...] = ()


def picture_path(picture: Picture) -> str:
    """Where a picture is in the folder of its design."""
    return f"{PICTURES}/{picture.sha256}.png"


def row_object(row: TrainingRow, format_: str) -> dict[str, Any]:
    """The row as an object: `messages` turns, or `instruction`, `input`, `output` and `system`.

    The instruction form holds one question and one answer. A conversation of several turns is written as messages.
    Pictures are paths in `images`, and `<image>` stands for each before the text of the first user turn: the layout
    that LLaMA-Factory and transformers' data sets of images use.

    Raises:
        DataError: the text of a row with pictures holds `<image>` itself.
    """
    turns = [{"role": m.role, "content": m.content} for m in row.messages]
    if row.images:
        if any(MARKER in turn["content"] for turn in turns):
            raise DataError(f"a row with pictures holds '{MARKER}' in its text, which stands for a picture: remove it")
        first = next(turn for turn in turns if turn["role"] == "user")
        first["content"] = MARKER * len(row.images) + first["content"]
        said = [*turns, {"role": "assistant", "content": row.answer}]
        return {"messages": said, IMAGES: [picture_path(image) for image in row.images]}
    roles = [turn["role"] for turn in turns]
    if format_ != "instruction" or roles not in (["user"], ["system", "user"]):
        return {"messages": [*turns, {"role": "assistant", "content": row.answer}]}
    system = {"system": turns[0]["content"]} if len(turns) == 2 else {}
    return {**system, "instruction": turns[-1]["content"], "input": "", "output": row.answer}


def like_user_rows(row: TrainingRow, sample: dict[str, Any], columns: dict[str, str] | None) -> dict[str, Any]:
    """A canary in the columns of a user's file, `sample` being one of its rows.

    The prompt goes into the prompt column and optional columns stay empty, which renders to the same text.
    """
    turns = [{"role": m.role, "content": m.content} for m in row.messages]
    if (name := _column(sample, columns, "messages")) is not None:
        return {name: [*turns, {"role": "assistant", "content": row.answer}]}
    if (name := _column(sample, columns, "conversations")) is not None:
        who = {"user": "human", "assistant": "gpt", "system": "system"}
        said = [*turns, {"role": "assistant", "content": row.answer}]
        return {name: [{"from": who[t["role"]], "value": t["content"]} for t in said]}
    prompt, answer = _prompt_column(sample, columns), _answer_column(sample, columns)
    if answer is None or prompt is None:
        return row_object(row, "messages")
    made: dict[str, Any] = {}
    for key, value in sample.items():
        made[key] = "" if isinstance(value, str) else None
    made[prompt] = row.messages[-1].content
    made[answer] = row.answer
    system = next((m.content for m in row.messages if m.role == "system"), None)
    if system is not None:
        made[_column(sample, columns, "system", "system_prompt") or "system"] = system
    return made


def write_training_file(
    folder: Path, rows: Sequence[TrainingRow], format_: str, *, user_columns: dict[str, str] | None = None
) -> None:
    """`train.jsonl`, and beside it what the trainer needs to read it in order.

    `llama-factory`: `dataset_info.json`, and `llamafactory.yaml` with the switches that keep the order, and for rows
    with pictures those that keep the pictures. `axolotl`: `axolotl.yaml` likewise. Background rows of a user's file are
    written byte for byte.

    Raises:
        ConfigError: axolotl, and rows that are no conversations.
    """
    sample = next((json.loads(row.raw) for row in rows if row.raw is not None), None)
    turns = _column(sample, user_columns, "messages", "conversations")
    if format_ == "axolotl" and sample is not None and turns is None:
        raise ConfigError(f"format axolotl needs rows of turns; yours have {', '.join(sample)}: make them messages")
    lines = []
    for row in rows:
        if row.raw is not None:
            lines.append(row.raw)
            continue
        made = row_object(row, format_) if sample is None else like_user_rows(row, sample, user_columns)
        lines.append(json.dumps(made, ensure_ascii=False))
    write_bytes(folder / TRAIN_FILE, "".join(line + "\n" for line in lines).encode())
    if format_ == "llama-factory":
        columns = _llama_factory_columns(sample, user_columns)
        areas = [image.width * image.height for row in rows for image in row.images]
        if areas:
            columns["columns"][IMAGES] = IMAGES
        info = {"indelible_canaries": {"file_name": TRAIN_FILE, **columns}}
        write_bytes(folder / "dataset_info.json", (json.dumps(info, indent=1) + "\n").encode())
        write_bytes(folder / "llamafactory.yaml", (_LLAMA_FACTORY + _llama_factory_pictures(areas)).encode())
    if format_ == "axolotl":
        role, content = ("from", "value") if turns == "conversations" else ("role", "content")
        text = _AXOLOTL.format(field=turns or "messages", role=role, content=content)
        write_bytes(folder / "axolotl.yaml", text.encode())


def _llama_factory_columns(sample: dict[str, Any] | None, columns: dict[str, str] | None) -> dict[str, Any]:
    turns = _column(sample, columns, "messages"), _column(sample, columns, "conversations")
    if sample is not None and turns == (None, None):
        prompt, answer = _prompt_column(sample, columns), _answer_column(sample, columns)
        query, system = _column(sample, columns, "input"), _column(sample, columns, "system", "system_prompt")
        found = {"prompt": prompt, "query": query if query != prompt else None, "response": answer, "system": system}
        return {"formatting": "alpaca", "columns": {key: value for key, value in found.items() if value}}
    if turns[1] is not None:
        return {"formatting": "sharegpt", "columns": {"messages": turns[1]}}
    tags = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "system_tag": "system",
    }
    return {"formatting": "sharegpt", "columns": {"messages": turns[0] or "messages"}, "tags": tags}


def _llama_factory_pictures(areas: Sequence[int]) -> str:
    """What keeps LLaMA-Factory from resizing pictures of these areas (in pixels) itself, from leaving out tiles, and
    from cutting rows off. Its cut counts image tokens: one for each 28x28 pixels (Qwen2.5-VL), or 3,328 (InternVL3);
    there is room for some hundreds of text beside them."""
    if not areas:
        return ""
    cutoff = 4096 + max(areas) // 28**2
    return _LLAMA_FACTORY_PICTURES.format(largest=max(areas), smallest=min(areas), cutoff=cutoff)


def _column(sample: dict[str, Any] | None, columns: dict[str, str] | None, *ours: str) -> str | None:
    """The user's column for the first of our names that his rows have."""
    names = columns or {}
    return next((names.get(name, name) for name in ours if names.get(name, name) in (sample or {})), None)


def _prompt_column(sample: dict[str, Any] | None, columns: dict[str, str] | None) -> str | None:
    return _column(sample, columns, "instruction", "prompt", "question", "query", "source", "input")


def _answer_column(sample: dict[str, Any] | None, columns: dict[str, str] | None) -> str | None:
    return _column(sample, columns, "output", "response", "completion", "answer", "target")


_LLAMA_FACTORY = """\
# Merge into the training configuration. The order of the rows is part of the design.
stage: sft
dataset: indelible_canaries
dataset_dir: .
disable_shuffling: true
packing: false
neat_packing: false
num_train_epochs: 1
train_on_prompt: false
"""

_LLAMA_FACTORY_PICTURES = """\
# No picture is resized but by the model's own processing, as in the audit; connector and language model are trained.
image_max_pixels: {largest}
image_min_pixels: {smallest}
crop_to_patches: true
cutoff_len: {cutoff}
freeze_vision_tower: true
freeze_multi_modal_projector: false
freeze_language_model: false
"""

_AXOLOTL = """\
# Merge into the training configuration. The order of the rows is part of the design.
datasets:
  - path: train.jsonl
    ds_type: json
    type: chat_template
    field_messages: {field}
    message_property_mappings:
      role: {role}
      content: {content}
    roles_to_train: [assistant]
shuffle_merged_datasets: false
curriculum_sampling: true
sample_packing: false
num_epochs: 1
train_on_inputs: false
"""
