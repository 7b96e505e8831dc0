"""Shared fixtures: the shipped toy model, a few synthetic records, and toys that were fine-tuned on some of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from indelible.data.records import Record

SETTINGS_OF_TUNING = {"epochs": 12, "batch_size": 8, "learning_rate": 3e-3, "autocast": "off", "device": "cpu"}


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INDELIBLE_CACHE", str(folder))
        yield folder


@dataclass(frozen=True)
class Rows:
    """Synthetic records of one distribution: `members` is what the tuned toys were trained on (the file `train`)."""

    train: Path
    members: tuple[Record, ...]
    nonmembers: tuple[Record, ...]
    pool: tuple[Record, ...]


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    from indelible.data.formats import read_records
    from indelible.data.synthetic import synthetic_records, write_jsonl

    folder = tmp_path_factory.mktemp("rows")
    made = synthetic_records(100, seed=77)
    parts = {"members": made[:40], "nonmembers": made[40:80], "pool": made[80:]}
    for name, part in parts.items():
        write_jsonl(folder / f"{name}.jsonl", part)
    read = {name: read_records(folder / f"{name}.jsonl").records for name in parts}
    return Rows(folder / "members.jsonl", **read)


@pytest.fixture(scope="session")
def toy():
    """`builtin:toy` in float32; nothing may change its weights."""
    from indelible.models.load import LoadOptions, load_model

    return load_model("builtin:toy", LoadOptions(device="cpu", dtype="float32"))[0]


@pytest.fixture(scope="session")
def tokenizer(toy):
    return toy.chat.tokenizer


@pytest.fixture(scope="session")
def tuned_toy(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's folder after 12 epochs on `rows.members`."""
    return _tuned(rows, tmp_path_factory.mktemp("tuned") / "full")


@pytest.fixture(scope="session")
def lora_toy(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter folder: rank-4 LoRA on the toy, one epoch on `rows.members`.

    `warnings.txt` beside it holds what was warned of meanwhile.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = _tuned(rows, tmp_path_factory.mktemp("tuned") / "lora", epochs=1, lora_rank=4)
    (folder.parent / "warnings.txt").write_text("\n".join(f"{w.category.__name__}: {w.message}" for w in caught))
    return folder


def _tuned(rows: Rows, out: Path, **changes: int) -> Path:
    from indelible.config import TrainConfig
    from indelible.training.run import run_train

    settings = {**SETTINGS_OF_TUNING, **changes}
    return run_train(TrainConfig(model="builtin:toy", train=str(rows.train), out=str(out), **settings))


def pytest_configure(config: pytest.Config) -> None:
    """peft asks transformers for an attribute by its old name; nothing here can change that."""
    config.addinivalue_line("filterwarnings", "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
