"""Canary runs as the tables of docs/results.md: medians by seed, recovery, copying, utility.

python experiments/canary_table.py runs/cues-banking77 [...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from indelible.report.canary import UTILITY
from indelible.runs import read_json, read_manifest


def by_seed(values: pd.Series, seeds: pd.Series) -> str:
    """Medians of each seed."""
    return " / ".join(f"{values[seeds == seed].median():.2f}" for seed in sorted(seeds.unique()))


def share(flags: pd.Series) -> str:
    """k of n."""
    known = flags.dropna()
    return f"{int(known.sum())} of {len(known)}" if len(known) else "-"


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        manifest = read_manifest(path)
        frame = pd.read_parquet(path / "canaries.parquet")
        print(f"\n### {path.name}: {manifest['design']['task']}, seeds {sorted(frame['seed'].unique().tolist())}\n")
        print("| model, condition | dose | role, probe | median exposure by seed, bits | recovered | copied |")
        print("|---|---|---|---|---|---|")
        keys = ["model", "condition", "step", "dose", "role", "probe"]
        for (model, condition, step, dose, role, probe), part in frame.groupby(keys, sort=False):
            named = f"{model}, {condition}" + (f" at {step}" if step != part["n_steps"].iloc[0] and step else "")
            exposure = by_seed(part["exposure_bits"], part["seed"])
            came_out = f"{share(part['recovered'])} | {share(part['copied'])}"
            print(f"| {named} | {dose} | {role}, {probe} | {exposure} | {came_out} |")
        utility = pd.DataFrame(read_json(path / UTILITY, list))
        print("\n| model, condition | accuracy by seed | held-out loss by seed, nats a token |\n|---|---|---|")
        for (model, condition), part in utility.groupby(["model", "condition"], sort=False):
            accuracy = " / ".join("-" if pd.isna(a) else f"{a:.2f}" for a in part["accuracy"])
            print(f"| {model}, {condition} | {accuracy} | {' / '.join(f'{x:.3f}' for x in part['heldout_loss'])} |")
        verdict = read_json(path / "verdict.json", dict)
        print(f"\n{verdict['overall']['word']}")
        for conclusion in verdict["conclusions"]:
            print(f"- {conclusion['word']}: {conclusion['statement']}")


if __name__ == "__main__":
    main()
