"""From settings and tables to what is tuned: blocks of configurations, and what is left out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from indelible.errors import UserError
from indelible.tabular.config import QUERIES, DefenceOptions, Profile, TabularRunConfig, short
from indelible.tabular.tables import Prepared, largest, sizes

if TYPE_CHECKING:
    from indelible.training.tabular import FineTune

NO_DEFENCE = "none"
EARLY = "early-stopping"


@dataclass(frozen=True)
class Block:
    """Configurations that are tuned side by side on the same rows, and kept together.

    Attributes:
        tables: more than one only under the profile "several".
        names: what tells the configurations apart within a block: the learning rate, or the defence.
        randomise: whether labels are randomised.
    """

    kind: Literal["grid", "defence"]
    tables: tuple[str, ...]
    profile: Profile
    n_queries: int
    seed: int
    names: tuple[str, ...]
    settings: tuple[FineTune, ...]
    randomise: bool

    def config_id(self, table: str, name: str) -> str:
        """The name of one configuration as probed on one table."""
        middle = f"defence-{name}" if self.kind == "defence" else f"{self.profile}-lr{name}"
        labels = "" if self.kind == "grid" or self.randomise else "-true"
        return f"{table}-{middle}-q{self.n_queries}{labels}-seed{self.seed}"

    @property
    def title(self) -> str:
        """For a person."""
        what = f"defences ({'randomised' if self.randomise else 'true'} labels)" if self.kind == "defence" else (
            f"{len(self.settings)} learning rates" + ("" if self.profile == "controlled" else f", {self.profile}")
        )  # fmt: skip
        return f"{', '.join(self.tables)}: Q {self.n_queries}, {what}, seed {self.seed}"

    @property
    def n_epochs(self) -> int:
        """Epochs of all configurations together."""
        return sum(max(one.probe_epochs) for one in self.settings)


@dataclass(frozen=True)
class Plan:
    """What a run does, and what it leaves out.

    Attributes:
        counts: table to its query counts, ascending.
        blocks: the grid's. Those of defences follow from them (`defence_blocks`).
        not_run: what was asked for or would be expected, and why it is not there.
    """

    counts: Mapping[str, tuple[int, ...]]
    blocks: tuple[Block, ...]
    not_run: tuple[dict[str, str], ...]


def query_counts(prepared: Prepared, config: TabularRunConfig) -> tuple[tuple[int, ...], list[dict[str, str]]]:
    """Query counts that a table holds, and those it does not with the reason.

    Where none was asked for, the largest count that the table holds stands in for 512, if it is twice the smaller.
    """
    held, left = [], []
    for wanted in sorted(config.queries or QUERIES):
        fits = sizes(prepared, wanted, config)
        if not isinstance(fits, str):
            held.append(wanted)
            continue
        instead = None
        if config.queries is None and wanted == max(QUERIES):
            instead = largest(prepared, config, wanted, 2 * config.least_nonmembers)
            if instead is not None and instead < 2 * min(QUERIES):
                instead = None
        reason = fits if instead is None else f"{fits}; {instead}, the largest that fits, stands in for it"
        left.append({"what": f"{prepared.label}: {wanted} query rows", "reason": reason})
        if instead is not None:
            held.append(instead)
    return tuple(held), left


def plan_run(config: TabularRunConfig, tables: Mapping[str, Prepared]) -> Plan:
    """The blocks of the grid, seed by seed.

    Raises:
        UserError: no table holds any query count.
    """
    counts: dict[str, tuple[int, ...]] = {}
    not_run: list[dict[str, str]] = []
    for name, prepared in tables.items():
        counts[name], left = query_counts(prepared, config)
        not_run += left
    if not any(counts.values()):
        mend = "give smaller --queries, or least_nonmembers in a --config file (fewer show less)"
        raise UserError(f"nothing to run: {not_run[0]['what']}: {not_run[0]['reason']}; {mend}")
    blocks: list[Block] = []
    for seed in config.seeds:
        for profile in config.profiles:
            groups = _together(counts) if profile == "several" else [((name,), counts[name]) for name in counts]
            for names, held in groups:
                for n_queries in held:
                    settings = tuple(_setting(config, profile, rate, n_queries, seed) for rate in config.learning_rates)
                    rates = tuple(map(short, config.learning_rates))
                    blocks.append(
                        Block("grid", names, profile, n_queries, seed, rates, settings, randomise=config.randomise)
                    )
    if "several" in config.profiles and not any(block.profile == "several" for block in blocks):
        reason = "no query count is held by two tables"
        not_run.append({"what": "training on several tables", "reason": reason})
    if len(config.seeds) < 3:
        reason = f"{len(config.seeds)} seed(s); three show how far split and training move a number"
        not_run.append({"what": "replicates", "reason": reason})
    return Plan(counts, tuple(blocks), tuple(not_run))


def _together(counts: Mapping[str, tuple[int, ...]]) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Tables that are trained on together, by query count: those that hold it."""
    every = sorted({n for held in counts.values() for n in held})
    groups = [(tuple(name for name, held in counts.items() if n in held), (n,)) for n in every]
    return [group for group in groups if len(group[0]) > 1]


