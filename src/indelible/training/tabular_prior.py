"""Made-up tables to pretrain a tabular in-context model on.

They are drawn from the priors that the package `tabicl` carries: structural causal models whose mechanisms are small
networks (J. Qu et al., "TabICL", ICML 2025, section 4), and graphs of mixed mechanisms (its second version).

Differs from the package's training: features and target of the first kind are taken from anywhere in the causal graph,
never features from its roots alone, and a table is kept only if a linear rule or five neighbours predict half of it
from the other half better than its most frequent class does; the first tables of a training are those where they do
much better. Measured with the package's defaults, in four tables of five nothing could be predicted, and the network
learned nothing else than class frequencies for as long as it was watched.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from indelible.errors import MissingExtra
from indelible.models.tabular import TabularQueries
from indelible.training.budget import stream

NEEDS = "pretraining draws tables with tabicl and xgboost: pip install 'indelible[tabular-pretrain]'"
GRAPH_SHARE = 0.3
"""Share of blocks from graphs, once tables need no longer be easy: they cost three times what small networks cost."""
GAIN, EASY_GAIN = 0.05, 0.25
"""What simple rules have to gain over the most frequent class, in accuracy."""
NEIGHBOURS, TRIES = 5, 6
UNSEEN = -100
"""Label of a query whose class the context does not show; the loss leaves it out."""
LINEAR_UP_TO = 5.0


@dataclass(frozen=True)
class Shapes:
    """How large tables are.

    Attributes:
        cells: rows times columns of a step's tables together, about.
        tables: most tables of a step.
        min_rows, max_rows: rows of a table, drawn evenly on a log scale; all tables of a step are of one shape.
        min_context, max_context: the share of a table's rows that is context, drawn evenly.
        min_features, max_features: columns of a table, drawn evenly on a log scale.
        max_classes: classes of a table; two in half of them.
    """

    cells: int = 5_000
    tables: int = 8
    min_rows: int = 48
    max_rows: int = 320
    min_context: float = 0.2
    max_context: float = 0.8
    min_features: int = 2
    max_features: int = 70
    max_classes: int = 10


@dataclass
class Pool:
    """Tables that steps draw from. A block of tables of one width is made when a step first draws it, serves for the
    `size * reuse` steps in which it is in the pool, each time with other rows, columns in another order and classes
    renamed, and is then dropped. What a step sees follows from seed, purpose and the step's number alone.

    Attributes:
        size: blocks that steps draw from.
        reuse: steps between two new blocks.
        n_easy: blocks, the first ones, whose tables are easy.
    """

    shapes: Shapes
    seed: int
    purpose: str
    size: int = 32
    reuse: int = 48
    n_easy: int = 0
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def tables(self, step: int) -> tuple[TabularQueries, Tensor]:
        """Questions of one shape, standardised as an audit's are, and the queries' labels (B, Q), some UNSEEN."""
        rng = np.random.default_rng(stream(self.seed, f"{self.purpose}: step {step}"))
        oldest = step // self.reuse
        self._blocks = {i: block for i, block in self._blocks.items() if i >= oldest}
        at = oldest + int(rng.integers(self.size))
        if at not in self._blocks:
            self._blocks[at] = make_block(
                self.shapes, stream(self.seed, f"{self.purpose}: block {at}"), easy=at < self.n_easy
            )
        return _cut(*self._blocks[at], self.shapes, rng)


def check_prior() -> None:
    """Raises:
    MissingExtra: a package that the tables need is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("tabicl", "xgboost")):
        raise MissingExtra(NEEDS)


