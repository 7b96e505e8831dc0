"""Many tuned models: seeds as replicates, and a grid of configurations as what it is, many tests of one hypothesis."""

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
        configurations: a dict each: its place (`by`), auc, low, high, p_value, p_holm, paper_rule, null_rate, reason.
        n_tested: those that could be tested. n_above, n_below: significant after Holm, members higher or lower.
        n_rule: those that meet the paper's rule; n_rule_by_chance: the sum of their null rates, the count expected if
            no model knew anything; both over those that have the two (n_ruled).
        max_auc, max_auc_by_chance: the largest AUC, and what the largest of so many would be by chance.
    """

    attack: str
    by: tuple[str, ...]
    configurations: tuple[dict[str, Any], ...]
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
        own = {name: value for name, value in vars(self).items() if name not in ("by", "configurations")}
        return {**own, "by": list(self.by), "configurations": [dict(one) for one in self.configurations]}


def grid_summary(rows: Sequence[Row], *, attack: str = CHOSEN, by: Sequence[str] = ("config_id",)) -> GridSummary:
    """What a grid shows under one score, once for all its configurations.

    Args:
        rows: rows of the evaluations of all configurations, each with the keys `by` that say which one it is of (for
            several checkpoints of one, e.g. config_id and epoch). Other scores' rows are passed over.
        attack: the score, chosen before the grid was run.

    p-values are Holm-adjusted over the configurations. The counts beside chance: a rule that scores that know nothing
    meet one time in three is met by a third of any grid. The largest AUC by chance is that of independent normal
    AUCs with each one's permutation deviation; configurations probed on the same rows are not independent, and theirs
    is smaller: it errs on the side of chance. Nor is the count's own spread known, for the same reason.

    Raises DataError for no row of that score, a row without its place, or two of one metric for one place.
    """
    places: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        if (row["attack"], row["model"], row.get("part", "members")) != (attack, "target", "members"):
            continue
        lacking = [key for key in by if key not in row]
        if lacking:
            raise DataError(f"grid: a row of {attack} has no '{lacking[0]}', which says of which configuration it is")
        of = places.setdefault(tuple(row[key] for key in by), {})
        if row["metric"] in of:
            raise DataError(
                f"grid: {row['metric']} of {attack} is there twice for {', '.join(by)} {[row[k] for k in by]}"
            )
        of[row["metric"]] = row
    if not places:
        raise DataError(f"grid: no row of the score '{attack}' on the tuned models")
    lines = [_line(dict(zip(by, place, strict=True)), of) for place, of in places.items()]
    tested = [line for line in lines if line["p_value"] is not None]
    for line, p_value in zip(tested, holm([line["p_value"] for line in tested]), strict=True):
        line["p_holm"] = p_value
    found = [line for line in tested if line["p_holm"] <= SIGNIFICANCE]
    n_above = sum(line["auc"] >= 0.5 for line in found)
    ruled = [line for line in lines if line["paper_rule"] is not None and line["null_rate"] is not None]
    spread = [line["null_sd"] for line in lines if line["auc"] is not None and line["null_sd"] is not None]
    return GridSummary(
        attack, tuple(by), tuple(lines), len(tested), n_above, len(found) - n_above, len(ruled),
        sum(line["paper_rule"] for line in ruled),
        sum(line["null_rate"] for line in ruled) if ruled else None,
        max((line["auc"] for line in lines if line["auc"] is not None), default=None),
        largest_by_chance(spread) if spread else None,
    )  # fmt: skip


def _line(place: dict[str, Any], of: Mapping[str, Row]) -> dict[str, Any]:
    def get(metric: str, name: str = "value") -> Any:
        return of[metric].get(name) if metric in of else None

    rule = get("paper_rule")
    return {
        **place,
        "auc": get("auc"), "low": get("auc", "low"), "high": get("auc", "high"),
        "p_value": get("p_value"), "p_holm": None,
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
