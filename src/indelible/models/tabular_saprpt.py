"""ConTextTab, published as sap-rpt-1-oss, as a tabular model (optional: its package and a checkpoint of the user's).

M. Spinaci et al., "ConTextTab: A Semantics-Aware Tabular In-Context Learner", 2025; the model that IclMem probes. Its
own estimator fits its preprocessing on every question's context, and drops columns that are constant there, which
would erase the query among copies. Here rows are turned into the network's input by `models.tabular_saprpt_cells`,
frozen on the training context, and the network is called directly.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from indelible.errors import MissingExtra, ModelError
from indelible.models.tabular import RowEncoding, TabularQueries, check_room, chunked_logprobs
from indelible.models.tabular_saprpt_cells import CELL, Embed, embed_texts, fit_cells, network_input
from indelible.models.tabular_store import fingerprint_of, load_weights, read_checkpoint, read_saved

if TYPE_CHECKING:
    from indelible.data.tables import Table

KIND = "sap-rpt"
NEEDS = (
    "sap-rpt:PATH needs the package sap_rpt_oss: "
    "pip install torcheval 'sap_rpt_oss @ git+https://github.com/SAP-samples/sap-rpt-1-oss'"
)
MAX_CLASSES = 62
"""Of the 64 outputs, one stands for a label that is asked for and one for all further labels."""
CELLS = 1 << 14
"""Cells of a pass at most, each of CELL numbers: of every cell the network keeps vectors of 768 numbers, and each
column attends over all rows of the pass."""
NOTES = (
    "the released weights repeat one layer; fine-tuning changes each of its repetitions on its own",
    "sap-rpt is asked past its own preprocessing, which would erase a query among copies",
)


@dataclass(frozen=True)
class SapRptModel:
    """A ConTextTab network for classification, asked without the estimator's preprocessing and bagging.

    Attributes:
        config: `layers` and `width`.
        embed: turns texts into vectors for the network.
    """

    name: str
    module: torch.nn.Module
    config: Mapping[str, Any]
    embed: Embed = embed_texts
    made: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = NOTES
    stackable: bool = False

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.recipe(), self.module)

    @property
    def max_classes(self) -> int:
        return MAX_CLASSES

    @property
    def max_features(self) -> int | None:
        return None

    def encoder(self, table: Table, context_rows: NDArray[np.int64]) -> RowEncoding:
        """Cells as the network takes them: see `models.tabular_saprpt_cells`."""
        return fit_cells(table, context_rows, self.embed)

    def logits(self, queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """See `TabularModel.logits`. The network takes one table at a time."""
        check_room(self, queries)
        self.module.eval()
        out = []
        for x, y, asked in zip(queries.context_x, queries.context_y, queries.query_x, strict=True):
            data = network_input(x, y, asked)
            answer: Tensor = torch.func.functional_call(self.module, dict(state or {}), (data, False))
            out.append(answer[len(x) :, : queries.n_classes].float())
        return torch.stack(out)

    def logprobs(self, queries: TabularQueries) -> Tensor:
        """See `TabularModel.logprobs`."""
        return chunked_logprobs(self, queries, CELLS * CELL)

    def clone(self) -> SapRptModel:
        """A copy whose parameters are its own."""
        return replace(self, module=copy.deepcopy(self.module))

    def recipe(self) -> dict[str, Any]:
        """See `TabularModel.recipe`."""
        return {"kind": KIND, "config": dict(self.config), "made": dict(self.made)}


def build_sap_rpt(config: Mapping[str, Any], name: str = KIND, made: Mapping[str, Any] | None = None) -> SapRptModel:
    """An untrained ConTextTab model of one of the published sizes.

    Args:
        config: `layers` and `width` (the size of a cell's vector).

    Raises:
        ModelError: no published size. MissingExtra: `sap_rpt_oss` is not installed.
    """
    try:
        from sap_rpt_oss.constants import ModelSize
        from sap_rpt_oss.model.torch_model import RPT
    except ImportError as error:
        raise MissingExtra(NEEDS) from error
    wanted = (config.get("layers"), config.get("width"))
    size = next((size for size in ModelSize if tuple(size.value) == wanted), None)
    if size is None:
        raise ModelError(f"{name}: sap_rpt_oss has no network of {wanted[0]} layers with {wanted[1]} numbers a cell")
    module = RPT(size, regression_type="l2", classification_type="cross-entropy", checkpointing_segments=0)
    return SapRptModel(name, module.float().eval(), {"layers": wanted[0], "width": wanted[1]}, made=dict(made or {}))


def load_sap_rpt(source: str, place: str, device: torch.device) -> SapRptModel:
    """A ConTextTab model from a folder of ours, or from the published checkpoint (.pt).

    Raises:
        ModelError, MissingExtra: one line each.
    """
    path = Path(place).expanduser()
    if not path.exists():
        raise ModelError(f"no folder or file at {place!r}: expected the checkpoint of sap-rpt-1-oss (.pt)")
    if path.suffix == ".pt":
        config, state = _read_checkpoint(path)
        made: Mapping[str, Any] = {"checkpoint": path.name}
    else:
        recipe, state = read_saved(path, KIND)
        config, made = recipe["config"], recipe.get("made", {})
    model = build_sap_rpt(config, source, made)
    load_weights(model.module, state, source)
    model.module.to(device)
    return model


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Size and weights of the published file; its last layer stands for all, as the published loader has it."""
    read = read_checkpoint(path)
    if not isinstance(read, Mapping) or not all(isinstance(value, Tensor) for value in read.values()):
        raise ModelError(f"{path}: expected the weights of sap-rpt-1-oss by name")
    state = {str(name).removeprefix("module."): value.float() for name, value in read.items()}
    numbers, heads = state.get("embeddings.number_embeddings.weight"), "output_head_classif.weight"
    found = [int(match[1]) for match in map(re.compile(r"in_context_encoder\.(\d+)\.").match, state) if match]
    if numbers is None or numbers.shape[-1] != 1 or heads not in state or not found:
        raise ModelError(
            f"{path}: expected a network that takes numbers as they are and gives classes by cross-entropy"
        )
    last = f"in_context_encoder.{max(found)}."
    for name in [name for name in state if name.startswith(last)]:
        for layer in range(max(found)):
            state[f"in_context_encoder.{layer}.{name[len(last) :]}"] = state[name].clone()
    return {"layers": max(found) + 1, "width": int(numbers.shape[0])}, state
