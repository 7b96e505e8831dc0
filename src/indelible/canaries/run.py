"""`indelible canary run`: design, train, audit and report over arms and seeds; what is finished is never done again."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from indelible.canaries.compare import common_settings
from indelible.canaries.config import CanaryRunConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.exposure import Memo, ask_probes, make_bank
from indelible.canaries.folder import INSERTIONS, design_facts, file_hash, read_design, write_design
from indelible.canaries.formats import TRAIN_FILE
from indelible.canaries.measure import Measured, Part, conclude, load_options, measure, missing_probes, wanted_probes
from indelible.canaries.plan import CLEAN, Cell, Cost, background_of, digest, plan_cells
from indelible.canaries.preflight import check_lengths, load_chat, survival
from indelible.canaries.readings import Checkpoint, measure_utility
from indelible.config import DataOptions, TrainConfig
from indelible.data.records import Query
from indelible.environment import default_out, run_facts
from indelible.errors import ConfigError, UserError
from indelible.models.causal import CausalModel
from indelible.models.load import load_model
from indelible.models.sources import Source, locate
from indelible.progress import say
from indelible.runs import MANIFEST, RunDir, read_manifest, write_json

SETTINGS = "settings.json"


def run_canaries(config: CanaryRunConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool) -> Path:
    """Run every cell of the plan, and write the run directory.

    Designs, models and readings live in `OUT-work` until the run is done; a run that was stopped anywhere goes on
    there, with the same outcome.

    Raises:
        UserError: one line saying what to mend.
    """
    cells = plan_cells(config)
    locate(config.model)
    out = Path(config.out or default_out("canary", (config.name or "run").removeprefix("canary-")))
    work = _open_work(out, config, force=force)
    run = RunDir.open(out, force=force)
    started = time.monotonic()
    bench = _Bench(config, work)
    chosen = None
    if config.learning_rates:
        chosen = bench.choose_rate(cells[0])
        cells = plan_cells(
            config.model_copy(update={"training": {**config.training, "learning_rate": chosen["chosen"]}})
        )
    designs = {cell: bench.design(cell) for cell in cells}
    say(bench.estimate(designs))
    measured = Measured()
    last_use = {bench.model_key(cell): i for i, cell in enumerate(cells)}
    for i, cell in enumerate(cells):
        say(f"[{i + 1}/{len(cells)}] {cell.condition}, seed {cell.seed}")
        for part in bench.measure(cell, designs[cell]):
            measured.add(part)
        if not config.keep_models and last_use[bench.model_key(cell)] == i:
            shutil.rmtree(work / "models" / bench.model_key(cell), ignore_errors=True)
    first = next(cell for cell in cells if not cell.clean)
    facts = {
        **run_facts("canary-run", run.path, config, given, command, device=measured.device),
        "design": design_facts(designs[first]),
        "designs": {cell.name: read_manifest(work / "designs" / cell.name)["design"] for cell in cells},
        "training": {
            "optimizer": "AdamW",
            **common_settings([cell.training.model_dump(mode="json") for cell in cells if not cell.clean]),
            "batch_size": first.design.batch_size,
            "n_steps": designs[first].n_steps,
            "learning_rate_choice": chosen,
        },
        "survival": bench.survived,
        "not_run": [*bench.not_run(cells), *missing_probes(designs[first], first.probe)],
        "timings": {"total": round(time.monotonic() - started, 1)},
    }
    ledgers = [
        pd.read_parquet(work / "designs" / cell.name / INSERTIONS).assign(condition=cell.condition, seed=cell.seed)
        for cell in cells
        if not cell.clean
    ]
    run.write_parquet(INSERTIONS, pd.concat(ledgers, ignore_index=True))
    conclude(run, measured, first.probe, facts, level=config.level)
    if not config.keep_models:
        shutil.rmtree(work)
    return run.path


class _Bench:
    """The working folder: designs, models, readings, each made once."""

    def __init__(self, config: CanaryRunConfig, work: Path) -> None:
        self.config, self.work = config, work
        self.memo = Memo(work / "answers.jsonl")
        self.survived: dict[str, Any] = {}
        self.chat, self.context_length = load_chat(
            config.model,
            template=config.load.template,
            trust_remote_code=config.load.trust_remote_code,
            chat_data=True,
        )
        self._base: tuple[CausalModel, Source] | None = None

    def design(self, cell: Cell) -> Design:
        """The design of a cell, written once and checked."""
        folder = self.work / "designs" / cell.name
        limit = min(cell.training.max_tokens, self.context_length)
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)
            design, rows, displaced = build_design(cell.design)
            if cell.clean:
                _, rows, displaced = build_design(background_of(cell.design))
                design = replace(design, insertions=())  # asked about canaries that it never saw
            check_lengths(rows, self.chat, max_tokens=limit)
            facts = run_facts("canary-design", folder, design.config, {}, [], device="none")
            write_design(RunDir.open(folder), design, rows, displaced, facts)
        design = read_design(folder)
        if not cell.clean:
            self.survived[cell.name] = survival(design, self.chat, max_tokens=limit)
        return design

    def model_key(self, cell: Cell) -> str:
        """Trainings on the same rows in the same way are one training."""
        rows = file_hash(self.work / "designs" / cell.name / TRAIN_FILE)
        batch = cell.design.batch_size
        return digest(rows, self.config.model, cell.training.model_dump(mode="json"), str(batch), str(cell.seed))

    def train(self, cell: Cell, design: Design) -> Path:
        """The tuned model's folder."""
        from indelible.training.run import run_train

        folder = self.work / "models" / self.model_key(cell)
        if folder.exists():
            return folder
        partial = folder.with_name(folder.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        settings = cell.training.model_dump(exclude={"save_at"})
        run_train(
            TrainConfig(
                model=self.config.model,
                train=str(self.work / "designs" / cell.name / TRAIN_FILE),
                out=str(partial),
                epochs=1,
                shuffle=False,
                batch_size=cell.design.batch_size,
                seed=cell.seed,
                save_at=tuple(_saved(cell, design)),
                data=DataOptions(format=cell.design.task.format, columns=cell.design.task.columns),
                template=self.config.load.template,
                trust_remote_code=self.config.load.trust_remote_code,
                **settings,
            )
        )
        partial.rename(folder)
        return folder

    def choose_rate(self, like: Cell) -> dict[str, Any]:
        """The learning rate with the lowest held-out loss after a training without canaries.

        Returns:
            `chosen`, and the loss of every rate tried (nats a token of the answer); kept on disk.
        """
        kept = self.work / "learning_rate.json"
        if kept.exists():
            return dict(json.loads(kept.read_text(encoding="utf-8")))
        losses: dict[str, float] = {}
        folders: dict[float, Path] = {}
        for rate in self.config.learning_rates:
            training = like.training.model_copy(update={"learning_rate": rate})
            cell = replace(like, condition=f"{CLEAN}-rate-{rate:g}", training=training, clean=True)
            design = self.design(cell)
            model, _ = load_model(str(self.train(cell, design)), load_options(self.config.load))
            checkpoint = Checkpoint(cell.condition, "clean", design.n_steps, design.n_steps, training.schedule)
            row, _ = measure_utility(model, design, design.heldout, checkpoint, level=self.config.level)
            if row["heldout_loss"] is None:
                raise UserError("a learning rate is chosen on held-out rows: give design.heldout")
            losses[f"{rate:g}"] = float(str(row["heldout_loss"]))
            say(f"learning rate {rate:g}: held-out loss {losses[f'{rate:g}']:.4f}")
            folders[rate] = self.work / "models" / self.model_key(cell)
        best = min(folders, key=lambda rate: losses[f"{rate:g}"])
        for rate, folder in folders.items():
            if rate != best:
                shutil.rmtree(folder)
        found = {"chosen": best, "heldout_loss": losses, "seed": like.seed}
        write_json(kept, found)
        return found

    def measure(self, cell: Cell, design: Design) -> list[Part]:
        """Readings of a cell's tuned model at every checkpoint, and of the base on the same probes."""
        parts = []
        steps = [] if cell.clean else _saved(cell, design)
        for step in [*steps, design.n_steps]:
            role = "clean" if cell.clean else "target"
            checkpoint = Checkpoint(cell.condition, role, step, design.n_steps, cell.training.schedule)
            parts.append(self._part(cell, design, checkpoint))
        if cell.probe.base and not cell.clean:
            parts.append(
                self._part(cell, design, Checkpoint(cell.condition, "base", 0, design.n_steps, cell.training.schedule))
            )
        return parts

    def _part(self, cell: Cell, design: Design, checkpoint: Checkpoint) -> Part:
        stem = self.work / "measured" / f"{cell.name}-{checkpoint.model}-{checkpoint.step}"
        table, facts = stem.with_name(stem.name + ".parquet"), stem.with_name(stem.name + ".json")
        if facts.exists():  # written last
            stored = json.loads(facts.read_text(encoding="utf-8"))
            return Part(frame=pd.read_parquet(table), **stored)
        model, source = self._model(cell, design, checkpoint)
        checked = None if cell.clean or checkpoint.model != "target" else load_options(self.config.load)
        part = measure(model, source, design, checkpoint, cell.probe, self.memo, level=self.config.level, drift=checked)
        table.parent.mkdir(parents=True, exist_ok=True)
        part.frame.to_parquet(table, index=False)
        stored = {key: getattr(part, key) for key in ("role", "utility", "model", "dtype", "device", "drift")}
        write_json(facts, stored, nan_as_null=True)
        return Part(frame=pd.read_parquet(table), **json.loads(facts.read_text(encoding="utf-8")))

    def _model(self, cell: Cell, design: Design, checkpoint: Checkpoint) -> tuple[CausalModel, Source]:
        options = load_options(self.config.load)
        if checkpoint.model == "base":
            self._base = self._base or load_model(self.config.model, options)
            return self._base
        folder = self.train(cell, design)
        if checkpoint.step < design.n_steps:
            folder = folder / f"checkpoint-{checkpoint.step}"
        return load_model(str(folder), options)

    def estimate(self, designs: Mapping[Cell, Design]) -> str:
        """What is ahead, in words. The rates are measured on one probe of the base model, which is kept."""
        keys: dict[str, int] = {}
        n_probes = 0
        for cell, design in designs.items():
            if not (self.work / "models" / self.model_key(cell)).exists():
                keys.setdefault(self.model_key(cell), self._tokens(cell, design))
            roles = ["clean"] if cell.clean else ["target", "base"][: 1 + cell.probe.base]
            n_probes += sum(len(wanted_probes(design, cell.probe, role)) for role in roles)
        cost = Cost(len(keys), sum(keys.values()), n_probes)
        said = f"{len(designs)} trainings and designs, {cost.training_tokens:,} tokens to train on, {n_probes} probes"
        first = next(iter(designs.values()))
        one = wanted_probes(first, next(iter(designs)).probe, "base")[:1]
        if not one:
            return said
        probe_options = next(iter(designs)).probe
        self._base = self._base or load_model(self.config.model, load_options(self.config.load))
        model = self._base[0]
        begin = time.monotonic()
        ask_probes(model, make_bank(first, probe_options.decoys), one, probe_options, Memo(self.work / "timing.jsonl"),
                   stage="timing one probe")  # fmt: skip
        per_probe = time.monotonic() - begin
        begin = time.monotonic()
        rows = [model.encode(Query(first.turns(r.messages), r.answer)) for r in first.heldout[:32]]
        n_tokens = sum(model.costs(rows)) if rows else 0
        for _ in model.stream(rows):
            pass
        rate = n_tokens / max(time.monotonic() - begin, 1e-9) if n_tokens else math.inf
        seconds = cost.seconds(score_rate=rate, seconds_per_probe=per_probe)
        return f"{said}: about {seconds / 60:.0f} min on this machine, less what is at hand"

    def _tokens(self, cell: Cell, design: Design) -> int:
        from indelible.data.formats import read_records

        task = cell.design.task
        file = self.work / "designs" / cell.name / TRAIN_FILE
        records = read_records(file, format=task.format, columns=task.columns).records
        some = records[:: max(1, len(records) // 50)]
        mean = sum(len(self.chat.encode(Query(r.messages, r.target))) for r in some) / len(some)
        return int(mean * design.n_rows)

    def not_run(self, cells: Sequence[Cell]) -> list[dict[str, str]]:
        """What a reader would expect and will not find."""
        out = []
        if not any(cell.clean for cell in cells):
            out.append({"what": "clean", "reason": "trainings without canaries are switched off (clean: false)"})
        if not any(cell.probe.base for cell in cells):
            out.append({"what": "base", "reason": "probes of the base model are switched off (probe.base: false)"})
        if len(self.config.seeds) < 3:
            out.append(
                {"what": "seeds", "reason": f"{len(self.config.seeds)} training seed(s); three make a conclusion"}
            )
        return out


def _saved(cell: Cell, design: Design) -> list[int]:
    """Updates before the last at which checkpoints are kept."""
    late = [step for step in cell.training.save_at if step > design.n_steps]
    if late:
        raise ConfigError(f"training.save_at {late[0]}: this training has {design.n_steps} updates")
    return sorted({s for s in (*design.checkpoints, *cell.training.save_at) if s < design.n_steps})


def _open_work(out: Path, config: CanaryRunConfig, *, force: bool) -> Path:
    """The working folder beside `out`, empty or of the same settings."""
    if (out / MANIFEST).exists() and not force:
        raise UserError(f"{out} holds a finished run; give another --out, or --force to replace it.")
    work = out.with_name(out.name + "-work")
    settings = config.model_dump(mode="json", exclude={"out", "keep_models", "level", "name", "seeds"})
    if work.exists() and not (work / SETTINGS).exists() and any(work.iterdir()):
        raise UserError(f"{work} exists and was not made by a canary run; give another --out")
    if (work / SETTINGS).exists():
        if force:
            shutil.rmtree(work)
        elif json.loads((work / SETTINGS).read_text(encoding="utf-8")) != settings:
            raise UserError(
                f"{work} belongs to a run with other settings; give another --out, or --force to start anew"
            )
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(work / SETTINGS, settings)
    return work
