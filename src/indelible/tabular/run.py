"""`indelible tabular run`: tables, splits, a grid of trainings, probes, verdicts, a report; what is done stays done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indelible.environment import default_out, run_facts
from indelible.errors import DataError
from indelible.progress import say
from indelible.runs import RunDir
from indelible.sweep.code import code_digest
from indelible.tabular.block import probes_of, run_block
from indelible.tabular.config import TabularRunConfig
from indelible.tabular.folder import Work, digest, open_work
from indelible.tabular.forecast import forecast
from indelible.tabular.gates import Outcome, gates_of, tripped
from indelible.tabular.plan import Block, Plan, plan_run
from indelible.tabular.tables import Prepared, prepare
from indelible.tabular.worlds import World, make_world, prove_on

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel

KIND = "tabular"
MADE_BY = ("indelible.tabular.block", "indelible.models.tabular")
"""A block that other code than today's made is not read back: a hash of what these import is in its name."""


@dataclass
class Bench:
    """The model, the tables and what was made of them: every world once."""

    config: TabularRunConfig
    model: TabularModel
    tables: Mapping[str, Prepared]
    _worlds: dict[tuple[str, int, int, bool], World] = field(default_factory=dict)
    _hashes: dict[tuple[str, int, int, bool], str] = field(default_factory=dict)

    def world(self, block: Block, table: str) -> World:
        """The table as this block's models are tuned on it and asked about it.

        Raises:
            DataError: the table cannot be split so.
        """
        key = (table, block.n_queries, block.seed, block.randomise)
        if key not in self._worlds:
            self._worlds[key] = make_world(
                self.tables[table], self.model, self.config,
                n_members=block.n_queries, seed=block.seed, randomise=block.randomise,
            )  # fmt: skip
            self._hashes[key] = str(self._worlds[key].facts()["sha256"])
            if len(self._worlds) == 1:
                prove_on(self.model, self._worlds[key])
        return self._worlds[key]

    def key(self, block: Block) -> str:
        """The name under which a block is kept: of all that decides its numbers."""
        splits = []
        for table in block.tables:
            self.world(block, table)
            splits.append(self._hashes[table, block.n_queries, block.seed, block.randomise])
        tables = [self.tables[table].sha256 for table in block.tables]
        return digest(
            code_digest(*MADE_BY), self.model.fingerprint, self.config.device, tables, splits,
            dataclasses.asdict(block), probes_of(block),
        )  # fmt: skip

    def finish(self, block: Block, work: Work) -> dict[str, Any]:
        """Run a block unless it is at hand; its facts."""
        key = self.key(block)
        if not work.has(key):
            begin = time.monotonic()
            frame, facts = run_block(block, self.model, {table: self.world(block, table) for table in block.tables})
            work.write(key, frame, {**facts, "seconds": round(time.monotonic() - begin, 1)})
        return work.read(key)[1]


def open_bench(config: TabularRunConfig) -> Bench:
    """Load the model and read the tables.

    Raises:
        UserError: one line: no such model or table, a target that is missing or constant, too many classes.
    """
    from indelible.data.table_files import check_source
    from indelible.models.tabular import load_tabular

    for options in config.tables:  # before the model, which takes seconds
        check_source(options.source)
    model = load_tabular(config.model, device=config.device)
    tables = {options.label: prepare(options, model.max_classes) for options in config.tables}
    for prepared in tables.values():
        say(prepared.said())
    return Bench(config, model, tables)


def ready(bench: Bench, plan: Plan) -> tuple[list[Block], list[dict[str, str]]]:
    """Blocks whose tables can be split as they ask, and what is left out.

    Raises:
        UserError: no block is left.
    """
    kept: list[Block] = []
    lost: dict[str, str] = {}
    for block in plan.blocks:
        try:
            for table in block.tables:
                bench.world(block, table)
            kept.append(block)
        except DataError as error:
            lost[f"{', '.join(block.tables)}: {block.n_queries} query rows, seed {block.seed}"] = str(error)
    if not kept:
        raise DataError(next(iter(lost.values())))
    return kept, [*plan.not_run, *({"what": what, "reason": why} for what, why in lost.items())]


