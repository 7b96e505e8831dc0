"""Indelible finds what a fine-tuned model cannot un-see.

The public names below are loaded on first use, so that `import indelible` imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indelible.attacks import ATTACKS, make_attack
    from indelible.audit import run_audit
    from indelible.config import AuditConfig, ScoreConfig, TrainConfig, resolve
    from indelible.data.formats import read_records
    from indelible.data.records import Message, Query, Record
    from indelible.data.splits import build_cohort
    from indelible.models.load import LoadOptions, load_model
    from indelible.runs import read_run, verify
    from indelible.scoring.engine import answer
    from indelible.stats.evaluate import evaluate

_PLACES = {
    "ATTACKS": "indelible.attacks",
    "AuditConfig": "indelible.config",
    "LoadOptions": "indelible.models.load",
    "Message": "indelible.data.records",
    "Query": "indelible.data.records",
    "Record": "indelible.data.records",
    "ScoreConfig": "indelible.config",
    "TrainConfig": "indelible.config",
    "answer": "indelible.scoring.engine",
    "build_cohort": "indelible.data.splits",
    "evaluate": "indelible.stats.evaluate",
    "load_model": "indelible.models.load",
    "make_attack": "indelible.attacks",
    "read_records": "indelible.data.formats",
    "read_run": "indelible.runs",
    "resolve": "indelible.config",
    "run_audit": "indelible.audit",
    "verify": "indelible.runs",
}

__all__ = [
    "ATTACKS",
    "AuditConfig",
    "LoadOptions",
    "Message",
    "Query",
    "Record",
    "ScoreConfig",
    "TrainConfig",
    "answer",
    "build_cohort",
    "evaluate",
    "load_model",
    "make_attack",
    "read_records",
    "read_run",
    "resolve",
    "run_audit",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'indelible' has no attribute '{name}'")
    return getattr(importlib.import_module(_PLACES[name]), name)
