"""From the scores of a block to rows of metrics.json and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from indelible.stats.evaluate import SIGNIFICANCE
from indelible.stats.intervals import Interval
from indelible.stats.paired import Paired, smallest_effect
from indelible.stats.tabular import CHOSEN, ERASED, POSITIVE, TabularEvaluation, evaluate_tabular
from indelible.stats.tabular_grid import GridSummary, grid_summary, over_seeds
from indelible.stats.tabular_rows import Row, columns_of, read_scores, read_side, separation_rows
from indelible.stats.verdict import Control, Evidence, Verdict, judge
from indelible.tabular.block import CURVE
from indelible.tabular.config import Statistics
from indelible.tabular.tables import World

_OPTIONAL = (
    "low", "high", "level", "method", "realised_fpr", "fpr_upper", "threshold", "reason", "null_rate", "null_sd",
    "seed_low", "seed_high", "seed_sd", "same_sign", "defence",
)  # fmt: skip
"""Keys that a row of metrics.json leaves out where there is nothing to say."""


@dataclass(frozen=True)
class Evaluated:
    """One configuration: its rows (with their place), its own verdict, and how many independent units the members and
    the non-members are (groups, or rows)."""

    config_id: str
    place: Mapping[str, Any]
    rows: tuple[Row, ...]
    verdict: Verdict
    units: tuple[int, int]


def records_of(world: World) -> pd.DataFrame:
    """The rows that are asked about, as the statistics take them: row, part, label, group."""
    table = world.prepared.table
    parts = [pd.DataFrame({"row": rows, "part": name}) for name, rows in world.groups.items()]
    frame = pd.concat(parts, ignore_index=True).sort_values("row", ignore_index=True)
    frame["label"] = np.asarray(world.probes.target, np.int64)[frame["row"].to_numpy()]
    if table.groups is not None:
        frame["group"] = np.array(table.groups, dtype=object)[frame["row"].to_numpy()]
    return frame


def units_of(world: World) -> tuple[int, int]:
    """Independent units among members and among non-members."""
    groups = world.prepared.table.groups
    sides = (np.asarray(world.split.members), np.asarray(world.split.nonmembers))
    one, two = (len(rows) if groups is None else len({groups[i] for i in rows}) for rows in sides)
    return one, two


def scores_of(part: pd.DataFrame, world: World) -> pd.DataFrame:
    """Scores in the statistics' long form, from rows of tabular.parquet of one configuration and epoch."""
    from indelible.attacks.tabular_scores import tabular_scores

    number = {record: i for i, record in enumerate(world.prepared.table.row_ids)}
    row = part["record_id"].map(number).to_numpy(np.int64)
    common = {"row": row, "probe": part["probe"].to_numpy()}
    after = {name: part[column].to_numpy() for name, column in _AFTER.items()}
    before = {name: part[column].to_numpy() for name, column in _BEFORE.items()}
    base = None if part["base_score"].isna().all() and part["base_reason"].isna().all() else before
    return tabular_scores(pd.DataFrame({**common, **after}), None if base is None else pd.DataFrame({**common, **base}))


_AFTER = {"logprob": "score", "margin": "margin", "reason": "reason"}
_BEFORE = {"logprob": "base_score", "margin": "base_margin", "reason": "base_reason"}


def evaluate_part(part: pd.DataFrame, world: World, config: Statistics, seed: int, **more: Any) -> TabularEvaluation:
    """Metrics and verdict of one configuration at its last epoch."""
    return evaluate_tabular(
        records_of(world),
        scores_of(part, world),
        n_choices=int(world.probes.choices.shape[1]),
        randomised=bool(world.split.randomised),
        seed=seed,
        level=config.level,
        n_bootstrap=config.n_bootstrap,
        n_permutations=config.n_permutations,
        **more,
    )


def curve_rows(part: pd.DataFrame, world: World, config: Statistics, seed: int) -> list[Row]:
    """AUC of the probes that are asked after every probe epoch, from rows of one configuration and epoch."""
    side = read_side(
        records_of(world), "members", level=config.level, n_bootstrap=config.n_bootstrap, seed=seed
    )  # fmt: skip
    if side is None:
        return []
    own = part[part["probe"].isin(CURVE) & (part["group"] != "context")]
    columns = columns_of(side, *read_scores(scores_of(own, world)))
    return [separation_rows(name, "target", columns[name, "target"], side)[0] for name in CURVE]


def training_rows(facts: Mapping[str, Any], n_members: int) -> list[tuple[int, Row]]:
    """Loss and accuracy on the query rows after each probe epoch, as rows of metrics.json."""
    out = []
    for point in facts["curve"]:
        for metric in ("loss", "accuracy"):
            value = point[metric]
            known = value is not None and np.isfinite(value)
            row: Row = {
                "attack": "training", "model": "target", "metric": metric, "value": float(value) if known else None,
                "part": "members", "n_members": n_members, "n_nonmembers": 0,
                "reason": None if known else "training diverged", "method": "query rows under the training context",
            }  # fmt: skip
            out.append((int(point["epoch"]), row))
    return out


def placed(rows: Sequence[Row], place: Mapping[str, Any], epoch: int | None, seed: int | None) -> list[Row]:
    """Rows with the configuration they are of; empty optional keys are left out."""
    out = []
    for row in rows:
        kept = {key: value for key, value in row.items() if value is not None or key not in _OPTIONAL}
        out.append({**place, "seed": seed, "epoch": epoch, **kept})
    return out


def seeds_together(by_seed: Mapping[int, Sequence[Row]], cell: Mapping[str, Any]) -> list[Row]:
    """Rows of one cell over its seeds; `seed` is null in them."""
    return placed(over_seeds(by_seed), {**cell, "config_id": None}, None, None)


