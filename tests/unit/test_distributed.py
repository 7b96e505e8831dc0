"""One process alone, and how work is split between several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible import distributed
from indelible.data.chat import Encoded
from indelible.errors import ConfigError
from indelible.scoring.engine import shares

sequences = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=6), max_size=40)


def encode(ids: list[int]) -> Encoded:
    return Encoded(np.array(ids, dtype=np.int64), np.ones(len(ids), dtype=bool), ())


@given(sequences, st.integers(1, 9), st.data())
def test_shares_are_whole_contiguous_and_balanced(ids: list[list[int]], n: int, data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 50), min_size=len(ids), max_size=len(ids)))
    split = shares([encode(s) for s in ids], costs, n)
    assert len(split) == n
    one_after_the_other = [i for share in split for i in share]
    assert sorted(one_after_the_other) == list(range(len(ids)))
    assert [ids[i] for i in one_after_the_other] == sorted(ids)
    for share in split:
        assert abs(sum(costs[i] for i in share) - sum(costs) / n) <= max(costs, default=0)


def test_questions_that_begin_alike_stay_together() -> None:
    ids = [[k, 7, 7, 7, end] for end in range(5) for k in (300, 1, 256, 2)]
    split = shares([encode(s) for s in ids], [5] * len(ids), 4)
    assert [{ids[i][0] for i in share} for share in split] == [{1}, {2}, {256}, {300}]


@pytest.fixture
def four_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)


def test_a_launch_is_told_by_its_variables(four_processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (distributed.n_processes(), distributed.process_index(), distributed.local_index()) == (4, 3, 1)
    assert not distributed.is_main()
    with pytest.raises(ConfigError, match="one process"):
        distributed.alone("train")
    monkeypatch.delenv("LOCAL_RANK")  # as on a cluster that sets the count of machines
    assert (distributed.n_processes(), distributed.process_index(), distributed.local_index()) == (1, 0, 0)
    assert distributed.is_main()
    distributed.alone("train")


def test_of_several_processes_only_the_main_one_talks(
    four_processes: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from indelible.progress import Progress, say

    def talk() -> str:
        say("a line")
        with Progress("work", total=3, unit="tokens") as progress:
            progress.advance(3)
        return capsys.readouterr().err

    assert talk() == ""
    monkeypatch.setenv("RANK", "0")
    assert talk().startswith("a line\nwork: 3 tokens")


def test_alone_everything_is_direct_and_imports_neither_torch_nor_accelerate() -> None:
    code = """
import sys
from indelible import distributed as d
assert d.gather(1) == [1] and d.from_main(lambda: 2) == 2 and d.meet(3) == ([3], None)
d.first_on_each_machine(lambda: 1 / 0)
d.agree(4, "numbers")
d.leave(0)
try:
    with d.as_one():
        raise KeyError("own")
except KeyError:
    print({"torch", "accelerate"} & set(sys.modules))
"""
    env = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "set()"


def test_an_interruption_waits_for_the_end_of_the_block() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []

    @distributed.undisturbed()
    def outer() -> None:
        with distributed.undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    try:
        with pytest.raises(KeyboardInterrupt):
            outer()
        assert done == ["inner", "outer"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
