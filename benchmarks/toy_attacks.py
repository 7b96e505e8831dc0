"""Every attack on a tiny model that was made to memorise: does each find what is known to be there?

    python benchmarks/toy_attacks.py --epochs 48

Trains `builtin:toy` on 80 of 160 made-up records (a reference model on 60 others), audits it with every attack and
prints AUC with its interval, the base model's and what did not run. `icp-*` need a model that learns in context, which
the toy does not: their row here says what they make of a model that memorised and cannot do that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from indelible.audit import run_audit
from indelible.config import AuditConfig, TrainConfig, resolve
from indelible.data.synthetic import synthetic_records, write_jsonl
from indelible.runs import read_json
from indelible.training.run import run_train

MODEL = "builtin:toy"
SIZES = {"members": 80, "nonmembers": 80, "pool": 60, "reference": 60}
WANTED = 0.9
SETTINGS = {"recall": {"shots": 3}, "con-recall": {"shots": 3}}
"""Seven demonstrations are longer than the toy's context."""


def tuned(folder: Path, name: str, epochs: int, seed: int) -> str:
    """The toy after some passes over a file of the folder."""
    settings: dict[str, Any] = {"epochs": epochs, "batch_size": 8, "learning_rate": 3e-3, "autocast": "off"}
    paths = {"model": MODEL, "train": str(folder / f"{name}.jsonl"), "out": str(folder / f"{name}-model")}
    return str(run_train(resolve(TrainConfig, {**settings, **paths, "seed": seed})[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Every attack on a toy that memorised.")
    parser.add_argument("--epochs", type=int, default=48)
    parser.add_argument("--attacks", default="all", help="comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    attacks = args.attacks.split(",")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ["INDELIBLE_CACHE"] = str(folder / "cache")
        rows = synthetic_records(sum(SIZES.values()), args.seed)
        random.Random(args.seed).shuffle(rows)  # sides must not differ by when their rows were made up
        for name, n in SIZES.items():
            write_jsonl(folder / f"{name}.jsonl", rows[:n])
            rows = rows[n:]
        flags = {
            "model": tuned(folder, "members", args.epochs, args.seed),
            "reference": tuned(folder, "reference", 12, args.seed),
            "base": MODEL,
            "members": str(folder / "members.jsonl"),
            "nonmembers": str(folder / "nonmembers.jsonl"),
            "pool": str(folder / "pool.jsonl"),
            "attacks": attacks,
            "out": str(folder / "run"),
            "settings": {k: v for k, v in SETTINGS.items() if {k, "all"} & set(attacks)},
            "seed": args.seed,
        }
        run_audit(resolve(AuditConfig, flags)[0], flags, command=["benchmarks/toy_attacks.py"])
        metrics = read_json(folder / "run" / "metrics.json", list)
        not_run = read_json(folder / "run" / "manifest.json", dict).get("not_run", [])
    found: dict[str, dict[str, Any]] = {"target": {}, "base": {}}
    for row in metrics:
        if row["metric"] == "auc" and row["model"] in found:
            found[row["model"]][row["attack"]] = row
    without = {attack: row.get("reason") for attack, row in found["target"].items() if row["value"] is None}
    found = {m: {a: row for a, row in rows.items() if row["value"] is not None} for m, rows in found.items()}
    print(f"\n{MODEL} after {args.epochs} epochs on {SIZES['members']} records, seed {args.seed}\n")
    print("| attack | AUC | on the base |\n|---|---|---|")
    for attack, row in sorted(found["target"].items(), key=lambda item: -item[1]["value"]):
        base = found["base"].get(attack)
        on_base = "-" if base is None else f"{base['value']:.3f}"
        print(f"| `{attack}` | {row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}] | {on_base} |")
    below = sorted(attack for attack, row in found["target"].items() if row["value"] < WANTED)
    print(json.dumps({"below": below, "without_value": without, "not_run": not_run}))


if __name__ == "__main__":
    main()
