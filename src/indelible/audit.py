"""A membership audit: settings in, run directory out.

In a launch of several processes all of them come this way. The main one reads the data, makes the probes and writes the
run; each loads the models and asks them its share.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from indelible import distributed
from indelible.attacks.base import Attack, Resources
from indelible.config import AuditConfig
from indelible.data.formats import Table
from indelible.data.records import Record
from indelible.data.splits import REASONS, Cohort, build_cohort, split_frame
from indelible.drift import measure_drift
from indelible.environment import default_out, run_facts, training_facts
from indelible.forecast import forecast
from indelible.interview import Interview, prepare, score_frame, unscorable
from indelible.models.server import ServerModel
from indelible.models.sources import locate
from indelible.parts import control_part, records_frame
from indelible.progress import say
from indelible.report import render
from indelible.runs import RunDir
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import ENGINE_VERSION, Counts
from indelible.selection import (
    FORGIVING,
    NEEDS,
    attack_facts,
    choose_attacks,
    controlled,
    expand,
    most_of,
    without_access,
    without_known,
    without_pool,
)
from indelible.stats.blind import BLIND_ATTACK
from indelible.stats.combined import COMBINED
from indelible.stats.evaluate import Evaluation, evaluate
from indelible.stats.gate import Gate, check_gates, parse_gate
from indelible.subjects import Subjects, drop_too_long, load_options, load_subjects, read_tables, table_facts

FPRS = (0.1, 0.01, 0.001)
"""False-positive rates at which true-positive rates are reported."""


@dataclass(frozen=True)
class Outcome:
    """What a command needs to know of a finished run."""

    path: Path
    evaluation: Evaluation
    tripped: tuple[str, ...]
    not_run: tuple[str, ...] = ()


def run_audit(
    config: AuditConfig,
    given: Mapping[str, Any],
    *,
    command: Sequence[str],
    kind: str = "audit",
    forgiving: bool = False,
) -> Outcome:
    """Read, load, ask, evaluate, report.

    Args:
        config: checked settings; `given` is what the user wrote, for the manifest.
        command: the command line, for the manifest.
        forgiving: attacks asked for by name that cannot run are left out and said why, as default ones are.

    Returns:
        the run directory, the evaluation, and the gates that tripped; in all processes the same.

    Raises:
        UserError: one line saying what to mend.
    """
    distributed.first_on_each_machine(lambda: _find_models(config))
    gates = [parse_gate(text) for text in config.fail_if]
    asked = {**given, FORGIVING: True} if forgiving else given
    attacks, not_run = choose_attacks(config, asked)
    fitted = [name for name in (BLIND_ATTACK, COMBINED) if name in expand(config.attacks)]
    check_gates(gates, [*attacks, *fitted], FPRS)
    out, force = Path(config.out or default_out("audit", config.model)), bool(given.get("force"))
    distributed.from_main(lambda: RunDir.check(out, force=force))  # before models are loaded
    clock = _Clock()
    tables, cohort = distributed.from_main(lambda: _read(config))
    clock("data")
    subjects = load_subjects(config, chat_data=any(t.kind == "chat" for t in tables.values()))
    target = subjects.models["target"]
    cohort, n_tokens = drop_too_long(cohort, target)
    attacks = without_pool(attacks, len(cohort.pool), asked, not_run)
    attacks = without_access(attacks, subjects.models, asked, not_run)
    attacks, cohort = without_known(attacks, cohort, config.seed, asked, not_run)
    run = distributed.from_main(lambda: RunDir.open(out, force=force))
    clock("models")
    lost = {
        reason: by
        for reason, sides in cohort.dropped.items()
        if (by := ", ".join(f"{n} {side}s" for side, n in sides.items() if n and side != "pool"))
    }
    for reason, by in lost.items():
        say(f"kept out: {by} ({REASONS[reason]})")
    say(
        f"{len(cohort.members)} members, {len(cohort.nonmembers)} non-members, {len(cohort.pool)} pool records; "
        f"{len(attacks)} attacks; {target.device} {str(target.dtype).removeprefix('torch.')}; "
        f"template {target.chat.name if target.chat is not None else 'of the server'}"
    )
    cache = AnswerCache(engine_version=ENGINE_VERSION) if config.cache and distributed.is_main() else None
    base = subjects.models.get("base")
    resources = Resources(
        pool=cohort.pool,
        known=cohort.known,
        seed=config.seed,
        spans=lambda q: target.encode(q).spans,
        tokens=lambda q: target.encode(q).target_ids.tolist(),
        embedder=config.embedder,
        base=base,
        cache=None if isinstance(base, ServerModel) else cache,  # a server's may be of other weights by now
    )
    audited = sorted([*cohort.members, *cohort.nonmembers], key=lambda r: r.id)  # membership shows in no order
    interview = Interview(subjects.models, cache)
    has_control = config.base_control and "base" in subjects.models
    on_base = controlled(attacks, subjects.models["base"], not_run) if has_control else {}
    expected = None
    if distributed.n_processes() == 1:  # of several, each would have to time its own share
        part = control_part(audited, cohort, config.control_records, config.seed) if on_base else []
        expected = forecast(
            interview, list(attacks.values()), audited, resources, cohort=cohort, control=part,
            on_base=list(on_base.values()), config=config,
            load_seconds=clock.timings["models"] / len({m.fingerprint for m in subjects.models.values()}),
        )  # fmt: skip
    if expected is not None:
        say(str(expected))
    clock("forecast")
    records = distributed.from_main(lambda: prepare(list(attacks.values()), audited, resources))
    clock("probes")
    answers = interview.ask(list(attacks.values()), records)
    frames = [score_frame(attacks, records, answers, "target")]
    if interview.counts.cached:
        say(f"{interview.counts.cached:,} of {interview.counts.unique:,} answers were at hand (--no-cache asks anew)")
    clock("target")
    if "base" not in subjects.models:
        not_run.append({"what": "base", "reason": "no base model given (--base), so no control on it"})
    elif not config.base_control:
        not_run.append({"what": "base", "reason": "switched off (--no-base-control)"})
    elif on_base:
        part = control_part(records, cohort, config.control_records, config.seed)
        if len(part) < len(records):
            n_part = f"{len(part)} of {len(records)} records, drawn at random (--control-records)"
            not_run.append({"what": "base", "reason": f"on all records: the control uses {n_part}"})
        answers = interview.ask(list(on_base.values()), part, subject="base", stage="control on the {model} model")
        frames.append(score_frame(on_base, part, answers, "base"))
    clock("base")
    drift = distributed.from_main(
        lambda: measure_drift(
            target,
            load_options(config),
            interview.found(target),
            n=config.drift_records,
            seed=config.seed,
            base=config.base,
        )
    )
    clock("drift")
    said = _Said(
        tables, cohort, subjects, attacks, records, n_tokens, pd.concat(frames, ignore_index=True), interview.counts,
        drift, not_run, asdict(expected) if expected is not None else None,
    )  # fmt: skip
    return distributed.from_main(lambda: _conclude(run, said, gates, config, given, command, kind, clock))


@dataclass(frozen=True)
class _Said:
    """What was asked about and what came out, before any statistics. `n_tokens` counts a record's target tokens."""

    tables: Mapping[str, Table]
    cohort: Cohort
    subjects: Subjects
    attacks: Mapping[str, Attack]
    records: Sequence[Record]
    n_tokens: Mapping[str, int]
    scores: pd.DataFrame
    counts: Counts
    drift: Mapping[str, Any]
    not_run: Sequence[Mapping[str, str]]
    forecast: Mapping[str, Any] | None


