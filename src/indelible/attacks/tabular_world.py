"""What probes of a tabular model are and are built from: encoded rows, the labels they carry, candidates, contexts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from indelible.errors import DataError
from indelible.training.budget import stream

if TYPE_CHECKING:
    from indelible.data.table_splits import TableSplit
    from indelible.data.tables import Table
    from indelible.models.tabular import RowEncoding, TabularQueries

MAX_CHOICES = 10
"""Candidate labels of a row where the table has more classes: its own and nine others."""

Codes = NDArray[np.int64]
Features = NDArray[np.float32]
Reasons = list[str | None]


@dataclass(frozen=True, eq=False)
class ProbeWorld:
    """All that probes of one table need; membership is in `split` and no probe reads it.

    Attributes:
        encoded: (n, F) features of the whole table, under the encoding frozen on the training context.
        target: (n,) the label every row carries, in training as in probing.
        split: its `context` (the training context C') and `reserve` are used.
        encoding: gives the neutral row and noise.
        choices: (n, K') candidate labels of each row, its own among them, in order of code: see `candidate_labels`.

    Raises:
        DataError: labels that are no class codes, or candidates that do not belong to the rows.
    """

    encoded: Features
    target: Codes
    split: TableSplit
    encoding: RowEncoding
    n_classes: int
    seed: int
    choices: Codes

    def __post_init__(self) -> None:
        n = len(self.encoded)
        if self.target.shape != (n,) or not np.issubdtype(self.target.dtype, np.integer):
            raise DataError(
                f"probes: labels are {self.target.dtype} of shape {self.target.shape}, expected one class code for "
                f"each of {n} rows: turn numbers into classes first (as_classes)"
            )
        if self.choices.ndim != 2 or len(self.choices) != n or self.choices.shape[1] < 2:
            raise DataError(f"probes: candidate labels {self.choices.shape}, expected 2 at least for each of {n} rows")
        if not ((self.choices == self.target[:, None]).sum(axis=1) == 1).all():
            raise DataError("probes: each row's own label must be among its candidates once: use candidate_labels")

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers of one purpose, the same for every model."""
        return np.random.default_rng(stream(self.seed, f"probe: {purpose}"))


def candidate_labels(target: Codes, n_classes: int, row_ids: Sequence[str], seed: int) -> Codes:
    """Candidate labels Y of every row, shape (n, K'), in order of code, so that a place says nothing.

    All classes where there are at most 10. Else the row's own label and 9 others, drawn without repetition from the
    table's label marginal; the draw depends on the seed and the row's id alone, so tuned and base model see the same.
    Source: IclMem, 4.2 ("candidate label set Y"). Our reading: the text we have does not say which labels Y holds.
    """
    if n_classes <= MAX_CHOICES:
        return np.tile(np.arange(n_classes, dtype=np.int64), (len(target), 1))
    counts = np.bincount(target, minlength=n_classes).astype(np.float64)
    n_others = min(MAX_CHOICES, int((counts > 0).sum())) - 1
    out = np.empty((len(target), n_others + 1), np.int64)
    for i, (own, row_id) in enumerate(zip(target, row_ids, strict=True)):
        weights = counts.copy()
        weights[own] = 0.0
        rng = np.random.default_rng(stream(seed, f"candidates of {row_id}"))
        others = rng.choice(n_classes, size=n_others, replace=False, p=weights / weights.sum())
        out[i] = np.sort(np.append(others, own))
    return out


def probe_world(table: Table, split: TableSplit, encoding: RowEncoding, *, seed: int) -> ProbeWorld:
    """The world of a table of classes. Raises DataError for a regression table (`as_classes` makes one of classes)."""
    if table.task != "classification":
        raise DataError(f"{table.name} has numbers to predict, expected classes: use as_classes")
    n_classes = len(table.classes)
    target = np.asarray(split.target)
    choices = candidate_labels(target, n_classes, table.row_ids, seed)
    return ProbeWorld(encoding.encode(table.features), target, split, encoding, n_classes, seed, choices)


@dataclass(frozen=True)
class TabularProbe(ABC):
    """A way to ask about rows. Its fields are its settings.

    Class attributes: `informative`: the context says something about labels (a control, never evidence). `in_suite`:
    counted by the suite's mean and minimum. `identity`: the row's own features reach the model. `description`: for
    reports and docs.
    """

    name: ClassVar[str] = ""
    informative: ClassVar[bool] = False
    in_suite: ClassVar[bool] = True
    identity: ClassVar[bool] = True
    description: ClassVar[str] = ""

    def unfit(self, world: ProbeWorld, rows: Codes) -> Reasons:
        """For each row why it cannot be asked, or None."""
        return [None] * len(rows)

    @abstractmethod
    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        """The questions for `rows` (n,), row numbers of the table, all fit and at least one.

        Shapes (n, C, F), (n, C) and (n, 1, F) where each row has a context of its own; (1, C, F), (1, C) and (1, n, F)
        where all share one. Answers come in the order of `rows` either way.
        """


def each_own(features: Features, labels: Codes, queries: Features, n_classes: int) -> TabularQueries:
    """A context a query: all context rows of query i have `features[i]` (n, F); labels (n, C); queries (n, F)."""
    import torch

    from indelible.models.tabular import TabularQueries

    context = torch.from_numpy(np.array(features, np.float32)).unsqueeze(1)  # (n, 1, F)
    codes = torch.from_numpy(np.array(labels, np.int64))
    asked = torch.from_numpy(np.array(queries, np.float32)).unsqueeze(1)  # (n, 1, F)
    return TabularQueries(context.expand(-1, codes.shape[1], -1), codes, asked, n_classes)


def all_share(context: Features, labels: Codes, queries: Features, n_classes: int) -> TabularQueries:
    """One context (C, F) with labels (C,) for all queries (n, F)."""
    import torch

    from indelible.models.tabular import TabularQueries

    x, asked = (torch.from_numpy(np.array(a, np.float32)).unsqueeze(0) for a in (context, queries))
    return TabularQueries(x, torch.from_numpy(np.array(labels, np.int64)).unsqueeze(0), asked, n_classes)


def constant_rows(features: Features, labels: Codes, queries: Features, n_classes: int) -> TabularQueries:
    """One context row a candidate label (n, K'), all with the same features (F,), whatever the query (n, F).

    Queries with the same candidates share one context, which spares a pass for each.
    """
    if (labels == labels[0]).all():
        return all_share(np.tile(features, (labels.shape[1], 1)), labels[0], queries, n_classes)
    return each_own(np.tile(features, (len(queries), 1)), labels, queries, n_classes)
