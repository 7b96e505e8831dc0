"""Probes of tabular in-context models: contexts that say nothing about a row's label, and the controls beside them.

IclMem (arXiv 2606.31208), section 4.2. The text we have breaks off where it begins to describe the probing context ("it
holds exactly ..."), so the contexts are our reading of sections 1, 3 and 4: one row a candidate label, with features
that do not tell the labels apart, so that a right answer can only come from the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from indelible.attacks.tabular_world import (
    Codes,
    ProbeWorld,
    Reasons,
    TabularProbe,
    all_share,
    candidate_labels,
    constant_rows,
    each_own,
    probe_world,
)
from indelible.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from indelible.models.tabular import TabularQueries


@dataclass(frozen=True)
class Copy(TabularProbe):
    """Exactly one row a candidate label, each with the query's own features: the paper's probe as we read it."""

    name: ClassVar[str] = "copy"
    description: ClassVar[str] = "one row a candidate label, each with the row's own features"

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        own = world.encoded[rows]
        return each_own(own, world.choices[rows], own, world.n_classes)


@dataclass(frozen=True)
class Neutral(TabularProbe):
    """One row a candidate label, each the encoding's placeholder: a real value in every cell, since a missing one would
    take its column away in some models."""

    name: ClassVar[str] = "neutral"
    description: ClassVar[str] = "one row a candidate label, each a placeholder row"

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        return constant_rows(world.encoding.placeholder(), world.choices[rows], world.encoded[rows], world.n_classes)


@dataclass(frozen=True)
class Foreign(TabularProbe):
    """One row a candidate label, each with the features of one unrelated row of the reserve, the same for all."""

    name: ClassVar[str] = "foreign"
    description: ClassVar[str] = "one row a candidate label, each with the features of one unrelated row"

    @staticmethod
    def row(world: ProbeWorld) -> int:
        """Number of the unrelated row; -1 where the reserve is empty."""
        reserve = np.asarray(world.split.reserve)
        return int(world.rng("foreign").choice(reserve)) if reserve.size else -1

    def unfit(self, world: ProbeWorld, rows: Codes) -> Reasons:
        row = self.row(world)
        if row < 0:
            return ["the reserve holds no unrelated row"] * len(rows)
        return ["the unrelated row is this one" if row == asked else None for asked in rows]

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        return constant_rows(world.encoded[self.row(world)], world.choices[rows], world.encoded[rows], world.n_classes)


@dataclass(frozen=True)
class Noised(TabularProbe):
    """One row a candidate label, all with the query's features moved by the same noise; the query itself is not.

    Settings: `scale`: numbers move by so many standard deviations, categories are redrawn with this probability.
    """

    scale: float = 0.3

    name: ClassVar[str] = "noised"
    description: ClassVar[str] = "one row a candidate label, each with the row's features under the same noise"

    def __post_init__(self) -> None:
        if not 0.0 < self.scale <= 1.0:
            raise ConfigError(f"noised: scale={self.scale}: expected a number above 0, at most 1")

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        # Noise for the whole table at once: a row's noise must not depend on which rows are asked with it.
        moved = world.encoding.noised(world.encoded, world.rng(f"noise {self.scale:g}"), self.scale)
        return each_own(moved[rows], world.choices[rows], world.encoded[rows], world.n_classes)


@dataclass(frozen=True)
class Permuted(TabularProbe):
    """One row a candidate label, each with the query's features under one fixed permutation of the columns that leaves
    none in its place; the query itself keeps them in order."""

    name: ClassVar[str] = "permuted"
    description: ClassVar[str] = "one row a candidate label, each with the row's features in another order"

    def unfit(self, world: ProbeWorld, rows: Codes) -> Reasons:
        return ["a single column has no other order" if world.encoded.shape[1] < 2 else None] * len(rows)

    @staticmethod
    def order(world: ProbeWorld) -> Codes:
        """(F,) the column whose values each column gets: one random cycle, so that no column stays."""
        cycle = world.rng("column order").permutation(world.encoded.shape[1])
        out = np.empty(len(cycle), np.int64)
        out[cycle] = np.roll(cycle, 1)
        return out

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        own = world.encoded[rows]
        return each_own(own[:, self.order(world)], world.choices[rows], own, world.n_classes)


def _check_k(name: str, k: int) -> None:
    if k < 2:
        raise ConfigError(f"{name}: k={k}: expected a whole number from 2")


@dataclass(frozen=True)
class Copies(TabularProbe):
    """`k` rows a candidate label, each with the query's own features."""

    k: int = 4

    name: ClassVar[str] = "copies"
    description: ClassVar[str] = "k rows a candidate label, each with the row's own features"

    def __post_init__(self) -> None:
        _check_k(self.name, self.k)

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        own = world.encoded[rows]
        return each_own(own, np.repeat(world.choices[rows], self.k, axis=1), own, world.n_classes)


