"""What is wrong with settings, in one line of plain words."""

from __future__ import annotations

from typing import Any

import pytest

from indelible.canaries.config import CanaryRunConfig, DesignConfig
from indelible.checked import check
from indelible.config import AuditConfig, Settings, TrainConfig
from indelible.errors import ConfigError
from indelible.sweep.config import SweepConfig

AUDIT = {"model": "m", "members": "a", "nonmembers": "b"}
STUDY = {
    "name": "n",
    "paper": "p",
    "data": {"files": {"a": "a.jsonl"}, "splits": {"s": 2}},
    "models": {"m": "builtin:toy"},
}
TRAIN = {"model": "m", "train": "t", "out": "o"}


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (DesignConfig, {"rows": "x"}, "setting 'rows': expected a whole number (given: 'x')"),
        (DesignConfig, {"dose": [-1]}, "setting 'dose': doses are whole numbers from 0 (given: [-1])"),
        (DesignConfig, {"task": "email"}, "setting 'task': expected keys and values (given: 'email')"),
        (DesignConfig, {"task": {"nam": "x"}}, "unknown setting of task 'nam'. Did you mean 'name'?"),
        (DesignConfig, {"auxiliary": {"canaries": 2, "dos": 1}}, "setting of auxiliary 'dos'. Did you mean 'dose'"),
        (DesignConfig, {"auxiliary": {}}, "setting 'auxiliary.canaries' is missing"),
        (DesignConfig, {"placement": "erly"}, "setting 'placement.0': expected 'uniform', 'early', 'middle' or 'late'"),
        (DesignConfig, {"placement": {"start": 0.5, "stop": 0.2}}, "start 0.5 is not before stop 0.2"),
        (DesignConfig, {"placement": {"start": 0.5}}, "setting 'placement.0.stop' is missing"),
        (DesignConfig, {"placement": {"end": 157, "gp": 16}}, "setting of placement.0 'gp'. Did you mean 'gap'?"),
        (CanaryRunConfig, {"arms": {"a": {}}, "seeds": [0, 0]}, "setting 'seeds': a seed stands there twice"),
        (CanaryRunConfig, {"arms": {"a": {}}, "seeds": [-1]}, "setting 'seeds.0': expected at least 0 (given: -1)"),
        (CanaryRunConfig, {"arms": {"a b": {}}}, "setting 'arms.a b': expected letters, digits and . _ - alone"),
        (CanaryRunConfig, {}, "setting 'arms' is missing"),
        (CanaryRunConfig, {"arms": {"Big": 3}}, "setting 'arms.Big': expected keys and values (given: 3)"),
        (DesignConfig, {"auxiliary": {"canaries": 2, "dose": "x"}}, "'auxiliary.dose': expected a whole number"),
        (SweepConfig, {**STUDY, "seeds": [1, 1]}, "setting 'seeds': a seed stands there twice"),
        (AuditConfig, {**AUDIT, "seed": -1}, "setting 'seed': expected at least 0 (given: -1)"),
        (TrainConfig, {**TRAIN, "seed": 1 << 32}, "setting 'seed': expected less than"),
        (AuditConfig, {"model": "m"}, "setting 'members' is missing: give --members"),
        (AuditConfig, {**AUDIT, "load": {"kv_memory": "5X"}}, "expected bytes, or a whole number with K, M or G"),
        (AuditConfig, {**AUDIT, "level": "high"}, "setting 'level': expected a number (given: 'high')"),
        (TrainConfig, {**TRAIN, "save_at": "5"}, "setting 'save_at': expected a list (given: '5')"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_one_line_in_plain_words(kind: type[Settings], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(kind, given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
