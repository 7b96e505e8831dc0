"""Tabular runs as the tables of docs/results.md: one line a cell of the grid, means over seeds and their range.

python experiments/tabular_table.py runs/wine [...]
"""

from __future__ import annotations

import sys

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
    for run in map(read_tabular, sys.argv[1:]):
        judged = {place_of(cell): cell for cell in run.verdict["grid"]["cells"]}
        for place in run.places():
            p = judged[place].get("p_holm") if place in judged else None
            word = run.verdict["attacks"].get(f"{place.table}, {place.label}", {}).get("word", "-")
            fitted = over_seeds(run, place, "training", "accuracy", "{:.0%}")
            aucs = [over_seeds(run, place, attack) for attack in ("train-context", "copy", "suite:mean")]
            cells = place.table, place.label, fitted, *aucs[:2], "-" if p is None else f"{p:.3f}", aucs[2], word
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
