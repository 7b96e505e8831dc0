"""What a run was made with: versions, hardware, facts of training found beside a model."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from indelible.servers.address import parse_address

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "sentence-transformers",
    "scikit-learn",
    "scipy",
    "numpy",
    "pandas",
)

OPTIONAL = ("opacus", "bitsandbytes")
"""Of extras."""


def package_version() -> str:
    """This package's version."""
    return importlib.metadata.version("indelible")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    there = {d.name for d in importlib.metadata.distributions()}
    found |= {name: importlib.metadata.version(name) for name in OPTIONAL if name in there}
    return {"python": platform.python_version(), **found}


def hardware(device: str) -> dict[str, Any]:
    """Processor, cores, memory (GiB) and device."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1) if pages else None,
        "device": device,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def training_facts(folder: Path) -> dict[str, Any] | None:
    """What the trainer left beside the weights: `training.json` of `indelible train`, or transformers'
    `trainer_state.json`; None where there is neither or it cannot be read."""
    own = folder / "training.json"
    theirs = folder / "trainer_state.json"
    path = own if own.exists() else theirs
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"unreadable": path.name}
    if path == own:
        return dict(facts)
    return {
        key: facts.get(key) for key in ("epoch", "global_step", "num_train_epochs", "max_steps", "train_batch_size")
    }


def run_facts(
    kind: str, path: Path, config: BaseModel, given: Mapping[str, Any], command: Sequence[str], *, device: str
) -> dict[str, Any]:
    """What every manifest begins with: which run, made how, when, with what."""
    resolved = config.model_dump(mode="json")
    return {
        "kind": kind,
        "name": path.name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "indelible_version": package_version(),
        "command": list(command),
        "versions": versions(),
        "hardware": hardware(device),
        "dtype": None,
        "seeds": {name: resolved[name] for name in ("seed", "seeds") if name in resolved},
        "config": {"given": dict(given), "resolved": resolved},
    }


SUFFIXES = (".gguf", ".csv", ".tsv", ".parquet", ".json", ".jsonl", ".yaml", ".yml")
"""Cut from a file's name. What follows a dot in a model's name is not one of them."""


def default_out(kind: str, name: str) -> str:
    """`runs/KIND-NAME-N`, with the first N that holds no finished run; NAME is that of the model, file or study."""
    if name.startswith("server:"):
        name = parse_address(name).model or "server"
    last = Path(name.removeprefix("builtin:"))
    stem = re.sub(r"[^\w.+-]", "-", last.stem if last.suffix in SUFFIXES else last.name) or kind
    n = 1
    while (Path("runs") / f"{kind}-{stem}-{n}" / "manifest.json").exists():
        n += 1
    return f"runs/{kind}-{stem}-{n}"
