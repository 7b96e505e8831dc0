"""A membership audit: settings in, run directory out."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from indelible.attacks import ATTACKS, COMPAT, FITTED, Attack, make_attack
from indelible.attacks.base import Resources, plain
from indelible.config import AuditConfig
from indelible.data.formats import Table, read_records
from indelible.data.records import Record
from indelible.data.splits import Cohort, build_cohort, split_frame
from indelible.environment import hardware, package_version, training_facts, versions
from indelible.errors import ConfigError, DataError, did_you_mean
from indelible.interview import Interview, prepare, score_frame, unscorable
from indelible.models.causal import CausalModel, describe
from indelible.models.load import LoadOptions, load_model
from indelible.models.sources import Source
from indelible.progress import say
from indelible.report import render
from indelible.runs import RunDir
from indelible.scoring.cache import AnswerCache
from indelible.scoring.engine import ENGINE_VERSION
from indelible.stats.evaluate import Evaluation, evaluate
from indelible.stats.gate import parse_gate

BLIND = "bag-of-words"


@dataclass(frozen=True)
class Outcome:
    """What a command needs to know of a finished run."""

    path: Path
    evaluation: Evaluation
    tripped: tuple[str, ...]


@dataclass(frozen=True)
class Subjects:
    """The models of an audit with where they came from; roles `target`, `base`, `reference`."""

    models: Mapping[str, CausalModel]
    sources: Mapping[str, Source]

    def facts(self) -> dict[str, Any]:
        """The manifest's `models`."""
        return {
            role: describe(self.models[role], self.sources[role]) if role in self.models else None
            for role in ("target", "base", "reference")
        }


def run_audit(config: AuditConfig, given: Mapping[str, Any], *, command: Sequence[str], kind: str = "audit") -> Outcome:
    """Read, load, ask, evaluate, report.

    Args:
        config: checked settings; `given` is what the user wrote, for the manifest.
        command: the command line, for the manifest.

    Returns:
        the run directory, the evaluation, and the gates that tripped.

    Raises:
        UserError: one line saying what to mend.
    """
    gates = [parse_gate(text) for text in config.fail_if]
    attacks, not_run = choose_attacks(config, given)
    timings: dict[str, float] = {}
    clock = _Clock(timings)
    tables = read_tables(config)
    cohort = build_cohort(
        tables["members"], tables["nonmembers"], tables.get("pool"), max_records=config.max_records, seed=config.seed
    )
    clock("data")
    run = RunDir.open(Path(config.out or _default_out(config)), force=bool(given.get("force")))
    subjects = load_subjects(config, chat_data=any(_is_chat(t) for t in tables.values()))
    target = subjects.models["target"]
    cohort, n_tokens = drop_too_long(cohort, target)
    clock("models")
    say(
        f"{len(cohort.members)} members, {len(cohort.nonmembers)} non-members, {len(cohort.pool)} pool records; "
        f"{len(attacks)} attacks; {target.device} {str(target.dtype).removeprefix('torch.')}; "
        f"template {target.chat.name}"
    )
    resources = Resources(cohort.pool, config.seed, lambda q: target.chat.encode(q).spans, config.embedder)
    audited = sorted([*cohort.members, *cohort.nonmembers], key=lambda r: r.id)  # membership shows in no order
    records = prepare(list(attacks.values()), audited, resources)
    clock("probes")
    cache = AnswerCache(engine_version=ENGINE_VERSION) if config.cache else None
    interview = Interview(subjects.models, cache)
    answers = interview.ask(list(attacks.values()), records)
    frames = [score_frame(attacks, records, answers, "target")]
    clock("target")
    if "base" not in subjects.models:
        not_run.append({"what": "base", "reason": "no base model given (--base), so no control on it"})
    elif not config.base_control:
        not_run.append({"what": "base", "reason": "switched off (--no-base-control)"})
    else:
        answers = interview.ask(list(attacks.values()), records, subject="base", stage="control on the {model} model")
        frames.append(score_frame(attacks, records, answers, "base"))
    clock("base")
    scores = pd.concat(frames, ignore_index=True)
    frame = records_frame(cohort, n_tokens)
    evaluation = evaluate(
        frame,
        scores,
        texts={r.id: r.text for r in records} if BLIND in config.attacks else None,
        seed=config.seed,
        level=config.level,
        n_bootstrap=config.n_bootstrap,
        controls_not_run={n["what"]: n["reason"] for n in not_run if n["what"] in ("base", BLIND)},
    )
    clock("statistics")
    blind = pd.DataFrame(
        [(i, BLIND, "none", value, None) for i, value in evaluation.blind_scores.items()], columns=scores.columns
    )
    scores = pd.concat([scores, blind], ignore_index=True) if len(blind) else scores
    run.write_parquet("split.parquet", split_frame(cohort))
    run.write_parquet("records.parquet", frame)
    run.write_parquet("scores.parquet", scores)
    run.write_json("metrics.json", [m.to_dict() for m in evaluation.metrics])
    run.write_json("verdict.json", evaluation.verdict.to_dict())
    if config.with_text:
        run.write_json("texts.json", {r.id: {"prompt": r.prompt, "target": r.target} for r in records})
    manifest = {
        "kind": kind,
        "name": run.path.name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "indelible_version": package_version(),
        "command": list(command),
        "versions": versions(),
        "hardware": hardware(str(target.device)),
        "dtype": str(target.dtype).removeprefix("torch."),
        "seeds": {"seed": config.seed},
        "config": {"given": dict(given), "resolved": config.model_dump(mode="json")},
        "models": subjects.facts(),
        "data": {name: _table_facts(tables.get(name)) for name in ("members", "nonmembers", "pool")},
        "cohort": {
            "n_members": len(cohort.members),
            "n_nonmembers": len(cohort.nonmembers),
            "n_pool": len(cohort.pool),
            "n_groups": frame["group"].nunique(),
            "dropped": {reason: dict(sides) for reason, sides in cohort.dropped.items()},
            "notes": list(cohort.notes),
        },
        "attacks": attack_facts(attacks, config),
        "counts": {
            "asked": interview.counts.asked,
            "unique": interview.counts.unique,
            "cached": interview.counts.cached,
            "tokens": interview.counts.tokens_computed,
            "tokens_asked": interview.counts.tokens_asked,
            "unscorable": unscorable(scores),
        },
        "training": training_facts(subjects.sources["target"].folder),
        "threat_model": {
            "access": "log-probabilities of given text from the audited model"
            + (" and its base" if "base" in subjects.models else ""),
            "knowledge": "the record in full; a reference pool of the same kind"
            if cohort.pool
            else "the record in full",
            "queries_per_record": round(interview.counts.unique / len(records), 1),
        },
        "not_run": not_run,
        "timings": timings,
    }
    render(run.path, manifest)
    clock("report")
    run.finish(manifest)
    tripped = [line for gate in gates for line in gate.tripped(evaluation.metrics, evaluation.verdict)]
    return Outcome(run.path, evaluation, tuple(tripped))


