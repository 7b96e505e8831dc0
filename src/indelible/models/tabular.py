"""Tabular in-context models: what one is to this package, which there are, how they are loaded.

A model is asked with whole contexts, so that a probe can build any. Features reach it as numbers that an encoding,
frozen on the training context, made of a table's rows: nothing is fitted on the context of a question. A package's own
fit and predict would do that, and a context whose rows are all alike would then take the query's identity away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.errors import ConfigError, ModelError, did_you_mean
from indelible.models.tabular_store import save_tabular

if TYPE_CHECKING:
    import pandas as pd

    from indelible.data.tables import Table

__all__ = [
    "RowEncoding", "TabularModel", "TabularQueries", "check_room", "check_values", "chunked_logprobs", "load_tabular",
    "save_tabular",
]  # fmt: skip

CELLS = 1 << 16
"""Numbers (rows times encoded columns) that a pass without gradients has at most, unless a model says otherwise: what a
network keeps of them bounds memory."""


@dataclass(frozen=True)
class TabularQueries:
    """A batch of questions, each with its own context.

    Attributes:
        context_x: (B, C, F) float32.
        context_y: (B, C) int64, codes 0..n_classes-1.
        query_x: (B, Q, F) float32; the Q queries of a question do not see each other.
        n_classes: classes the answer is spread over.

    Raises:
        ModelError: shapes that do not belong together.
    """

    context_x: Tensor
    context_y: Tensor
    query_x: Tensor
    n_classes: int

    def __post_init__(self) -> None:
        x, y, q = (tuple(t.shape) for t in (self.context_x, self.context_y, self.query_x))
        if len(x) != 3 or len(q) != 3 or y != x[:2] or x[0] != q[0] or x[2] != q[2]:
            raise ModelError(
                f"tabular queries: contexts {x}, labels {y}, queries {q}; expected (B, C, F), (B, C) and (B, Q, F)"
            )
        if 0 in x or not q[1] or self.n_classes < 2:
            raise ModelError(
                f"tabular queries: contexts {x}, queries {q}, {self.n_classes} classes; expected one question, context "
                "row, feature and query and two classes at least"
            )

    def part(self, questions: slice, queries: slice = slice(None)) -> TabularQueries:
        """Some of the questions, and some of each one's queries."""
        return TabularQueries(
            self.context_x[questions], self.context_y[questions], self.query_x[questions, queries], self.n_classes
        )


