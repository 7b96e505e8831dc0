"""The numbers of a canary run: exposure, recovery and copying of every group, and contrasts of matched conditions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .cells import CANARY, PLACES, cells, check_readings, per_canary, setting_of
from .contrasts import median_interval
from .exposure import ceiling_bits, summarise, uniformity_p
from .intervals import clopper_pearson
from .metrics import json_number
from .protocol_contrasts import contrast_rows
from .roc import Floats
from .utility_rows import utility_rows

GROUP = ("condition", "step", "model", "role", *PLACES, "probe")


@dataclass(frozen=True)
class ProtocolRow:
    """One number of a canary run, with everything needed to read it: a row of its metrics.json.

    Attributes:
        condition: of the run's configuration; several joined by " + " where rotations of one design are one group:
            `parts` lists them, and is None for a single condition, whatever its name.
        seed: of the training; None for all seeds together.
        step: update of the checkpoint. model: "target", "base" or "clean".
        role, arm, dose, placement, spacing, population, schedule, probe: which canaries, and what they were asked;
            role "all" and None elsewhere for the utility of a model. protocol: digest of all settings that are no axis.
        metric, value: the name and the number. low, high, level, method: its interval, and how both were made.
        n: canaries the number rests on (held-out rows for utility).
        reason: why there is no number, or how many canaries it leaves out.
        axis, against, against_condition, against_step: of a contrast, the other side; value is this minus that.
    """

    condition: str
    seed: int | None
    step: int
    model: str
    role: str
    arm: str | None
    dose: int | None
    placement: str | None
    spacing: float | None
    population: str | None
    schedule: str | None
    protocol: str | None
    probe: str | None
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    method: str | None = None
    n: int = 0
    reason: str | None = None
    axis: str | None = None
    against: str | None = None
    against_condition: str | None = None
    against_step: int | None = None
    parts: list[str] | None = None


Row = Callable[..., ProtocolRow]
"""Makes a row of one group from a metric, a value and whatever else is known of them."""


def canary_metrics(
    frame: pd.DataFrame, utility: Sequence[Mapping[str, Any]], *, level: float = 0.95
) -> list[dict[str, Any]]:
    """All numbers of a canary run as rows for JSON, each for every seed and, with seed null, for all seeds together.

    Args:
        frame: the readings, canaries.parquet. utility: the list of utility.json. level: of all intervals.

    Returns:
        Dictionaries with the fields of `ProtocolRow`. For every (condition, step, model, role, place on the
        axes, probe): exposure_median, exposure_median_optimistic (ties in the code's favour), exposure_q1,
        exposure_q3 (bits), share_at_ceiling, uniformity_p, supplied_exposure_median, recovery, copy,
        full_response, position_accuracy (shares). In the probes `unseen` and `plain` ranks, and so exposures,
        are those of the supplied, new code, `recovery` is that of the assigned one and `copy` that of the new
        one. Conditions that are rotations of one design come once more as one group. Then contrasts between
        groups of focal canaries at the end of training that differ on one axis alone (`protocol_contrasts`),
        and utility (`utility_rows`).

    Intervals: medians by order statistics, shares by Clopper-Pearson on canaries. Canaries of one training share its
    weights, so neither says what another training would give; that is what the rows of each seed are for. Where a probe
    gives several readings a canary (new codes), exposures are described over all codes and a median has no interval;
    shares are means over canaries, each of which counts once in the interval. Where these are parts of a whole (several
    codes or positions a canary) the count behind a share is no whole number, and `method` calls the interval
    approximate.

    Raises:
        DataError: a column is missing, or a reading is there twice.

    Source: canary paper, sections III-B and A-C (medians with quartiles, shares; seeds shown one by one and pooled).
    Differs from the paper: it gives no tests and no intervals.
    """
    check_readings(frame)
    found, _ = cells(frame)
    merged = [(cell.frame.assign(condition=cell.name), list(cell.parts)) for cell in found if len(cell.parts) > 1]
    rows: list[ProtocolRow] = []
    for readings, parts in ((frame, None), *merged):
        for _, group in readings.groupby(list(GROUP), dropna=False, sort=False, observed=True):
            for seed in (*sorted(int(s) for s in group["seed"].unique()), None):
                rows += _describe(group if seed is None else group[group["seed"] == seed], seed, level, parts)
    rows += [ProtocolRow(**row) for row in (*contrast_rows(found, level), *utility_rows(utility))]
    return [{key: _plain(value) for key, value in vars(row).items()} for row in rows]


def _plain(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value


def _describe(group: pd.DataFrame, seed: int | None, level: float, parts: list[str] | None) -> Iterator[ProtocolRow]:
    first = group.iloc[0]
    keys: dict[str, Any] = {name: str(first[name]) for name in ("condition", "model", "role", "probe")}
    keys |= vars(setting_of(first)) | {"seed": seed, "step": int(first["step"]), "parts": parts}
    n_seeds = group["seed"].nunique()
    over = f", canaries of {n_seeds} seeds" if seed is None and n_seeds > 1 else ""
    n = len(group[list(CANARY)].drop_duplicates())

    def row(metric: str, value: float | None, n: int = n, **more: Any) -> ProtocolRow:
        if more.get("method"):
            more["method"] += over
        return ProtocolRow(**keys, metric=metric, value=value, n=n, **more)

    yield from _exposures(group, row, level)
    supplied = np.asarray(per_canary(group, "supplied_exposure_bits"), dtype=np.float64)
    if supplied.size:
        yield _median("supplied_exposure_median", supplied, supplied.size, row, level)
    for metric, column in (("recovery", "recovered"), ("copy", "copied"), ("full_response", "full_response")):
        shares = per_canary(group, column)
        if len(shares) or metric != "copy":
            yield _share(metric, shares, row, level)
    right = group["positions_correct"].sum() / group["n_positions"].sum() if group["n_positions"].sum() else None
    how: dict[str, Any] = {} if right is None else _ends(right, n, level, "positions of a code")
    yield row("position_accuracy", right, **how, reason=None if how else "no code has a position that varies")


def _exposures(group: pd.DataFrame, row: Row, level: float) -> Iterator[ProtocolRow]:
    ranked = group[group["rank"].notna() & group["exposure_bits"].notna()]
    why = _missing(group, ranked)
    values = np.asarray(ranked["exposure_bits"], dtype=np.float64)
    n = len(ranked[list(CANARY)].drop_duplicates())
    sizes = ranked["n_candidates"].unique()
    if len(values) == 0 or len(sizes) > 1:
        why = why if len(values) == 0 else f"ranked among different numbers of candidates: {sorted(map(int, sizes))}"
        names = ("exposure_median", "exposure_q1", "exposure_q3", "share_at_ceiling", "uniformity_p")
        for name in names:
            yield row(name, None, n=n, reason=why)
        return
    size = int(sizes[0])
    summary = summarise(values, ceiling_bits(size))
    yield _median("exposure_median", values, n, row, level, reason=why)
    optimistic = np.asarray(ranked["exposure_optimistic_bits"], dtype=np.float64)
    yield row("exposure_median_optimistic", float(np.median(optimistic)), n=n, method="median, ties resolved upwards")
    for name, value in (("exposure_q1", summary.q1), ("exposure_q3", summary.q3)):
        yield row(name, value, n=n, method="quartile, linear interpolation", reason=why)
    how = _ends(summary.share_at_ceiling, n, level, "codes of a canary" if len(values) > n else None)
    how["method"] += f"; ceiling {summary.ceiling_bits:.2f} bits"
    yield row("share_at_ceiling", summary.share_at_ceiling, n=n, **how, reason=why)
    first = ranked.iloc[0]
    label = "/".join(str(first[name]) for name in (*GROUP, "seed"))
    p = uniformity_p(np.asarray(ranked["rank"], dtype=np.float64), size, zlib.crc32(label.encode()))
    yield row("uniformity_p", p, n=n, method="randomisation of codes, one-sided, sum of exposures", reason=why)


def _missing(group: pd.DataFrame, ranked: pd.DataFrame) -> str | None:
    n_missing = len(group) - len(ranked)
    if not n_missing:
        return None
    reasons = group.loc[~group.index.isin(ranked.index) | group["rank"].isna(), "reason"].dropna()
    common = str(reasons.mode().iloc[0]) if len(reasons) else "no reason recorded"
    return f"{n_missing} of {len(group)} readings have no rank: {common}"


def _median(metric: str, values: Floats, n: int, row: Row, level: float, *, reason: str | None = None) -> ProtocolRow:
    """The median of `values`, shape (n_readings,), of n canaries; readings of one canary are not independent."""
    ends = median_interval(values, level) if values.size == n else None
    how: dict[str, Any] = {"method": "median" if values.size == n else f"median of {values.size} codes of {n} canaries"}
    if ends is not None:
        how = {"low": ends.low, "high": ends.high, "level": level, "method": f"median, {ends.method}"}
    return row(metric, float(np.median(values)), n=n, **how, reason=reason)


def _share(metric: str, shares: pd.Series[float], row: Row, level: float) -> ProtocolRow:
    n = len(shares)
    if not n:
        return row(metric, None, n=0, reason="nothing was generated")
    several = "codes of a canary" if not shares.isin((0.0, 1.0)).all() else None
    return row(metric, float(shares.mean()), n=n, **_ends(float(shares.mean()), n, level, several))


def _ends(share: float, n: int, level: float, several: str | None) -> dict[str, Any]:
    """Interval of a share by Clopper-Pearson on n canaries; `several`: of what a canary has more than one.

    Each canary then counts for a part, and the beta law is evaluated between whole counts: an approximation that errs
    on the wide side, because the average over a canary varies less than one yes or no.
    """
    ends = clopper_pearson(share * n, n, level)
    method = ends.method if several is None else f"approximate: {ends.method} on the mean over {several}"
    return {"low": ends.low, "high": ends.high, "level": level, "method": method}
