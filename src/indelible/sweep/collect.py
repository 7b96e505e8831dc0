"""From finished cells to one table of numbers: each cell's metrics with its place on the axes, and over the seeds."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from indelible.runs import Run, read_json, read_manifest, read_run
from indelible.sweep.bench import TRAINING_LOG, Bench, Done
from indelible.sweep.config import SweepConfig
from indelible.sweep.data import parts_of
from indelible.sweep.gap import DROPS
from indelible.sweep.numbers import auc_row, mean_row
from indelible.sweep.plan import Cell

Row = dict[str, Any]

_PAIRS = ("auc_minus:", "p_minus:")
P_VALUES = "p_"
"""How names of p-values begin."""

_KEY = ("axes", "attack", "model", "metric", "part", "block")


def collect(config: SweepConfig, bench: Bench, done: Sequence[Done]) -> list[Row]:
    """Rows of metrics.json.

    A row is a row of an audit's metrics (pairs of attacks left out: `contrasts` has any pair) with `axes` (name to
    label), `seed`, and where the study asks for it `part` or `block`. A row without a seed is over the seeds: `value`
    is their mean, `seed_low` and `seed_high` the least and the most of them, `seed_sd` their standard deviation; `low`
    and `high`, the interval over records, are the means of the seeds' own. The two spreads are never mixed. Of
    p-values, which have no mean, `value` is the largest and `n_small` counts the seeds whose own is at most 1 - level.
    """
    rows: list[Row] = []
    for one in done:
        if one.path is not None:
            found = _audited(config, bench, one) if one.cell.measure is None else read_json(one.path / METRICS, list)
            rows += [_placed(row, one.cell) for row in found]
    return [*rows, *over_seeds(rows, config.level)]


METRICS = "metrics.json"


def _placed(row: Mapping[str, Any], cell: Cell) -> Row:
    return {"axes": dict(cell.labels), "seed": cell.seed, "part": None, "block": None, **row}


def _audited(config: SweepConfig, bench: Bench, one: Done) -> list[Row]:
    """An audit's metrics, the losses of either side, and the AUCs by part."""
    assert one.path is not None
    run = read_run(one.path)
    rows = [row for row in run.metrics if not str(row["metric"]).startswith(_PAIRS)]
    rows += losses(run.records, log_likelihoods(run), config.level)
    if config.parts is not None:
        rows += by_part(config, bench, one.cell, run.records, run.scores)
    return rows


def losses(records: pd.DataFrame, told: pd.DataFrame, level: float) -> list[Row]:
    """Mean loss (nats a token of the answer) of members and of non-members on each model of `log_likelihoods`."""
    rows = []
    own = told.merge(records, on="record_id")
    for model in sorted(set(own["model"])):
        for member, side in ((True, "members"), (False, "nonmembers")):
            part = own[(own["model"] == model) & (own["member"] == member)]
            values = (-part["score"].astype(float)).tolist()
            groups = part["group"].astype(str).tolist()
            row = mean_row("loss", str(model), f"loss_{side}", values, groups, level=level, member=member)
            rows.append(row.to_dict())
    return rows


def log_likelihoods(run: Run) -> pd.DataFrame:
    """Rows of the attack `loss`, which is a record's mean log-likelihood, on the audited model and its base.

    Without a control on the base they follow from `reference-base`, which is the one minus the other, a token.
    """
    scores = run.scores
    own = scores[scores["attack"] == "loss"]
    minus = scores[(scores["attack"] == "reference-base") & (scores["model"] == "target")]
    sums = any(a["name"] == "reference-base" and a["settings"].get("reduce") == "sum" for a in run.manifest["attacks"])
    if "base" in set(own["model"]) or sums or not len(minus):
        return own
    target = own[own["model"] == "target"]
    other = target.merge(minus[["record_id", "score"]], on="record_id", suffixes=("", "_minus"))
    base = other.assign(model="base", score=other["score"] - other["score_minus"])
    return pd.concat([own, base[list(own.columns)]], ignore_index=True)


def by_part(config: SweepConfig, bench: Bench, cell: Cell, records: pd.DataFrame, scores: pd.DataFrame) -> list[Row]:
    """AUC of each attack on the members of one part of the training against all non-members (ICP-MIA, Sec. VII-C)."""
    own = scores[scores["model"] == "target"]
    rows = []
    for key, label, kept in part_sets(config, bench, cell, records):
        for attack in sorted(set(own["attack"])):
            chosen = own[own["attack"] == attack]
            row = auc_row(str(attack), kept, chosen, level=config.level, seed=cell.seed).to_dict()
            rows.append({**row, key: label})
    return rows


