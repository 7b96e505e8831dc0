"""Do a fitted combination and the calibrated ICP scores beat their parts? Printed as Markdown for finished audits.

python experiments/combined_scores.py RUN [RUN ...]

RUN is an audit, or a sweep, of which it takes every audit. A run needs at least two scored attacks; base scores
(--base in the audit) enter as further features, and the calibrated scores are set against their base values, higher
being read as member. Scores whose settings differ are not compared, nor is a base that was asked about a part of the
records (--control-records). All is computed anew from scores.parquet and records.parquet, and nothing is written.
experiments/icp_mia/calibration.yaml makes runs for it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from indelible.errors import UserError
from indelible.runs import Run, read_manifest, read_run
from indelible.stats.blind import BLIND_ATTACK
from indelible.stats.cohort import Cohort, Column, ColumnKey, column_auc, compare, read_cohort, read_columns, unusable
from indelible.stats.combined import COMBINED, N_PERMUTATIONS, combine
from indelible.stats.intervals import Interval
from indelible.stats.paired import Paired, holm

CALIBRATED = {"icp-sp-cal": "icp-sp", "icp-ref-cal": "icp-ref"}
"""The calibrated score, and the score whose base value it subtracts."""


def ends(interval: Interval | None) -> str:
    """An interval in brackets."""
    return "" if interval is None else f" [{interval.low:.3f}, {interval.high:.3f}]"


def gain(found: Paired | str) -> str:
    """A difference with its interval, or why there is none."""
    return found if isinstance(found, str) else f"{found.difference:+.3f}{ends(found.interval)}"


def single(column: Column, cohort: Cohort) -> str:
    """AUC of one column with its interval, or why there is none."""
    why = unusable(column, cohort)
    if why is not None:
        return why
    area, interval, _, _ = column_auc(column, cohort)
    return f"{area:.3f}{ends(interval)}"


def combination(run: Run, columns: dict[ColumnKey, Column], cohort: Cohort, n_permutations: int) -> None:
    """The combination against each of its parts."""
    n_rows = Counter(zip(run.scores["attack"].astype(str), run.scores["model"].astype(str), strict=True))
    found = combine(columns, cohort, n_rows=n_rows, fprs=(0.1,), n_permutations=n_permutations)
    if found.auc is None:
        print(f"\nNo combination: {found.reason}")
        return
    print(f"\n{found.method}\n")
    print("| score | AUC | on the base | combination minus it | p (Holm) |\n|---|---|---|---|---|")
    p_text = "" if found.p_value is None else f"{found.p_value:.3g} (of chance, permuted)"
    print(f"| `{COMBINED}` | {found.auc:.3f}{ends(found.interval)} | see below | | {p_text} |")
    for attack, difference in sorted(found.versus.items(), key=lambda item: order(item[1])):
        base = columns.get((attack, "base"))
        p_value = found.versus_p.get(attack)
        print(
            f"| `{attack}` | {single(columns[attack, 'target'], cohort)} "
            f"| {'n/a' if base is None else single(base, cohort)} | {gain(difference)} "
            f"| {'n/a' if p_value is None else f'{p_value:.3g}'} |"
        )
    best = found.versus_best
    if isinstance(best, Paired):
        p_text = "n/a" if best.p_value is None else f"{best.p_value:.3g} (one test)"
        print(f"| best attack, chosen in training folds | {best.auc_b:.3f} | | {gain(best)} | {p_text} |")
    if found.base_auc is not None:
        reached = f"{found.base_auc:.3f}{ends(found.base_interval)}"
        print(f"| base values alone, combined | {reached} | | {gain(found.versus_base)} | |")
        targets = {key: column for key, column in columns.items() if key[1] == "target"}
        without = combine(targets, cohort, n_rows=n_rows, n_permutations=0)
        print(f"| combination without base values | {without.auc:.3f}{ends(without.interval)} | | | |")
    rate = found.rates[0]
    if rate.tpr is not None:
        print(f"\nTPR of the combination at 10% FPR, a threshold in each fold: {rate.tpr:.3f}{ends(rate.interval)}")
    if found.unused:
        print(f"\nLeft out: {'; '.join(found.unused)}")
    beaten = {a for a, p in found.versus_p.items() if p <= 0.05 and size(found.versus[a]) > 0}
    others = ", ".join(attack for attack in found.versus if attack not in beaten)
    print(
        f"\nBeats {len(beaten)} of {len(found.versus)} attacks at 5% after Holm"
        + (f"; not: {others}" if others else "")
    )


def order(difference: Paired | str) -> float:
    """Strongest part first, parts that could not be compared last."""
    return 1.0 if isinstance(difference, str) else -difference.auc_b


def size(found: Paired | str) -> float:
    """The difference, 0 where there is none."""
    return 0.0 if isinstance(found, str) else found.difference


def mismatch(run: Run, cal: str, part: str) -> str | None:
    """What of the settings that two scores share differs, or None."""
    settings = {entry["name"]: entry["settings"] for entry in run.manifest["attacks"]}
    one, other = settings[cal], settings[part]
    differ = [f"{key} {one[key]} against {other[key]}" for key in one if key in other and one[key] != other[key]]
    return f"settings differ: {', '.join(differ)}" if differ else None


def too_few(model: str, n_asked: int, n_records: int) -> str | None:
    """Why a model that was asked about a part of the records cannot be compared, or None."""
    if n_asked == n_records:
        return None
    return f"the {model} was asked about {n_asked} of {n_records} records: leave out --control-records"


def compared(
    run: Run, columns: dict[ColumnKey, Column], cohort: Cohort, cal: str, part: str, model: str
) -> Paired | str:
    """A calibrated score minus its part on a model, or why they are not compared."""
    n_asked = int(((run.scores["attack"] == part) & (run.scores["model"] == model)).sum())
    why = mismatch(run, cal, part) or too_few(model, n_asked, len(cohort.ids)) or unusable(columns[part, model], cohort)
    return why or compare(columns[cal, "target"], columns[part, model], cohort)


def calibration(run: Run, columns: dict[ColumnKey, Column], cohort: Cohort) -> None:
    """Each calibrated score against the score itself and against its base value, all corrected together."""
    asked = [
        (cal, part, model, compared(run, columns, cohort, cal, part, model))
        for cal, part in CALIBRATED.items()
        for model in ("target", "base")
        if (cal, "target") in columns and (part, model) in columns
    ]
    if not asked:
        print("\nCalibration: no calibrated ICP score with its parts in this run.")
        return
    tests = [found.p_value for *_, found in asked if isinstance(found, Paired) and found.p_value is not None]
    adjusted = iter(holm(tests))
    print("\n| calibrated | its AUC | part | AUC of the part | calibrated minus part | p (Holm) | at 5% |")
    print("|---|---|---|---|---|---|---|")
    for cal, part, model, found in asked:
        p_value = next(adjusted) if isinstance(found, Paired) and found.p_value is not None else None
        answer = "n/a"
        if p_value is not None:
            answer = "no difference shown" if p_value > 0.05 else "better" if size(found) > 0 else "worse"
        print(
            f"| `{cal}` | {single(columns[cal, 'target'], cohort)} | `{part}` on the {model} "
            f"| {single(columns[part, model], cohort)} | {gain(found)} "
            f"| {'n/a' if p_value is None else f'{p_value:.3g}'} | {answer} |"
        )


def report(path: Path, *, seed: int, level: float, n_bootstrap: int, n_permutations: int) -> None:
    """Everything about one run."""
    run = read_run(path)
    cohort = read_cohort(run.records, level=level, n_bootstrap=n_bootstrap, seed=seed)
    columns = {key: c for key, c in read_columns(run.scores, cohort).items() if key[0] not in (BLIND_ATTACK, COMBINED)}
    n_members = int(cohort.member.sum())
    print(f"\n## {run.name}\n\n{n_members} members, {cohort.member.size - n_members} non-members; seed {seed}")
    combination(run, columns, cohort, n_permutations)
    calibration(run, columns, cohort)


def audits(paths: Sequence[Path]) -> list[Path]:
    """These runs; in a sweep's place its audits.

    Raises:
        UserError: one is no finished run.
    """
    out = []
    for path in paths:
        manifest = read_manifest(path)
        cells = manifest["cells"] if manifest["kind"] == "sweep" else [{"run": path.name}]
        out += [path.parent / cell["run"] for cell in cells if cell.get("run")]
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Fitted combination and calibrated scores against their parts.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--seed", type=int, default=0, help="of folds, permutations and bootstrap")
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals")
    parser.add_argument("--bootstrap", type=int, default=2000, help="replicates")
    parser.add_argument("--permutations", type=int, default=N_PERMUTATIONS)
    args = parser.parse_args()
    for path in audits(args.runs):
        report(path, seed=args.seed, level=args.level, n_bootstrap=args.bootstrap, n_permutations=args.permutations)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
