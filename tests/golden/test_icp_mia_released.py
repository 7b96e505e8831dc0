"""`compat="icp-mia"` gives the scores that the released ICP-MIA code printed, to 1e-4 in float32.

The fixed inputs and scores are real records and stay outside the repository; the test skips without them. They were
made by running the released code on 16 records with the embedded model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indelible.attacks import COMPAT, make_attack
from indelible.attacks.base import Resources, score_all
from indelible.data.formats import read_records
from indelible.data.records import Record
from indelible.interview import Interview, prepare
from indelible.models.causal import CausalModel

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "icp_mia_released_code.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GOLDEN.exists(), reason=f"no golden scores at {GOLDEN.name} beside the repository"),
]


SP = COMPAT["icp-mia"]["icp-sp"]
REF = COMPAT["icp-mia"]["icp-ref"]


def _read(rows: list[dict[str, str]], path: Path) -> list[Record]:
    """Records as `--compat icp-mia` reads them, in the file's order."""
    keep = ("instruction", "input", "output")
    path.write_text("".join(json.dumps({k: row[k] for k in keep}) + "\n" for row in rows), encoding="utf-8")
    return list(read_records(path, strip=True).records)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(json.loads(GOLDEN.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def records(golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    return _read([row["target"] for row in golden["records"]], tmp_path_factory.mktemp("golden") / "records.jsonl")


def test_self_perturbation(
    golden: dict[str, Any], records: list[Record], compat_model: CausalModel, tmp_path: Path
) -> None:
    probes = tmp_path / "probes.jsonl"
    rows = [{"target_example": g["target"], "mask_perturbations": g["perturbations"]} for g in golden["records"]]
    probes.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    attack = make_attack("icp-sp", {**SP, "probe_file": str(probes)})
    prepared = prepare([attack], records, Resources())
    scores, reasons = score_all(attack, prepared, Interview({"target": compat_model}).ask([attack], prepared))
    assert not reasons
    assert [scores[r.id] for r in records] == pytest.approx([g["icp_sp"] for g in golden["records"]], abs=1e-4)


def test_reference(golden: dict[str, Any], records: list[Record], compat_model: CausalModel, tmp_path: Path) -> None:
    pool = _read(golden["pool"], tmp_path / "pool.jsonl")
    attack = make_attack("icp-ref", {**REF, "k": 4})  # the golden scores were made with 4 candidates
    prepared = prepare([attack], records, Resources(pool=pool))
    scores, reasons = score_all(attack, prepared, Interview({"target": compat_model}).ask([attack], prepared))
    assert not reasons
    assert [scores[r.id] for r in records] == pytest.approx([g["icp_ref"] for g in golden["records"]], abs=1e-4)
