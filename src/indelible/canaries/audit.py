"""`indelible canary audit`: checkpoints of one training and its design in, a run directory out."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from indelible.canaries.config import CanaryAuditConfig
from indelible.canaries.design import Design
from indelible.canaries.exposure import Memo
from indelible.canaries.folder import design_facts, read_design
from indelible.canaries.formats import TRAIN_FILE
from indelible.canaries.measure import Measured, conclude, load_options, measure, missing_probes
from indelible.canaries.plan import protocol_of
from indelible.canaries.preflight import survival
from indelible.canaries.provenance import TRUST, check_provenance, training_of
from indelible.canaries.readings import Checkpoint
from indelible.canaries.screen_preflight import eyes_of
from indelible.canaries.screen_sheet import write_sheet
from indelible.environment import default_out, run_facts
from indelible.errors import ConfigError
from indelible.models.builtin import file_sha256
from indelible.models.causal import CausalModel
from indelible.models.load import load_model
from indelible.models.sources import Source, locate
from indelible.progress import say
from indelible.runs import RunDir


def run_canary_audit(config: CanaryAuditConfig, given: Mapping[str, Any], *, command: Sequence[str]) -> Path:
    """Ask every model the design's probes, evaluate, report.

    Returns:
        the run directory.

    Raises:
        UserError: one line saying what to mend.
    """
    design = read_design(config.design)
    probe = config.probe.of_task(design.config.task.name)
    for name in (*config.models, config.base, config.clean):
        if name is not None:
            locate(name)
    out, force = Path(config.out or default_out("canary-audit", config.models[-1])), bool(given.get("force"))
    RunDir.check(out, force=force)
    started = time.monotonic()
    # readings of an unfinished audit stand beside the run, so that it goes on where it stopped
    memo, measured = Memo(out.with_name(f".{out.name}-answers.jsonl")), Measured()
    condition = re.sub(r"[^\w.-]+", "-", Path(config.design).resolve().name)
    train_sha256 = file_sha256(Path(config.design) / TRAIN_FILE)
    n_steps, schedule = design.n_steps, "unknown"
    survived: dict[str, Any] = {}
    training: dict[str, Any] | None = None
    not_run: list[dict[str, str]] = []

    asked_at: set[int] = set()

    options = load_options(config.load, images=design.on_screens)

    def ask(model: CausalModel, source: Source, role: str, step: int) -> None:
        protocol = protocol_of(design.config, training, config.base or "unknown")
        checkpoint = Checkpoint(condition, role, step, n_steps, schedule, protocol)
        first = None if any(part.drift for part in measured.parts) else options
        measured.add(measure(model, source, design, checkpoint, probe, memo, level=config.level, drift=first))

    for name in config.models:
        model, source = load_model(name, options)
        training = training_of(source.folder)
        not_run += check_provenance(name, training, design, train_sha256)
        n_steps = int(_first(training, "steps", "max_steps") or design.n_steps)
        schedule = str((training or {}).get("schedule") or "unknown")
        limit = min(int(_first(training, "max_tokens") or model.context_length), model.context_length)
        survived = survived or survival(design, eyes_of(model) if design.on_screens else model.chat, max_tokens=limit)
        step = checkpoint_step(name, training, design)
        if step in asked_at:
            raise ConfigError(
                f"two models at update {step}: give checkpoints of one training, in folders named checkpoint-UPDATE; "
                "models of different trainings are audited one by one and put together by `indelible canary compare`"
            )
        asked_at.add(step)
        ask(model, source, "target", step)
        if model.adapter is not None and config.base is None and probe.base and "base" not in measured.models:
            ask(model.as_base(), source, "base", 0)
    if config.clean is not None:
        ask(*load_model(config.clean, options), "clean", n_steps)
    else:
        not_run.append({"what": "clean", "reason": "no model trained without canaries was given (--clean)"})
    if config.base is not None and probe.base:
        ask(*load_model(config.base, options), "base", 0)
    elif "base" not in measured.models:
        why = "no base model was given (--base)" if probe.base else "switched off"
        not_run.append({"what": "base", "reason": f"{why}, so there is no control on it"})
    not_run += missing_probes(design, probe)
    run = RunDir.open(out, force=force)
    write_sheet(run, [design], with_text=config.with_text)
    facts = {
        **run_facts("canary-audit", run.path, config, given, command, device=measured.device),
        "design": design_facts(design),
        "training": training,
        "survival": survived,
        "not_run": not_run,
        "timings": {"asking": round(time.monotonic() - started, 1)},
    }
    conclude(run, measured, probe, facts, level=config.level)
    for item in not_run:
        if item["what"] == TRUST:
            say(item["reason"])
    memo.path.unlink(missing_ok=True)
    return run.path


def checkpoint_step(name: str, training: Mapping[str, Any] | None, design: Design) -> int:
    """Updates behind a model: the number in `checkpoint-N`, else the length of its training."""
    found = re.search(r"checkpoint-(\d+)/?$", name)
    return int(found.group(1)) if found else int(_first(training, "steps", "global_step") or design.n_steps)


def _first(facts: Mapping[str, Any] | None, *keys: str) -> Any:
    return next((facts[key] for key in keys if facts.get(key)), None) if facts else None
