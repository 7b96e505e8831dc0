"""What a run says of its plan before it trains anything."""

from __future__ import annotations

from typing import Any

import pytest

from indelible.canaries.config import CanaryRunConfig
from indelible.canaries.plan import plan_trials, sparse_groups
from indelible.config import resolve


def said(arms: dict[str, Any], **design: Any) -> str | None:
    given = {"model": "none", "design": {"rows": 120, "batch_size": 4, **design}, "arms": arms, "seeds": [0, 1]}
    return sparse_groups(plan_trials(resolve(CanaryRunConfig, given)[0]))


def test_groups_too_small_for_a_conclusion_are_named_before_training() -> None:
    line = said({"shown": {"cue": "visible"}, "hidden": {"dose": [1, 2]}}, canaries=8, dose=[1, 8])
    assert line is not None
    assert "shown: 2 of 2; hidden: 2 of 2; the smallest has 4" in line


@pytest.mark.parametrize(
    ("arms", "design"),
    [
        ({"a": {}}, {"canaries": 10, "dose": [1, 8]}),
        ({"a": {}, "turned": {"rotation": 1}}, {"canaries": 8, "dose": [1, 8]}),  # rotations are one group of eight
        ({"a": {}}, {"canaries": 0, "controls": 6}),
    ],
)
def test_nothing_is_said_where_groups_are_large_enough(arms: dict[str, Any], design: dict[str, Any]) -> None:
    assert said(arms, **design) is None
