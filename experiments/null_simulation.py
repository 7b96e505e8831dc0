"""How often the statistics are wrong when nothing was memorised.

Simulates whole audits and runs `indelible.stats.evaluate` on each. Every score is standard normal, so the true AUC,
the true TPR and the true FPR at any threshold are known. Four scenarios:

  null         members and non-members alike, on target and base, in every attack
  grouped      the same, with records in groups of three that resemble each other (correlation 0.5)
  base-shift   members score higher on target and base alike: a difference of the data, not memorisation
  blind-shift  members score higher on the target, and the texts tell members apart as well as the target does

Attacks are correlated with each other (0.5), and target with base (0.5). The blind control enters as ready scores:
fitting forests in every audit would take days; its own permutation test is covered by unit tests.

  python experiments/null_simulation.py --audits 2000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict

import numpy as np
import pandas as pd
from scipy import stats

from indelible.stats.evaluate import evaluate
from indelible.stats.intervals import clopper_pearson

SCENARIOS = ("null", "grouped", "base-shift", "blind-shift")
FPRS = (0.1, 0.01)
# Standard normals this far apart have an AUC of 0.64: far from subtle, and significant in almost every audit.
SHIFT = 0.5
GROUP_SIZE = 3


def draw(rng: np.random.Generator, n: int, grouped: bool) -> np.ndarray:
    """n standard normals, in the grouped scenario with correlation 0.5 within groups of three."""
    noise = rng.normal(size=n)
    if not grouped:
        return noise
    shared = np.repeat(rng.normal(size=-(-n // GROUP_SIZE)), GROUP_SIZE)[:n]
    return np.sqrt(0.5) * shared + np.sqrt(0.5) * noise


def simulate(scenario: str, rng: np.random.Generator, args: argparse.Namespace) -> tuple[pd.DataFrame, pd.DataFrame]:
    n = args.members + args.nonmembers
    grouped = scenario == "grouped"
    member = np.arange(n) < args.members
    ids = np.array([f"r{i:05d}" for i in range(n)])
    # Group numbers restart with the non-members, so that no group stands on both sides.
    code = np.where(member, np.arange(n), np.arange(n) - args.members) // (GROUP_SIZE if grouped else 1)
    group = [f"{'m' if m else 'n'}{c}" for m, c in zip(member, code, strict=True)]
    records = pd.DataFrame({"record_id": ids, "member": member, "group": group, "n_target_tokens": 1})

    def sides() -> np.ndarray:
        return np.concatenate([draw(rng, args.members, grouped), draw(rng, args.nonmembers, grouped)])

    common = {model: sides() for model in ("target", "base")}
    parts = []
    for k in range(args.attacks):
        own = sides()
        for model in ("target", "base"):
            # Variance 1 each; correlation 0.5 between attacks on a model, and between models for one attack.
            score = np.sqrt(0.5) * common[model] + np.sqrt(0.5) * own
            if (scenario == "base-shift") or (scenario == "blind-shift" and model == "target"):
                score = score + SHIFT * member
            parts.append(pd.DataFrame({"record_id": ids, "attack": f"attack{k}", "model": model, "score": score}))
    blind = sides() + (SHIFT * member if scenario == "blind-shift" else 0.0)
    parts.append(pd.DataFrame({"record_id": ids, "attack": "bag-of-words", "model": "none", "score": blind}))
    return records, pd.concat(parts, ignore_index=True)


def tally(scenario: str, args: argparse.Namespace) -> dict[str, list[bool]]:
    """For each question one answer an audit (or several, for the first attack's operating points)."""
    hits: dict[str, list[bool]] = defaultdict(list)
    members_shift = SHIFT if scenario.endswith("shift") else 0.0
    true_auc = float(stats.norm.cdf(members_shift / np.sqrt(2.0)))
    base_shift = SHIFT if scenario == "base-shift" else 0.0
    true_difference = true_auc - float(stats.norm.cdf(base_shift / np.sqrt(2.0)))
    for i in range(args.audits):
        rng = np.random.default_rng([args.seed, SCENARIOS.index(scenario), i])
        records, scores = simulate(scenario, rng, args)
        result = evaluate(records, scores, texts=None, seed=i, fprs=FPRS, n_bootstrap=args.bootstrap)
        rows = {m.metric: m for m in result.metrics if m.attack == "attack0" and m.model == "target"}
        auc, gap = rows["auc"], rows["auc_minus_base"]
        hits["AUC interval covers"].append(auc.low <= true_auc <= auc.high)
        hits["target minus base interval covers"].append(gap.low <= true_difference <= gap.high)
        for fpr in FPRS:
            for kind in ("tpr", "tpr_bounded"):
                row = rows[f"{kind}@{fpr:g}"]
                if row.value is None:
                    continue
                name = f"{kind}@{fpr:g}"
                hits[f"{name}: FPR upper bound holds"].append(stats.norm.sf(row.threshold) <= row.fpr_upper)
                picked = scenario == "grouped" and kind == "tpr"  # that bootstrap aims at the TPR at the FPR asked for
                at = stats.norm.isf(fpr) if picked else row.threshold
                truth = stats.norm.sf(at - members_shift)
                hits[f"{name}: TPR interval covers"].append(row.low <= truth <= row.high)
                if kind == "tpr_bounded" and members_shift == 0.0:
                    hits[f"{name}: lower end above {fpr:g} (false support)"].append(row.low > fpr)
        judged = list(result.verdict.attacks.values())
        hits["verdict: any attack significant after Holm"].append(any((v.p_holm or 1.0) <= 0.05 for v in judged))
        hits["verdict: detected"].append(result.verdict.word == "detected")
        hits["verdict: not attributable"].append(result.verdict.word == "not attributable")
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Error rates of every interval and of the verdict, without memorisation."
    )
    parser.add_argument("--audits", type=int, default=2000, help="simulated audits a scenario (default 2000)")
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--nonmembers", type=int, default=300)
    parser.add_argument("--attacks", type=int, default=4)
    parser.add_argument("--bootstrap", type=int, default=300, help="bootstrap replicates an audit (default 300)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="default: all four")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    summary: dict[str, dict[str, float]] = {}
    for scenario in args.scenario or SCENARIOS:
        start = time.monotonic()
        hits = tally(scenario, args)
        print(f"\n{scenario}: {args.audits} audits, {time.monotonic() - start:.0f} s")
        print(f"  {'':62s} {'rate':>7s}  95% interval of the rate")
        summary[scenario] = {}
        for name, answers in hits.items():
            k, n = int(np.sum(answers)), len(answers)
            ends = clopper_pearson(k, n)
            summary[scenario][name] = round(k / n, 5)
            print(f"  {name:62s} {k / n:7.4f}  {ends.low:.4f} to {ends.high:.4f}", flush=True)
    print(json.dumps({"settings": vars(args), "rates": summary}))


if __name__ == "__main__":
    main()
