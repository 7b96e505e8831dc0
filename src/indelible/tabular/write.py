"""From finished blocks to the run directory's files: statistics, tabular.parquet, split.parquet, metrics, verdict."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from indelible.progress import say
from indelible.runs import ROWS, RunDir
from indelible.stats.tabular_rows import Row
from indelible.stats.verdict import Verdict
from indelible.tabular.block import COLUMNS
from indelible.tabular.evaluate import (
    Evaluated,
    cell_name,
    curve_rows,
    evaluate_part,
    judged,
    placed,
    seeds_together,
    training_rows,
    units_of,
)
from indelible.tabular.folder import Work
from indelible.tabular.gates import SEPARATION, is_calibrated
from indelible.tabular.plan import Block
from indelible.tabular.tables import Prepared
from indelible.tabular.worlds import World

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel
    from indelible.tabular.defended import Defended
    from indelible.tabular.run import Bench

TABULAR, SPLIT, METRICS, VERDICT = "tabular.parquet", "split.parquet", "metrics.json", "verdict.json"


SUMMARY = (
    ("training", "accuracy"),
    ("train-context", "auc"),
    ("copy", "auc"),
    ("suite:mean", "auc"),
    ("erased:raw", "auc"),
)
"""What the terminal shows of every cell."""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        configurations: each one's rows and own verdict, for gates.
        manifest: as it will be, without the time of the report.
        table: for the terminal, its head first.
    """

    verdict: Verdict
    configurations: Mapping[str, tuple[Sequence[Row], Verdict]]
    manifest: dict[str, Any]
    table: tuple[tuple[str, ...], ...]