def describe(
    bench: Bench, plan: Plan, blocks: Sequence[Block], not_run: Sequence[Mapping[str, str]], work: Work | None
) -> str:
    """The configurations, what is left out, and the forecast, in words."""
    from indelible.tabular.defended import expected_blocks

    config, counts = bench.config, plan.counts
    rates = ", ".join(f"{rate:g}" for rate in config.learning_rates)
    probed, labels = ", ".join(map(str, config.probed_at)), "randomised" if config.randomise else "as in the table"
    about = f"{config.epochs} epochs, probed after {probed}, judged after the last; labels {labels}"
    lines = [f"{bench.model.name}: learning rates {rates}; {about}"]
    done = [work is not None and work.has(bench.key(block)) for block in blocks]
    for block, there in zip(blocks, done, strict=True):
        lines.append(f"  {block.title}{' (at hand)' if there else ''}")
        lines += [f"    {'' if len(block.tables) == 1 else name + ': '}{bench.world(block, name).said()}"
                  for name in block.tables]  # fmt: skip
    lines += [f"  not run: {one['what']}: {one['reason']}" for one in not_run]
    left = [block for block, there in zip(blocks, done, strict=True) if not there]
    further = expected_blocks(bench, counts) if config.defences is not None else []
    lines += [f"  {block.title}: {', '.join(block.names)}" for block in further]
    at_hand = sum(work is not None and work.has(bench.key(block)) for block in further)
    left += [block for block in further if work is None or not work.has(bench.key(block))]
    return "\n".join([*lines, str(forecast(left, bench.model, bench.world, at_hand=sum(done) + at_hand))])


def plan_tabular(config: TabularRunConfig) -> str:
    """What a run would do and cost; nothing is kept.

    Raises:
        UserError: one line saying what to mend.
    """
    gates_of(config.fail_if)
    bench = open_bench(config)
    plan = plan_run(config, bench.tables)
    blocks, not_run = ready(bench, plan)
    return describe(bench, plan, blocks, not_run, None)


def run_tabular(config: TabularRunConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool) -> Outcome:
    """Run what is not at hand, and write the run directory.

    Finished blocks live in `OUT-work` until the run is done; a run that was stopped anywhere goes on there, with the
    same outcome.

    Raises:
        UserError: one line saying what to mend.
    """
    from indelible.tabular.defended import run_defences
    from indelible.tabular.write import write_run

    gates = gates_of(config.fail_if)
    if config.out is not None:
        RunDir.check(config.out, force=force)
    started = time.monotonic()
    bench = open_bench(config)
    plan = plan_run(config, bench.tables)
    blocks, not_run = ready(bench, plan)
    out = Path(config.out or default_out("tabular", config.name or "-".join(bench.tables)[:40]))
    work = open_work(out, force=force)
    say(describe(bench, plan, blocks, not_run, work))
    run = RunDir.open(out, force=force)
    forecast_done = time.monotonic()
    for number, block in enumerate(blocks):
        say(f"[{number + 1}/{len(blocks)}] {block.title}")
        bench.finish(block, work)
    trained = time.monotonic()
    defended = run_defences(bench, plan, work) if config.defences is not None else None
    defences_done = time.monotonic()
    timings = {
        "tables and forecast": forecast_done - started,
        "grid": trained - forecast_done,
        "defences": defences_done - trained,
    }
    facts = {
        **run_facts(KIND, run.path, config, given, command, device=config.device),
        "dtype": "float32",
        "not_run": not_run,
        "timings": timings,
    }
    done = write_run(run, bench, blocks, work, defended, facts)
    facts = done.manifest
    from indelible.report.tabular import render_tabular

    begin = time.monotonic()
    render_tabular(run.path, facts)
    timings = {**facts["timings"], "report": time.monotonic() - begin, "total": time.monotonic() - started}
    run.finish({**facts, "timings": {name: round(seconds, 2) for name, seconds in timings.items()}})
    work.remove()
    causes = tripped(gates, done.configurations, done.verdict)
    return Outcome(run.path, done.verdict, causes, tuple(facts["not_run"]), done.table)
