"""Many tuned models: seeds as replicates of a cell, and a grid of cells as what it is, many tests of one hypothesis."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from indelible.errors import DataError

from .evaluate import SIGNIFICANCE
from .paired import holm
from .tabular import CHOSEN
from .tabular_rows import Row

_CENTRE = {"auc": 0.5, "auc_over_line": 0.0, "auc_minus_base": 0.0}
"""Value of no effect, for metrics whose sign means something."""

_KEY = ("attack", "model", "metric", "part")


def over_seeds(by_seed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """One row a score and metric over several seeds, from the rows of each seed's evaluation.

    `value` is the mean over seeds, `seed_low` and `seed_high` the least and the most, `seed_sd` their standard
    deviation, `n_seeds` how many have a value; `low` and `high`, the interval over records, are the means of the seeds'
    own, because rows of one table are no new sample under another seed. For AUCs and their differences `same_sign`:
    every seed lies on the same side of no effect (three seeds agree by chance one time in four). Null with a reason
    where no seed has a value. Raises DataError without a seed.
    """
    if not by_seed:
        raise DataError("over seeds: no seed was given")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for rows in by_seed.values():
        for row in rows:
            groups.setdefault(tuple(row.get(key) for key in _KEY), []).append(row)
    return [_over_seeds(group, len(by_seed)) for group in groups.values()]


def _over_seeds(group: Sequence[Row], n_given: int) -> Row:
    known = [row for row in group if row["value"] is not None]
    first = (known or group)[0]
    values = [float(row["value"]) for row in known]
    ends = {name: [row[name] for row in known if row.get(name) is not None] for name in ("low", "high", "realised_fpr")}
    centre = _CENTRE.get(first["metric"])
    sides = {float(np.sign(value - centre)) for value in values} if centre is not None else set()
    missing = n_given - len(known)
    why = next((row["reason"] for row in group if row["value"] is None), "no row for this seed")
    return {
        **{key: first.get(key) for key in (*_KEY, "level", "method")},
        "value": statistics.fmean(values) if values else None,
        **{name: statistics.fmean(v) if v and len(v) == len(known) else None for name, v in ends.items()},
        "seed_low": min(values, default=None),
        "seed_high": max(values, default=None),
        "seed_sd": statistics.stdev(values) if len(values) > 1 else None,
        "n_seeds": len(known),
        "same_sign": len(sides) == 1 and 0.0 not in sides if centre is not None and values else None,
        "n_members": min((row["n_members"] for row in known), default=0),
        "n_nonmembers": min((row["n_nonmembers"] for row in known), default=0),
        "reason": f"{missing} of {n_given} seeds have no value ({why})" if missing else None,
    }


@dataclass(frozen=True)
class GridSummary:
    """A grid of configurations under one score chosen beforehand.

    Attributes:
        configurations: a dict each: its place (`by`), auc, low, high, p_value, paper_rule, null_rate, reason.
        cells: a dict each: its place (`cell`), n_seeds (that have a test), n_given, auc (mean), seed_low, seed_high,
            same_sign, p_value over the seeds, p_holm, minus_base with minus_base_low and minus_base_high, reason.
        n_tested: cells that could be tested. n_above, n_below: significant after Holm, members higher or lower.
        n_rule: configurations that meet the paper's rule; n_rule_by_chance: the sum of their null rates, the count
            expected if no model knew anything; both over those that have the two (n_ruled).
        max_auc, max_auc_by_chance: the largest AUC of a configuration, and what the largest of so many would be by
            chance; null below two.
    """

    attack: str
    by: tuple[str, ...]
    cell: tuple[str, ...]
    configurations: tuple[dict[str, Any], ...]
    cells: tuple[dict[str, Any], ...]
    n_tested: int
    n_above: int
    n_below: int
    n_ruled: int
    n_rule: int
    n_rule_by_chance: float | None
    max_auc: float | None
    max_auc_by_chance: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        lists = {name: list(getattr(self, name)) for name in ("by", "cell")}
        tables = {name: [dict(one) for one in getattr(self, name)] for name in ("configurations", "cells")}
        return {**vars(self), **lists, **tables}


def grid_summary(
    rows: Sequence[Row], *, attack: str = CHOSEN, by: Sequence[str] = ("config_id",), cell: Sequence[str] = ()
) -> GridSummary:
    """What a grid shows under one score, once for all its configurations.

    Args:
        rows: rows of the evaluations of all configurations, each with the keys `by` and `cell`. Other scores' rows are
            passed over.
        attack: the score, chosen before the grid was run.
        by: keys that say which configuration a row is of (for several checkpoints of one, e.g. config_id and epoch).
        cell: keys that the seeds of one cell have in common; `by` unless given, so that each stands for itself.

    A cell is tested once, over its seeds (`over_seeds_p`); p-values are Holm-adjusted over the cells. The counts beside
    chance: a rule that scores that know nothing meet one time in three is met by a third of any grid. The largest AUC
    by chance is that of independent normal AUCs with each one's permutation deviation; configurations probed on the
    same rows are not independent, and theirs is smaller: it errs on the side of chance. Nor is the count's own spread
    known, for the same reason.

    Raises DataError for no row of that score, a row without its place, or two of one metric for one place.
    """
    cell = cell or by
    places: dict[tuple[Any, ...], dict[str, Row]] = {}
    cells: dict[tuple[Any, ...], list[dict[str, Row]]] = {}
    for row in rows:
        if (row["attack"], row["model"], row.get("part", "members")) != (attack, "target", "members"):
            continue
        lacking = [key for key in (*by, *cell) if key not in row]
        if lacking:
            raise DataError(f"grid: a row of {attack} has no '{lacking[0]}', which says of which configuration it is")
        place = tuple(row[key] for key in by)
        if place not in places:
            places[place] = {}
            cells.setdefault(tuple(row[key] for key in cell), []).append(places[place])
        if row["metric"] in places[place]:
            raise DataError(f"grid: {row['metric']} of {attack} is there twice for {', '.join(by)} {list(place)}")
        places[place][row["metric"]] = row
    if not places:
        raise DataError(f"grid: no row of the score '{attack}' on the tuned models")
    lines = [_line(dict(zip(by, place, strict=True)), of) for place, of in places.items()]
    judged = [{**dict(zip(cell, place, strict=True)), **_cell(seeds)} for place, seeds in cells.items()]
    tested = [one for one in judged if one["p_value"] is not None]
    for one, p_value in zip(tested, holm([one["p_value"] for one in tested]), strict=True):
        one["p_holm"] = p_value
    found = [one for one in tested if one["p_holm"] <= SIGNIFICANCE]
    n_above = sum(one["auc"] >= 0.5 for one in found)
    ruled = [line for line in lines if line["paper_rule"] is not None and line["null_rate"] is not None]
    areas = [line["auc"] for line in lines if line["auc"] is not None]
    spread = [line["null_sd"] for line in lines if line["auc"] is not None and line["null_sd"] is not None]
    return GridSummary(
        attack, tuple(by), tuple(cell), tuple(lines), tuple(judged), len(tested), n_above, len(found) - n_above,
        len(ruled),
        sum(line["paper_rule"] for line in ruled),
        sum(line["null_rate"] for line in ruled) if ruled else None,
        max(areas, default=None),
        largest_by_chance(spread) if len(spread) > 1 else None,
    )  # fmt: skip


def over_seeds_p(areas: Sequence[float], p_values: Sequence[float]) -> float:
    """Two-sided p-value of "no seed's members rank otherwise than others of their class", over seeds together.

    z = sum_s z_s / sqrt(S), z_s = sign(AUC_s - 1/2) Phi^-1(1 - p_s / 2): seeds that agree add up, and one that stands
    alone is averaged away. Every seed draws its own members, whatever the others drew, and each p-value holds given
    the rows and scores of its own; the z_s are therefore independent although the table is the same. What is tested is
    this table and this training: another table is another sample.

    Raises DataError without a seed. Source: Stouffer et al. 1949; the paper names no test.
    """
    if not areas:
        raise DataError("over seeds: no seed was given")
    signed = np.sign(np.asarray(areas) - 0.5) * stats.norm.isf(np.clip(np.asarray(p_values), 1e-300, 1.0) / 2.0)
    return float(min(1.0, 2.0 * stats.norm.sf(abs(signed.sum()) / np.sqrt(len(signed)))))


def _cell(seeds: Sequence[Mapping[str, Row]]) -> dict[str, Any]:
    """A cell over its seeds. The difference to the base model: the mean of the seeds' own, with an interval from
    theirs, half widths added in squares for the reason that `over_seeds_p` gives."""
    known = [of for of in seeds if of["auc"]["value"] is not None and of["p_value"]["value"] is not None]
    areas = [float(of["auc"]["value"]) for of in known]
    lost = next((of["auc"].get("reason") for of in seeds if of not in known), None)
    minus = [row for of in known if (row := of.get("auc_minus_base")) is not None and row["value"] is not None]
    mean = half = None
    if known and len(minus) == len(known):
        # A seed on the other side of one half has its difference on the other side of zero, and counts against.
        mean = statistics.fmean(float(row["value"]) for row in minus)
        half = float(np.sqrt(sum(((row["high"] - row["low"]) / 2.0) ** 2 for row in minus))) / len(minus)
    reason = next((row.get("reason") for of in known if (row := of.get("auc_minus_base")) is not None), None)
    return {
        "n_given": len(seeds), "n_seeds": len(known),
        "auc": statistics.fmean(areas) if areas else None,
        "seed_low": min(areas, default=None), "seed_high": max(areas, default=None),
        "same_sign": len({float(np.sign(a - 0.5)) for a in areas}) == 1 and 0.5 not in areas if areas else None,
        "p_value": over_seeds_p(areas, [float(of["p_value"]["value"]) for of in known]) if known else None,
        "p_holm": None,
        "minus_base": mean, "level": minus[0].get("level") if minus else None,
        "minus_base_low": None if mean is None or half is None else mean - half,
        "minus_base_high": None if mean is None or half is None else mean + half,
        "reason": lost or (None if mean is not None else reason),
    }  # fmt: skip


def _line(place: dict[str, Any], of: Mapping[str, Row]) -> dict[str, Any]:
    def get(metric: str, name: str = "value") -> Any:
        return of[metric].get(name) if metric in of else None

    rule = get("paper_rule")
    return {
        **place,
        "auc": get("auc"), "low": get("auc", "low"), "high": get("auc", "high"),
        "p_value": get("p_value"),
        "paper_rule": None if rule is None else bool(rule),
        "null_rate": get("paper_rule", "null_rate"), "null_sd": get("paper_rule", "null_sd"),
        "reason": get("auc", "reason"),
    }  # fmt: skip


def largest_by_chance(deviations: Sequence[float]) -> float:
    """Expected largest of independent normal AUCs of mean 1/2 with these standard deviations, by numeric integration:
    1/2 + integral over x > 0 of 1 - prod_i Phi(x / sd_i), minus integral over x < 0 of prod_i Phi(x / sd_i)."""
    sd = np.asarray(deviations, np.float64)
    sd = sd[sd > 0]
    if not sd.size:
        return 0.5
    x: NDArray[np.float64] = np.linspace(0.0, 8.0, 801) * float(sd.max())
    above, below = (
        float(np.trapezoid(np.array(values), x))
        for values in (
            [-np.expm1(stats.norm.logcdf(at / sd).sum()) for at in x],
            [np.exp(stats.norm.logcdf(-at / sd).sum()) for at in x],
        )
    )
    return 0.5 + above - below
