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
from indelible.stats.verdict import WORDS, Control, Evidence, Verdict, Word, judge
from indelible.tabular.block import CURVE
from indelible.tabular.config import Statistics
from indelible.tabular.worlds import World

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


CELL = ("table", "profile", "n_queries", "learning_rate")
"""What the seeds of one cell have in common."""


def cell_name(place: Mapping[str, Any]) -> str:
    """For a person: `t, Q 50, rate 0.001`."""
    profile = "" if place["profile"] == "controlled" else f", {place['profile']}"
    return f"{place['table']}, Q {place['n_queries']}, rate {place['learning_rate']:g}{profile}"


def judged(configurations: Sequence[Evaluated]) -> tuple[Verdict, GridSummary]:
    """The verdict over a grid: by the score chosen before any was run, one test a cell over its seeds, Holm over cells.

    A cell that is significant must also exceed the base model's own score, as in a configuration's own verdict, and
    all its seeds must lie on one side of one half; else it is "not attributable". The words of single configurations,
    which Holm corrects over their own scores alone, stand beside it.
    """
    rows = [row for one in configurations for row in one.rows if row["attack"] == CHOSEN]
    summary = grid_summary(rows, by=("config_id",), cell=CELL)
    units = {cell_name(one.place): one.units for one in configurations}
    evidence, split = [], {}
    for cell in summary.cells:
        name = cell_name(cell)
        evidence.append(_cell_evidence(name, cell, units[name], max(1, summary.n_tested)))
        if cell["same_sign"] is False:
            split[name] = f"seeds lie on both sides of one half: {cell['seed_low']:.3f} to {cell['seed_high']:.3f}"
    verdict = judge(evidence, _controls(configurations), SIGNIFICANCE)
    words = dict(verdict.attacks)
    for name, why in split.items():
        word: Word = "not attributable" if words[name].word == "detected" else words[name].word
        words[name] = replace(words[name], word=word, reasons=(*words[name].reasons, why))
    overall = next(word for word in WORDS if any(own.word == word for own in words.values()))
    rule = (
        f"One score decides, {CHOSEN}, chosen before any configuration was run; one test a cell, over its seeds "
        f"(Stouffer), p-values after Holm over the {summary.n_tested} cells of the grid that could be tested; a cell "
        "whose seeds lie on both sides of one half is not detected. " + verdict.rule.replace("any attack", "any cell")
    )
    verdict = replace(verdict, word=overall, attacks=words, rule=rule)
    return replace(verdict, reasons=(*_counted(verdict), *_remarks(configurations, summary))), summary


def _cell_evidence(name: str, cell: Mapping[str, Any], units: tuple[int, int], n_tests: int) -> Evidence:
    """What a verdict needs to know of a cell. Over S seeds an AUC varies as over S times the units."""
    if cell["p_holm"] is None:
        return Evidence(name, unusable=cell["reason"] or "no test was possible")
    one, two = (n * cell["n_seeds"] for n in units)
    minus = None
    if cell["minus_base"] is not None:
        ends = Interval(cell["minus_base_low"], cell["minus_base_high"], cell["level"], "seeds' intervals together")
        minus = Paired(cell["auc"], cell["auc"] - cell["minus_base"], cell["minus_base"], ends, None)
    seeds = f"{cell['n_seeds']} of {cell['n_given']} seeds" if cell["n_seeds"] < cell["n_given"] else ""
    return Evidence(
        name, None, cell["auc"], None, None, cell["p_value"], p_holm=cell["p_holm"], minus_base=minus,
        base_reason=cell["reason"] or "no score on the base model",
        blind_reason="membership was drawn at random from one table",
        smallest_auc=smallest_effect(one, two, SIGNIFICANCE, n_tests=n_tests),
        notes=(f"judged by {seeds}: {cell['reason']}",) if seeds else (),
    )  # fmt: skip


def _counted(verdict: Verdict) -> list[str]:
    """How many cells came to which word, with their names where they are few."""
    found: dict[str, list[str]] = {}
    for name, own in verdict.attacks.items():
        found.setdefault(own.word, []).append(name)
    said = [
        f"{word}: {len(names)} of {len(verdict.attacks)} cells"
        + (f" ({'; '.join(names)})" if word != "not detected" and len(names) <= 6 else "")
        for word, names in found.items()
    ]
    shown = [own.smallest_auc for own in verdict.attacks.values() if own.smallest_auc is not None]
    if verdict.word == "not detected" and shown:
        least, most = f"{min(shown):.3f}", f"{max(shown):.3f}"
        reach = least if least == most else f"{least} to {most}, by the cell"
        said.append(
            f"the smallest AUC over its seeds that a cell would have shown with 80% power is {reach}; weaker leakage "
            "is not excluded"
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
            f"the largest AUC of a configuration under {CHOSEN} is {summary.max_auc:.3f}; the largest of so many would "
            f"be about {summary.max_auc_by_chance:.3f} by chance"
        )
    for name in dict.fromkeys(name for one in configurations for name in one.verdict.controls):
        lost = [c for one in configurations if (c := one.verdict.controls.get(name)) is not None and not c.ran]
        if lost:
            said.append(
                f"control {name} could not run in {len(lost)} of {len(configurations)} configurations: {lost[0].reason}"
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
