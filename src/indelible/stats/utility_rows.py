"""Utility in metrics.json: task accuracy and held-out loss of each model, and how far from the base and clean model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cells import PLACES
from .metrics import json_number

_NAMES = ("accuracy", "heldout_loss")
_CONTROLS = {"base": "the base model was not asked", "clean": "no training without canaries"}
"""The models that a target is set beside, and how it is said that there is none."""


def utility_rows(utility: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """accuracy (share), heldout_loss (nats a token) and parse_rate (share, where replies are parsed) of every entry of
    utility.json, and for the target models
    accuracy_minus_base, heldout_loss_minus_base and the same with clean; then all of them over the seeds.

    Over seeds: the mean, with the lowest and highest seed as `low` and `high` and no level. role is "all", the places
    on the axes are None. The other side of a difference is the base or clean model read for the same condition and
    seed; where there is none, the difference is null with the reason. Where held-out rows are of several sets, each
    has all of them too, its name in brackets behind that of the number: `of_source`.
    """
    rows = [row for entry in utility for row in _entry(entry, utility)]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["condition"], row["step"], row["model"], row["metric"]), []).append(row)
    for group in groups.values():
        values = [row["value"] for row in group if row["value"] is not None]
        pooled = group[0] | {"seed": None, "value": None, "low": None, "high": None, "level": None, "method": None}
        if values:
            pooled |= {"value": sum(values) / len(values), "low": min(values), "high": max(values), "reason": None}
            pooled |= {"method": f"mean over {len(values)} seeds; ends are the lowest and the highest seed"}
            pooled |= {"n": sum(row["n"] for row in group if row["value"] is not None)}
        rows.append(pooled)
    return rows


def utility_of(utility: Sequence[Mapping[str, Any]], model: str, condition: str, seed: int) -> Mapping[str, Any] | None:
    """The last entry of a model for a condition and seed, or None: another condition may have trained otherwise."""
    own = [e for e in utility if e["model"] == model and int(e["seed"]) == seed and e["condition"] == condition]
    return max(own, key=lambda e: int(e["step"]), default=None)


def of_source(metric: str, source: str) -> str:
    """The name of a number of one set of held-out rows; "" is all of them."""
    return f"{metric} ({source})" if source else metric


def _entry(entry: Mapping[str, Any], utility: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [row for source in ("", *(entry.get("sources") or {})) for row in _of_one(entry, utility, source)]


def _part(entry: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The numbers of one set of rows, or of all."""
    return ((entry.get("sources") or {}).get(source) or {}) if source else entry


def _of_one(entry: Mapping[str, Any], utility: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    axes, numbers = (*PLACES, "probe"), _part(entry, source)
    base: dict[str, Any] = {
        "condition": str(entry["condition"]),
        "seed": int(entry["seed"]),
        "step": int(entry["step"]),
    }
    base |= {"model": str(entry["model"]), "role": "all"} | dict.fromkeys(axes) | {"n": int(numbers["n"])}
    blank = {"low": None, "high": None, "level": None, "method": None, "reason": None}
    rows = []
    for name in (*_NAMES, "parse_rate") if "parse_rate" in entry else _NAMES:  # of grounding
        value = json_number(numbers.get(name))
        why = None if value is not None else entry.get("reason") or "not measured"
        row = base | blank | {"metric": of_source(name, source), "value": value, "reason": why}
        if name != "heldout_loss" and value is not None:
            ends = {"low": numbers.get(f"{name}_low"), "high": numbers.get(f"{name}_high")}
            row |= ends | {"method": "on held-out rows"}
        rows.append(row)
        if entry["model"] != "target":
            continue
        for control, absent in _CONTROLS.items():
            other = utility_of(utility, control, base["condition"], base["seed"])
            theirs = None if other is None else json_number(_part(other, source).get(name))
            gap = None if value is None or theirs is None else value - theirs
            none = f"{absent} for this condition" if other is None else f"the {control} model has no {name}"
            reason = why if value is None else None if gap is not None else none
            metric = of_source(f"{name}_minus_{control}", source)
            rows.append(base | blank | {"metric": metric, "value": gap, "reason": reason})
    return rows
