from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from indelible.data.duplicates import near_pairs
from indelible.data.formats import read_records
from indelible.data.synthetic import synthetic_records, write_jsonl
from indelible.errors import ConfigError


@pytest.mark.parametrize("topic", ["clinic", "shop"])
def test_rows_are_distinct_and_of_the_stated_length(topic: str) -> None:
    rows = synthetic_records(1000, 3, topic=topic)
    texts = ["\n".join(row.values()) for row in rows]
    assert len(set(texts)) == 1000
    assert near_pairs([row["output"] for row in rows]) == []
    assert near_pairs(texts) == []
    lengths = [len(t.split()) for t in texts]
    assert min(lengths) >= 50
    assert max(lengths) <= 95
    assert all("{" not in t and "}" not in t and t.isascii() for t in texts)


def test_same_seed_same_rows_and_a_shorter_list_is_a_prefix() -> None:
    assert synthetic_records(20, 1) == synthetic_records(50, 1)[:20]
    assert synthetic_records(20, 1) != synthetic_records(20, 2)


def test_rows_do_not_depend_on_the_process() -> None:
    code = (
        "import hashlib, json; from indelible.data.synthetic import synthetic_records as s;"
        "print(hashlib.sha256(json.dumps(s(50, 7)).encode()).hexdigest())"
    )
    here = hashlib.sha256(json.dumps(synthetic_records(50, 7)).encode()).hexdigest()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == here


def test_written_rows_read_back(tmp_path: Path) -> None:
    rows = synthetic_records(30, 5)
    write_jsonl(tmp_path / "demo.jsonl", rows)
    table = read_records(tmp_path / "demo.jsonl")
    assert table.format == "jsonl: instruction/input/output"
    assert [r.target for r in table.records] == [row["output"] for row in rows]


def test_wrong_settings_are_one_line() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'clinic'"):
        synthetic_records(3, 1, topic="clinics")
    with pytest.raises(ConfigError, match="expected 1 to"):
        synthetic_records(0, 1)
