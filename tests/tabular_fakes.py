"""A small world of rows for tests of tabular probes and scores, and models that are tables of what they know."""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch

from indelible.attacks.tabular import ProbeWorld, candidate_labels
from indelible.data.table_splits import TableSplit
from indelible.models.tabular import TabularQueries


class FakeEncoding:
    """Rows are numbers already."""

    def __init__(self, n_features: int):
        self.n_features = n_features
        self.names = tuple(f"x{i}" for i in range(n_features))

    def encode(self, features):
        return np.asarray(features, np.float32)

    def placeholder(self):
        return np.linspace(-0.5, 0.5, self.n_features, dtype=np.float32)

    def noised(self, rows, rng, scale):
        return rows + scale * rng.standard_normal(rows.shape).astype(np.float32)


def make_world(sizes=(20, 30, 12, 18), n_features=5, n_classes=2, seed=0, target=None, n_kinds=None) -> ProbeWorld:
    """Rows in the order members, non-members, context, reserve; each part holds the classes in turn."""
    rng = np.random.default_rng(seed)
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    if target is None:
        target = np.concatenate([rng.permutation(np.arange(n) % (n_kinds or n_classes)) for n in sizes])
    split = TableSplit(*rows, target, True, 0.0, "TVD", True, ())
    encoded = rng.standard_normal((sum(sizes), n_features)).astype(np.float32)
    choices = candidate_labels(target, n_classes, [f"id{i}" for i in range(len(target))], seed)
    return ProbeWorld(encoded, target, split, FakeEncoding(n_features), n_classes, seed, choices)


@dataclass(frozen=True)
class Lookup:
    """A 'model' that knows the labels of some rows by heart and guesses all others', with the same confidence.

    It looks at a query's features alone. `scale` multiplies its logits, through a parameter.
    """

    memory: dict[bytes, int]
    salt: str = "guess"
    name: str = "lookup"
    fingerprint: str = "lookup"
    max_classes: int = 100
    max_features: int | None = None
    notes: tuple[str, ...] = ()
    module: torch.nn.Module = field(default_factory=lambda: Scale(1.0))

    @classmethod
    def of(cls, world: ProbeWorld, rows, **more) -> Lookup:
        return cls({world.encoded[i].tobytes(): int(world.target[i]) for i in rows}, **more)

    def logits(self, queries: TabularQueries, state=None):
        n_questions, n_queries, _ = queries.query_x.shape
        flat = queries.query_x.reshape(n_questions * n_queries, -1).numpy()
        out = np.zeros((len(flat), queries.n_classes), np.float32)
        for i, values in enumerate(flat):
            rng = np.random.default_rng(zlib.crc32(self.salt.encode() + values.tobytes()))
            guess, sure = int(rng.integers(queries.n_classes)), rng.uniform(1.0, 6.0)
            out[i, self.memory.get(values.tobytes(), guess)] = sure
        weight = self.module.scale if state is None else state["scale"]
        return weight * torch.from_numpy(out).reshape(n_questions, n_queries, -1)

    def logprobs(self, queries: TabularQueries):
        with torch.no_grad():
            return self.logits(queries).log_softmax(-1)

    def clone(self) -> Lookup:
        return Lookup(self.memory, self.salt, module=copy.deepcopy(self.module))


class Scale(torch.nn.Module):
    """One parameter."""

    def __init__(self, value: float):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(value))


def knows_nothing() -> Lookup:
    """Every class is equally likely to it."""
    return Lookup({}, module=Scale(0.0))
