"""A run's main numbers as a Markdown table, as printed in docs/results.md.

python experiments/results_table.py RUN
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from indelible.runs import read_run


def cell(row: dict[str, Any] | None) -> str:
    """Value and interval, or n/a."""
    if row is None or row["value"] is None:
        return "n/a"
    if row["low"] is None or row["high"] is None:
        return f"{row['value']:.3f}"
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="A run's main numbers as a Markdown table.")
    parser.add_argument("run", type=Path)
    run = read_run(parser.parse_args().run)
    rows = {(m["attack"], m["model"], m["metric"]): m for m in run.metrics}
    print("| attack | AUC | TPR at 1% FPR (realised) | AUC on the base | minus base | minus blind | verdict |")
    print("|---|---|---|---|---|---|---|")
    order = sorted(run.verdict["attacks"].items(), key=lambda item: -(item[1].get("auc") or 0))
    for attack, judged in order:
        tpr = rows.get((attack, "target", "tpr@0.01"))
        realised = f" ({tpr['realised_fpr']:.4f})" if tpr and tpr["realised_fpr"] is not None else ""
        print(
            f"| `{attack}` | {cell(rows.get((attack, 'target', 'auc')))} | {cell(tpr)}{realised} "
            f"| {cell(rows.get((attack, 'base', 'auc')))} | {cell(rows.get((attack, 'target', 'auc_minus_base')))} "
            f"| {cell(rows.get((attack, 'target', 'auc_minus_blind')))} | {judged['word']} |"
        )
    print(f"| `bag-of-words` (blind) | {cell(rows.get(('bag-of-words', 'none', 'auc')))} | | | | | control |")
    cohort = run.manifest["cohort"]
    print(
        f"\n{cohort['n_members']} members, {cohort['n_nonmembers']} non-members, {cohort['n_pool']} pool records; "
        f"{run.manifest['dtype']}; verdict: {run.verdict['overall']['word']}; timings {run.manifest['timings']}"
    )


if __name__ == "__main__":
    main()
