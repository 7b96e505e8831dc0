"""The controls of a canary run: codes that no training held must rank as chance has it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pandas as pd

from .cells import CANARY, HIDDEN
from .contrasts import MIN_CANARIES
from .exposure import null_median_interval
from .intervals import Interval

NULL_LEVEL = 0.99

_WHO = {
    "never_inserted": ("target", ("control",), "never-inserted canaries", "the design has no never-inserted canaries"),
    "base": ("base", None, "the canaries on the base model", "the base model was not asked"),
    "clean": ("clean", None, "the canaries on the model trained without them", "no model was trained without canaries"),
}


def control_checks(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """never_inserted, base and clean: {ran, reason, word, median, low, high, level, n, condition, rule, by_condition}.

    The cue is hidden in all of them. In each condition the median exposure over all seeds is compared with the interval
    in which chance puts it 99 times of 100; with k such medians in a run the level is 1 - 0.01 / k, so that all of them
    hold together 99 times of 100 in a sound run. word: "at baseline", "off baseline", or null with the reason. median,
    low, high, level, n and condition are those of the one nearest to, or farthest beyond, an end. A base model that
    gives the same ranks under every seed (one design, several training seeds) counts once; so does a base or clean
    model that answers alike for several conditions, because they share it: `conditions` in by_condition names them all.
    Otherwise k would grow with the number of arms and the test would see ever less.
    """
    groups = {name: _groups(frame, *who) for name, who in _WHO.items()}
    n_medians = sum(len(found) for found in groups.values() if not isinstance(found, str))
    return {name: _check(found, _WHO[name][2], n_medians) for name, found in groups.items()}


Groups = list[tuple[list[str], pd.DataFrame]]
"""Conditions with the same readings, and these."""


def _groups(frame: pd.DataFrame, model: str, roles: tuple[str, ...] | None, what: str, absent: str) -> Groups | str:
    """The readings of each condition at its last checkpoint, each canary once; or why there are none."""
    part = frame[frame["model"] == model]
    part = part if roles is None else part[part["role"].isin(roles)]
    if part.empty:
        return absent
    part = part[(part["probe"] == HIDDEN) & part["rank"].notna() & part["exposure_bits"].notna()]
    if part.empty:
        return f"{what}: no rank with the cue hidden"
    last = part.groupby(["condition", "seed"])["step"].transform("max")
    by_name = part[part["step"] == last].groupby("condition", sort=False)
    groups: dict[object, tuple[list[str], pd.DataFrame]] = {}
    for name, group in ((str(condition), _once(group)) for condition, group in by_name):
        if len(group) >= MIN_CANARIES:
            same = name if model == "target" else _said(group)
            groups.setdefault(same, ([], group))[0].append(name)
    return list(groups.values()) or f"{what}: fewer than {MIN_CANARIES} with a rank in every condition"


def _check(groups: Groups | str, what: str, n_medians: int) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "ran": False, "reason": None, "word": None, "median": None, "low": None, "high": None, "level": None, "n": 0,
        "condition": None, "rule": None, "by_condition": [],
    }  # fmt: skip
    if isinstance(groups, str):
        return empty | {"reason": groups}
    level = 1.0 - (1.0 - NULL_LEVEL) / n_medians
    rows: list[dict[str, Any]] = []
    for names, group in groups:
        chance = _null_interval(len(group), int(group["n_candidates"].max()), level)
        median = float(group["exposure_bits"].median())
        inside = chance.low <= median <= chance.high
        rows.append(
            {
                "condition": ", ".join(names),
                "conditions": names,
                "median": median,
                "low": chance.low,
                "high": chance.high,
            }
            | {"level": level, "n": len(group), "inside": inside, "by_seed": _by_seed(", ".join(names), group)}
        )
    worst = max(rows, key=lambda row: max(row["low"] - row["median"], row["median"] - row["high"]))
    word = "at baseline" if all(row["inside"] for row in rows) else "off baseline"
    rule = (
        f"the median exposure of {what}, cue hidden, lies where chance puts it, in every condition; the level is such "
        f"that all {n_medians} control medians of a sound run do so 99 times of 100"
    )
    named = {key: worst[key] for key in ("median", "low", "high", "level", "n", "condition")}
    return empty | {"ran": True, "word": word, "rule": rule, "by_condition": rows} | named


def _by_seed(condition: str, group: pd.DataFrame) -> list[dict[str, Any]]:
    """The median of each seed; sign: on which side of the 99% interval for as many canaries, 0 inside."""
    made = []
    for seed, part in group.groupby("seed"):
        chance = _null_interval(len(part), int(part["n_candidates"].max()))
        median = float(part["exposure_bits"].median())
        sign = int(median > chance.high) - int(median < chance.low)
        made.append({"where": condition, "seed": int(str(seed)), "value": median, "sign": sign, "p": None})
    return made


def _once(group: pd.DataFrame) -> pd.DataFrame:
    """Every canary of every seed once; a single seed where all seeds give every canary the same ranks."""
    group = group.drop_duplicates(list(CANARY))
    if group["seed"].nunique() > 1 and (group.groupby("canary_key")["logprob"].nunique(dropna=False) == 1).all():
        return group.drop_duplicates("canary_key")
    return group


def _said(group: pd.DataFrame) -> tuple[tuple[str, float], ...]:
    """Every canary with its log-probability: alike for models that are one."""
    return tuple(sorted(zip(group["canary_key"].astype(str), group["logprob"].astype(float), strict=True)))


@lru_cache(maxsize=256)
def _null_interval(n: int, n_candidates: int, level: float = NULL_LEVEL) -> Interval:
    """`null_median_interval`, kept: runs ask for the same few again and again."""
    return null_median_interval(n, n_candidates, level)