@dataclass(frozen=True)
class WrongMajority(TabularProbe):
    """`k` rows of every wrong label to one of the right one, each with the query's own features: pressure against the
    row's label. No part of the suite, and never evidence: the context does say something, for the row's own label is
    the rare one in it. It says so of members and of non-members alike, and so cannot tell one from the other by itself.
    Our reading: "k wrong rows to one right" with more than two labels is k of every wrong one, because a model may show
    probabilities of the labels in the context only.
    """

    k: int = 3

    name: ClassVar[str] = "wrong-majority"
    in_suite: ClassVar[bool] = False
    description: ClassVar[str] = (
        "k rows of every wrong label to one of the right one, each with the row's own features: "
        "the right label is the rare one"
    )

    def __post_init__(self) -> None:
        _check_k(self.name, self.k)

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        own, labels = world.encoded[rows], np.repeat(world.choices[rows], self.k, axis=1)  # labels (n, k K')
        right = labels == world.target[rows][:, None]
        kept = ~right | (right.cumsum(axis=1) == 1)
        return each_own(own, labels[kept].reshape(len(rows), -1), own, world.n_classes)


@dataclass(frozen=True)
class RowOrder(TabularProbe):
    """The context of `copy` with its rows in reverse: a model that reads a set of rows answers the same. A check of the
    model, reported as the largest difference from `copy`; no attack."""

    name: ClassVar[str] = "row-order"
    in_suite: ClassVar[bool] = False
    description: ClassVar[str] = "the context of copy with its rows in reverse: a check, no attack"

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        own = world.encoded[rows]
        return each_own(own, world.choices[rows][:, ::-1], own, world.n_classes)


@dataclass(frozen=True)
class Erased(TabularProbe):
    """The context of `copy` with the placeholder in the place of the query's features, there and in the query: nothing
    is left that tells rows of one label apart. Equal questions are asked once, so where classes match exactly the AUC
    is one half by construction: the null control checks that nothing but features tells rows apart, and that classes
    do match; what it shows beside that comes from unequal classes."""

    name: ClassVar[str] = "erased"
    in_suite: ClassVar[bool] = False
    identity: ClassVar[bool] = False
    description: ClassVar[str] = "the context of copy, the row's features erased everywhere: the null control"

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        nothing = world.encoding.placeholder()
        return constant_rows(nothing, world.choices[rows], np.tile(nothing, (len(rows), 1)), world.n_classes)


def _standing_in(context: Codes, rows: Codes) -> Reasons:
    inside = np.isin(rows, context)
    return ["the row itself stands in this context, with its label" if here else None for here in inside]


@dataclass(frozen=True)
class TrainContext(TabularProbe):
    """The training context C' itself: the positive control. Were labels fitted at all, it shows here."""

    name: ClassVar[str] = "train-context"
    informative: ClassVar[bool] = True
    in_suite: ClassVar[bool] = False
    description: ClassVar[str] = "the training context itself: the positive control"

    def unfit(self, world: ProbeWorld, rows: Codes) -> Reasons:
        return _standing_in(np.asarray(world.split.context), rows)

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        context = np.asarray(world.split.context)
        return all_share(world.encoded[context], world.target[context], world.encoded[rows], world.n_classes)


@dataclass(frozen=True)
class FreshContext(TabularProbe):
    """Rows of the reserve that were never trained on, about as many as C' has.

    Each class gets the same number of rows as far as the reserve goes. They carry the label of the split: true ones are
    what a user would give the model, under label randomisation they are shuffled.
    """

    name: ClassVar[str] = "fresh-context"
    informative: ClassVar[bool] = True
    in_suite: ClassVar[bool] = False
    description: ClassVar[str] = "rows never trained on, balanced over classes, with the labels of the split"

    @staticmethod
    def context(world: ProbeWorld) -> Codes:
        """Row numbers of the context, class by class."""
        reserve = world.rng("fresh context").permutation(np.asarray(world.split.reserve, np.int64))
        quota = max(1, len(world.split.context) // world.n_classes)
        labels = world.target[reserve]
        return np.concatenate([reserve[labels == k][:quota] for k in range(world.n_classes)])

    def unfit(self, world: ProbeWorld, rows: Codes) -> Reasons:
        if len(world.split.reserve) == 0:
            return ["the reserve holds no row for a fresh context"] * len(rows)
        return _standing_in(self.context(world), rows)

    def contexts(self, world: ProbeWorld, rows: Codes) -> TabularQueries:
        context = self.context(world)
        return all_share(world.encoded[context], world.target[context], world.encoded[rows], world.n_classes)


PROBES: dict[str, TabularProbe] = {
    probe.name: probe
    for probe in (
        Copy(), Neutral(), Foreign(), Noised(), Permuted(), Copies(), WrongMajority(),
        RowOrder(), Erased(), TrainContext(), FreshContext(),
    )
}  # fmt: skip
"""Every probe by name, with its default settings."""


def make_probe(name: str, settings: Mapping[str, Any] | None = None) -> TabularProbe:
    """A probe with its settings.

    Raises:
        ConfigError: unknown probe or setting (with the closest known one), or a value out of range.
    """
    if name not in PROBES:
        raise ConfigError(did_you_mean(name, list(PROBES), "probe"))
    known = [field.name for field in dataclasses.fields(PROBES[name])]
    for key in settings or {}:
        if key not in known:
            raise ConfigError(did_you_mean(key, known, f"setting of {name}") if known else f"{name} has no settings")
    try:
        return TypeAdapter(type(PROBES[name])).validate_python(dict(settings or {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{name}.{where}={first['input']!r}: {first['msg']}") from error


__all__ = ["PROBES", "ProbeWorld", "TabularProbe", "candidate_labels", "make_probe", "probe_world"]
