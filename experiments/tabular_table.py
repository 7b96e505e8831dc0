"""Tabular runs as the tables of docs/results.md: one line a cell of the grid, means over seeds and their range; then
means over the tables by learning rate, the fewest query rows and more of them apart, and the paper's rule counted.

python experiments/tabular_table.py runs/wine [...]
"""

from __future__ import annotations

import sys
from statistics import fmean

from indelible.report.tabular_facts import Place, TabularRun, place_of, read_tabular

COLUMNS = ("table", "cell", "labels fitted", "AUC, train-context", "AUC, copy", "p, Holm", "AUC, suite mean", "verdict")


def over_seeds(run: TabularRun, place: Place, attack: str, metric: str = "auc", style: str = "{:.3f}") -> str:
    """Mean and, in brackets, the least and the most of the seeds; a dash where there is none."""
    row = run.row(place, attack, metric)
    if row is None or row["value"] is None:
        return "-"
    return f"{style.format(row['value'])} ({style.format(row['seed_low'])} to {style.format(row['seed_high'])})"


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    runs = [read_tabular(path) for path in sys.argv[1:]]
    for run in runs:
        judged = {place_of(cell): cell for cell in run.verdict["grid"]["cells"]}
        for place in run.places():
            p = judged[place].get("p_holm") if place in judged else None
            word = run.verdict["attacks"].get(f"{place.table}, {place.label}", {}).get("word", "-")
            fitted = over_seeds(run, place, "training", "accuracy", "{:.0%}")
            aucs = [over_seeds(run, place, attack) for attack in ("train-context", "copy", "suite:mean")]
            cells = place.table, place.label, fitted, *aucs[:2], "-" if p is None else f"{p:.3f}", aucs[2], word
            print(f"| {' | '.join(cells)} |")
    over_tables(runs)


def over_tables(runs: list[TabularRun]) -> None:
    """Means over tables, which no verdict rests on."""
    print(
        "\n| query rows, rate | tables | mean AUC, copy (tables above 0.5) | mean AUC, suite (above 0.5) |"
        "\n|---|---|---|---|"
    )
    found: dict[tuple[str, float], list[list[float]]] = {}
    for run in runs:
        for table in run.tables:
            fewest = min(place.n_queries or 0 for place in run.places(table))
            for place in run.places(table):
                values = [run.value(place, attack, "auc") for attack in ("copy", "suite:mean")]
                key = "fewest" if place.n_queries == fewest else "more", place.learning_rate or 0.0
                found.setdefault(key, []).append([v for v in values if v is not None])
    for (rows, rate), values in found.items():
        means = [f"{fmean(v):.3f} ({sum(x > 0.5 for x in v)})" for v in zip(*values, strict=True)]
        print(f"| {rows}, {rate:g} | {len(values)} | {' | '.join(means)} |")
    grids = [run.verdict["grid"] for run in runs]
    met, of, chance = (sum(grid[name] for grid in grids) for name in ("n_rule", "n_ruled", "n_rule_by_chance"))
    print(f"\nthe paper's rule: {met} of {of} configurations; by chance about {chance:.1f}")


if __name__ == "__main__":
    main()