def judged(configurations: Sequence[Evaluated]) -> tuple[Verdict, GridSummary]:
    """The verdict over a grid: by the score chosen before any was run, Holm over all its configurations.

    A configuration that is significant must also exceed the base model's own score, as in its own verdict. The words of
    single configurations, which Holm corrects over their own scores alone, stand beside it.
    """
    rows = [row for one in configurations for row in one.rows if row["attack"] == CHOSEN]
    summary = grid_summary(rows, by=("config_id",))
    adjusted = {line["config_id"]: line["p_holm"] for line in summary.configurations}
    evidence = []
    for one in configurations:
        own = {row["metric"]: row for row in one.rows if _is_chosen(row)}
        smallest = smallest_effect(*one.units, SIGNIFICANCE, n_tests=max(1, summary.n_tested))
        made = evidence_of(one.config_id, own, adjusted[one.config_id], smallest)
        evidence.append(replace(made, blind_reason="membership was drawn at random from one table"))
    verdict = judge(evidence, _controls(configurations), SIGNIFICANCE)
    rule = (
        f"One score decides, {CHOSEN}, chosen before any configuration was run; p-values after Holm over the "
        f"{summary.n_tested} configurations of the grid that could be tested. "
        + verdict.rule.replace("any attack", "any configuration")
    )
    return replace(verdict, rule=rule, reasons=(*_counted(verdict), *_remarks(configurations, summary))), summary


def _is_chosen(row: Row) -> bool:
    return (row["attack"], row["model"], row.get("part", "members")) == (CHOSEN, "target", "members")


def evidence_of(name: str, rows: Mapping[str, Row], p_holm: float | None, smallest_auc: float | None) -> Evidence:
    """What a verdict needs to know of one score, from its rows by metric.

    Args:
        name: under which it is judged.
    """
    area, minus = rows["auc"], rows.get("auc_minus_base") or {}
    if area["value"] is None or p_holm is None:
        return Evidence(name, unusable=area.get("reason") or "no test was possible")
    paired = None
    if minus.get("value") is not None:
        ends = Interval(minus["low"], minus["high"], minus["level"], minus["method"])
        paired = Paired(area["value"], area["value"] - minus["value"], minus["value"], ends, None)
    return Evidence(
        name, None, area["value"], area.get("low"), area.get("high"), rows["p_value"]["value"], p_holm=p_holm,
        minus_base=paired, base_reason=minus.get("reason") or "no score on the base model", smallest_auc=smallest_auc,
    )  # fmt: skip


def _counted(verdict: Verdict) -> list[str]:
    """How many configurations came to which word, with their names where they are few."""
    found: dict[str, list[str]] = {}
    for name, own in verdict.attacks.items():
        found.setdefault(own.word, []).append(name)
    said = [
        f"{word}: {len(names)} of {len(verdict.attacks)} configurations"
        + (f" ({', '.join(names)})" if word != "not detected" and len(names) <= 6 else "")
        for word, names in found.items()
    ]
    shown = [own.smallest_auc for own in verdict.attacks.values() if own.smallest_auc is not None]
    if verdict.word == "not detected" and shown:
        said.append(
            f"the smallest AUC a configuration would have shown with 80% power is {min(shown):.3f}; weaker leakage is "
            "not excluded"
        )
    if verdict.word == "not evaluable":
        said += list(dict.fromkeys(reason for own in verdict.attacks.values() for reason in own.reasons))[:6]
    return said


def _remarks(configurations: Sequence[Evaluated], summary: GridSummary) -> list[str]:
    said = []
    fitted, fit_of = _control_count(configurations, POSITIVE, lambda auc, p: p <= SIGNIFICANCE and auc > 0.5)
    if fit_of:
        end = "" if fitted else ": where they are not, finding nothing under the other contexts says little"
        said.append(
            f"positive control {POSITIVE}: members' labels were fitted in {fitted} of {fit_of} configurations{end}"
        )
    off, off_of = _control_count(configurations, ERASED, lambda auc, p: p <= SIGNIFICANCE)
    if off_of:
        said.append(
            f"null control {ERASED}: off chance (p at most {SIGNIFICANCE:g}, not corrected) in {off} of {off_of} "
            "configurations"
        )
    if summary.n_rule_by_chance is not None:
        said.append(
            f"the paper's own rule is met by {summary.n_rule} of {summary.n_ruled} configurations under {CHOSEN}; "
            f"models that know nothing would meet it in about {summary.n_rule_by_chance:.1f}"
        )
    if summary.max_auc is not None and summary.max_auc_by_chance is not None:
        said.append(
            f"the largest AUC under {CHOSEN} is {summary.max_auc:.3f}; the largest of so many would be about "
            f"{summary.max_auc_by_chance:.3f} by chance"
        )
    own = [one for one in configurations if one.verdict.word == "detected"]
    said.append(
        f"judged each by itself, over its own scores, {len(own)} of {len(configurations)} are “detected”; "
        "of so many some are by chance, and this does not count here"
    )
    return said


def _control_count(configurations: Sequence[Evaluated], name: str, holds: Any) -> tuple[int, int]:
    found = [one.verdict.controls.get(name) for one in configurations]
    known = [c for c in found if c is not None and c.ran and c.auc is not None and c.p_value is not None]
    return sum(bool(holds(c.auc, c.p_value)) for c in known), len(known)


def _controls(configurations: Sequence[Evaluated]) -> dict[str, Control]:
    """Which controls ran in every configuration; their numbers stand with each."""
    out: dict[str, Control] = {}
    for one in configurations:
        for name, control in one.verdict.controls.items():
            if name not in out or not control.ran:
                out[name] = Control(control.ran, control.reason)
    return out
