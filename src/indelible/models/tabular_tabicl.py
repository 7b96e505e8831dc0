"""TabICL as a tabular model: the one that is shipped, folders of ours, the package's checkpoints, a hub's.

The package `tabicl` builds the network and names its parameters; the computation is `models.tabular_network`, which
says why.
"""

from __future__ import annotations

import copy
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
from indelible.models.tabular_network import Layout, layout_of, tabicl_logits
from indelible.models.tabular_store import CONFIG, WEIGHTS, fingerprint_of, load_weights, read_checkpoint, read_saved

if TYPE_CHECKING:
    from indelible.data.tables import Table

KIND = "tabicl"
NEEDS = "TabICL needs the package tabicl: pip install 'indelible[tabular]'"


@dataclass(frozen=True)
class TabICLModel:
    """A TabICL network that is asked directly, without the package's preprocessing, ensembles and temperature.

    Differs from the package's classifier: one pass over the columns as they come, where that one averages over shuffled
    columns and classes, and softmax at temperature 1, where that one takes 0.9.

    Attributes:
        config: the arguments of `tabicl`'s TabICL.
        made: how the weights came about, as far as it is known.
    """

    name: str
    module: torch.nn.Module
    config: Mapping[str, Any]
    layout: Layout
    made: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stackable: bool = True

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.recipe(), self.module)

    @property
    def max_classes(self) -> int:
        return self.layout.max_classes

    @property
    def max_features(self) -> int | None:
        return None

    def encoder(self, table: Table, context_rows: NDArray[np.int64]) -> RowEncoding:
        """The common encoding: see `data.table_encoding`."""
        from indelible.data.table_encoding import fit_encoding

        return fit_encoding(table, context_rows)

    def logits(self, queries: TabularQueries, state: Mapping[str, Tensor] | None = None) -> Tensor:
        """See `TabularModel.logits`. Works under `torch.func.vmap` and `torch.func.grad` over `state`."""
        check_room(self, queries)
        own = dict(self.module.named_parameters())
        weights = own if state is None else {**own, **state}
        out = tabicl_logits(weights, self.layout, queries.context_x, queries.context_y, queries.query_x)
        return out[..., : queries.n_classes]

    def logprobs(self, queries: TabularQueries) -> Tensor:
        """See `TabularModel.logprobs`."""
        return chunked_logprobs(self, queries)

    def clone(self) -> TabICLModel:
        """A copy whose parameters are its own."""
        return replace(self, module=copy.deepcopy(self.module))

    def recipe(self) -> dict[str, Any]:
        """See `TabularModel.recipe`."""
        return {"kind": KIND, "config": dict(self.config), "made": dict(self.made)}


def build_tabicl(config: Mapping[str, Any], name: str = "tabicl", made: Mapping[str, Any] | None = None) -> TabICLModel:
    """An untrained TabICL model; its weights come from torch's global generator.

    Args:
        config: arguments of `tabicl`'s TabICL.

    Raises:
        ModelError: arguments it does not take. MissingExtra: `tabicl` is not installed.
    """
    try:
        from tabicl._model.tabicl import TabICL
    except ImportError as error:
        raise MissingExtra(NEEDS) from error
    try:
        module = TabICL(**config)
    except (TypeError, ValueError, AssertionError) as error:
        raise ModelError(f"{name}: tabicl's network does not take this config: {error}") from error
    return TabICLModel(name, module.float().eval(), dict(config), layout_of(module), dict(made or {}))


def load_tabicl(source: str, place: str, device: torch.device) -> TabICLModel:
    """A TabICL model from a folder or .safetensors file of ours, a .ckpt file of the package, or a hub.

    Args:
        source: its name in messages and runs.
        place: a path; or a hub's OWNER/NAME with a file behind it where the repository has several.

    Raises:
        ModelError, MissingExtra: one line each.
    """
    path = Path(place).expanduser()
    if not path.exists():
        path = _from_hub(place)
    if path.suffix == ".ckpt":
        config, state = _read_checkpoint(path)
        made: Mapping[str, Any] = {"checkpoint": path.name}
    else:
        recipe, state = read_saved(path, KIND, "a checkpoint of the package (.ckpt), or ")
        config, made = recipe["config"], recipe.get("made", {})
    model = build_tabicl(config, source, made)
    load_weights(model.module, state, source)
    model.module.to(device)
    return model


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of one of the package's files, read without running anything that is in it."""
    read = read_checkpoint(path)
    if not isinstance(read, dict) or not {"config", "state_dict"} <= read.keys():
        raise ModelError(f"{path}: expected a tabicl checkpoint, with config and state_dict")
    return dict(read["config"]), {name: value.float() for name, value in read["state_dict"].items()}


def _from_hub(place: str) -> Path:
    """The file of OWNER/NAME or OWNER/NAME/FILE on the model hub."""
    parts = place.split("/")
    if place.startswith((".", "/", "~")) or len(parts) < 2 or not all(parts):
        raise ModelError(f"no folder or file at {place!r}: expected one, or OWNER/NAME on the model hub")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, file = "/".join(parts[:2]), "/".join(parts[2:]) or WEIGHTS
    try:
        if file.endswith(".safetensors"):
            hf_hub_download(repository, Path(file).with_name(CONFIG).as_posix())
        return Path(hf_hub_download(repository, file))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise ModelError(
                f"{repository} on the model hub has no {file} (with a {CONFIG}); name a checkpoint in it, such as "
                "tabicl:jingang/TabICL/tabicl-classifier-v2-20260212.ckpt"
            ) from error
        raise ModelError(
            f"no folder or file at {place!r}, and the model hub did not give it ({type(error).__name__})"
        ) from error
