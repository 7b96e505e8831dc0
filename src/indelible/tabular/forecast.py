"""What a tabular run will cost, before it starts: a few epochs and questions are timed, and the rest is scaled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from indelible.progress import say
from indelible.tabular.block import CURVE, device_of, probes_of
from indelible.tabular.plan import Block
from indelible.tabular.worlds import World

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel
    from indelible.training.tabular import FineTune, TuneTask

PILOT_EPOCHS = (1, 3)
PILOT_ROWS = (24, 72)

Key = tuple[str, int]


@dataclass(frozen=True)
class _Line:
    """Seconds by number of rows: `seconds` for `n`, and `slope` for each further one."""

    n: int
    seconds: float
    slope: float

    def __call__(self, n_rows: int) -> float:
        return self.seconds + self.slope * max(0, n_rows - self.n)


@dataclass(frozen=True)
class Forecast:
    """What is ahead: configurations, their epochs, and seconds on this machine without statistics and report."""

    blocks: int
    configurations: int
    epochs: int
    at_hand: int
    seconds: float

    def __str__(self) -> str:
        took = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
        done = f" ({self.at_hand} more blocks are at hand)" if self.at_hand else ""
        return (
            f"expected: {self.configurations} configurations in {self.blocks} blocks{done}, {self.epochs:,} epochs, "
            f"{took} on this machine, going by {PILOT_EPOCHS[1]} epochs of each kind; statistics and report come on top"
        )


def forecast(
    blocks: Sequence[Block], model: TabularModel, world_of: Callable[[Block, str], World], *, at_hand: int
) -> Forecast:
    """Time what is to be done.

    Args:
        blocks: those that are not at hand.
        world_of: the world of a block's table.
        at_hand: how many more blocks are finished already.
    """
    if blocks:
        say("forecast: a few epochs and questions of each kind are timed; nothing of them is kept")
    epoch_seconds: dict[tuple[tuple[str, ...], int, bool], float] = {}
    asking: dict[Key, tuple[_Line, _Line]] = {}
    total = 0.0
    for block in blocks:
        worlds = {table: world_of(block, table) for table in block.tables}
        for private in (False, True):
            own = [one for one in block.settings if (one.epsilon is not None) == private]
            kind = (block.tables, block.n_queries, private)
            if own and kind not in epoch_seconds:
                tasks = [world.task(device_of(model)) for world in worlds.values()]
                epoch_seconds[kind] = _epoch_seconds(own, model, tasks)
            total += sum(max(one.probe_epochs) * epoch_seconds[kind] for one in own)
        for table, world in worlds.items():
            if (table, block.n_queries) not in asking:
                asking[table, block.n_queries] = _asking(block, model, world)
            short, full = asking[table, block.n_queries]
            n_rows = sum(len(rows) for rows in world.groups.values())
            n_checks = sum(len(one.probe_epochs) - 1 for one in block.settings) if block.kind == "grid" else 0
            total += full(n_rows) * (1 + len(block.settings)) + short(n_rows) * n_checks
    return Forecast(
        len(blocks), sum(len(b.settings) for b in blocks), sum(b.n_epochs for b in blocks), at_hand, total
    )  # fmt: skip


def _epoch_seconds(settings: Sequence[FineTune], model: TabularModel, tasks: Sequence[TuneTask]) -> float:
    """Seconds of one configuration's epoch, tuned in its stack; setting up is taken out."""
    from indelible.training.tabular import fine_tune

    took = []
    for n in PILOT_EPOCHS:
        begin = time.monotonic()
        fine_tune(model, tasks, [replace(one, epochs=n, probe_epochs=(n,), patience=None) for one in settings])
        took.append(time.monotonic() - begin)
    return max(took[1] - took[0], 1e-6) / (PILOT_EPOCHS[1] - PILOT_EPOCHS[0]) / len(settings)


def _asking(block: Block, model: TabularModel, world: World) -> tuple[_Line, _Line]:
    """Seconds to ask about so many rows: after a probe epoch, and after the last."""
    from indelible.attacks.tabular_scores import score_rows

    rows = np.sort(np.concatenate([world.groups["member"], world.groups["nonmember"]]))
    sizes = [min(n, len(rows)) for n in PILOT_ROWS]
    score_rows(model, world.probes, rows[:2], list(CURVE))  # the first question takes longer
    lines = []
    for names in (CURVE, probes_of(block)):
        took = []
        for n in sizes:
            begin = time.monotonic()
            score_rows(model, world.probes, rows[:n], list(names))
            took.append(time.monotonic() - begin)
        slope = max(took[1] - took[0], 0.0) / max(sizes[1] - sizes[0], 1)
        lines.append(_Line(sizes[0], took[0], slope))
    return lines[0], lines[1]
