"""The working folder of a sweep: sets of rows, models and audits, each made once, whatever stops the sweep."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from indelible.config import TrainConfig
from indelible.data.records import Query
from indelible.environment import versions
from indelible.errors import UserError
from indelible.models.sources import locate
from indelible.progress import say
from indelible.runs import MANIFEST, read_json, write_json
from indelible.sweep.code import code_digest, with_contents
from indelible.sweep.config import FidelityOptions, GapOptions, ModelPlan, SweepConfig
from indelible.sweep.data import WRITTEN, Rows, RowSet
from indelible.sweep.plan import ROLES, SETS, Cell, audit_config, digest, lineage, training_config

TRAINING_LOG = "training_log.parquet"
TRAINING = "training.json"
EPOCHS = "epochs.json"

TRAINER, AUDITOR = "indelible.training.run", "indelible.audit"
"""Modules whose sources, with all they import, decide a training and an audit."""

_MEASURED = {"gap": ("members", "nonmembers"), "fidelity": ("records", "pool")}
"""Settings of a measure that name a set of rows."""


@dataclass(frozen=True)
class Done:
    """A cell after its turn: its run directory, or why there is none."""

    cell: Cell
    path: Path | None
    reason: str | None = None


class Bench:
    """The folder and what is in it. Everything is found by a hash of what decides it."""

    def __init__(self, config: SweepConfig, work: Path, rows: Rows | None = None, command: Sequence[str] = ()) -> None:
        self.config, self.work, self.command = config, work, list(command)
        self.rows = rows or Rows(work / "data")
        self._given: dict[str, str] = {}
        self._epochs: dict[str, frozenset[int]] = {}

    def set_of(self, cell: Cell, name: str) -> RowSet:
        """A set of rows of a cell."""
        return self.rows.get(cell.data, cell.seed, name)

    def training_set(self, cell: Cell, plan: ModelPlan) -> RowSet:
        """The rows a model is trained on, in their order."""
        return self.rows.get(cell.data, cell.seed, str(plan.rows), plan.arrange)

    def key(self, cell: Cell, label: str) -> str:
        """A hash of what decides a training (or the given model), whatever its epoch: settings, rows, what it starts
        from, the trainer's source. Trainings on the same rows in the same way are one.

        A model of a hub goes by its name.
        """
        plan = cell.models[label]
        if plan.start is None:
            return self._given_key(str(plan.path))
        start = self.state_key(cell, plan.start)
        training = training_config(plan, cell.seed).model_dump(mode="json", exclude={"model", "train", "out", "data"})
        return digest(code_digest(TRAINER), machine(), start, self.training_set(cell, plan).sha256, training)

    def state_key(self, cell: Cell, label: str) -> str:
        """A hash of a model's weights: the training's, at its epoch."""
        plan = cell.models[label]
        if plan.start is not None and plan.epoch == 0:
            return self.state_key(cell, plan.start)
        if plan.start is None or plan.epoch in (None, training_config(plan, cell.seed).epochs):
            return self.key(cell, label)
        return digest(self.key(cell, label), plan.epoch)

    def _given_key(self, path: str) -> str:
        if path not in self._given:
            local = not path.startswith("builtin:") and Path(path).expanduser().exists()
            self._given[path] = locate(path).fingerprint() if local else path
        return self._given[path]

    def trainings(self, cell: Cell) -> dict[str, str]:
        """Key to label of every training that a cell needs, first ones first."""
        trained = [one for one in self._labels(cell) if cell.models[one].start is not None]
        return {self.key(cell, one): one for one in trained if cell.models[one].epoch != 0}

    def cell_key(self, cell: Cell) -> str:
        """A hash of everything that decides a cell's outcome: settings and the files they name, models, rows, and the
        source that measures."""
        if cell.measure is not None:
            settings = _by_content(cell.measure.model_dump(mode="json"))
            models, sets = {"model": cell.measure.model}, {k: settings[k] for k in _MEASURED[cell.measure.kind]}
        else:
            settings = _by_content(audit_config(cell).model_dump(mode="json"))
            models, sets = ({k: str(cell.audit[k]) for k in keys if cell.audit.get(k)} for keys in (ROLES, SETS))
        hashes = {key: self.state_key(cell, label) for key, label in models.items()}
        hashes |= {key: self.set_of(cell, name).sha256 for key, name in sets.items()}
        source = code_digest(AUDITOR if cell.measure is None else f"indelible.sweep.{cell.measure.kind}")
        return digest(source, machine(), cell.seed, self.config.level, settings | hashes)

    def folder(self, cell: Cell) -> Path:
        """The run directory of a cell: that of an equal one, whatever another study called it, where there is one."""
        cells, key = self.work / "cells", self.cell_key(cell)[:10]
        return min(cells.glob(f"*-{key}"), default=cells / f"{cell.slug}-{key}")

    def finished(self, cell: Cell) -> bool:
        """Whether a cell is at hand."""
        return (self.folder(cell) / MANIFEST).exists()

    def model(self, cell: Cell, label: str) -> str:
        """Where a model is; trained first where it has to be. A training that was cut off starts again."""
        plan = cell.models[label]
        if plan.start is None:
            return str(plan.path)
        if plan.epoch == 0:
            return self.model(cell, plan.start)
        folder = self.work / "models" / self.key(cell, label)
        wanted = self._epochs.get(folder.name, frozenset())
        ends = read_json(folder / EPOCHS, dict) if (folder / EPOCHS).exists() else None
        if ends is None or not wanted <= {int(epoch) for epoch in ends}:
            self._train(cell, label, folder, wanted | {int(epoch) for epoch in ends or ()})
            ends = read_json(folder / EPOCHS, dict)
        if plan.epoch in (None, training_config(plan, cell.seed).epochs):
            return str(folder)
        return str(folder / f"checkpoint-{ends[str(plan.epoch)]}")

    def _train(self, cell: Cell, label: str, folder: Path, epochs: frozenset[int]) -> None:
        from indelible.training.run import run_train

        plan = cell.models[label]
        partial = folder.with_name(folder.name + ".part")
        for old in (partial, folder):
            shutil.rmtree(old, ignore_errors=True)
        rows = self.training_set(cell, plan)
        places = {"model": self.model(cell, str(plan.start)), "train": str(rows.path), "out": str(partial)}
        config = training_config(plan, cell.seed, **places).model_copy(update={"data": WRITTEN})
        ends = epoch_ends(config, rows) if epochs else []
        save_at = {epoch: ends[epoch - 1] for epoch in sorted(epochs)}
        say(f"training {label} on {plan.rows}")
        run_train(config.model_copy(update={"save_at": tuple(save_at.values())}))
        logs = self.logs(folder.name)
        logs.mkdir(parents=True, exist_ok=True)
        for name in (TRAINING_LOG, TRAINING):
            shutil.copyfile(partial / name, logs / name)
        write_json(partial / EPOCHS, {str(epoch): step for epoch, step in save_at.items()})
        partial.rename(folder)

    def logs(self, key: str) -> Path:
        """Where what a training left beside its weights is kept."""
        return self.work / "trainings" / key

    def prepare(self, cells: Sequence[Cell]) -> tuple[list[Cell], list[Done]]:
        """Write all sets of rows.

        Returns:
            the cells that can run, and those whose rows cannot be had, with the reason.

        Raises:
            UserError: the rows of no cell can be had: a file is missing, or has fewer rows than are asked of it.
        """
        ready, lost = [], []
        errors: list[UserError] = []
        for cell in cells:
            try:
                for name in (*cell.data.files,):
                    if self._uses(cell, name):
                        self.rows.table(cell.data.files[name])
                self.cell_key(cell)  # draws every set
            except UserError as error:
                errors.append(error)
                lost.append(Done(cell, None, str(error)))
                continue
            ready.append(cell)
        if not ready:
            raise errors[0]
        for cell in ready:
            for label in self._labels(cell):
                self._note_epoch(cell, label)
        return ready, lost

    def _uses(self, cell: Cell, file: str) -> bool:
        """Whether a cell reads a file."""
        asked = set(self.sets(cell))
        for mix in (cell.data.mixes[name] for name in list(asked) if name in cell.data.mixes):
            asked |= {mix.of, mix.by}
        return bool(asked & {*cell.data.splits}) if file == cell.data.main else file in asked

    def sets(self, cell: Cell) -> list[str]:
        """The sets that a cell asks about or trains on."""
        if cell.measure is not None:
            own = [getattr(cell.measure, key) for key in _MEASURED[cell.measure.kind]]
        else:
            own = [str(cell.audit[key]) for key in SETS if cell.audit.get(key) is not None]
        return [*own, *(str(cell.models[label].rows) for label in self._labels(cell) if cell.models[label].rows)]

    def _labels(self, cell: Cell) -> list[str]:
        """The models of a cell and those they are trained from, first ones first."""
        if cell.measure is not None:
            own = [cell.measure.model]
        else:
            own = [str(cell.audit[role]) for role in ROLES if cell.audit.get(role) is not None]
        return list(dict.fromkeys(one for label in own for one in reversed(lineage(cell, label))))

    def _note_epoch(self, cell: Cell, label: str) -> None:
        plan = cell.models[label]
        if plan.epoch and plan.epoch < training_config(plan, cell.seed).epochs:
            key = self.key(cell, label)
            self._epochs[key] = self._epochs.get(key, frozenset()) | {plan.epoch}

    def run(self, cell: Cell) -> Path:
        """A cell's run directory; nothing is done where it is at hand.

        Raises:
            UserError: it cannot be run here, with the reason.
        """
        folder = self.folder(cell)
        if self.finished(cell):
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(cell.measure, GapOptions):
            from indelible.sweep.gap import run_gap

            members, nonmembers = (self.set_of(cell, name) for name in (cell.measure.members, cell.measure.nonmembers))
            model = self.model(cell, cell.measure.model)
            run_gap(cell.measure, model, members, nonmembers, seed=cell.seed, out=folder, level=self.config.level)
        elif isinstance(cell.measure, FidelityOptions):
            from indelible.sweep.fidelity import run_fidelity

            records, pool = (self.set_of(cell, name) for name in (cell.measure.records, cell.measure.pool))
            model = self.model(cell, cell.measure.model)
            run_fidelity(cell.measure, model, records, pool, seed=cell.seed, out=folder, level=self.config.level)
        else:
            from indelible.audit import run_audit

            config = audit_config(cell, **self._places(cell, folder))
            # An attack that cannot run is left out, and the run says why: it is no reason to lose a cell.
            run_audit(config, config.model_dump(mode="json"), command=self.command, forgiving=True)
        return folder

    def _places(self, cell: Cell, folder: Path) -> dict[str, Any]:
        models = {r: self.model(cell, str(cell.audit[r])) for r in ROLES if cell.audit.get(r) is not None}
        sets = {s: str(self.set_of(cell, str(cell.audit[s])).path) for s in SETS if cell.audit.get(s) is not None}
        return {**models, **sets, "out": str(folder), "data": WRITTEN.model_dump()}

    def forget(self, key: str) -> None:
        """Delete a model's weights; its log stays."""
        shutil.rmtree(self.work / "models" / key, ignore_errors=True)


