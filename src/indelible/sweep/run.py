"""`indelible sweep FILE`: every cell of a study, one after the other; what is finished is never done again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from indelible.checked import check
from indelible.environment import default_out, run_facts
from indelible.errors import UserError
from indelible.progress import say
from indelible.runs import MANIFEST, RunDir, write_json
from indelible.sweep.agreement import agreement
from indelible.sweep.bench import Bench, Done
from indelible.sweep.collect import (
    METRICS,
    cell_facts,
    collect,
    drops_to_draw,
    scores_to_draw,
    training_facts,
    verdicts,
)
from indelible.sweep.config import SweepConfig
from indelible.sweep.cost import estimate
from indelible.sweep.data import Rows
from indelible.sweep.places import Places
from indelible.sweep.plan import Cell, plan_cells
from indelible.sweep.pulls import pulls_of
from indelible.yaml_file import read_settings

KIND = "sweep"
MARKER = ".indelible-sweep"
SCORES, DROPS, AGREEMENT, VERDICTS = "scores.parquet", "drops.parquet", "agreement.json", "verdicts.json"

_DATA = "data"
"""The folder that studies' own paths begin with, in whose place `--data FOLDER` comes."""

_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")
"""One of these in a folder says that `datasets` saved it: then it is a file to us."""


def read_study(file: str, flags: Mapping[str, Any], data: str | None = None) -> tuple[SweepConfig, dict[str, Any]]:
    """A study file, with flags over it.

    Args:
        data: a file in the place of the one that the study splits, or a folder in the place of `data/`.

    Returns:
        the checked settings, and what was given, for the manifest.

    Raises:
        ConfigError: unreadable file, unknown key (with the closest known one), or a wrong value.
    """
    given = {**read_settings(file, "study"), **flags}
    config = check(SweepConfig, given, f"study {file}: ")
    return (config if data is None else _with_data(config, data)), ({**given, "--data": data} if data else given)


def _with_data(config: SweepConfig, data: str) -> SweepConfig:
    path = Path(data)
    if path.is_dir() and not any((path / name).exists() for name in _SAVED):

        def moved(source: str) -> str:
            first, *rest = Path(source).parts
            return str(path.joinpath(*rest)) if first == _DATA and rest else source

        files = {k: f.model_copy(update={"source": moved(f.source)}) for k, f in config.data.files.items()}
    else:
        main = config.data.main
        if main not in config.data.files:
            return config  # the plan says so
        files = {**config.data.files, main: config.data.files[main].model_copy(update={"source": data})}
    return config.model_copy(update={"data": config.data.model_copy(update={"files": files})})


def plan_sweep(config: SweepConfig) -> str:
    """What a sweep would do and cost, in words; nothing is run or kept.

    Raises:
        UserError: one line saying what to mend.
    """
    cells = plan_cells(config)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(config, _work_of(config, Path(config.out or folder)), Rows(Path(folder) / "data"))
        ready, lost = bench.prepare(cells)
        repeats = f"{config.paper}; " if config.paper else ""
        lines = [f"{config.name}: {repeats}{len(cells)} cells"]
        lines += [f"  {cell.name}{' (at hand)' if bench.finished(cell) else ''}" for cell in ready]
        lines += [f"  {one.cell.name}: cannot run ({one.reason})" for one in lost]
        return "\n".join([*lines, str(estimate(bench, ready))])


def run_sweep(config: SweepConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool) -> Path:
    """Run what is not at hand, and write the sweep's run directory.

    Rows, models and audits live in `OUT-work`, or in `work`; a sweep that was stopped anywhere goes on there, with the
    same outcome. The audits stay when it is done; rows go, and models unless `keep_models` or `work` is given.

    Args:
        force: replace a finished sweep at `out`; cells at hand are used all the same, for nothing could come out other.

    Raises:
        UserError: one line saying what to mend, or no cell could run.
    """
    out = Path(config.out or default_out("sweep", config.name))
    work = _open_work(config, out, force=force)
    with _alone_in(work):
        return _run_in(work, out, config, given, command=command, force=force)


