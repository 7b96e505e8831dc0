"""All attacks in one audit: what it costs together, what each would cost alone, and whether the forecast held.

    python benchmarks/bench_all.py --model TUNED --base BASE --members train.jsonl --nonmembers heldout.jsonl

Runs `indelible audit --attacks all` with an answer cache of its own, then counts, from the same answers, the tokens
that each attack alone would have computed. The last line is JSON: `ratio` is the tokens of all together over those
of the most expensive attack alone; `computed_over_asked` the tokens computed over the unique tokens asked;
`forecast_error` the time from the printed line to the end of the run over the one printed there, less 1 (within 0.3 is
wanted); `stages` has both by stage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from indelible.attacks.base import Attack, Resources
from indelible.audit import run_audit
from indelible.config import AuditConfig
from indelible.data.records import Query, Record
from indelible.data.splits import build_cohort
from indelible.interview import Interview, prepare
from indelible.scoring.cache import AnswerCache, cache_root
from indelible.scoring.engine import ENGINE_VERSION, Answers
from indelible.selection import choose_attacks, without_access, without_known, without_pool
from indelible.subjects import Subjects, drop_too_long, load_subjects, read_tables


def alone(attack: Attack, records: list[Record], answers: Answers, subjects: Subjects) -> int:
    """Tokens that one attack by itself would compute."""
    by_role: dict[str, list[Query]] = {}
    for query in dict.fromkeys(q for r in records for q in attack.queries(r, answers)):
        by_role.setdefault(query.model, []).append(replace(query, model="target"))
    total = 0
    for role, queries in by_role.items():
        model = subjects.models[role]
        scored = [model.encode(q) for q in queries if q.reply is None]
        total += sum(model.costs([e for e in scored if len(e) <= model.context_length]))
        total += sum(model.prompt_length(q) + q.reply.max_new_tokens for q in queries if q.reply is not None)
    return total


def fresh_answers() -> str:
    """A cache folder without answers; what the user's own holds of converted models is at hand in it."""
    folder = Path(tempfile.mkdtemp())
    for path in cache_root().iterdir() if cache_root().exists() else ():
        if path.name != "answers":
            (folder / path.name).symlink_to(path.resolve(), target_is_directory=path.is_dir())
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="All attacks together.")
    for name in ("model", "base", "members", "nonmembers"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--reference")
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--out", default="runs/bench-all")
    args = parser.parse_args()
    os.environ["INDELIBLE_CACHE"] = fresh_answers()
    settings: dict[str, Any] = {
        "model": args.model,
        "base": args.base,
        "reference": args.reference,
        "members": args.members,
        "nonmembers": args.nonmembers,
        "max_records": args.records,
        "attacks": ("all",),
        "out": args.out,
    }
    config = AuditConfig(**settings)
    given = {**settings, "force": True}
    run_audit(config, given, command=sys.argv)
    manifest = json.loads((Path(args.out) / "manifest.json").read_text())
    for line in manifest["not_run"]:
        print(f"not run: {line['what']}: {line['reason']}")

    attacks, _ = choose_attacks(config, given)
    tables = read_tables(config)
    cohort = build_cohort(tables["members"], tables["nonmembers"], None, max_records=args.records, seed=config.seed)
    subjects = load_subjects(config, chat_data=any(t.kind == "chat" for t in tables.values()))
    target = subjects.models["target"]
    cohort, _ = drop_too_long(cohort, target)
    attacks = without_access(without_pool(attacks, len(cohort.pool), {}, []), subjects.models, {}, [])
    attacks, cohort = without_known(attacks, cohort, config.seed, {}, [])
    resources = Resources(
        pool=cohort.pool,
        known=cohort.known,
        seed=config.seed,
        spans=lambda q: target.encode(q).spans,
        tokens=lambda q: target.encode(q).target_ids.tolist(),
        embedder=config.embedder,
        base=subjects.models["base"],
    )
    audited = sorted([*cohort.members, *cohort.nonmembers], key=lambda r: r.id)
    records = prepare(list(attacks.values()), audited, resources)
    interview = Interview(subjects.models, AnswerCache(engine_version=ENGINE_VERSION))
    answers = interview.ask(list(attacks.values()), records)
    each = {name: alone(attack, records, answers, subjects) for name, attack in attacks.items()}
    together = alone_together(list(attacks.values()), records, answers, subjects)
    for name, tokens in sorted(each.items(), key=lambda item: -item[1]):
        print(f"{name:16} {tokens:>12,} tokens alone")
    timings = manifest["timings"]
    if manifest["forecast"] is None:
        sys.exit(f"{len(records)} records: too few for a forecast")
    stages = manifest["forecast"]["stages"]
    after = list(timings)[list(timings).index("forecast") + 1 :]
    measured = sum(timings[stage] for stage in after)
    expected = manifest["forecast"]["seconds"]
    print(
        json.dumps(
            {
                "name": "bench_all",
                "ratio": round(together / max(each.values()), 3),
                "what": f"{len(records)} records, {len(attacks)} attacks, {args.model}",
                "tokens_together": together,
                "tokens_if_each_alone": sum(each.values()),
                "computed_over_asked": round(manifest["counts"]["tokens"] / manifest["counts"]["tokens_asked"], 3),
                "forecast_s": round(expected, 1),
                "measured_s": round(measured, 1),
                "forecast_error": round(measured / expected - 1, 3),
                "stages": {stage: [round(stages.get(stage, 0.0), 1), round(timings[stage], 1)] for stage in after},
                "total_s": round(sum(timings.values()), 1),
                "timings": timings,
            }
        )
    )


def alone_together(attacks: list[Attack], records: list[Record], answers: Answers, subjects: Subjects) -> int:
    """Tokens that all attacks together compute: equal questions once, beginnings shared across attacks."""

    class Together(Attack):
        def queries(self, record: Record, answers: Answers) -> list[Query]:
            return [q for a in attacks for q in a.queries(record, answers)]

        def score(self, record: Record, answers: Answers) -> float:
            raise NotImplementedError

    return alone(Together(), records, answers, subjects)


if __name__ == "__main__":
    main()