def _setting(config: TabularRunConfig, profile: Profile, rate: float, n_queries: int, seed: int) -> FineTune:
    from indelible.training.tabular import FineTune

    return FineTune(
        learning_rate=rate,
        n_queries=n_queries,
        epochs=config.epochs,
        probe_epochs=config.probed_at,
        seed=seed,
        profile="controlled" if profile == "controlled" else "resampled",
        weight_decay=config.weight_decay,
        clip=config.clip,
    )


@dataclass(frozen=True)
class Defence:
    """One defence: its name, what it changes in words, and its training."""

    name: str
    what: str
    setting: FineTune


def defences_of(
    config: TabularRunConfig, options: DefenceOptions, prepared: Prepared, held: Sequence[int], seed: int
) -> tuple[list[Defence], list[dict[str, str]]]:
    """The trainings that are compared for one table, the undefended one first, and what is left out.

    Only the last epoch is probed: the comparison is of what would be deployed.
    """
    small = options.queries or min(held)
    base = replace(
        _setting(config, "controlled", options.learning_rate, small, seed), probe_epochs=(config.epochs,)
    )  # fmt: skip
    low = options.low_learning_rate
    looks = tuple(sorted({max(1, round(share * config.epochs)) for share in np.linspace(0, 1, options.looks + 1)[1:]}))
    found = [
        Defence(NO_DEFENCE, f"learning rate {short(options.learning_rate)}, {small} query rows", base),
        Defence("low-learning-rate", f"learning rate {short(low)}", replace(base, learning_rate=low)),
        Defence("resampled", "another context and other queries each epoch", replace(base, profile="resampled")),
        Defence(
            EARLY,
            f"ended where the held-out loss stops falling ({options.patience} of {len(looks)} looks)",
            replace(base, probe_epochs=looks, patience=options.patience),
        ),
    ]
    found += [
        Defence(
            f"dp-{short(epsilon)}",
            f"DP-SGD on query rows, epsilon {short(epsilon)}",
            replace(base, epsilon=epsilon, dp_clip=options.dp_clip),
        )
        for epsilon in options.epsilons
    ]
    left = []
    large = options.large_queries or max([n for n in held if n > small], default=None)
    # As in the grid: with a handful of non-members other rows would be compared rather than another training.
    large = large or largest(prepared, config, max(QUERIES), 2 * config.least_nonmembers)
    fits = sizes(prepared, large, config) if large else ""
    if large is None or large <= small or isinstance(fits, str):
        reason = (
            fits if isinstance(fits, str) else ""
        ) or f"no count above {small} up to {max(QUERIES)} leaves {2 * config.least_nonmembers} non-members"
        left.append({"what": f"{prepared.label}: more query rows as a defence", "reason": reason})
    else:
        found.insert(1, Defence("more-queries", f"{large} query rows", replace(base, n_queries=large)))
    return found, left


def defence_blocks(
    table: str, defences: Sequence[Defence], seed: int, *, randomise: bool, stopped_at: int | None = None
) -> Iterator[Block]:
    """The trainings of one table and seed as blocks, by query count.

    Args:
        stopped_at: the epoch at which early stopping ended on true labels. On randomised ones nobody would stop by the
            held-out loss, which can only rise: the leakage of early stopping is that of so many epochs.
    """
    by_count: dict[int, list[Defence]] = {}
    for one in defences:
        if one.name == EARLY and randomise:
            if stopped_at is None:
                continue
            one = replace(one, setting=replace(one.setting, probe_epochs=(stopped_at,), patience=None))
        by_count.setdefault(one.setting.n_queries, []).append(one)
    for n_queries, group in by_count.items():
        names, settings = tuple(one.name for one in group), tuple(one.setting for one in group)
        yield Block("defence", (table,), "controlled", n_queries, seed, names, settings, randomise=randomise)
