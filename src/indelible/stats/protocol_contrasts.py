"""Contrasts of a canary run: groups of focal canaries that differ on one axis alone, and one group under two probes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from .cells import AXIS_WORDS, HIDDEN, Cell, matched_delay, pairs
from .contrasts import Contrast, contrast, differences, of_seed, one_sample, recovery_contrast
from .paired import holm

PAIRED_PROBES = (HIDDEN, "as-trained", "substituted")
"""Probes that give one reading a canary, so that yes and no can be compared between conditions."""

NAMES = {
    "contrast": ("contrast_median", "contrast_p", "contrast_p_holm"),
    "recovery": ("contrast_recovery", "recovery_p", "recovery_p_holm"),
}
"""Names of value, p-value and p-value after Holm, where these are not NAME, NAME_p and NAME_p_holm."""


def names(kind: str) -> tuple[str, str, str]:
    """The metrics that a kind of comparison gives: value, p-value, p-value after Holm."""
    return NAMES.get(kind, (kind, f"{kind}_p", f"{kind}_p_holm"))


def contrast_rows(found: Sequence[Cell], level: float) -> list[dict[str, Any]]:
    """Rows of metrics.json for every comparison, for every seed and for all together (seed None).

    Between two cells that differ on one axis alone, in each probe, at the end of training: contrast_median (bits, this
    minus `against`, same canaries: Hodges-Lehmann) with contrast_p (Wilcoxon), contrast_recovery (share recovered, this
    minus that) with recovery_p (McNemar). For placement and spacing once more at checkpoints equally long after
    the last appearance, where the run has such (`step`, `against_step`).
    Within a cell: supplied_minus_assigned (probe `substituted`: exposure of the shown code minus that of the trained
    one, bits), recovered_minus_hidden (share recovered as trained minus with the cue hidden), trained_minus_unseen
    (share of trained codes recovered as trained minus share of new codes given when their cue is shown).
    Every p-value comes with one after Holm over all comparisons of its kind in one probe and one seed (or all seeds).
    """
    families: dict[tuple[Any, ...], list[tuple[dict[str, Any], Contrast]]] = defaultdict(list)
    for kind, keys, made in [*_between(found, level), *_within(found, level)]:
        families[kind, keys["seed"], keys["probe"]].append((keys, made))
    rows: list[dict[str, Any]] = []
    for (kind, _, _), members in families.items():
        tested = [made.p for _, made in members if made.p is not None]
        adjusted = iter(holm(tested))
        value, p, p_holm = names(kind)
        for keys, c in members:
            none = {"low": None, "high": None, "level": None}
            shared = {"n": c.n, "reason": c.reason}
            ends = {"low": c.low, "high": c.high, "level": c.level}
            rows.append(keys | {"metric": value, "value": c.value, **ends, "method": c.method} | shared)
            rows.append(keys | {"metric": p, "value": c.p, **none, "method": c.test} | shared)
            after = None if c.p is None else next(adjusted)
            how = f"{c.test}, Holm over {len(tested)} comparisons" if c.p is not None else None
            rows.append(keys | {"metric": p_holm, "value": after, **none, "method": how} | shared)
    return rows


def keys_of(cell: Cell, seed: int | None, step: int, probe: str) -> dict[str, Any]:
    """The fields that name a cell in metrics.json."""
    keys: dict[str, Any] = {"condition": cell.name, "seed": seed, "step": step, "model": "target", "role": "focal"}
    parts = list(cell.parts) if len(cell.parts) > 1 else None
    return keys | vars(cell.setting) | {"probe": probe, "parts": parts}


def against_of(axis: str, place: str, condition: str, step: int) -> dict[str, Any]:
    """The fields that name the other side of a contrast."""
    return {"axis": axis, "against": place, "against_condition": condition, "against_step": step}


Made = tuple[str, dict[str, Any], Contrast]


def _between(found: Sequence[Cell], level: float) -> Iterator[Made]:
    for axis, one, two in pairs(found):
        steps = [(one.final_step, two.final_step)]
        matched = matched_delay(one, two) if axis in ("placement", "spacing") else None
        if matched is not None:
            steps.append(matched)
        probes = [p for p in one.frame["probe"].unique() if p in set(two.frame["probe"].unique())]
        for at, against in steps:
            for probe in probes if (at, against) == steps[0] else [HIDDEN]:
                kinds = [("contrast", "exposure_bits")]
                kinds += [("recovery", "recovered")] if probe in PAIRED_PROBES else []
                for kind, column in kinds:
                    a, b = one.values(column, probe, step=at), two.values(column, probe, step=against)
                    for seed in (*sorted({*one.seeds} & {*two.seeds}), None):
                        left, right = of_seed(a, seed), of_seed(b, seed)
                        made = contrast(left, right, level) if kind == "contrast" else recovery_contrast(left, right)
                        keys = keys_of(one, seed, at, probe)
                        other = against_of(AXIS_WORDS[axis], two.setting.place(axis), two.name, against)
                        yield kind, keys | other, made


def _within(found: Sequence[Cell], level: float) -> Iterator[Made]:
    for cell in found:
        step, asked = cell.final_step, set(cell.frame["probe"].unique())
        for seed in (*cell.seeds, None):
            gaps = of_seed(supplied_gaps(cell), seed)
            if len(gaps):
                other = against_of("probe", "assigned code", cell.name, step)
                keys = keys_of(cell, seed, step, "substituted")
                yield "supplied_minus_assigned", keys | other, one_sample(gaps, level)
            if cell.setting.arm == "redacted" or "as-trained" not in asked:
                continue
            shown = of_seed(cell.values("recovered", "as-trained"), seed)
            keys = keys_of(cell, seed, step, "as-trained")
            if HIDDEN in asked:
                hidden = of_seed(cell.values("recovered", HIDDEN), seed)
                other = against_of("probe", HIDDEN, cell.name, step)
                yield "recovered_minus_hidden", keys | other, recovery_contrast(shown, hidden)
            if "unseen" in asked:
                new = of_seed(cell.values("copied", "unseen"), seed)
                other = against_of("probe", "unseen", cell.name, step)
                yield "trained_minus_unseen", keys | other, one_sample(differences(shown, new), level)


def supplied_gaps(cell: Cell) -> pd.Series[float]:
    """Exposure of the shown code minus that of the trained one under a substituted cue, in bits, one a canary."""
    supplied = cell.values("supplied_exposure_bits", "substituted")
    return differences(supplied, cell.values("exposure_bits", "substituted"))
