"""What the canary sub-commands do beside the audits themselves: write a design, check one, sum up a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from indelible.canaries.config import DesignConfig
from indelible.canaries.design import build_design
from indelible.canaries.folder import HELDOUT, read_design, write_design
from indelible.canaries.formats import TRAIN_FILE
from indelible.canaries.preflight import check_lengths, load_renderer, survival, survival_of_labels
from indelible.data.formats import read_records
from indelible.environment import run_facts
from indelible.models.sources import locate
from indelible.progress import say
from indelible.report.canary_wording import said_of_screens
from indelible.runs import RunDir


def make_design(
    config: DesignConfig,
    given: Mapping[str, Any],
    out: Path,
    *,
    model: str | None,
    max_tokens: int | None,
    template: str | None,
    force: bool,
    command: Sequence[str],
) -> str:
    """Build, check and write a design; what was written, in words.

    Raises:
        UserError: one line; nothing is written where a code would not survive.
    """
    if model is not None:
        locate(model)
    RunDir.check(out, force=force)
    design, rows, displaced = build_design(config)
    survived = None
    if model is None:
        say("not checked against a tokenizer: give --model, or run `indelible canary check` before training")
    else:
        chat, limit = load_renderer(model, on_screens=design.on_screens, template=template)
        limit = min(max_tokens or limit, limit)
        survived = survival(design, chat, max_tokens=limit)
        check_lengths(rows, chat, max_tokens=limit)
    run = RunDir.open(out, force=force)
    facts = run_facts("canary-design", run.path, design.config, given, command, device="none")
    write_design(run, design, rows, displaced, {**facts, "survival": survived})
    in_training = dict.fromkeys(c.role for c in design.canaries if c.role != "control")
    roles = ", ".join(f"{len(design.of(role))} {role}" for role in in_training)
    n_controls = len(design.of("control"))
    lines = [
        (
            f"{run.path / TRAIN_FILE}: {design.n_rows} rows, {len(design.insertions)} of them canaries ({roles}); "
            f"{n_controls} controls are in none of them"
        ),
        f"one pass, unshuffled, unpacked, {config.batch_size} rows an update: {design.n_steps} updates",
    ]
    if config.task.name == "file":
        n_held = len(design.heldout)
        lines.append(f"{n_held} of your rows are held out, to measure utility (--heldout): {run.path / HELDOUT}")
    if design.checkpoints:
        lines.append("save checkpoints at updates " + ", ".join(map(str, design.checkpoints)))
    if survived:
        lines.append(
            f"all {survived['canaries']} planted codes survive tokenisation and truncation and lie under the loss "
            f"(longest row {survived['longest_row_tokens']} tokens)"
        )
    if survived and design.on_screens:
        lines.append(said_of_screens(survived))
    return "\n".join(lines)


def check_design(path: Path, model: str, *, max_tokens: int | None, labels: Path | None, template: str | None) -> str:
    """The pre-flight of a design on disk.

    Raises:
        DataError: a code would not be trained on.
    """
    design = read_design(path)
    chat, limit = load_renderer(model, on_screens=design.on_screens, template=template)
    limit = min(max_tokens or limit, limit)
    facts = survival(design, chat, max_tokens=limit)
    task = design.config.task
    records = read_records(path / TRAIN_FILE, format=task.format, columns=task.columns).records
    check_lengths(records, chat, max_tokens=limit)
    said = f"{facts['canaries']} planted codes survive; longest row {facts['longest_row_tokens']} tokens"
    if design.on_screens:
        said += f"; {said_of_screens(facts)}"
    if labels is not None:
        found = survival_of_labels(design, chat, labels)
        said += f"; the trainer's own labels supervise all {found['supervised']} canary rows"
    return said


def summary(path: Path) -> str:
    """A finished canary run in a few lines."""
    said = json.loads((path / "verdict.json").read_text(encoding="utf-8"))
    lines = [f"{said['overall']['word']}: {'; '.join(said['overall']['reasons'])}"]
    lines += [f"  {c['word']}: {c['statement']}" for c in said["conclusions"]]
    return "\n".join([*lines, str(path / "report.html")])