class _Clock:
    """Writes how long each stage took: call it at a stage's end."""

    def __init__(self, timings: dict[str, float]) -> None:
        self._timings, self._last = timings, time.monotonic()

    def __call__(self, stage: str) -> None:
        now = time.monotonic()
        self._timings[stage] = round(now - self._last, 2)
        self._last = now


def choose_attacks(config: AuditConfig, given: Mapping[str, Any]) -> tuple[dict[str, Attack], list[dict[str, str]]]:
    """The attacks to run, by name, and what will not run with its reason.

    Raises:
        ConfigError: an unknown attack or setting; an attack asked for by name that lacks its model; nothing left.
    """
    names = [n for n in config.attacks if n not in FITTED]
    if config.reference is not None and "reference" not in names and "attacks" not in given:
        names.append("reference")
    defaults = COMPAT[config.compat] if config.compat else {}
    for name in config.settings:
        if name not in names:
            raise ConfigError(f"settings for '{name}', which is not among the attacks of this run ({', '.join(names)})")
    not_run: list[dict[str, str]] = []
    if BLIND not in config.attacks:
        not_run.append({"what": BLIND, "reason": "not among the attacks asked for"})
    attacks: dict[str, Attack] = {}
    has_base = config.base is not None or (Path(config.model) / "adapter_config.json").exists()
    available = {"target": True, "base": has_base, "reference": config.reference is not None}
    for name in names:
        attack = make_attack(name, {**defaults.get(name, {}), **config.settings.get(name, {})})
        missing = [role for role in attack.roles if not available[role]]
        if missing and "attacks" in given:
            raise ConfigError(f"attack '{name}' needs a {missing[0]} model: give --{missing[0]}")
        if missing:
            not_run.append({"what": name, "reason": f"no {missing[0]} model given (--{missing[0]})"})
        else:
            attacks[name] = attack
    if not attacks:
        raise ConfigError("no attack left to run: bag-of-words is a control and cannot run alone")
    return attacks, not_run


def read_tables(config: AuditConfig) -> dict[str, Table]:
    """The data files as records, by what they are for."""
    options = config.data
    sources = {"members": config.members, "nonmembers": config.nonmembers, "pool": config.pool}
    out = {}
    for name, source in sources.items():
        if source is not None:
            out[name] = read_records(
                source,
                format=options.format,
                columns=options.columns,
                group_column=options.group_column,
                id_column=options.id_column,
                strip=config.compat == "icp-mia",
                split=options.split,
            )
            say(f"{name}: {out[name].n_rows} rows, {out[name].format}")
    return out


