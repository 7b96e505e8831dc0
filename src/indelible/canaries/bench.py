"""The working folder of a canary run: designs, models and readings, each made once, whatever stops the run."""

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

from indelible.canaries.config import CanaryRunConfig
from indelible.canaries.design import Design, build_design
from indelible.canaries.exposure import Memo, ask_probes, make_bank
from indelible.canaries.folder import read_design, write_design
from indelible.canaries.formats import TRAIN_FILE
from indelible.canaries.measure import Part, load_options, measure, wanted_probes
from indelible.canaries.plan import Trial, clean_trial, digest, protocol_of
from indelible.canaries.preflight import check_lengths, load_renderer, survival
from indelible.canaries.readings import Checkpoint, measure_utility
from indelible.config import DataOptions, TrainConfig
from indelible.data.formats import read_records
from indelible.data.records import Query
from indelible.environment import run_facts
from indelible.errors import ConfigError, UserError
from indelible.models.builtin import file_sha256
from indelible.models.causal import CausalModel
from indelible.models.load import load_model
from indelible.models.sources import Source
from indelible.progress import say
from indelible.runs import MANIFEST, RunDir, write_json


class Bench:
    """The working folder, and the base model once it is loaded."""

    def __init__(self, config: CanaryRunConfig, work: Path, *, on_screens: bool = False) -> None:
        self.config, self.work, self.on_screens = config, work, on_screens
        self.memo = Memo(work / "answers.jsonl")
        self.survived: dict[str, Any] = {}
        self.chat, self.context_length = load_renderer(
            config.model,
            on_screens=on_screens,
            template=config.load.template,
            trust_remote_code=config.load.trust_remote_code,
        )
        self._base: tuple[CausalModel, Source] | None = None

    def folder(self, trial: Trial) -> Path:
        """Where a trial's design is."""
        return self.work / "designs" / trial.name

    def design(self, trial: Trial) -> Design:
        """The design of a trial, written once and checked.

        Raises:
            UserError: a code would not survive, or there is nothing to ask.
        """
        folder = self.folder(trial)
        limit = min(trial.training.max_tokens, self.context_length)
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)
            design, rows, displaced = build_design(trial.design)
            check_lengths(rows, self.chat, max_tokens=limit)
            facts = run_facts("canary-design", folder, design.config, {}, [], device="none")
            write_design(RunDir.open(folder), design, rows, displaced, facts, pictures=self.work / "pictures")
        design = read_design(folder)
        if design.canaries:
            self.survived[trial.name] = survival(design, self.chat, max_tokens=limit)
        return design

    def model_key(self, trial: Trial) -> str:
        """Trainings on the same rows in the same way are one training."""
        rows = file_sha256(self.folder(trial) / TRAIN_FILE)
        training = trial.training.model_dump(mode="json")
        return digest(rows, self.config.model, training, trial.design.batch_size, trial.seed)

    def train(self, trial: Trial, design: Design) -> Path:
        """The tuned model's folder; a training that was cut off starts again."""
        from indelible.training.run import run_train

        folder = self.work / "models" / self.model_key(trial)
        if folder.exists():
            return folder
        partial = folder.with_name(folder.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        task = trial.design.task
        run_train(
            TrainConfig(
                model=self.config.model,
                train=str(self.folder(trial) / TRAIN_FILE),
                out=str(partial),
                epochs=1,
                shuffle=False,
                batch_size=trial.design.batch_size,
                seed=trial.seed,
                save_at=tuple(saved_steps(trial, design)),
                data=DataOptions(format=task.format, columns=task.columns),
                template=self.config.load.template,
                trust_remote_code=self.config.load.trust_remote_code,
                **trial.training.model_dump(exclude={"save_at"}),
            )
        )
        partial.rename(folder)
        return folder

    def models_of(self, trial: Trial) -> list[str]:
        """Keys of the models that a trial asks: its own, and the one without canaries."""
        return [self.model_key(one) for one in (trial, *self._cleans([trial]))]

    def forget(self, key: str) -> None:
        """Delete a model."""
        shutil.rmtree(self.work / "models" / key, ignore_errors=True)

    def _cleans(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trainings without canaries that trials are held against, each once."""
        return list({clean.name: clean for clean in map(clean_trial, trials)}.values()) if self.config.clean else []

    def prepare(self, trials: Sequence[Trial]) -> dict[str, Design]:
        """All designs, written and checked before anything is trained."""
        designs = {trial.name: self.design(trial) for trial in (*trials, *self._cleans(trials))}
        for trial in trials:
            saved_steps(trial, designs[trial.name])
            if not wanted_probes(designs[trial.name], trial.probe, "target"):
                raise ConfigError(f"arm '{trial.condition}': it has no canaries, or none that probe.probes asks about")
        return designs

    def measure(self, trial: Trial, designs: Mapping[str, Design]) -> list[Part]:
        """Readings of a trial's tuned model at every checkpoint, and of the base and the clean model."""
        design = designs[trial.name]
        steps = [*saved_steps(trial, design), design.n_steps]
        protocol = protocol_of(trial.design, trial.training.model_dump(mode="json"), self.config.model)
        asked = [("target", step) for step in steps]
        asked += [("base", 0)] if trial.probe.base else []
        asked += [("clean", design.n_steps)] if self.config.clean else []
        return [
            self._part(
                trial,
                designs,
                Checkpoint(trial.condition, role, step, design.n_steps, trial.training.schedule, protocol),
            )
            for role, step in asked
        ]

    def _part(self, trial: Trial, designs: Mapping[str, Design], checkpoint: Checkpoint) -> Part:
        stem = self.work / "measured" / f"{trial.name}-{checkpoint.model}-{checkpoint.step}"
        table, facts = stem.with_name(stem.name + ".parquet"), stem.with_name(stem.name + ".json")
        if not facts.exists():  # written last
            model, source = self._model(trial, designs, checkpoint)
            design = designs[trial.name]
            if checkpoint.model != "target":
                design = replace(design, insertions=())  # it never saw a canary
            options = load_options(self.config.load, images=self.on_screens) if checkpoint.model == "target" else None
            level = self.config.level
            part = measure(model, source, design, checkpoint, trial.probe, self.memo, level=level, drift=options)
            if checkpoint.model != "base":  # its folder will be gone
                part.model["source"] = f"{self.config.model}, trained as {trial.name}, {checkpoint.model}"
            table.parent.mkdir(parents=True, exist_ok=True)
            part.frame.to_parquet(table, index=False)
            stored = {key: getattr(part, key) for key in ("role", "utility", "model", "dtype", "device", "drift")}
            write_json(facts, stored, nan_as_null=True)
        return Part(frame=pd.read_parquet(table), **json.loads(facts.read_text(encoding="utf-8")))

    def _model(self, trial: Trial, designs: Mapping[str, Design], checkpoint: Checkpoint) -> tuple[CausalModel, Source]:
        options = load_options(self.config.load, images=self.on_screens)
        if checkpoint.model == "base":
            return self.base()
        trained = clean_trial(trial) if checkpoint.model == "clean" else trial
        folder = self.train(trained, designs[trained.name])
        last = checkpoint.step == checkpoint.n_steps
        return load_model(str(folder if last else folder / f"checkpoint-{checkpoint.step}"), options)

    def base(self) -> tuple[CausalModel, Source]:
        """The model before training."""
        self._base = self._base or load_model(self.config.model, load_options(self.config.load, images=self.on_screens))
        return self._base

    def choose_rates(self, trials: Sequence[Trial], designs: Mapping[str, Design]) -> list[dict[str, Any]]:
        """For every way of training among the trials, the learning rate with the lowest held-out loss after a training
        without canaries, first seed. An arm that states a rate of its own keeps it.

        Returns:
            the ways of training with `chosen` and the loss of every rate tried (nats a token of the answer; null where
            the training diverged or a row could not be scored, which loses); kept on disk.
        """
        kept = self.work / "learning_rates.json"
        if kept.exists():
            return list(json.loads(kept.read_text(encoding="utf-8")))
        found = []
        for like in {variant(trial): trial for trial in reversed(trials) if not self.states_rate(trial)}.values():
            losses = {f"{rate:g}": self._heldout_loss(like, designs, rate) for rate in self.config.learning_rates}
            able = [rate for rate in self.config.learning_rates if losses[f"{rate:g}"] is not None]
            if not able:
                raise UserError("no learning rate of learning_rates gave a finite held-out loss: give lower ones")
            best = min(able, key=lambda rate: losses[f"{rate:g}"] or 0.0)
            found.append({"variant": variant(like), "chosen": best, "heldout_loss": losses, "seed": like.seed})
        write_json(kept, found)
        return found

    def states_rate(self, trial: Trial) -> bool:
        """Whether an arm names a learning rate of its own."""
        return "learning_rate" in ((self.config.arms[trial.condition] or {}).get("training") or {})

    def _heldout_loss(self, like: Trial, designs: Mapping[str, Design], rate: float) -> float | None:
        asked = clean_trial(like)
        design = designs[asked.name] if asked.name in designs else self.design(asked)
        trial = replace(asked, training=asked.training.model_copy(update={"learning_rate": rate}))
        if not design.heldout:
            raise ConfigError("a learning rate is chosen on held-out rows: give design.heldout")
        try:
            model, _ = load_model(
                str(self.train(trial, design)), load_options(self.config.load, images=self.on_screens)
            )
        except UserError as error:
            say(f"learning rate {rate:g}: {error}")
            return None
        checkpoint = Checkpoint("rate", "clean", design.n_steps, design.n_steps, trial.training.schedule, "")
        row, _ = measure_utility(model, design, design.heldout, checkpoint, level=self.config.level, accuracy=False)
        self.forget(self.model_key(trial))
        say(f"learning rate {rate:g}: held-out loss {row['heldout_loss']}")
        return None if row["reason"] else float(str(row["heldout_loss"]))

    def estimate(self, trials: Sequence[Trial], designs: Mapping[str, Design]) -> str:
        """What is ahead, in words. The rates are measured on one probe and a few rows of the base model."""
        tokens: dict[str, int] = {}
        for trial in (*trials, *self._cleans(trials)):
            if not (self.work / "models" / self.model_key(trial)).exists():
                tokens.setdefault(self.model_key(trial), self._tokens(trial, designs[trial.name]))
        n_rates = len(self.config.learning_rates) * len({variant(t) for t in trials if not self.states_rate(t)})
        n_tokens = sum(tokens.values()) + n_rates * max(tokens.values(), default=0)
        n_probes = 0
        for trial in trials:
            n_checkpoints = len(saved_steps(trial, designs[trial.name])) + 1
            n_probes += n_checkpoints * len(wanted_probes(designs[trial.name], trial.probe, "target"))
            n_probes += len(wanted_probes(designs[trial.name], trial.probe, "clean")) if self.config.clean else 0
            n_probes += len(wanted_probes(designs[trial.name], trial.probe, "base")) if trial.probe.base else 0
        n_trainings = len(tokens) + n_rates
        said = f"{n_trainings} trainings, {n_tokens:,} tokens to train on, at most {n_probes} probes"
        model, _ = self.base()
        design, options = designs[trials[0].name], trials[0].probe
        timing = self.work / "timing.jsonl"
        timing.unlink(missing_ok=True)
        begin = time.monotonic()
        one = wanted_probes(design, options, "target")[:1]
        ask_probes(model, make_bank(design, options.decoys), one, options, Memo(timing), stage="timing one probe")
        per_probe = time.monotonic() - begin
        rows = [model.encode(Query(design.turns(r.messages), r.answer, r.images)) for r in design.heldout[:32]]
        begin = time.monotonic()
        for _ in model.stream(rows):
            pass
        rate = sum(map(len, rows)) / max(time.monotonic() - begin, 1e-9) if rows else math.inf
        # a training token costs about three scored ones: forward, and backward twice that
        minutes = (3 * n_tokens / rate + n_probes * per_probe) / 60
        return f"{said}: up to {minutes:.0f} min on this machine, less what is at hand and what is asked twice"

    def _tokens(self, trial: Trial, design: Design) -> int:
        task = trial.design.task
        records = read_records(self.folder(trial) / TRAIN_FILE, format=task.format, columns=task.columns).records
        some = records[:: max(1, len(records) // 50)]
        mean = sum(len(self.chat.encode(Query(r.messages, r.target, r.images))) for r in some) / len(some)
        return int(mean * design.n_rows)


def variant(trial: Trial) -> str:
    """A way of training, its learning rate aside."""
    return digest(trial.training.model_dump(mode="json", exclude={"learning_rate", "save_at"}))


def saved_steps(trial: Trial, design: Design) -> list[int]:
    """Updates before the last at which checkpoints are kept.

    Raises:
        ConfigError: one of them does not come.
    """
    late = [step for step in trial.training.save_at if step > design.n_steps]
    if late:
        raise ConfigError(f"training.save_at {late[0]}: this training has {design.n_steps} updates")
    return sorted({s for s in (*design.checkpoints, *trial.training.save_at) if s < design.n_steps})