class RowEncoding(Protocol):
    """Rows of a table as numbers, frozen on the training context. `data.table_encoding.Encoding` is one."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def encode(self, features: pd.DataFrame) -> NDArray[np.float32]:
        """(n, F') of n rows."""
        ...

    def placeholder(self) -> NDArray[np.float32]:
        """(F',) a row that says nothing; never NaN."""
        ...

    def noised(self, rows: NDArray[Any], rng: np.random.Generator, scale: float) -> NDArray[Any]:
        """Encoded rows, each moved a little: numbers by `scale` standard deviations, other cells redrawn."""
        ...


@runtime_checkable
class TabularModel(Protocol):
    """A model that answers in context. `fingerprint` changes whenever an answer could."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_classes(self) -> int:
        """The most classes a question may have."""
        ...

    @property
    def max_features(self) -> int | None:
        """The most features; None where the network has no bound."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results has to know about this model."""
        ...

    @property
    def stackable(self) -> bool:
        """Whether many sets of weights may be tried at once in one pass of the network (`torch.func`)."""
        ...

    @property
    def module(self) -> torch.nn.Module:
        """Holds the parameters; training changes them."""
        ...

    def encoder(self, table: Table, context_rows: NDArray[np.int64]) -> RowEncoding:
        """The encoding of a table for this model, frozen on these rows; labels play no part."""
        ...

    def logits(self, queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """(B, Q, n_classes) float32, differentiable, the same in train and eval mode.

        Args:
            state: parameters used in place of the module's own, by name; those left out are the module's.
        """
        ...

    def logprobs(self, queries: TabularQueries) -> Tensor:
        """(B, Q, n_classes) natural logarithms of probabilities, without gradient, in passes of bounded size."""
        ...

    def clone(self) -> TabularModel:
        """A copy whose parameters are its own."""
        ...

    def recipe(self) -> dict[str, Any]:
        """What, beside the weights, it takes to build the module again: `kind`, `config`, and how it was made."""
        ...


def load_tabular(source: str, *, device: str = "cpu") -> TabularModel:
    """A tabular model by name.

    Args:
        source: `builtin:tabicl-small`, `tabicl:PATH_OR_HUB`, `sap-rpt:PATH` or `tabpfn:PATH`.
        device: where it computes.

    Raises:
        ModelError: an unknown name, or files that hold no such model. ConfigError: no such device. MissingExtra: the
            package that a model needs is not installed; the message has the command that installs it.
    """
    kind, colon, place = source.partition(":")
    if not colon or not place:
        known = ", ".join(f"{name}:{what}" for name, (what, _) in SOURCES.items())
        raise ModelError(f"tabular model {source!r}: expected one of {known}")
    if kind not in SOURCES:
        raise ModelError(did_you_mean(kind, list(SOURCES), "kind of tabular model"))
    return SOURCES[kind][1](source, place, _device(device))


def _builtin(source: str, place: str, device: torch.device) -> TabularModel:
    if place not in BUILTIN:
        raise ModelError(did_you_mean(place, list(BUILTIN), "builtin tabular model"))
    return _tabicl(source, str(Path(__file__).parent / BUILTIN[place]), device)


def _tabicl(source: str, place: str, device: torch.device) -> TabularModel:
    from indelible.models.tabular_tabicl import load_tabicl

    return load_tabicl(source, place, device)


def _sap_rpt(source: str, place: str, device: torch.device) -> TabularModel:
    from indelible.models.tabular_saprpt import load_sap_rpt

    return load_sap_rpt(source, place, device)


def _tabpfn(source: str, place: str, device: torch.device) -> TabularModel:
    from indelible.models.tabular_tabpfn import load_tabpfn

    return load_tabpfn(source, place, device)


BUILTIN = {"tabicl-small": "tabular_files"}
SOURCES: dict[str, tuple[str, Callable[[str, str, torch.device], TabularModel]]] = {
    "builtin": ("tabicl-small", _builtin),
    "tabicl": ("PATH_OR_HUB", _tabicl),
    "sap-rpt": ("PATH", _sap_rpt),
    "tabpfn": ("PATH", _tabpfn),
}


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r}: expected cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: this machine has no CUDA device; use cpu")
    return device


def check_room(model: TabularModel, queries: TabularQueries) -> None:
    """Raises:
    ModelError: more classes or features than the model holds.
    """
    if queries.n_classes > model.max_classes:
        raise ModelError(
            f"{model.name} holds {model.max_classes} classes and was asked about {queries.n_classes}: merge rare "
            "classes, or use a model with more"
        )
    n_features = queries.query_x.shape[-1]
    if model.max_features is not None and n_features > model.max_features:
        raise ModelError(f"{model.name} holds {model.max_features} features and was given {n_features}: drop columns")


def check_values(queries: TabularQueries) -> None:
    """Raises:
    ModelError: a feature that is not a finite number, or a label that is no code of a class.
    """
    if not bool(queries.context_x.isfinite().all()) or not bool(queries.query_x.isfinite().all()):
        raise ModelError("tabular queries: a feature is not finite; expected rows that an encoding made")
    low, high = int(queries.context_y.min()), int(queries.context_y.max())
    if low < 0 or high >= queries.n_classes:
        raise ModelError(f"tabular queries: labels {low} to {high}; expected codes 0 to {queries.n_classes - 1}")


def chunked_logprobs(model: TabularModel, queries: TabularQueries, limit: int | None = None) -> Tensor:
    """Log-softmax of a model's logits, in float32, in passes of bounded size where a single query allows.

    Args:
        limit: numbers that a pass has at most; `CELLS` unless given. A model whose encoding makes many numbers of a
            column gives more, or each pass would hold one query.

    Returns:
        (B, Q, n_classes) on the CPU.
    """
    check_room(model, queries)
    check_values(queries)
    device = next(model.module.parameters()).device
    out = torch.empty(*queries.query_x.shape[:2], queries.n_classes)
    with torch.no_grad():
        for part, questions, asked in _passes(queries, CELLS if limit is None else limit):
            tensors = (part.context_x.to(device), part.context_y.to(device), part.query_x.to(device))
            moved = TabularQueries(*tensors, part.n_classes)
            out[questions, asked] = model.logits(moved).float().log_softmax(-1).cpu()
    return out


def _passes(queries: TabularQueries, limit: int) -> Iterator[tuple[TabularQueries, slice, slice]]:
    (n_questions, n_context, n_features), n_queries = queries.context_x.shape, queries.query_x.shape[1]
    width = min(n_queries, max(1, limit // n_features - n_context))  # queries of one question in a pass
    height = max(1, limit // ((n_context + width) * n_features))  # questions in a pass
    for i in range(0, n_questions, height):
        for j in range(0, n_queries, width):
            yield queries.part(slice(i, i + height), slice(j, j + width)), slice(i, i + height), slice(j, j + width)
