"""Audits in two processes on the CPU, under torchrun and by hand."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from indelible.cli import main
from indelible.data.records import Query
from indelible.data.synthetic import synthetic_records, write_jsonl
from indelible.scoring.cache import AnswerCache

Ended = list[tuple[int, str, str]]
N_QUESTIONS = 40

WORKER = """
import os, signal, sys
import numpy as np
import torch
from indelible import cli, distributed
from indelible.data.chat import Encoded
from indelible.data.records import Query
from indelible.models.base import TokenLogprobs
from indelible.scoring import engine
from indelible.scoring.cache import AnswerCache

index, trouble, n_questions = distributed.process_index(), sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)
engine.MEET_EVERY_SECONDS = float(sys.argv[3])

class Broken(Exception):
    def __init__(self, one, two):  # does not unpickle
        super().__init__(f"{one} {two}")

class Model:
    name = fingerprint = "fake" if trouble != "another model" else f"fake {index}"
    context_length = 1000
    def encode(self, query):
        ids = np.frombuffer(query.target.encode(), np.uint8).astype(np.int64)
        return Encoded(ids, np.arange(len(ids)) > 0, ())
    def costs(self, encoded):
        return [len(e) for e in encoded]
    def stream(self, encoded):
        for i, e in enumerate(encoded):
            if i == 5 and index == 1:
                if trouble == "error":
                    raise Broken("the plug", "was pulled")
                if trouble == "interruption":
                    signal.raise_signal(signal.SIGINT)
                if trouble == "death":
                    os._exit(9)
            n = int(e.is_target.sum())
            yield i, TokenLogprobs(*(np.full(n, v, np.float32) for v in e.input_ids[1:4]), np.zeros(n, np.int32))

def work(standalone_mode):
    if trouble == "error outside" and index == 1:
        raise Broken("the plug", "was pulled")
    cache = AnswerCache(engine_version=1) if index == 0 else None
    answers, counts = engine.answer(Model(), [Query((), f"{i:03} says the number") for i in range(n_questions)], cache=cache)
    said = [answers[q].logprobs.tolist()[0] for q in sorted(answers.found, key=lambda q: q.target)]
    total = torch.tensor([index + 1.0])
    distributed.sum_over_processes([total])
    print(counts, said[::13], "sum", total.item())

cli.app = work
cli.main()
"""  # noqa: E501


def launch(*command: object, cache: Path, n: int = 2, timeout: float = 60) -> Ended:
    """n processes with the variables that a launcher sets; exit code, output and errors of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n)}
    env |= {"LOCAL_WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1", "INDELIBLE_CACHE": str(cache)}
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**env, "RANK": str(i), "LOCAL_RANK": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(n)
    ]
    try:
        ended = [(p, *p.communicate(timeout=timeout)) for p in started]
    finally:
        for p in started:
            p.kill()
    return [(p.returncode, out, err) for p, out, err in ended]


def n_cached(folder: Path) -> int:
    cache = AnswerCache(folder / "answers", engine_version=1)
    asked = [Query((), f"{i:03} says the number") for i in range(N_QUESTIONS)]
    found = len(cache.read("fake", asked))
    cache.close()
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    rows = synthetic_records(40, seed=7)
    write_jsonl(folder / "members.jsonl", rows[:16])
    write_jsonl(folder / "heldout.jsonl", rows[16:])
    return folder


def audit_args(files: Path) -> list[str]:
    return [
        "audit", "--model", "builtin:toy", "--members", str(files / "members.jsonl"),
        "--nonmembers", str(files / "heldout.jsonl"), "--attacks", "loss,icp-sp",
        "--device", "cpu", "--dtype", "float32",
    ]  # fmt: skip


def test_an_audit_under_torchrun_gives_what_one_process_gives(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(run: str) -> tuple[dict, pd.DataFrame]:
        return json.loads((tmp_path / run / "manifest.json").read_text()), pd.read_parquet(
            tmp_path / run / "scores.parquet"
        )

    def alone(out: str, cache: str) -> tuple[dict, pd.DataFrame]:
        monkeypatch.setenv("INDELIBLE_CACHE", str(tmp_path / cache))
        monkeypatch.setattr(sys, "argv", ["indelible", *audit_args(files), "--out", str(tmp_path / out)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return outcome(out)

    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "indelible.cli"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "INDELIBLE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [*launcher, *audit_args(files)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["audit-toy-1"], "of two processes one writes a run"
    assert done.stdout.count("verdict:") == 1, "and one speaks"
    assert done.stderr.count("members: 16 rows") == 1
    both, shared = outcome("runs/audit-toy-1")
    one, own = alone("one", "another cache")
    again, repeated = alone("again", "cache")
    assert both["processes"] == 2
    assert "processes" not in one
    pd.testing.assert_frame_equal(shared, own, rtol=0, atol=1e-4)
    pd.testing.assert_frame_equal(shared, repeated)
    assert again["counts"]["cached"] == again["counts"]["unique"] > 0
    assert again["counts"]["tokens"] == 0
    for name in ("asked", "unique", "cached", "tokens_asked", "unscorable"):
        assert both["counts"][name] == one["counts"][name]
    assert one["counts"]["tokens"] <= both["counts"]["tokens"] < both["counts"]["tokens_asked"]


def test_wrong_input_is_said_once_and_all_exit_with_2(files: Path, tmp_path: Path) -> None:
    flags = ["--members", "nowhere.jsonl", "--out", tmp_path / "run"]
    (code, out, err), other = launch("-m", "indelible.cli", *audit_args(files), *flags, cache=tmp_path)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("indelible: nowhere.jsonl: no such file")
    assert other == (2, "", "")
    assert not (tmp_path / "run").exists()


def test_all_get_all_answers_and_the_main_process_caches_them(tmp_path: Path) -> None:
    (code, out, err), (code2, out2, err2) = launch("-c", WORKER, "none", N_QUESTIONS, 0, cache=tmp_path)
    assert (code, code2) == (0, 0), err + err2
    assert out == out2
    assert f"asked={N_QUESTIONS}, unique={N_QUESTIONS}, cached=0" in out
    assert "sum 3.0" in out
    assert n_cached(tmp_path) == N_QUESTIONS
    (code, out, _), (_, out2, _) = launch("-c", WORKER, "none", N_QUESTIONS + 1, 30, cache=tmp_path)
    assert out == out2
    assert f"cached={N_QUESTIONS}, failed=0, tokens_computed=19, " in out


@pytest.mark.parametrize(
    ("trouble", "every", "codes", "said", "cached"),
    [
        ("error", 0, (3, 3), "Broken: the plug was pulled", range(10, 12)),
        ("error", 30, (3, 3), "this is a bug", range(25, 26)),  # the other process ends its share first
        ("error outside", 30, (3, 3), "raised in process 1", range(1)),
        ("interruption", 0, (130, 130), "interrupted", range(10, 12)),
        ("death", 0, (2, 9), "process 0 lost another one", range(10, 12)),
        ("another model", 0, (2, 2), "process 1 has other models", range(1)),
    ],
)
def test_trouble_in_one_process_ends_all_and_keeps_the_answers(
    tmp_path: Path, trouble: str, every: int, codes: tuple[int, int], said: str, cached: range
) -> None:
    (code, _, err), (code2, _, err2) = launch("-c", WORKER, trouble, N_QUESTIONS, every, cache=tmp_path)
    assert (code, code2) == codes, err + err2
    assert said in err
    assert err2 == ""
    assert n_cached(tmp_path) in cached
