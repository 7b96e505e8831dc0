"""What a sweep will cost, before it starts: rows, trainings, tokens through the models, and time where it can be timed.

Tokens are counted by asking a model that is not there: a few records of every audit go through its attacks, whose
questions are tokenised, counted and answered with made-up numbers. What two cells ask alike of one model counts once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from indelible.attacks import FITTED
from indelible.attacks.base import plain
from indelible.config import AuditConfig, ModelOptions
from indelible.data.chat import ChatFormat
from indelible.data.records import Query, Record, Reply
from indelible.errors import UserError
from indelible.forecast import spread
from indelible.models.load import LoadOptions, load_model
from indelible.selection import configured, expand
from indelible.sweep.bench import Bench
from indelible.sweep.config import GapOptions
from indelible.sweep.data import RowSet
from indelible.sweep.dry import Dry, count
from indelible.sweep.plan import ROLES, Cell, audit_config, lineage, training_config, training_settings
from indelible.sweep.steps import MICRO_BATCH_TOKENS
from indelible.training.sft import train_step, use_autocast

N_PILOT = 3
"""Records of an audit whose questions are counted: a short, a middling and a long one."""

SAMPLE = 50
"""Records that a mean length is taken from."""

TIMED_ROWS = 16
TIMED_REPLY = 16
"""Tokens of a timed reply. One that ends sooner is as those of the audits, which are counted in full too."""


@dataclass(frozen=True)
class Cost:
    """What is ahead.

    Attributes:
        rows: set to number of rows, first seed.
        trainings: how many, and `train_tokens` through them (every epoch counted).
        cells: how many audits or measurements, and `at_hand` of all cells are finished already.
        forward_tokens: asked of models by the cells that are left; `written_tokens`, of replies, come one at a time and
            take many times as long.
        seconds: expected on this machine; None where no model could be timed, with the reason.
    """

    rows: Mapping[str, int]
    trainings: int
    train_tokens: int
    cells: int
    at_hand: int
    forward_tokens: int
    written_tokens: int
    seconds: float | None
    why_untimed: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = ", ".join(f"{name} {n}" for name, n in self.rows.items())
        done = f" ({self.at_hand} more are at hand)" if self.at_hand else ""
        lines = [
            f"rows: {rows}",
            f"{self.trainings} trainings, {self.train_tokens:,} tokens to train on",
            f"{self.cells} cells{done}, {self.forward_tokens:,} forward tokens",
        ]
        if self.written_tokens:
            lines[-1] += f", {self.written_tokens:,} tokens of replies at most"
        if self.seconds is None:
            lines.append(f"time: not known ({self.why_untimed})")
        else:
            took = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
            lines.append(f"expected: {took} on this machine, less what cached answers save")
        return "\n".join([*lines, *self.notes])


def estimate(bench: Bench, cells: Sequence[Cell]) -> Cost:
    """What the cells that are not at hand will cost.

    Raises:
        UserError: no tokenizer can be had.
    """
    left = [cell for cell in cells if not bench.finished(cell)]
    counter = _Counter(bench)
    for cell in left:
        counter.add(cell)
    rows = {name: len(bench.set_of(cells[0], name).records) for name in bench.sets(cells[0])}
    seconds, why = _seconds(bench, left, counter) if left else (0.0, "")
    return Cost(
        rows=rows,
        trainings=sum(n > 0 for n in counter.trainings.values()),
        train_tokens=counter.train_tokens,
        cells=len(left),
        at_hand=len(cells) - len(left),
        forward_tokens=counter.forward_tokens,
        written_tokens=counter.written_tokens,
        seconds=seconds,
        why_untimed=why,
        notes=tuple(counter.notes),
    )


@dataclass
class _Counter:
    """Adds up cells; what two of them share counts once."""

    bench: Bench
    forward_tokens: int = 0
    written_tokens: int = 0
    further_tokens: int = 0
    trainings: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    _chats: dict[str, tuple[ChatFormat, int]] = field(default_factory=dict)
    _models: dict[str, Dry] = field(default_factory=dict)
    _prepared: dict[object, list[Record]] = field(default_factory=dict)
    _probes: set[tuple[str, str, str, int]] = field(default_factory=set)

    @property
    def train_tokens(self) -> int:
        return sum(self.trainings.values()) + self.further_tokens

    def add(self, cell: Cell) -> None:
        for key, label in self.bench.trainings(cell).items():
            if key not in self.trainings:
                at_hand = (self.bench.work / "models" / key).exists()
                self.trainings[key] = 0 if at_hand else self._training(cell, label)
        if cell.measure is None:
            self._audit(cell, audit_config(cell))
        elif isinstance(cell.measure, GapOptions):
            self._gap(cell, cell.measure)
        else:
            options = cell.measure
            rows, pool = self.bench.set_of(cell, options.records), self.bench.set_of(cell, options.pool)
            model = self.model(cell, options.model, options.load.template, rows)
            own, other = _mean_length(model, rows.records), _mean_length(model, pool.records)
            n = min(options.batch, len(rows.records)) * options.runs
            # alone for the probes, before and after the step; the step itself is as three passes
            self.forward_tokens += round(6 * n * own)
            asked = (self.bench.state_key(cell, options.model), rows.sha256, pool.sha256, options.top)
            if asked not in self._probes:  # two ways of stepping share the probes
                self._probes.add(asked)
                n_probes = n * min(options.top, len(pool.records))
                # a demonstration stands first, so that records that share it have it computed once
                self.forward_tokens += round(n_probes * own + min(n_probes, len(pool.records)) * other)

    def model(self, cell: Cell, label: str, template: str | None, rows: RowSet, under: str = "") -> Dry:
        """The counting model of these weights; `under`: as the base under an adapter, which is asked by itself."""
        from indelible.canaries.preflight import load_chat

        path = str(cell.models[lineage(cell, label)[-1]].path)
        name = f"{path}:{template}:{rows.chat}"
        if name not in self._chats:
            self._chats[name] = load_chat(path, template=template, trust_remote_code=False, chat_data=rows.chat)
        key = f"{self.bench.state_key(cell, label)}:{name}:{under}"
        return self._models.setdefault(key, Dry(key, *self._chats[name]))

    def _training(self, cell: Cell, label: str) -> int:
        plan = cell.models[label]
        rows, config = self.bench.training_set(cell, plan), training_config(plan, cell.seed)
        model = self.model(cell, label, config.template, rows)
        if config.dp_epsilon is not None:
            self.notes["private training is timed as if it were plain: it takes longer"] = None
        return round(_mean_length(model, rows.records) * len(rows.records)) * config.epochs

    def _gap(self, cell: Cell, options: GapOptions) -> None:
        once = 0.0
        for name in (options.members, options.nonmembers):
            rows = self.bench.set_of(cell, name)
            model = self.model(cell, options.model, options.load.template, rows)
            once += _mean_length(model, rows.records) * min(options.n, len(rows.records))
        self.forward_tokens += round(2 * once)
        self.further_tokens += round(once) * training_settings({"epochs": 1, **options.training}, cell.seed).epochs

    def _audit(self, cell: Cell, config: AuditConfig) -> None:
        sets = {key: self.bench.set_of(cell, str(cell.audit[key])) for key in ("members", "nonmembers")}
        pool = self.bench.set_of(cell, str(cell.audit["pool"])) if cell.audit.get("pool") else sets["nonmembers"]
        n = sum(min(config.max_records or len(s.records), len(s.records)) for s in sets.values())
        plan = cell.models[cell.tested]
        adapted = self.bench.key(cell, cell.tested) if plan.training.get("lora_rank") else ""
        models = {}
        for role in (role for role in ROLES if cell.audit.get(role)):
            under = adapted if role == "base" else ""
            label = str(cell.audit[role])
            models["target" if role == "model" else role] = self.model(
                cell, label, config.compat or config.load.template, sets["members"], under
            )
        if "base" in models:
            models.setdefault("generator", models["base"])
        everyone = sorted((r for s in sets.values() for r in s.records), key=lambda r: (len(r.text), r.id))
        pilot = spread(everyone, N_PILOT)
        names = [name for name in expand(config.attacks) if name not in FITTED]
        attacks = [configured(name, config) for name in names]
        share = {"target": 1.0}
        if config.base_control and "base" in models:
            share["base"] = min(2 * (config.control_records or n), n) / n
        tokens = written = 0.0
        for subject, part in share.items():
            before = self._counted()
            self.notes |= dict.fromkeys(
                count(attacks, pilot, pool.records, models, config, self._prepared, subject=subject)
            )
            after = self._counted()
            tokens += part * (after[0] - before[0])
            written += part * (after[1] - before[1])
        scale = (
            n * _mean_length(models["target"], everyone) / sum(len(models["target"].encode(plain(r))) for r in pilot)
        )
        self.forward_tokens += round(scale * tokens)
        self.written_tokens += round(scale * written)

    def _counted(self) -> tuple[int, int]:
        models = self._models.values()
        return sum(model.tokens for model in models), sum(model.written for model in models)


def _mean_length(model: Dry, records: Sequence[Record]) -> float:
    part = spread(records, SAMPLE)
    return sum(len(model.encode(plain(r))) for r in part) / len(part)


def _seconds(bench: Bench, left: Sequence[Cell], counter: _Counter) -> tuple[float | None, str]:
    """Time for the counted tokens, by one scoring pass, one training step and replies to a few rows; None with the
    reason."""
    cell = left[0]
    path = str(cell.models[lineage(cell, cell.tested)[-1]].path)
    if not (path.startswith("builtin:") or Path(path).expanduser().exists()):
        return None, f"{path} would have to be downloaded first"
    load = cell.measure.load if cell.measure is not None else audit_config(cell).load
    rows = spread(bench.set_of(cell, bench.sets(cell)[0]).records, TIMED_ROWS)
    try:
        loading, scoring, writing = _scoring_rates(path, load, rows, replies=counter.written_tokens > 0)
        total = counter.forward_tokens / scoring + counter.written_tokens / writing + len(left) * 2 * loading
        if counter.train_tokens:
            total += counter.train_tokens / _training_rate(path, load, rows)
    except UserError as error:
        return None, str(error)
    return total, ""


def _scoring_rates(
    path: str, load: ModelOptions, rows: Sequence[Record], *, replies: bool
) -> tuple[float, float, float]:
    """Seconds to load a model, tokens a second that it reads, and (infinite unless `replies`) that it writes."""
    begin = time.monotonic()
    model, _ = load_model(path, LoadOptions(**load.model_dump()))
    loading = time.monotonic() - begin
    encoded = [model.encode(Query(r.messages, r.target)) for r in rows]
    for part in (encoded[:2], encoded):  # the first pass compiles
        begin = time.monotonic()
        for _ in model.stream(part):
            pass
    scoring = sum(map(len, encoded)) / max(time.monotonic() - begin, 1e-9)
    if not replies:
        return loading, scoring, math.inf
    asked = [Query(r.messages, "", reply=Reply(TIMED_REPLY, 1.0)) for r in rows]
    begin = time.monotonic()
    for _ in model.replies(asked):
        pass
    return loading, scoring, TIMED_REPLY * len(asked) / max(time.monotonic() - begin, 1e-9)


def _training_rate(path: str, load: ModelOptions, rows: Sequence[Record]) -> float:
    """Tokens a second of a training step; the weights are not changed."""
    changes = {"dtype": "float32", "quantise": "none", "trainable": True}
    model, _ = load_model(path, LoadOptions(**{**load.model_dump(), **changes}))
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    encoded = [model.encode(Query(r.messages, r.target)) for r in rows]
    autocast = use_autocast(training_settings({"autocast": "auto"}, 0), model)
    for part in (encoded[:2], encoded):
        begin = time.monotonic()
        train_step(model, parameters, range(len(part)), part, micro_batch_tokens=MICRO_BATCH_TOKENS, autocast=autocast)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return sum(map(len, encoded)) / max(time.monotonic() - begin, 1e-9)
