"""Which free choices of ICP-SP do best on some data: mean or sum, best probe or mean, K, rate, placeholder, unit.

    python experiments/icp_choices.py --model TUNED --members members.jsonl --nonmembers heldout.jsonl --max-records 120

Prints a table: AUC with its interval, TPR at 1% FPR, and the AUC's paired difference from the paper's choices with its
95% interval. Choices about how answers are combined (the first blocks) use all records and cost nothing where an audit
asked before: answers come from the cache. Those that need other probes (the last block) are asked on `--max-records` a
side, 0 for none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from indelible.attacks.base import Resources, plain
from indelible.attacks.context import IcpReference, IcpSelfPerturbation, icp_score
from indelible.config import AuditConfig, resolve
from indelible.data.records import Record
from indelible.data.splits import build_cohort
from indelible.errors import Unscorable
from indelible.interview import Interview, prepare
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import ENGINE_VERSION, Answers
from indelible.stats.intervals import delong
from indelible.stats.paired import paired_delong
from indelible.stats.roc import operating_point
from indelible.subjects import drop_too_long, load_subjects, read_tables

PROBES = [
    {"rate": 0.3},
    {"rate": 0.7},
    {"placeholder": "word"},
    {"placeholder": "_"},
    {"unit": "token"},
    {"k": 10},
]
"""Changes from the default that need probes of their own."""


def scores(
    attack: IcpSelfPerturbation | IcpReference,
    records: Sequence[Record],
    answers: Answers,
    k: int,
    reduce: Any,
    probes: Any,
) -> np.ndarray:
    """Score of each record from its first k probes; NaN where there is none."""
    out = []
    for record in records:
        try:
            out.append(icp_score(record, record.variants[attack._variant][:k], answers, reduce, probes))
        except Unscorable:
            out.append(float("nan"))
    return np.array(out)


def row(name: str, values: np.ndarray, member: np.ndarray, default: np.ndarray | None) -> dict[str, Any]:
    """One line of the table, on the records that both this choice and the default can score."""
    ok = np.isfinite(values) & (np.isfinite(default) if default is not None else True)
    area, interval = delong(values[ok & member], values[ok & ~member], 0.95)
    point = operating_point(values[ok & member], values[ok & ~member], 0.01)
    line = {
        "choice": name,
        "auc": area,
        "low": interval.low,
        "high": interval.high,
        "tpr@0.01": point.tpr,
        "n": int(ok.sum()),
    }
    if default is not None:
        pair = paired_delong(
            values[ok & member], values[ok & ~member], default[ok & member], default[ok & ~member], 0.95
        )
        line |= {"minus_default": pair.difference, "d_low": pair.interval.low, "d_high": pair.interval.high}
    tpr = "n/a  " if point.tpr is None else f"{point.tpr:.3f}"
    text = f"{name:<44} {area:.3f} [{interval.low:.3f}, {interval.high:.3f}]  {tpr}"
    if default is not None:
        text += f"  {line['minus_default']:+.3f} [{line['d_low']:+.3f}, {line['d_high']:+.3f}]"
    print(text, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="Free choices of ICP-SP, measured.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--members", required=True)
    parser.add_argument("--nonmembers", required=True)
    parser.add_argument("--max-records", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    flags = {
        "model": args.model,
        "members": args.members,
        "nonmembers": args.nonmembers,
        "seed": args.seed,
        "load": {"dtype": args.dtype},
    }
    config, _ = resolve(AuditConfig, flags)
    tables = read_tables(config)
    target = load_subjects(config, chat_data=False).models["target"]
    interview = Interview({"target": target}, AnswerCache(engine_version=ENGINE_VERSION))
    lines = []

    def asked(attack: IcpSelfPerturbation, max_records: int | None) -> tuple[list[Record], Answers, np.ndarray]:
        cohort = build_cohort(tables["members"], tables["nonmembers"], max_records=max_records, seed=args.seed)
        cohort, _ = drop_too_long(cohort, target)
        resources = Resources(cohort.pool, args.seed, lambda q: target.chat.encode(q).spans)
        records = prepare([attack], [*cohort.members, *cohort.nonmembers], resources)
        member = np.arange(len(records)) < len(cohort.members)
        return records, interview.ask([attack], records), member

    default = IcpSelfPerturbation(probes="best")  # the paper's choice, against which all others are compared
    records, answers, member = asked(default, None)
    base = scores(default, records, answers, default.k, default.reduce, default.probes)
    print(f"{member.sum()} members, {(~member).sum()} non-members; AUC [95%], TPR at 1% FPR, AUC minus default [95%]")
    lines.append(row(f"default: {default.placeholder}, rate {default.rate}, K=5, mean, best", base, member, None))
    for k in (1, 2, 5):
        for reduce in ("mean", "sum"):
            for probes in ("best", "mean"):
                if (k, reduce, probes) != (5, "mean", "best") and not (k == 1 and probes == "mean"):
                    values = scores(default, records, answers, k, reduce, probes)
                    lines.append(row(f"K={k}, {reduce} over tokens, {probes} probe", values, member, base))
    loss = np.array([float(np.mean(answers[plain(r)].logprobs)) for r in records])
    lines.append(row("(loss, for comparison)", loss, member, base))

    neighbours = IcpReference()
    cohort = build_cohort(tables["members"], tables["nonmembers"], seed=args.seed)
    cohort, _ = drop_too_long(cohort, target)
    audited = [*cohort.members, *cohort.nonmembers]
    records = prepare([neighbours], audited, Resources(cohort.pool, args.seed))
    answers = interview.ask([neighbours], records)
    member = np.arange(len(records)) < len(cohort.members)
    base = scores(neighbours, records, answers, 10, "mean", "best")
    print("\nicp-ref, the same records")
    lines.append(row("icp-ref: K=10, mean over tokens, best probe", base, member, None))
    for k, reduce, probes in ((10, "mean", "mean"), (10, "sum", "best"), (5, "mean", "best"), (5, "mean", "mean")):
        values = scores(neighbours, records, answers, k, reduce, probes)
        lines.append(row(f"icp-ref: K={k}, {reduce} over tokens, {probes} probe", values, member, base))

    if args.max_records == 0:
        print(json.dumps({"name": "icp_choices", "rows": lines}))
        return
    records, answers, member = asked(default, args.max_records)
    base = scores(default, records, answers, default.k, default.reduce, default.probes)
    print(f"\n{member.sum()} members, {(~member).sum()} non-members, other probes")
    lines.append(row("default on these", base, member, None))
    mean = scores(default, records, answers, default.k, default.reduce, "mean")
    lines.append(row("default, mean over probes", mean, member, base))
    for change in PROBES:
        attack = IcpSelfPerturbation(**change)  # type: ignore[arg-type]
        records, answers, member = asked(attack, args.max_records)
        for probes in ("best", "mean"):
            values = scores(attack, records, answers, attack.k, attack.reduce, probes)
            lines.append(
                row(f"{', '.join(f'{k}={v}' for k, v in change.items())}, {probes} probe", values, member, base)
            )
    print(json.dumps({"name": "icp_choices", "rows": lines}))


if __name__ == "__main__":
    main()
