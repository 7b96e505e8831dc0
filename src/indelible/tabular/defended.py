"""The trainings of the defence comparison, and their rows of metrics.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from indelible.progress import say
from indelible.stats.tabular_rows import Row
from indelible.tabular.defences import (
    GUARD,
    Guard,
    guard_facts,
    guarded,
    leakage_rows,
    refusal_rows,
    refused,
    true_label_rows,
)
from indelible.tabular.evaluate import placed, seeds_together, training_rows
from indelible.tabular.plan import EARLY, NO_DEFENCE, Block, Defence, Plan, defence_blocks, defences_of
from indelible.tabular.worlds import World

if TYPE_CHECKING:
    from indelible.tabular.folder import Work
    from indelible.tabular.run import Bench


@dataclass(frozen=True)
class Defended:
    """What the comparison of defences came to.

    Attributes:
        blocks: the trainings, whose scores belong into tabular.parquet.
        rows: of metrics.json, with the key `defence`.
        facts: a dict a table and defence, in the order they are shown.
        not_run: what is left out.
    """

    blocks: tuple[Block, ...]
    rows: tuple[Row, ...]
    facts: tuple[dict[str, Any], ...]
    not_run: tuple[dict[str, str], ...]


def run_defences(bench: Bench, plan: Plan, work: Work) -> Defended:
    """Train, probe and evaluate every defence on every table and seed."""
    options = bench.config.defences
    if options is None:
        raise ValueError("no defences are asked for")
    blocks: list[Block] = []
    rows: list[Row] = []
    facts: dict[tuple[str, str], dict[str, Any]] = {}
    left: dict[str, str] = {}
    for table, held in plan.counts.items():
        if not held:
            continue
        by_seed: dict[str, dict[int, list[Row]]] = {}
        places: dict[str, dict[str, Any]] = {}
        for seed in bench.config.seeds:
            defences, lost = defences_of(bench.config, options, bench.tables[table], held, seed)
            left |= {one["what"]: one["reason"] for one in lost}
            true = list(defence_blocks(table, defences, seed, randomise=False))
            parts = _parts(bench, work, true)
            stopped_at = parts[EARLY].facts["epoch"]
            random = list(defence_blocks(table, defences, seed, randomise=True, stopped_at=stopped_at))
            worst = _parts(bench, work, random)
            blocks += [*true, *random]
            for one in defences:
                found = _rows_of(worst[one.name], parts[one.name], bench, seed)
                by_seed.setdefault(one.name, {})[seed] = found
                places[one.name] = _place(table, one)
                _note(facts, table, one, worst[one.name].facts, parts[one.name].facts, seed)
            by_seed.setdefault(GUARD, {})[seed] = _guard_rows(worst[NO_DEFENCE], parts[NO_DEFENCE], bench, seed)
            places[GUARD] = {**places[NO_DEFENCE], "defence": GUARD}
        facts[table, GUARD] = {
            "table": table, "defence": GUARD, "what": "a server that refuses contexts no honest user would send",
            "seeds": {}, "guard": guard_facts(Guard()),
        }  # fmt: skip
        for name, seeds in by_seed.items():
            for seed, found in seeds.items():
                rows += placed(found, places[name], None, seed)
            rows += seeds_together(seeds, places[name])
    not_run = tuple({"what": what, "reason": reason} for what, reason in left.items())
    return Defended(tuple(blocks), tuple(rows), tuple(facts.values()), not_run)


def expected_blocks(bench: Bench, counts: Mapping[str, Sequence[int]]) -> list[Block]:
    """The trainings of the comparison as they will be if early stopping never stops."""
    options, blocks = bench.config.defences, []
    if options is None:
        return []
    for table, held in counts.items():
        for seed in bench.config.seeds if held else ():
            defences, _ = defences_of(bench.config, options, bench.tables[table], held, seed)
            blocks += list(defence_blocks(table, defences, seed, randomise=False))
            last = bench.config.epochs
            blocks += list(defence_blocks(table, defences, seed, randomise=True, stopped_at=last))
    return blocks


@dataclass(frozen=True)
class _Part:
    """One training of the comparison: the rows of tabular.parquet at its end, its facts, its world."""

    frame: pd.DataFrame
    facts: Mapping[str, Any]
    world: World


def _parts(bench: Bench, work: Work, blocks: list[Block]) -> dict[str, _Part]:
    found = {}
    for block in blocks:
        say(block.title)
        bench.finish(block, work)
        frame, facts = work.read(bench.key(block))
        (table,) = block.tables
        for one in facts["configurations"]:
            own = frame[frame["config_id"] == one["config_id"]]
            found[str(one["name"])] = _Part(own, one, bench.world(block, table))
    return found


def _rows_of(worst: _Part, true: _Part, bench: Bench, seed: int) -> list[Row]:
    rows = leakage_rows(worst.frame, worst.world, bench.config, seed)
    rows += true_label_rows(true.frame, true.world, bench.config, seed)
    fitted = training_rows(worst.facts, len(worst.world.split.members))
    return rows + [row for epoch, row in fitted if epoch == worst.facts["epoch"]]


def _guard_rows(worst: _Part, true: _Part, bench: Bench, seed: int) -> list[Row]:
    """The undefended model behind the guard."""
    guard = Guard()
    names = [str(name) for name in dict.fromkeys(worst.frame["probe"])]
    said = refused(guard, worst.world, names)
    rows = leakage_rows(guarded(worst.frame, worst.world, said), worst.world, bench.config, seed)
    of_true = refused(guard, true.world, [str(name) for name in dict.fromkeys(true.frame["probe"])])
    rows += true_label_rows(guarded(true.frame, true.world, of_true), true.world, bench.config, seed)
    fitted = training_rows(worst.facts, len(worst.world.split.members))
    rows += [row for epoch, row in fitted if epoch == worst.facts["epoch"]]
    return rows + refusal_rows(guard, worst.world, said)


def _place(table: str, defence: Defence) -> dict[str, Any]:
    setting = defence.setting
    return {
        "config_id": None, "table": table, "profile": setting.profile, "defence": defence.name,
        "n_queries": setting.n_queries, "learning_rate": setting.learning_rate,
    }  # fmt: skip


def _note(
    facts: dict[tuple[str, str], dict[str, Any]],
    table: str,
    one: Defence,
    worst: Mapping[str, Any],
    true: Mapping[str, Any],
    seed: int,
) -> None:
    """Add a seed to the facts of a defence."""
    entry = facts.setdefault(
        (table, one.name), {"table": table, "defence": one.name, "what": one.what, "seeds": {}}
    )  # fmt: skip
    if one.setting.epsilon is not None and "private" not in entry:
        from indelible.training.tabular_private import private_facts

        entry["private"] = private_facts(one.setting, one.setting.n_queries)  # members are the query rows of one step
    known = worst["epsilon"] is not None and np.isfinite(worst["epsilon"])
    entry["seeds"][str(seed)] = {
        "epoch": worst["epoch"],
        "epoch_true_labels": true["epoch"],
        "stopped": worst["stopped"],
        "epsilon": worst["epsilon"] if known else None,
    }
