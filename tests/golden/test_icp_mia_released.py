"""`compat="icp-mia"` gives the scores that the released ICP-MIA code printed, to 1e-4 in float32.

The fixed inputs and scores lie outside the repository (`../shared/golden`); the test skips without them. They were made
by running the released code on 16 real records with the embedded model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indelible.attacks import make_attack
from indelible.attacks.base import Resources, score_all
from indelible.data.records import Message, Record
from indelible.interview import Interview, prepare
from indelible.models.causal import CausalModel

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "icp_mia_released_code.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GOLDEN.exists(), reason=f"no golden scores at {GOLDEN.name} beside the repository"),
]


def _record(row: dict[str, str], name: str) -> Record:
    """As the reader makes it with strip=True (which `compat` sets)."""
    prompt = row["instruction"].strip()
    if row["input"].strip():
        prompt += "\n" + row["input"].strip()
    return Record(name, (Message("user", prompt),), row["output"], group=name)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(GOLDEN.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def records(golden: dict[str, Any]) -> list[Record]:
    return [_record(row["target"], f"r{i:02d}") for i, row in enumerate(golden["records"])]


def test_self_perturbation(
    golden: dict[str, Any], records: list[Record], compat_model: CausalModel, tmp_path: Path
) -> None:
    probes = tmp_path / "probes.jsonl"
    rows = [
        {"prompt": r.prompt, "target": r.target, "probes": g["perturbations"]}
        for r, g in zip(records, golden["records"], strict=True)
    ]
    probes.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    attack = make_attack("icp-sp", {"probe_file": str(probes), "reduce": "mean", "probes": "best"})
    prepared = prepare([attack], records, Resources())
    scores, reasons = score_all(attack, prepared, Interview({"target": compat_model}).ask([attack], prepared))
    assert not reasons
    assert [scores[r.id] for r in records] == pytest.approx([g["icp_sp"] for g in golden["records"]], abs=1e-4)


def test_reference(golden: dict[str, Any], records: list[Record], compat_model: CausalModel) -> None:
    pool = [_record(row, f"p{i:03d}") for i, row in enumerate(golden["pool"])]
    attack = make_attack("icp-ref", {"k": 4, "embed": "icp-mia", "reduce": "mean", "probes": "best", "strip": True})
    prepared = prepare([attack], records, Resources(pool=pool))
    scores, reasons = score_all(attack, prepared, Interview({"target": compat_model}).ask([attack], prepared))
    assert not reasons
    assert [scores[r.id] for r in records] == pytest.approx([g["icp_ref"] for g in golden["records"]], abs=1e-4)
