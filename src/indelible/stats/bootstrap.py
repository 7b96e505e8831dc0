"""Resampling of whole groups, vectorised over replicates.

A replicate is a row of weights: how often each record was drawn. Weighted statistics over sorted scores cost
O(replicates x records), and one weight table serves every attack, which is what makes the comparisons paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .roc import Floats, finite_scores

Weights = NDArray[np.int32]

# Rows times records held as float64 at once: 4e6 values are 32 MB, several such arrays live at a time.
_CHUNK_VALUES = 4_000_000


def distinct_groups(groups: Sequence[str]) -> int:
    """Number of different groups."""
    return len(set(groups))


def is_grouped(member_groups: Sequence[str], nonmember_groups: Sequence[str]) -> bool:
    """True if any group holds more than one record."""
    everyone = [*member_groups, *nonmember_groups]
    return len(set(everyone)) < len(everyone)


def side_units(groups: Sequence[str], member: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Codes (n_records,) of the resampling units and whether each unit (n_units,) is of members.

    A unit is a group's records on one side. A group that stands on both sides becomes two units, which drops a positive
    correlation between the sides and so errs towards wider intervals.
    """
    labels = np.asarray(member, dtype=bool)
    _, codes = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    paired, units = np.unique(codes * 2 + labels, return_inverse=True)
    return units.astype(np.int64), (paired % 2).astype(bool)


def cluster_weights(
    groups: Sequence[str], strata: Sequence[int] | None, n_bootstrap: int, rng: np.random.Generator
) -> Weights:
    """How often each record is drawn in each replicate, shape (n_bootstrap, n_records).

    Groups are drawn with replacement, as many as there are, within each stratum (one stratum if None); a group in two
    strata is drawn separately in each. Raises ValueError for fewer than one replicate or lengths that differ.
    """
    if n_bootstrap < 1:
        raise ValueError(f"at least one bootstrap replicate is needed, got {n_bootstrap}")
    names = np.asarray(groups, dtype=str)
    layer = np.zeros(names.size, np.int64) if strata is None else np.asarray(strata, np.int64)
    if layer.size != names.size:
        raise ValueError(f"{layer.size} strata for {names.size} groups")
    weights = np.zeros((n_bootstrap, names.size), np.int32)
    for stratum in np.unique(layer):
        rows = np.flatnonzero(layer == stratum)
        _, codes = np.unique(names[rows], return_inverse=True)
        n_groups = int(codes.max()) + 1
        drawn = rng.multinomial(n_groups, np.full(n_groups, 1.0 / n_groups), size=n_bootstrap)
        weights[:, rows] = drawn[:, codes]
    return weights


def _chunks(n_rows: int, n_columns: int) -> Iterator[slice]:
    step = max(1, _CHUNK_VALUES // max(1, n_columns))
    for start in range(0, n_rows, step):
        yield slice(start, start + step)


def _check(scores: Floats, weights: Weights, what: str) -> None:
    if weights.ndim != 2 or weights.shape[1] != scores.size:
        raise ValueError(f"{what}: weights of shape {weights.shape} for {scores.size} scores")


def bootstrap_auc(
    members: ArrayLike, nonmembers: ArrayLike, member_weights: Weights, nonmember_weights: Weights
) -> Floats:
    """AUC of each replicate, shape (n_bootstrap,); NaN where a replicate drew nobody on one side."""
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    _check(m, member_weights, "members")
    _check(n, nonmember_weights, "nonmembers")
    order = np.argsort(n, kind="stable")
    left, right = (np.searchsorted(n[order], m, side=side) for side in ("left", "right"))
    areas = np.empty(member_weights.shape[0])
    for rows in _chunks(member_weights.shape[0], m.size + n.size):
        w_m = member_weights[rows].astype(np.float64)
        w_n = nonmember_weights[rows][:, order].astype(np.float64)
        total = np.concatenate([np.zeros((w_n.shape[0], 1)), np.cumsum(w_n, axis=1)], axis=1)  # (B, n + 1)
        wins = (w_m * (total[:, left] + total[:, right])).sum(axis=1) / 2.0
        pairs = w_m.sum(axis=1) * total[:, -1]
        areas[rows] = np.divide(wins, pairs, out=np.full(pairs.shape, np.nan), where=pairs > 0)
    return areas


def bootstrap_tpr(
    members: ArrayLike, nonmembers: ArrayLike, member_weights: Weights, nonmember_weights: Weights, fpr: float
) -> Floats:
    """TPR of each replicate at the replicate's own threshold: the rule of `roc.operating_point`, with weights."""
    m, n = finite_scores(members, "members"), finite_scores(nonmembers, "nonmembers")
    _check(m, member_weights, "members")
    _check(n, nonmember_weights, "nonmembers")
    order_m, order_n = np.argsort(-m, kind="stable"), np.argsort(-n, kind="stable")
    levels = np.unique(n)[::-1]  # candidate thresholds, falling
    above_m = np.searchsorted(-m[order_m], -levels, side="left")  # records with score > level
    above_n = np.searchsorted(-n[order_n], -levels, side="left")
    rates = np.empty(member_weights.shape[0])
    for rows in _chunks(member_weights.shape[0], m.size + n.size):
        flagged = []
        totals = []
        for weights, order, above in (
            (member_weights, order_m, above_m),
            (nonmember_weights, order_n, above_n),
        ):
            w = weights[rows][:, order].astype(np.float64)
            running = np.concatenate([np.zeros((w.shape[0], 1)), np.cumsum(w, axis=1)], axis=1)
            flagged.append(running[:, above])  # (B, n_levels)
            totals.append(running[:, -1])
        allowed = np.floor(fpr * totals[1] + 1e-9)
        # False positives grow as the threshold falls, so the last admissible level is the lowest one.
        best = (flagged[1] <= allowed[:, None]).sum(axis=1) - 1
        with np.errstate(invalid="ignore"):
            rates[rows] = flagged[0][np.arange(best.size), best] / totals[0]  # NaN where no member was drawn
    return rates


def percentile_interval(replicates: ArrayLike, level: float) -> tuple[float, float]:
    """Central percentiles of bootstrap replicates. Raises ValueError if any replicate is missing."""
    values = finite_scores(replicates, "bootstrap replicates")
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
