"""TabPFN v2 as a tabular model (optional: the package `tabpfn` and a checkpoint of the user's).

N. Hollmann et al., "Accurate predictions on small data with a tabular foundation model", Nature 2025. The package's
module standardises features by the context of every question and drops those that do not vary; under a context of
copies nothing of the query would be left. Here features come standardised by a frozen encoding, and the module's parts
after its standardisation are called one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from indelible.errors import MissingExtra, ModelError
from indelible.models.tabular import RowEncoding, TabularQueries, check_room, chunked_logprobs
from indelible.models.tabular_identity import prove_identity
from indelible.models.tabular_store import fingerprint_of, load_weights, read_checkpoint, read_saved

if TYPE_CHECKING:
    from indelible.data.tables import Table

KIND = "tabpfn"
NEEDS = "tabpfn:PATH needs the package tabpfn: pip install 'tabpfn>=9.2'"
MISSING = -2.0
"""What the network takes beside a target that is not known."""
MAX_FEATURES = 500
"""Columns the network was trained on at most."""


@dataclass(frozen=True)
class TabPFNModel:
    """A TabPFN v2 classifier, asked without the package's preprocessing, ensembles and temperature.

    Differs from the package's module: features are not standardised by the question's context, columns that do not vary
    there are kept, and labels keep their codes where the context lacks a class.
    """

    name: str
    module: torch.nn.Module
    config: Mapping[str, Any]
    made: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ("TabPFN is asked past its own standardisation, which would erase a query among copies",)
    stackable: bool = False

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.recipe(), self.module)

    @property
    def max_classes(self) -> int:
        return int(self.config["max_num_classes"])

    @property
    def max_features(self) -> int | None:
        return MAX_FEATURES

    def encoder(self, table: Table, context_rows: NDArray[np.int64]) -> RowEncoding:
        """The common encoding: see `data.table_encoding`."""
        from indelible.data.table_encoding import fit_encoding

        return fit_encoding(table, context_rows)

    def logits(self, queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """See `TabularModel.logits`."""
        check_room(self, queries)
        self.module.eval()
        replaced = {f"net.{name}": value for name, value in (state or {}).items()}
        given = (queries.context_x, queries.context_y, queries.query_x, queries.n_classes)
        out: Tensor = torch.func.functional_call(_Asked(self.module), replaced, given)
        return out[..., : queries.n_classes].float()

    def logprobs(self, queries: TabularQueries) -> Tensor:
        """See `TabularModel.logprobs`."""
        return chunked_logprobs(self, queries)

    def clone(self) -> TabPFNModel:
        """A copy whose parameters are its own."""
        return replace(self, module=copy.deepcopy(self.module))

    def recipe(self) -> dict[str, Any]:
        """See `TabularModel.recipe`."""
        return {"kind": KIND, "config": dict(self.config), "made": dict(self.made)}


class _Asked(torch.nn.Module):
    """The network behind its own preprocessing."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, context_x: Tensor, context_y: Tensor, query_x: Tensor, n_classes: int) -> Tensor:
        """(B, Q, outputs) for standardised features and codes."""
        net, n_context = self.net, context_x.shape[1]
        x = torch.cat([context_x, query_x], dim=1)  # (B, T, F)
        size, n_features = net.features_per_group, x.shape[-1]
        groups = F.pad(x, (0, -n_features % size)).unflatten(-1, (-1, size))  # (B, T, G, size)
        used = torch.full((groups.shape[2], 1), float(size), device=x.device)
        used[-1] -= -n_features % size
        groups = groups * torch.sqrt(size / used)  # a group that is not full has the variance of one that is
        cells = net.add_column_embeddings(net.feature_group_embedder(torch.cat([groups, 0 * groups], dim=-1)))
        cells = torch.cat([cells, self._targets(context_y, query_x.shape[1], n_classes)[:, :, None]], dim=2)
        for block in net.blocks:
            cells = block(cells, n_context, None)[0]
        return net.output_projection(cells[:, n_context:, -1])  # type: ignore[no-any-return]

    def _targets(self, context_y: Tensor, n_queries: int, n_classes: int) -> Tensor:
        """(B, T, E): codes of the context; for queries what the network takes for unknown, their mean as a rank."""
        codes = context_y.float()
        mean = codes.mean(1, keepdim=True)
        if self.net.use_multiclass_target_encoding:
            mean = (mean > torch.arange(n_classes, device=mean.device)).sum(1, keepdim=True).float()
        values = torch.cat([codes, mean.expand(-1, n_queries)], dim=1)
        missing = F.pad(torch.zeros_like(codes), (0, n_queries), value=MISSING)
        return self.net.target_embedder(torch.stack([values, missing], dim=-1))  # type: ignore[no-any-return]


def build_tabpfn(config: Mapping[str, Any], name: str = KIND, made: Mapping[str, Any] | None = None) -> TabPFNModel:
    """An untrained TabPFN v2 model.

    Args:
        config: settings of the package's TabPFN v2; those it does not know are left out, as there.

    Raises:
        ModelError: settings it does not take, or no classifier's. MissingExtra: `tabpfn` is not installed.
    """
    try:
        from tabpfn.architectures import tabpfn_v2
    except ImportError as error:
        raise MissingExtra(NEEDS) from error
    try:
        parsed, _ = tabpfn_v2.parse_config(dict(config))
        if parsed.max_num_classes < 2:
            raise ModelError(f"{name}: this TabPFN checkpoint is no classifier's")
        module = tabpfn_v2.get_architecture(parsed)
    except (TypeError, ValueError, AssertionError) as error:
        raise ModelError(f"{name}: tabpfn's v2 network does not take this config: {error}") from error
    kept = {key: value for key, value in vars(parsed).items() if isinstance(value, (int, float, str, bool))}
    return TabPFNModel(name, module.float().eval(), kept, dict(made or {}))


def load_tabpfn(source: str, place: str, device: torch.device) -> TabPFNModel:
    """A TabPFN v2 model from a folder of ours, or from a checkpoint of the package (.ckpt).

    Raises:
        ModelError, MissingExtra: one line each.
    """
    path = Path(place).expanduser()
    if not path.exists():
        raise ModelError(
            f"no folder or file at {place!r}: expected a TabPFN v2 classifier's checkpoint (.ckpt), or a "
            "folder that `save_tabular` wrote"
        )
    if path.suffix == ".ckpt":
        config, state = _read_checkpoint(path)
        made: Mapping[str, Any] = {"checkpoint": path.name}
    else:
        recipe, state = read_saved(path, KIND, "a TabPFN v2 classifier's checkpoint (.ckpt), or ")
        config, made = recipe["config"], recipe.get("made", {})
    model = build_tabpfn(config, source, made)
    load_weights(model.module, state, source)
    model.module.to(device)
    n_features = 2 * int(model.config.get("features_per_group", 1))
    prove_identity(model, np.random.default_rng(0).standard_normal((3, n_features)).astype(np.float32))
    return model


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    read = read_checkpoint(path)
    if not isinstance(read, dict) or not {"config", "state_dict"} <= read.keys():
        raise ModelError(f"{path}: expected a tabpfn checkpoint, with config and state_dict")
    if read.get("architecture_name", "base") not in ("base", "tabpfn_v2"):
        raise ModelError(f"{path} holds a {read['architecture_name']} network; expected TabPFN v2")
    config = read["config"] if isinstance(read["config"], Mapping) else vars(read["config"])
    return dict(config), {name: value.float() for name, value in read["state_dict"].items()}
