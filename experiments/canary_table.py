"""Canary runs as the tables of docs/results.md: medians by seed, recovery, copying, utility.

python experiments/canary_table.py runs/cues-banking77 [...]
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pandas as pd

from indelible.report.canary import UTILITY
from indelible.runs import read_json, read_manifest
from indelible.stats.contrasts import contrast


def by_seed(values: pd.Series, seeds: pd.Series) -> str:
    """Medians of each seed."""
    return " / ".join(f"{values[seeds == seed].median():.2f}" for seed in sorted(seeds.unique()))


def share(flags: pd.Series) -> str:
    """k of n."""
    known = flags.dropna()
    return f"{int(known.sum())} of {len(known)}" if len(known) else "-"


def utility_table(utility: pd.DataFrame) -> None:
    """Accuracy, replies that could be read as an answer, held-out loss."""
    print("\n| model, condition | accuracy by seed | read as an answer | held-out loss by seed, nats a token |")
    print("|---|---|---|---|")
    for (model, condition), part in utility.groupby(["model", "condition"], sort=False):
        columns = [
            " / ".join("-" if pd.isna(x) else f"{x:.{digits}f}" for x in part[name]) if name in part else "-"
            for name, digits in (("accuracy", 2), ("parse_rate", 2), ("heldout_loss", 3))
        ]
        print(f"| {model}, {condition} | {' | '.join(columns)} |")


def all_doses(frame: pd.DataFrame) -> None:
    """Differences of conditions, and of each to the trainings without canaries, over canaries of all doses together.

    No part of a run's verdict, which asks every dose by itself.
    """
    own = frame[(frame["role"] == "focal") & (frame["probe"] == "redacted") & (frame["step"] == frame["n_steps"])]
    clean = own[own["model"] == "clean"].assign(condition="clean").drop_duplicates(["seed", "canary_id"])
    own = pd.concat([clean, own[own["model"] == "target"]])
    own = own.set_index(["condition", "seed", "canary_id"])["exposure_bits"]
    conditions = list(dict.fromkeys(own.index.get_level_values("condition")))
    for one, two in itertools.combinations(reversed(conditions), 2):
        seeds = [None, *sorted(own.index.unique("seed"))]
        found = [contrast(*(part(own, name, seed) for name in (one, two)), 0.95) for seed in seeds]
        if any(made.value is None or made.p is None for made in found):
            continue
        whole, by_seed = found[0], " / ".join(f"{made.value:+.2f}" for made in found[1:])
        print(
            f"{one} minus {two}, all doses, hidden: {whole.value:+.2f} bits ({whole.low:.2f} to {whole.high:.2f}), "
            f"by seed {by_seed}, p {whole.p:.1e} before any correction, {whole.n} pairs"
        )


def part(values: pd.Series, condition: str, seed: int | None) -> pd.Series:
    """One condition's values, one a canary, of one seed or of all."""
    own = values[condition]
    return own if seed is None else own[own.index.get_level_values("seed") == seed]


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
        utility_table(pd.DataFrame(read_json(path / UTILITY, list)))
        if frame["dose"][frame["role"] == "focal"].nunique() > 1:
            print()
            all_doses(frame)
        verdict = read_json(path / "verdict.json", dict)
        print(f"\n{verdict['overall']['word']}")
        for conclusion in verdict["conclusions"]:
            print(f"- {conclusion['word']}: {conclusion['statement']}")


if __name__ == "__main__":
    main()