def part_sets(
    config: SweepConfig, bench: Bench, cell: Cell, records: pd.DataFrame
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The records of each part of the training: `part` or `block`, its label, its members with all non-members.

    `part` 1, 2, ... goes by when the training last saw a record, `block` by where it stood in the set of rows before
    they were arranged: the first follows training dynamics, the second the data.
    """
    n_parts = config.parts or 1
    plan = cell.models[cell.tested]
    if plan.start is None:
        return
    log = pd.read_parquet(bench.logs(bench.key(cell, cell.tested)) / TRAINING_LOG)
    seen = part_by_time(log if plan.epoch is None else log[log["epoch"] <= plan.epoch], n_parts)
    ids = [r.id for r in bench.set_of(cell, str(plan.rows)).records]
    stood = dict(zip(ids, parts_of(len(ids), n_parts), strict=True))
    for key, place in (("part", seen), ("block", stood)):
        of = records["record_id"].map(place)
        for k in range(n_parts):
            yield key, str(k + 1), records[~records["member"] | (of == k)]


def part_by_time(log: pd.DataFrame, n_parts: int) -> dict[str, int]:
    """Record to part, from 0, by the step at which a training saw it last; within a step by its order there."""
    last = log.reset_index(drop=True).groupby("record_id", sort=False).tail(1)
    ids = last.sort_index(kind="stable")["record_id"].astype(str).tolist()
    return dict(zip(ids, parts_of(len(ids), n_parts), strict=True))


def over_seeds(rows: Sequence[Row], level: float = 0.95) -> list[Row]:
    """One row for all seeds of a place on the axes."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(repr([row.get(key) for key in _KEY]), []).append(row)
    return [_over_seeds(group, level) for group in groups.values()]


def _over_seeds(group: Sequence[Row], level: float) -> Row:
    known = [row for row in group if row["value"] is not None]
    first = (known or group)[0]
    values = [float(row["value"]) for row in known]
    counted = ("n_members", "n_nonmembers")
    row = {
        **{key: first.get(key) for key in (*_KEY, "level", "method")},
        "seed": None,
        "n_seeds": len(known),
        "value": statistics.fmean(values) if values else None,
        **{end: _mean([row.get(end) for row in known]) for end in ("low", "high", "realised_fpr", "fpr_upper")},
        "seed_low": min(values, default=None),
        "seed_high": max(values, default=None),
        "seed_sd": statistics.stdev(values) if len(values) > 1 else None,
        **{name: min((row.get(name) or 0 for row in known), default=0) for name in counted},
        "reason": None if known else first.get("reason"),
    }
    if values and str(first["metric"]).startswith(P_VALUES):
        row |= {"value": max(values), "n_small": sum(value <= 1 - level for value in values)}
    if known and len(known) < len(group):
        lost = next(row for row in group if row["value"] is None)
        row["note"] = f"{len(group) - len(known)} of {len(group)} seeds have no value ({lost.get('reason')})"
    return row


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def verdicts(done: Sequence[Done]) -> list[Row]:
    """The word of each attack of each audit: `axes`, `seed`, `attack`, `word`, and that of the audit as a whole."""
    rows = []
    for one in done:
        if one.path is None or one.cell.measure is not None:
            continue
        verdict = read_json(one.path / "verdict.json", dict)
        place = {"axes": dict(one.cell.labels), "seed": one.cell.seed}
        rows += [{**place, "attack": name, "word": v["word"]} for name, v in verdict["attacks"].items()]
        rows.append({**place, "attack": None, "word": verdict["overall"]["word"]})
    return rows


def scores_to_draw(config: SweepConfig, done: Sequence[Done]) -> pd.DataFrame:
    """What figures of distributions need, so that the report can be drawn again without the cells: `cell`, record_id,
    `member`, `attack`, `score` on the audited model; of gap studies, the drop of the loss. First seed."""
    wanted = [figure for figure in config.show.figures if figure.kind == "distributions"]
    frames = []
    for number, one in enumerate(done):
        if not wanted or one.path is None or one.cell.seed != config.seeds[0]:
            continue
        if one.cell.measure is not None:
            frame = pd.read_parquet(one.path / DROPS)
            if "member" not in frame:
                continue
            frame = frame.assign(attack="gap", score=frame["drop"])
        else:
            frame = pd.read_parquet(one.path / "scores.parquet")
            frame = frame[frame["model"] == "target"]
            member = pd.read_parquet(one.path / "records.parquet").set_index("record_id")["member"]
            frame = frame.assign(member=frame["record_id"].map(member))
            names = {name for figure in wanted for name in figure.only.get("attack", ())}
            frame = frame[frame["attack"].isin(names)] if names else frame
        frames.append(frame.assign(cell=number)[["cell", "record_id", "member", "attack", "score"]])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def drops_to_draw(config: SweepConfig, done: Sequence[Done]) -> pd.DataFrame:
    """The two drops of every record of a fidelity study, with the `cell` and its seed."""
    frames = [
        pd.read_parquet(one.path / DROPS).assign(cell=number, seed=one.cell.seed)
        for number, one in enumerate(done)
        if one.path is not None and one.cell.measure is not None and one.cell.measure.kind == "fidelity"
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def cell_facts(bench: Bench, done: Sequence[Done], beside: Path) -> list[Row]:
    """The manifest's `cells`: where each is, from the folder `beside`, what it took and left out; or why it did not
    run."""
    out = []
    for number, one in enumerate(done):
        facts: Row = {"cell": number, "axes": dict(one.cell.labels), "seed": one.cell.seed, "reason": one.reason}
        if one.path is not None:
            manifest = read_manifest(one.path)
            facts |= {
                "run": os.path.relpath(one.path, beside),
                "device": (manifest.get("hardware") or {}).get("device"),
                "seconds": round(math.fsum((manifest.get("timings") or {}).values()), 1),
                "counts": manifest.get("counts"),
                "cohort": manifest.get("cohort"),
                "not_run": manifest.get("not_run"),
                "trainings": bench.trainings(one.cell),
            }
        out.append(facts)
    return out


def training_facts(bench: Bench, done: Sequence[Done]) -> dict[str, Row]:
    """The manifest's `trainings`: what each left beside its weights, by key."""
    keys = dict.fromkeys(key for one in done if one.path is not None for key in bench.trainings(one.cell))
    found = {key: bench.logs(key) / "training.json" for key in keys}
    return {key: read_json(path, dict) for key, path in found.items() if path.exists()}
