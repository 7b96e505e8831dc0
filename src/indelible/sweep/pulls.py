"""How much each record moves the numbers of a study, so that its differences are paired: see `contrasts.Pulls`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from indelible.runs import read_run
from indelible.stats.roc import placements
from indelible.sweep.bench import Bench, Done
from indelible.sweep.collect import log_likelihoods, part_sets
from indelible.sweep.config import SweepConfig
from indelible.sweep.contrasts import Pulls, RowKey, row_key
from indelible.sweep.gap import DROPS, MEANS
from indelible.sweep.plan import Cell


def mean_pulls(values: Sequence[float], groups: Sequence[str]) -> Pulls | None:
    """Of a mean: (x - mean) / n, added up by group. None below two groups.

    Their squares add up to the squared standard error of `numbers.mean_row`.
    """
    x = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(x)
    if not finite.any():
        return None
    kept = x[finite]
    return _by_group((kept - kept.mean()) / kept.size, np.asarray(groups)[finite])


def auc_pulls(records: pd.DataFrame, scores: pd.DataFrame) -> Pulls | None:
    """Of an AUC: (placement value - AUC) / records of its side, added up by group. None below two groups on a side.

    For independent records the squares of the difference of two AUCs' pulls add up to DeLong's paired variance (1988);
    it holds as well where the two share some of their records, or none.

    Args:
        records: record_id, member, group. scores: record_id, score; of records that are not there, left out.
    """
    both = records.merge(scores[["record_id", "score"]], on="record_id")
    both = both[np.isfinite(both["score"].astype(float))]
    member = both["member"].to_numpy(dtype=bool)
    if not member.any() or member.all():
        return None
    values = both["score"].to_numpy(dtype=float)
    groups = both["group"].astype(str).to_numpy()
    out: dict[str, float] = {}
    for placed, side in zip(placements(values[member], values[~member]), (member, ~member), strict=True):
        own = _by_group((placed - placed.mean()) / placed.size, groups[side])
        if own is None:
            return None
        for group, pull in own.items():
            out[group] = out.get(group, 0.0) + pull
    return out


def _by_group(pulls: Iterable[float], groups: Iterable[str]) -> Pulls | None:
    """Sums by group, times sqrt(G / (G - 1)) for the mean that was estimated."""
    sums: dict[str, float] = {}
    for pull, group in zip(pulls, groups, strict=True):
        sums[str(group)] = sums.get(str(group), 0.0) + float(pull)
    n = len(sums)
    return None if n < 2 else {group: s * (n / (n - 1)) ** 0.5 for group, s in sums.items()}


def pulls_of(config: SweepConfig, bench: Bench, done: Sequence[Done]) -> dict[RowKey, Pulls]:
    """Pulls of every AUC of a scored attack, by part too, and of every mean loss and drop; by row of metrics.json."""
    out: dict[RowKey, Pulls] = {}
    for one in done:
        if one.path is None:
            continue
        # Ids tell records apart within one file: two files may use the same.
        source = json.dumps([one.cell.data.model_dump(mode="json")["files"], one.cell.data.main])
        for row, pulls in _audited(config, bench, one) if one.cell.measure is None else _measured(one):
            if pulls is not None:
                key = row_key({"axes": one.cell.labels, "seed": one.cell.seed, **row})
                out[key] = {f"{source}:{group}": pull for group, pull in pulls.items()}
    return out


Found = Iterator[tuple[dict[str, str], Pulls | None]]


def _audited(config: SweepConfig, bench: Bench, one: Done) -> Found:
    assert one.path is not None
    run = read_run(one.path)
    scored = run.scores[run.scores["model"].isin(["target", "base"])]
    for (attack, model), part in scored.groupby(["attack", "model"]):
        place = {"attack": str(attack), "model": str(model)}
        yield {**place, "metric": "auc"}, auc_pulls(run.records, part)
    told = log_likelihoods(run).merge(run.records, on="record_id")
    for (model, member), part in told.groupby(["model", "member"]):
        found = mean_pulls((-part["score"].astype(float)).tolist(), part["group"].astype(str).tolist())
        metric = f"loss_{'members' if member else 'nonmembers'}"
        yield {"attack": "loss", "model": str(model), "metric": metric}, found
    if config.parts is not None:
        yield from _by_part(config, bench, one.cell, run.records, run.scores)


def _by_part(config: SweepConfig, bench: Bench, cell: Cell, records: pd.DataFrame, scores: pd.DataFrame) -> Found:
    own = scores[scores["model"] == "target"]
    for key, label, kept in part_sets(config, bench, cell, records):
        for attack, part in own.groupby("attack"):
            yield {"attack": str(attack), "model": "target", "metric": "auc", key: label}, auc_pulls(kept, part)


def _measured(one: Done) -> Found:
    """Of a study of the optimisation gap; a rank correlation has none."""
    assert one.path is not None
    frame = pd.read_parquet(one.path / DROPS)
    if "member" not in frame:
        return
    place = {"attack": "gap", "model": "target"}
    yield {**place, "metric": "auc"}, auc_pulls(frame, frame.assign(score=-frame["drop"]))
    for member, side in ((True, "members"), (False, "nonmembers")):
        kept = frame[frame["member"] == member]
        for metric, column in MEANS.items():
            found = mean_pulls(kept[column].tolist(), kept["group"].astype(str).tolist())
            yield {**place, "metric": f"{metric}_{side}"}, found
