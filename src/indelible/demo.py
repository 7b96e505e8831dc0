"""`indelible demo`: fine-tune the embedded model on synthetic records, audit it, report. No hub, no data needed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from indelible.audit import Outcome, run_audit
from indelible.config import AuditConfig, TrainConfig, resolve
from indelible.data.synthetic import synthetic_records, write_jsonl
from indelible.errors import UserError
from indelible.progress import say
from indelible.training.run import run_train

MODEL = "builtin:smollm2-135m-instruct"
N_MEMBERS = 60
N_HELDOUT = 112
EPOCHS = 3
LEARNING_RATE = 2e-4
SETTINGS = {"icp-sp": {"k": 2}, "icp-ref": {"k": 2}}
CONTROL_RECORDS = 40
"""Fewer probes than the defaults, and a control on a part, so that the demo ends within minutes on two cores."""
WORK_MARKER = ".indelible-demo"


def run_demo(
    out: Path, *, seed: int, force: bool, command: Sequence[str], model: str = MODEL, n_members: int = N_MEMBERS
) -> Outcome:
    """Data and model into `<out>-work`, the audit of that model into `out`.

    Args:
        out: a new folder; with `force`, an old demo there is replaced.
        n_members: how many records are trained on; held-out ones are in proportion.

    Raises:
        UserError: `out` holds something else.
    """
    work = out.with_name(out.name + "-work")
    if (out / "manifest.json").exists() and not force:
        raise UserError(f"{out} holds a finished demo; give another --out, or --force to replace it")
    if work.exists() and not (work / WORK_MARKER).exists():
        raise UserError(f"{work} exists and was not made by a demo; give another --out")
    n_heldout = round(n_members * N_HELDOUT / N_MEMBERS)
    say(f"[1/3] writing {n_members} fictitious training records and {n_heldout} held-out ones")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / WORK_MARKER).touch()
    rows = synthetic_records(n_members + n_heldout, seed)
    random.Random(seed).shuffle(rows)  # members and held-out rows must not differ by when they were made up
    write_jsonl(work / "members.jsonl", rows[:n_members])
    write_jsonl(work / "heldout.jsonl", rows[n_members:])
    say(f"[2/3] fine-tuning {model} on the training records ({EPOCHS} epochs)")
    training, _ = resolve(
        TrainConfig,
        {
            "model": model,
            "train": str(work / "members.jsonl"),
            "out": str(work / "model"),
            "epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "seed": seed,
            "autocast": "auto",
        },
    )
    run_train(training)
    say("[3/3] auditing the fine-tuned model against its base")
    flags = {
        "model": str(work / "model"),
        "base": model,
        "members": str(work / "members.jsonl"),
        "nonmembers": str(work / "heldout.jsonl"),
        "out": str(out),
        "seed": seed,
        "settings": SETTINGS,
        "control_records": CONTROL_RECORDS,
    }
    config, _ = resolve(AuditConfig, flags)
    return run_audit(config, {**flags, "force": force}, command=command, kind="demo")
