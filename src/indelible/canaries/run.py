"""`indelible canary run`: design, train, audit and report over arms and seeds; what is finished is never done again."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from indelible.canaries.bench import Bench, variant
from indelible.canaries.config import CanaryRunConfig
from indelible.canaries.folder import INSERTIONS, design_facts
from indelible.canaries.measure import Measured, conclude, missing_probes
from indelible.canaries.plan import Trial, common_settings, plan_trials, sparse_groups
from indelible.canaries.screen_sheet import write_sheet
from indelible.environment import default_out, run_facts
from indelible.errors import UserError
from indelible.models.sources import locate
from indelible.progress import say
from indelible.runs import RunDir, write_json

SETTINGS = "settings.json"


def run_canaries(config: CanaryRunConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool) -> Path:
    """Run every trial of the plan, and write the run directory.

    Designs, models and readings live in `OUT-work` until the run is done; a run that was stopped anywhere goes on
    there, with the same outcome.

    Raises:
        UserError: one line saying what to mend.
    """
    trials = plan_trials(config)
    locate(config.model)
    out = Path(config.out or default_out("canary", (config.name or "run").removeprefix("canary-")))
    RunDir.check(out, force=force)
    work = _open_work(out, config, force=force)
    started = time.monotonic()
    bench = Bench(config, work, on_screens=trials[0].design.task.name == "screens")
    try:
        designs = bench.prepare(trials)
    except UserError:
        if _holds_no_work(work):
            shutil.rmtree(work)
        raise
    say(bench.estimate(trials, designs))
    sparse = sparse_groups(trials)
    if sparse:
        say(f"note: {sparse}")
    chosen = bench.choose_rates(trials, designs) if config.learning_rates else []
    if chosen:
        rates = {one["variant"]: one["chosen"] for one in chosen}
        trials = [trial if bench.states_rate(trial) else _at_rate(trial, rates[variant(trial)]) for trial in trials]
        designs = bench.prepare(trials)
    measured = Measured()
    last_use = {key: i for i, trial in enumerate(trials) for key in bench.models_of(trial)}
    for i, trial in enumerate(trials):
        say(f"[{i + 1}/{len(trials)}] {trial.condition}, seed {trial.seed}")
        for part in bench.measure(trial, designs):
            measured.add(part)
        for key in [] if config.keep_models else bench.models_of(trial):
            if last_use[key] == i:
                bench.forget(key)
    first = trials[0]
    run = RunDir.open(out, force=force)
    write_sheet(run, [designs[trial.name] for trial in trials], with_text=config.with_text)
    facts = {
        **run_facts("canary-run", run.path, config, given, command, device=measured.device),
        "design": design_facts(designs[first.name]),
        "designs": {trial.name: design_facts(designs[trial.name]) for trial in trials},
        "training": {
            "optimizer": "AdamW",
            **common_settings([_training_facts(trial, designs[trial.name].n_steps) for trial in trials]),
            "learning_rate_choice": chosen or None,
        },
        "survival": bench.survived,
        "not_run": [*_not_run(config, trials), *missing_probes(designs[first.name], first.probe)],
        "timings": {"total": round(time.monotonic() - started, 1)},
    }
    ledgers = [
        pd.read_parquet(bench.folder(trial) / INSERTIONS).assign(condition=trial.condition, seed=trial.seed)
        for trial in trials
    ]
    run.write_parquet(INSERTIONS, pd.concat(ledgers, ignore_index=True))
    conclude(run, measured, first.probe, facts, level=config.level)
    if not config.keep_models:
        shutil.rmtree(work)
    return run.path


def _at_rate(trial: Trial, rate: float) -> Trial:
    return replace(trial, training=trial.training.model_copy(update={"learning_rate": rate}))


def _training_facts(trial: Trial, n_steps: int) -> dict[str, Any]:
    return {
        **trial.training.model_dump(mode="json"),
        "batch_size": trial.design.batch_size,
        "epochs": 1,
        "n_steps": n_steps,
    }


def _not_run(config: CanaryRunConfig, trials: Sequence[Trial]) -> list[dict[str, str]]:
    """What a reader would expect and will not find."""
    out = []
    if not config.clean:
        out.append({"what": "clean", "reason": "trainings without canaries are switched off (clean: false)"})
    if not any(trial.probe.base for trial in trials):
        out.append({"what": "base", "reason": "probes of the base model are switched off (probe.base: false)"})
    if len(config.seeds) < 3:
        out.append({"what": "seeds", "reason": f"{len(config.seeds)} training seed(s); three make a conclusion"})
    return out


def _open_work(out: Path, config: CanaryRunConfig, *, force: bool) -> Path:
    """The working folder beside `out`, empty or of the same settings; one that holds designs alone is made anew.

    Raises:
        UserError: it holds something else, or the work of other settings.
    """
    work = out.with_name(out.name + "-work")
    settings = config.model_dump(mode="json", exclude={"out", "keep_models", "name", "seeds", "with_text"})
    if work.exists() and not (work / SETTINGS).exists() and any(work.iterdir()):
        raise UserError(f"{work} exists and was not made by a canary run; give another --out")
    if (work / SETTINGS).exists():
        same = json.loads((work / SETTINGS).read_text(encoding="utf-8")) == settings
        if force or (not same and _holds_no_work(work)):
            shutil.rmtree(work)
        elif not same:
            raise UserError(
                f"{work} belongs to a run with other settings; give another --out, or --force to start anew"
            )
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(work / SETTINGS, settings)
    return work


def _holds_no_work(work: Path) -> bool:
    """Whether a working folder has designs alone, which are made in a moment."""
    return not any((work / name).exists() for name in ("models", "measured", "answers.jsonl"))