def _run_in(
    work: Path, out: Path, config: SweepConfig, given: Mapping[str, Any], *, command: Sequence[str], force: bool
) -> Path:
    cells = plan_cells(config)
    started = time.monotonic()
    bench = Bench(config, work, command=command)
    ready, done = bench.prepare(cells)
    cost = estimate(bench, ready)
    say(str(cost))
    run = RunDir.open(out, force=force)
    done = [*execute(bench, ready), *done]
    order = {id(cell): number for number, cell in enumerate(_as_laid_out(config, cells))}
    done.sort(key=lambda one: order[id(one.cell)])
    if all(one.path is None for one in done):
        raise UserError(f"no cell of {config.name} could run: {done[0].reason}")
    rows = collect(config, bench, done)
    run.write_json(METRICS, rows, nan_as_null=True)
    run.write_json(VERDICTS, verdicts(done))
    run.write_json(AGREEMENT, agreement(Places(config, rows), pulls_of(config, bench, done)))
    for name, frame in ((SCORES, scores_to_draw(config, done)), (DROPS, drops_to_draw(config, done))):
        if len(frame):
            run.write_parquet(name, frame)
    facts = cell_facts(bench, done, beside=run.path.parent)
    device = next((cell["device"] for cell in facts if cell.get("device")), "none")
    manifest = {
        **run_facts(KIND, run.path, config, given, command, device=device),
        "cells": facts,
        "trainings": training_facts(bench, done),
        "data": {
            name: {"source": table.source, "format": table.format, "sha256": table.sha256, "n_rows": table.n_rows}
            for name, table in ((table.source, table) for table in bench.rows.tables.values())
        },
        "rows": cost.rows,
        "cost": {
            "expected_seconds": cost.seconds,
            "train_tokens": cost.train_tokens,
            "forward": cost.forward_tokens,
            "written": cost.written_tokens,
        },
        "not_run": [{"what": one.cell.name, "reason": one.reason} for one in done if one.path is None],
        "timings": {"total": round(time.monotonic() - started, 1)},
    }
    from indelible.report.sweep import render_sweep

    render_sweep(run.path, manifest)
    run.finish(manifest)
    for name in ("data", *(() if _keeps_models(config) else ("models",))):
        shutil.rmtree(work / name, ignore_errors=True)
    return run.path


def execute(bench: Bench, cells: Sequence[Cell]) -> Iterator[Done]:
    """Run cells one after the other on this machine, and yield each with its outcome; a model is deleted after the last
    cell that needs it. Another way of running them has the same signature.

    A cell that cannot run (a missing package, a model that cannot be had, a training that diverges) is yielded with the
    reason, and the others go on.
    """
    last = {key: number for number, cell in enumerate(cells) for key in bench.trainings(cell)}
    for number, cell in enumerate(cells):
        say(f"[{number + 1}/{len(cells)}] {cell.name}{': at hand' if bench.finished(cell) else ''}")
        try:
            yield Done(cell, bench.run(cell))
        except UserError as error:
            say(f"not run: {error}")
            yield Done(cell, None, str(error))
        for key in () if _keeps_models(bench.config) else bench.trainings(cell):
            if last[key] == number:
                bench.forget(key)


def _as_laid_out(config: SweepConfig, cells: Sequence[Cell]) -> list[Cell]:
    """Cells in the order of seeds and axes."""
    places = [{value.label: i for i, value in enumerate(axis.values)} for axis in config.axes.values()]

    def place(cell: Cell) -> tuple[int, ...]:
        return (
            config.seeds.index(cell.seed),
            *(at[label] for at, label in zip(places, cell.labels.values(), strict=True)),
        )

    return sorted(cells, key=place)


def _keeps_models(config: SweepConfig) -> bool:
    return config.keep_models or config.work is not None


def _work_of(config: SweepConfig, out: Path) -> Path:
    return Path(config.work).expanduser() if config.work else out.with_name(out.name + "-work")


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """One sweep at a time: each deletes rows when it is done, and trains where another may be training.

    Raises:
        UserError: another sweep is running there.
    """
    try:
        with FileLock(work / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise UserError(f"another sweep is running in {work}: wait until it is done, or give another folder") from error


def _open_work(config: SweepConfig, out: Path, *, force: bool) -> Path:
    """The working folder beside `out`.

    Raises:
        UserError: the sweep is finished, or the folder holds something else.
    """
    if (out / MANIFEST).exists() and not force:
        raise UserError(f"{out} holds a finished sweep; give another --out, or --force to replace it.")
    work = _work_of(config, out)
    if work.exists() and (not work.is_dir() or (any(work.iterdir()) and not (work / MARKER).exists())):
        raise UserError(
            f"{work} exists and was not made by a sweep; give another {'--work' if config.work else '--out'}"
        )
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (work / MARKER).exists():
        write_json(
            work / MARKER, {"about": "working folder of a sweep: what it holds is made again where it is needed"}
        )
    return work