def load_subjects(config: AuditConfig, *, chat_data: bool) -> Subjects:
    """Target, base and reference; an adapter's base is the same copy with the adapter off.

    Raises:
        ConfigError: base and target are the same weights.
    """
    template = config.load.template or ("icp-mia" if config.compat == "icp-mia" else None)
    options = LoadOptions(**{**config.load.model_dump(), "template": template}, chat_data=chat_data)
    target, source = load_model(config.model, options, base=config.base)
    models, sources = {"target": target}, {"target": source}
    if target.adapter is not None:
        models["base"], sources["base"] = target.as_base(), source
    elif config.base is not None:
        models["base"], sources["base"] = load_model(config.base, options)
    if config.reference is not None:
        models["reference"], sources["reference"] = load_model(config.reference, options)
    for role in ("base", "reference"):
        if role in models and models[role].fingerprint == target.fingerprint:
            raise ConfigError(
                f"--{role} {config.base if role == 'base' else config.reference} is the audited model itself"
            )
    return Subjects(models, sources)


def drop_too_long(cohort: Cohort, model: CausalModel) -> tuple[Cohort, dict[str, int]]:
    """The cohort without records that do not fit the context, and the target tokens of those that do.

    Raises:
        DataError: none of a side fits.
    """
    n_tokens: dict[str, int] = {}

    def fits(record: Record) -> bool:
        encoded = model.encode(plain(record))
        n_tokens[record.id] = int(encoded.is_target.sum())
        return len(encoded) <= model.context_length

    kept = {side: tuple(r for r in getattr(cohort, side) if fits(r)) for side in ("members", "nonmembers", "pool")}
    lost = {side: len(getattr(cohort, side)) - len(rows) for side, rows in kept.items()}
    for side in ("members", "nonmembers"):
        if not kept[side]:
            raise DataError(
                f"all {lost[side]} {side} are longer than the model's context of {model.context_length} tokens: "
                "records are never cut; give shorter ones"
            )
    dropped = {
        **cohort.dropped,
        "too_long": {"member": lost["members"], "nonmember": lost["nonmembers"], "pool": lost["pool"]},
    }
    return Cohort(kept["members"], kept["nonmembers"], kept["pool"], dropped, cohort.notes), n_tokens


def records_frame(cohort: Cohort, n_tokens: Mapping[str, int]) -> pd.DataFrame:
    """`records.parquet`."""
    rows = [
        (r.id, member, r.group or r.id, n_tokens[r.id])
        for member, side in ((True, cohort.members), (False, cohort.nonmembers))
        for r in side
    ]
    frame = pd.DataFrame(rows, columns=["record_id", "member", "group", "n_target_tokens"])
    return frame.sort_values("record_id", ignore_index=True)


def attack_facts(attacks: Mapping[str, Attack], config: AuditConfig) -> list[dict[str, Any]]:
    """The manifest's `attacks`: what each is, where it comes from, with which settings."""
    import dataclasses

    facts: list[dict[str, Any]] = [
        {
            "name": name,
            "settings": dataclasses.asdict(attack),
            "access": attack.access,
            "formula": attack.formula,
            "paper": attack.paper,
            "deviation": attack.deviation,
            "fitted": False,
        }
        for name, attack in attacks.items()
    ]
    if BLIND in config.attacks:
        facts.append(
            {
                "name": BLIND,
                "settings": {},
                "access": "none",
                "formula": FITTED[BLIND],
                "paper": "Meeus et al. 2024",
                "deviation": "fold-averaged AUC and a permutation test; the released code pools the folds",
                "fitted": True,
            }
        )
    return facts


def check_names(names: Sequence[str]) -> None:
    """Raise a ConfigError for an unknown attack name before anything is read."""
    for name in names:
        if name not in ATTACKS and name not in FITTED:
            raise ConfigError(did_you_mean(name, [*ATTACKS, *FITTED], "attack"))


def _is_chat(table: Table) -> bool:
    return any(word in table.format for word in ("messages", "conversations"))


def _table_facts(table: Table | None) -> dict[str, Any] | None:
    if table is None:
        return None
    return {"source": table.source, "format": table.format, "sha256": table.sha256, "n_rows": table.n_rows}


def _default_out(config: AuditConfig) -> str:
    name = Path(config.model.removeprefix("builtin:")).name or "model"
    stem = f"runs/audit-{name}"
    n = 1
    while (Path(f"{stem}-{n}") / "manifest.json").exists():
        n += 1
    return f"{stem}-{n}"