def _find_models(config: AuditConfig) -> None:
    """Download and convert what has to be, into the caches of this machine."""
    for name in (config.model, config.base, config.reference, config.generator):
        if name is not None:
            locate(name)


def _read(config: AuditConfig) -> tuple[dict[str, Table], Cohort]:
    tables = read_tables(config)
    cohort = build_cohort(
        tables["members"], tables["nonmembers"], tables.get("pool"), max_records=config.max_records, seed=config.seed
    )
    return tables, cohort


def _conclude(
    run: RunDir,
    said: _Said,
    gates: Sequence[Gate],
    config: AuditConfig,
    given: Mapping[str, Any],
    command: Sequence[str],
    kind: str,
    clock: _Clock,
) -> Outcome:
    """Statistics, run directory, report."""
    cohort, subjects, records, not_run = said.cohort, said.subjects, said.records, list(said.not_run)
    target, scores = subjects.models["target"], said.scores
    frame = records_frame(cohort, said.n_tokens)
    evaluation = evaluate(
        frame,
        scores,
        texts={r.id: r.text for r in records} if BLIND_ATTACK in expand(config.attacks) else None,
        seed=config.seed,
        level=config.level,
        fprs=FPRS,
        n_bootstrap=config.n_bootstrap,
        controls_not_run={n["what"]: n["reason"] for n in not_run if n["what"] in ("base", BLIND_ATTACK)},
        combined=COMBINED in expand(config.attacks),
    )
    if evaluation.combined is not None and evaluation.combined.reason is not None:
        not_run.append({"what": COMBINED, "reason": evaluation.combined.reason})
    clock("statistics")
    out_of_fold = [
        (i, name, "none", value, None if value == value else "no attack has a score of this record")
        for name, by_record in ((BLIND_ATTACK, evaluation.blind_scores), (COMBINED, evaluation.combined_scores))
        for i, value in by_record.items()
    ]
    fitted = pd.DataFrame(out_of_fold, columns=scores.columns)
    scores = pd.concat([scores, fitted], ignore_index=True) if len(fitted) else scores
    run.write_parquet("split.parquet", split_frame(cohort))
    run.write_parquet("records.parquet", frame)
    run.write_parquet("scores.parquet", scores)
    run.write_json("metrics.json", [m.to_dict() for m in evaluation.metrics])
    run.write_json("verdict.json", evaluation.verdict.to_dict())
    if config.with_text:
        run.write_json("texts.json", {r.id: {"prompt": r.prompt, "target": r.target} for r in records})
    manifest = {
        **run_facts(kind, run.path, config, given, command, device=str(target.device)),
        **({"processes": distributed.n_processes()} if distributed.n_processes() > 1 else {}),
        "dtype": str(target.dtype).removeprefix("torch."),
        "drift": dict(said.drift),
        "models": subjects.facts(),
        "data": {name: table_facts(said.tables.get(name)) for name in ("members", "nonmembers", "pool")},
        "cohort": {
            "n_members": len(cohort.members),
            "n_nonmembers": len(cohort.nonmembers),
            "n_pool": len(cohort.pool),
            "n_known": len(cohort.known),
            "n_groups": frame["group"].nunique(),
            "dropped": {reason: dict(sides) for reason, sides in cohort.dropped.items()},
            "notes": list(cohort.notes),
        },
        "attacks": attack_facts(said.attacks, config),
        "counts": {
            "asked": said.counts.asked,
            "unique": said.counts.unique,
            "cached": said.counts.cached,
            "tokens": said.counts.tokens_computed,
            "tokens_asked": said.counts.tokens_asked,
            "unscorable": unscorable(scores),
        },
        "auditor": config.auditor,
        "training": training_facts(subjects.sources["target"].folder),
        "threat_model": {
            "access": f"{NEEDS[most_of(target.access)]} from the audited model"
            + (" and its base" if "base" in subjects.models else ""),
            "knowledge": "the record in full; a reference pool of the same kind"
            if cohort.pool
            else "the record in full",
            "queries_per_record": round(said.counts.unique / len(records), 1),
            "release": config.release or "not stated: who will be able to query the model, and how",
        },
        "not_run": not_run,
        "forecast": said.forecast,
        "timings": clock.timings,
    }
    render(run.path, manifest)
    clock("report")
    run.finish(manifest)
    tripped = [line for gate in gates for line in gate.tripped(evaluation.metrics, evaluation.verdict)]
    left_out = tuple(f"{n['what']} ({n['reason']})" for n in not_run if n["what"] not in ("base", BLIND_ATTACK))
    return Outcome(run.path, evaluation, tuple(tripped), left_out)


class _Clock:
    """Writes into `timings` how long each stage took: call it at a stage's end."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self._last = time.monotonic()

    def __call__(self, stage: str) -> None:
        now = time.monotonic()
        self.timings[stage] = round(now - self._last, 2)
        self._last = now