@functools.cache
def machine() -> list[Any]:
    """What decides numbers beside settings and sources: versions of packages, and what `auto` comes to here."""
    from indelible.models.causal import default_device, default_dtype

    device = default_device()
    return [versions(), str(device), str(default_dtype(device))]


def _by_content(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which files that they name stand for what they hold; models and rows are hashed on their own."""
    named = ("settings", "embedder", "load")
    return {key: with_contents(value) if key in named else value for key, value in settings.items()}


def epoch_ends(config: TrainConfig, rows: RowSet) -> list[int]:
    """The last optimiser step of each epoch of a training: rows that are too long do not count."""
    from indelible.canaries.preflight import load_chat
    from indelible.training.sft import plan_steps

    chat, context = load_chat(
        config.model, template=config.template, trust_remote_code=config.trust_remote_code, chat_data=rows.chat
    )
    chat = replace(chat, system=config.system if config.system is not None else chat.system)
    encoded = [chat.encode(Query(r.messages, r.target)) for r in rows.records]
    kept = sum(len(e) <= min(config.max_tokens, context) and bool(e.is_target.any()) for e in encoded)
    plan = plan_steps(kept, config)
    return [max(i for i, (of, _) in enumerate(plan, start=1) if of == epoch) for epoch in range(1, config.epochs + 1)]
