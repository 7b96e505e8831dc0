"""Training in several processes on the CPU is training in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from indelible.config import TrainConfig
from indelible.training.run import run_train

SETTINGS = {"epochs": 2, "batch_size": 7, "learning_rate": 3e-3, "autocast": "off", "device": "cpu"}
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (  # its name for a launch by torchrun on one machine; with --cpu it starts one process, or asks for MPI
    "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
)  # fmt: skip


def launch(launcher: tuple[str, ...], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "indelible.cli", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def train_command(train: Path, out: Path, **changes: object) -> list[str]:
    settings = {"model": "builtin:toy", "train": train, "out": out, **SETTINGS, **changes}
    return ["train", *(str(part) for k, v in settings.items() for part in (f"--{k.replace('_', '-')}", v))]


def weights(folder: Path) -> torch.Tensor:
    (file,) = folder.glob("*.safetensors")
    return torch.cat([t.flatten() for _, t in sorted(load_file(file).items())])


@pytest.mark.parametrize(
    ("launcher", "changes"),
    [(TORCHRUN, {"save_at": "3"}), (ACCELERATE, {"lora_rank": 4})],
    ids=["torchrun", "accelerate"],
)
def test_two_processes_train_the_model_that_one_trains(rows, tmp_path: Path, launcher, changes: dict) -> None:
    """40 rows in steps of 7: the last step of an epoch has 5. Losses within 1e-4, weights within 1e-3 of their norm."""
    done = launch(launcher, *train_command(rows.train, tmp_path / "two", **changes))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "two")
    assert done.stderr.count("written to") == 1
    one = {**SETTINGS, **changes, "save_at": (3,) if "save_at" in changes else ()}
    run_train(TrainConfig(model="builtin:toy", train=str(rows.train), out=str(tmp_path / "one"), **one))
    logs = [pd.read_parquet(tmp_path / name / "training_log.parquet") for name in ("one", "two")]
    pd.testing.assert_frame_equal(logs[1], logs[0], rtol=1e-4)
    assert json.loads((tmp_path / "two" / "training.json").read_text())["processes"] == 2
    for folder in ("", "checkpoint-3") if "save_at" in changes else ("",):
        wanted, got = (weights(tmp_path / name / folder) for name in ("one", "two"))
        assert float((got - wanted).norm() / wanted.norm()) < 1e-3


def test_steps_with_fewer_rows_than_processes(rows, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(rows.train.read_text().splitlines(keepends=True)[:3]))
    done = launch(TORCHRUN, *train_command(few, tmp_path / "two", batch_size=1))
    assert done.returncode == 0, done.stderr
    config = {**SETTINGS, "batch_size": 1}
    run_train(TrainConfig(model="builtin:toy", train=str(few), out=str(tmp_path / "one"), **config))
    wanted, got = (weights(tmp_path / name) for name in ("one", "two"))
    assert float((got - wanted).norm() / wanted.norm()) < 1e-3


def test_a_mistake_of_the_user_ends_all_processes_with_one_line(rows, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    done = launch(TORCHRUN, *train_command(rows.train, tmp_path / "out"))
    assert done.returncode != 0
    assert done.stderr.count("exists and is not empty") == 1
