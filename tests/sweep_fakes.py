"""A small study and rows for it, shared by the tests of studies."""

from __future__ import annotations

import copy
from typing import Any

from indelible.data.records import Message, Record

STUDY: dict[str, Any] = {
    "name": "try",
    "paper": "Fig. 0",
    "data": {"files": {"own": "rows.jsonl"}, "splits": {"train": 6, "nonmembers": 4}},
    "models": {"base": "builtin:toy", "target": {"from": "base", "rows": "train", "training": {"epochs": 2}}},
    "audit": {"attacks": ["loss", "icp-sp"]},
    "axes": {
        "rate": {"path": "audit.settings.icp-sp.rate", "values": [0.3, 0.5]},
        "tuning": {
            "values": [{"label": "full", "set": {}}, {"label": "LoRA", "set": {"models.target.training.lora_rank": 4}}]
        },
    },
    "seeds": [0, 1],
}


def changed(**changes: Any) -> dict[str, Any]:
    """The study with values at dotted paths (`__` for a dot) put in."""
    study = copy.deepcopy(STUDY)
    for path, value in changes.items():
        *inner, last = path.split("__")
        at = study
        for part in inner:
            at = at.setdefault(part, {})
        at[last] = value
    return study


def record(i: int, group: str = "", prompt: str = "Where is parcel {}?") -> Record:
    said = (Message("user", prompt.format(i)),)
    return Record(f"r{i:03d}", said, f"In depot {i % 7}, shelf {i}.", group=group or f"r{i:03d}")


RECORDS = [record(i) for i in range(30)]
