"""Rows of metrics for what a sweep measures itself: means, rank correlations, AUCs of a few members."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from indelible.stats.cohort import Column, column_auc, read_cohort, read_columns, unusable
from indelible.stats.metrics import Metric

Floats = NDArray[np.float64]


def mean_row(
    attack: str, model: str, metric: str, values: Sequence[float], groups: Sequence[str], *, level: float, member: bool
) -> Metric:
    """The mean of finite values with its t-interval; values of one group count as one.

    Standard error: sqrt(G / (G - 1) * sum over groups of (sum of deviations)^2) / n, which is s / sqrt(n) where every
    value is a group of its own.
    """
    from scipy.stats import t

    finite = [(value, group) for value, group in zip(values, groups, strict=True) if math.isfinite(value)]
    n = len(finite)
    row = Metric(attack, model, metric, None, n_members=n if member else 0, n_nonmembers=0 if member else n)
    if not finite:
        return replace(row, reason="no record has a value")
    mean = math.fsum(value for value, _ in finite) / n
    sums: defaultdict[str, float] = defaultdict(float)
    for value, group in finite:
        sums[group] += value - mean
    if (n_groups := len(sums)) < 2:
        return replace(row, value=mean, method="one value has no interval")
    error = math.sqrt(n_groups / (n_groups - 1) * math.fsum(s * s for s in sums.values())) / n
    half = float(t.ppf(0.5 + level / 2, n_groups - 1)) * error
    return replace(row, value=mean, low=mean - half, high=mean + half, level=level, method="t over groups of records")


def spearman_rows(attack: str, x: Floats, y: Floats, *, level: float, metric: str = "spearman") -> list[Metric]:
    """Spearman's rank correlation of two columns with its interval, and its p-value.

    Interval: Fisher's z with the standard error sqrt((1 + rho^2 / 2) / (n - 3)) of Bonett and Wright (2000).
    """
    from scipy.stats import norm, spearmanr

    both = np.isfinite(x) & np.isfinite(y)
    n = int(both.sum())
    row = Metric(attack, "target", metric, None, n_nonmembers=n)
    p_row = Metric(attack, "target", f"p_{metric}", None, n_nonmembers=n)
    if n < 4 or np.ptp(x[both]) == 0 or np.ptp(y[both]) == 0:
        why = f"{n} records are too few for a correlation" if n < 4 else "one side is the same for every record"
        return [replace(row, reason=why), replace(p_row, reason=why)]
    found = spearmanr(x[both], y[both])
    rho = float(found.statistic)
    if 1 - abs(rho) > 1e-12:  # a perfect order, up to rounding, has no interval
        half = float(norm.ppf(0.5 + level / 2)) * math.sqrt((1 + rho * rho / 2) / (n - 3))
        low, high = math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half)
    else:
        low = high = rho
    return [
        replace(row, value=rho, low=low, high=high, level=level, method="Fisher z, Bonett-Wright"),
        replace(p_row, value=float(found.pvalue), method="two-sided"),
    ]


def auc_row(attack: str, records: pd.DataFrame, scores: pd.DataFrame, *, level: float, seed: int) -> Metric:
    """AUC of one attack on the audited model over these records, as in an audit's report.

    Args:
        records: record_id, member, group. scores: those of the attack on the target; other records' are left out.
    """
    cohort = read_cohort(records, level=level, n_bootstrap=2000, seed=seed)
    own = scores[scores["record_id"].astype(str).isin(set(cohort.ids))]
    column: Column | None = read_columns(own, cohort).get((attack, "target"))
    row = Metric(attack, "target", "auc", None)
    if column is None:
        return replace(row, reason="no record has a score")
    one, two = cohort.sides(column.finite)
    row = replace(row, n_members=int(one.sum()), n_nonmembers=int(two.sum()))
    why = unusable(column, cohort)
    if why is not None:
        return replace(row, reason=why)
    area, interval, _, _ = column_auc(column, cohort)
    return replace(row, value=area, low=interval.low, high=interval.high, level=level, method=interval.method)