def table_of(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """A line a cell, from its rows over the seeds."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for row in rows:
        if row["model"] == "target" and row.get("part", "members") == "members":
            found.setdefault(cell_name(row), {})[row["attack"], row["metric"]] = row["value"]
    head = ("mean over seeds", "labels fitted", "AUC train-context", "AUC copy", "AUC suite:mean", "AUC erased:raw")
    lines = [
        (name, *("n/a" if of.get(key) is None else f"{of[key]:.3f}" for key in SUMMARY)) for name, of in found.items()
    ]
    return (head, *lines)


def write_run(
    run: RunDir,
    bench: Bench,
    blocks: Sequence[Block],
    work: Work,
    defended: Defended | None,
    facts: Mapping[str, Any],
) -> Written:
    """Evaluate every block and write what the report is made from."""
    begin = time.monotonic()
    say("statistics")
    configurations: list[Evaluated] = []
    rows: list[Row] = []
    cells: dict[tuple[Any, ...], dict[int, list[Row]]] = {}
    places: dict[tuple[Any, ...], dict[str, Any]] = {}
    listed: list[dict[str, Any]] = []
    for block in blocks:
        frame, known = work.read(bench.key(block))
        for one in known["configurations"]:
            table, name = str(one["table"]), str(one["name"])
            place = _place(block, table, block.settings[block.names.index(name)].learning_rate)
            part = frame[frame["config_id"] == one["config_id"]]
            made, curve = _evaluate(part, bench.world(block, table), bench.config, block.seed, place, one)
            configurations.append(made)
            cell = tuple(place.values())
            places[cell] = place
            cells.setdefault(cell, {})[block.seed] = list(made.rows)
            rows += [*made.rows, *curve]
            listed.append({**place, "seed": block.seed, **one, "word": made.verdict.word})
    verdict, summary = judged(configurations)
    together = [row for cell, by in cells.items() for row in seeds_together(by, places[cell])]
    metrics = [*rows, *together]
    if defended is not None:
        metrics += defended.rows
    every = [*blocks, *(defended.blocks if defended is not None else ())]
    run.write_bytes(TABULAR, joined(work.path / f"{bench.key(block)}.parquet" for block in every))
    worlds = {(b.seed, b.n_queries, t, b.randomise): bench.world(b, t) for b in every for t in b.tables}
    run.write_parquet(SPLIT, split_frame(worlds))
    if bench.config.with_text:
        run.write_parquet(ROWS, raw_rows(bench))
    run.write_json(METRICS, metrics, nan_as_null=True)
    said = verdict.to_dict()
    run.write_json(
        VERDICT,
        {
            **said,
            "configurations": {one.config_id: one.verdict.to_dict() for one in configurations},
            "grid": summary.to_dict(),
        },
        nan_as_null=True,
    )
    left = [*facts["not_run"], *(defended.not_run if defended is not None else ())]
    manifest = {
        **facts,
        "models": {"base": model_facts(bench.model)},
        "data": {
            label: {"source": options.source, **bench.tables[label].facts()}
            for label, options in ((options.label, options) for options in bench.config.tables)
        },
        "splits": _splits(bench, every),
        "configurations": listed,
        "probes": probe_facts(),
        "defences": list(defended.facts) if defended is not None else None,
        "counts": _counts(listed, metrics),
        "not_run": left,
        "timings": {**facts["timings"], "statistics": time.monotonic() - begin},
    }
    own = {one.config_id: (one.rows, one.verdict) for one in configurations}
    return Written(verdict, own, manifest, table_of(together))


def _place(block: Block, table: str, learning_rate: float) -> dict[str, Any]:
    return {
        "table": table, "profile": block.profile, "defence": None, "n_queries": block.n_queries,
        "learning_rate": learning_rate,
    }  # fmt: skip


def _evaluate(
    part: pd.DataFrame, world: World, config: Any, seed: int, place: Mapping[str, Any], facts: Mapping[str, Any]
) -> tuple[Evaluated, list[Row]]:
    """A configuration at its last epoch, and its rows over the epochs before."""
    config_id, last = str(facts["config_id"]), int(facts["epoch"])
    here = {"config_id": config_id, **place}
    found = evaluate_part(part[part["epoch"] == last], world, config, seed)
    trained = training_rows(facts, len(world.split.members))
    at_end = [row for epoch, row in trained if epoch == last]
    rows = placed([*lean(found.metrics), *at_end], here, last, seed)
    curve = [line for epoch, row in trained if epoch != last for line in placed([row], here, epoch, seed)]
    for epoch in sorted(set(part["epoch"]) - {last}):
        curve += placed(curve_rows(part[part["epoch"] == epoch], world, config, seed), here, int(epoch), seed)
    return Evaluated(config_id, here, tuple(rows), found.verdict, units_of(world)), curve


def lean(rows: Sequence[Row]) -> list[Row]:
    """Rows without what nobody looks up: scores that aren't calibrated log-probabilities keep AUC and p-value."""
    return [row for row in rows if is_calibrated(str(row["attack"])) or row["metric"] in SEPARATION]


def joined(paths: Any) -> bytes:
    """Parquet files of equal columns as one, a row group each, so that not all need be in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            (name, pa.float64() if name in _NUMBERS else pa.int64() if name in _WHOLE else pa.string())
            for name in COLUMNS
        ]
    )
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for path in paths:
            writer.write_table(pq.read_table(path).select(list(COLUMNS)).cast(schema))
    return buffer.getvalue()


_NUMBERS = ("learning_rate", "score", "base_score", "margin", "base_margin")
_WHOLE = ("seed", "n_queries", "epoch")


def split_frame(worlds: Mapping[tuple[int, int, str, bool], World]) -> pd.DataFrame:
    """Who is what in every split: table, seed, n_queries, record_id, group. No labels."""
    frames = []
    for (seed, n_queries, table, randomise), world in worlds.items():
        ids = np.array(world.prepared.table.row_ids, dtype=object)
        groups = {**world.groups, "reserve": np.asarray(world.split.reserve)}
        for group, rows in groups.items():
            own = {"table": table, "seed": seed, "n_queries": n_queries, "randomised": randomise}
            frames.append(pd.DataFrame({**own, "record_id": ids[np.sort(rows)], "group": group}))
    return pd.concat(frames, ignore_index=True)


def raw_rows(bench: Bench) -> pd.DataFrame:
    """The rows themselves, as text: only with --with-text."""
    return pd.concat([raw_frame(prepared) for prepared in bench.tables.values()], ignore_index=True)


def raw_frame(prepared: Prepared) -> pd.DataFrame:
    """The rows of one table: table, record_id, row, target."""
    table = prepared.table
    names = list(table.features.columns)
    rows = zip(*(table.features[name].astype("string").fillna("").tolist() for name in names), strict=True)
    text = ["; ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True)) for row in rows]
    target = [table.classes[code] for code in table.target]
    ids = list(table.row_ids)
    return pd.DataFrame({"table": prepared.label, "record_id": ids, "row": text, "target": target})


def model_facts(model: TabularModel) -> dict[str, Any]:
    """For the manifest."""
    return {
        "source": model.name,
        "fingerprint": model.fingerprint,
        "parameters": sum(p.numel() for p in model.module.parameters()),
        "max_classes": model.max_classes,
        "max_features": model.max_features,
        "notes": list(model.notes),
        "recipe": model.recipe(),
    }


def probe_facts() -> list[dict[str, Any]]:
    """Every probe with what it is and its settings, for the manifest."""
    from indelible.attacks.tabular import PROBES

    return [
        {
            "name": name, "description": probe.description, "informative": probe.informative,
            "in_suite": probe.in_suite,
            "settings": dict(vars(probe)),
        }
        for name, probe in PROBES.items()
    ]  # fmt: skip


def _splits(bench: Bench, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    found: dict[tuple[str, int, int, bool], dict[str, Any]] = {}
    for block in blocks:
        for table in block.tables:
            key = (table, block.seed, block.n_queries, block.randomise)
            if key not in found:
                own = {"table": table, "seed": block.seed, "n_queries": block.n_queries}
                found[key] = {**own, **bench.world(block, table).facts()}
    return list(found.values())


def _counts(listed: Sequence[Mapping[str, Any]], metrics: Sequence[Row]) -> dict[str, Any]:
    stopped = [one["stopped"] for one in listed]
    lost: dict[str, dict[str, int]] = {}
    for row in metrics:
        if row["metric"] == "auc" and row["value"] is None and row["model"] == "target" and row["seed"] is not None:
            reasons = lost.setdefault(str(row["attack"]), {})
            reason = str(row.get("reason") or "no reason recorded")
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "configurations": len(listed),
        "diverged": stopped.count("diverged"),
        "metrics": len(metrics),
        "unscorable": lost,
    }