def make_block(shapes: Shapes, seed: int, *, easy: bool = False) -> tuple[Tensor, Tensor]:
    """A few tables of `max_rows` rows and one width.

    Returns:
        Features (B, rows, columns) float32 and labels (B, rows) int64.
    """
    from tabicl.prior import PriorDataset
    from tabicl.prior._prior_config import DEFAULT_FIXED_HP

    rng = np.random.default_rng(seed)
    n_features = _log_uniform(rng, shapes.min_features, shapes.max_features)
    smallest = n_features * math.sqrt(shapes.min_rows * shapes.max_rows)
    n_tables = int(np.clip(shapes.cells / smallest, 2, shapes.tables))
    prior = PriorDataset(
        batch_size=n_tables, batch_size_per_gp=1, min_features=n_features, max_features=n_features,
        max_classes=shapes.max_classes, max_seq_len=shapes.max_rows, min_train_size=0.5, max_train_size=0.5,
        prior_type="graph_scm" if rng.random() < GRAPH_SHARE and not easy else "mlp_scm",
        scm_fixed_hp={**DEFAULT_FIXED_HP, "is_causal": True}, n_jobs=1,
    )  # fmt: skip
    least = EASY_GAIN if easy else GAIN
    kept: list[tuple[Tensor, Tensor]] = []
    last: list[tuple[Tensor, Tensor]] = []
    with seeded(seed):
        for _ in range(TRIES):
            x, y, *_ = prior.get_batch()
            last = list(zip(x.float(), y.long().clamp(0, shapes.max_classes - 1), strict=True))
            kept += [(a, b) for a, b in last if bool(a.isfinite().all()) and gain(a, b) > least]
            if len(kept) >= n_tables:
                break
    finite = [(a.nan_to_num(0.0, 0.0, 0.0), b) for a, b in last]
    xs, ys = zip(*(kept or finite)[:n_tables], strict=True)
    return torch.stack(xs), torch.stack(ys)


def gain(x: Tensor, y: Tensor) -> float:
    """By how much a ridge regression on one-hot labels or the five nearest rows, whichever is better, beats the most
    frequent class: accuracy on the second half of a table (rows, columns), from its first half.
    """
    n, n_classes = len(x) // 2, int(y.max()) + 1
    known, asked = F.pad(x[:n], (0, 1), value=1.0), F.pad(x[n:], (0, 1), value=1.0)
    labels = F.one_hot(y[:n], n_classes).float()
    ridge = known.T @ known + 0.1 * n * torch.eye(known.shape[1])
    linear = (asked @ torch.linalg.solve(ridge, known.T @ labels)).argmax(1)
    nearest = torch.cdist(asked, known).topk(min(NEIGHBOURS, n), largest=False).indices
    voted = labels[nearest].sum(1).argmax(1)
    usual = labels.sum(0).argmax()
    best = max(float((guess == y[n:]).float().mean()) for guess in (linear, voted))
    return best - float((usual == y[n:]).float().mean())


def _cut(x: Tensor, y: Tensor, shapes: Shapes, rng: np.random.Generator) -> tuple[TabularQueries, Tensor]:
    """Fresh questions from a block: some tables, some rows, columns shuffled, classes renamed."""
    n_rows = _log_uniform(rng, shapes.min_rows, shapes.max_rows)
    n_context = max(2, round(n_rows * rng.uniform(shapes.min_context, shapes.max_context)))
    n_tables = int(np.clip(shapes.cells // (n_rows * x.shape[-1]), 1, len(x)))
    features, labels = [], []
    for i in rng.permutation(len(x))[:n_tables]:
        rows = torch.from_numpy(rng.permutation(x.shape[1])[:n_rows])
        columns = torch.from_numpy(rng.permutation(x.shape[-1]))
        renamed = torch.from_numpy(rng.permutation(int(y[i].max()) + 1))
        features.append(x[i][rows][:, columns])
        labels.append(renamed[y[i][rows]])
    drawn, codes = torch.stack(features), torch.stack(labels)
    context, asked = standardised(drawn[:, :n_context], drawn[:, n_context:])
    shown, wanted = codes[:, :n_context], codes[:, n_context:]
    seen = (wanted[:, :, None] == shown[:, None, :]).any(-1)
    return TabularQueries(context, shown, asked, shapes.max_classes), torch.where(seen, wanted, UNSEEN)


def standardised(context: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Both by the mean and standard deviation of the context's columns, as `data.table_encoding` has numbers: beyond
    five standard deviations as a logarithm. Columns that are constant in the context are 0."""
    mean, std = context.mean(1, keepdim=True), context.std(1, keepdim=True, unbiased=False)
    std = torch.where(std > 1e-6, std, torch.inf)
    return _squash((context - mean) / std), _squash((queries - mean) / std)


def _squash(z: Tensor) -> Tensor:
    return z.sign() * (z.abs().clamp(max=LINEAR_UP_TO) + torch.log1p((z.abs() - LINEAR_UP_TO).clamp(min=0)))


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, which the priors and torch's initialisation draw from, and put them back after."""
    states: tuple[Any, Any, Tensor] = (np.random.get_state(), random.getstate(), torch.get_rng_state())  # noqa: NPY002
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    try:
        yield
    finally:
        np.random.set_state(states[0])  # noqa: NPY002
        random.setstate(states[1])
        torch.set_rng_state(states[2])
