"""Tabular models on disk: folders of `model.safetensors` and `config.json`, and checkpoints read as weights alone."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from indelible.errors import ModelError

if TYPE_CHECKING:
    from indelible.models.tabular import TabularModel

WEIGHTS, CONFIG, FORMAT = "model.safetensors", "config.json", 1


def save_tabular(model: TabularModel, path: str | Path) -> None:
    """Write a model as a folder of `model.safetensors` and `config.json`, which `load_tabular("KIND:FOLDER")` reads
    back exactly."""
    from safetensors.torch import save_file

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous().clone() for name, value in model.module.state_dict().items()}
    save_file(state, folder / WEIGHTS)
    text = json.dumps({"format": FORMAT, **model.recipe()}, indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def read_saved(path: Path, kind: str, others: str = "") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Recipe and weights that `save_tabular` wrote.

    Args:
        path: the folder, or its .safetensors file.
        others: what else a name of this kind may be, for the message of a missing file.

    Raises:
        ModelError: a file is missing, cannot be read, or belongs to a model of another kind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights = path if path.suffix == ".safetensors" else path / WEIGHTS
    config = weights.with_name(CONFIG)
    for file in (weights, config):
        if not file.is_file():
            raise ModelError(f"no {file.name} in {file.parent}: expected {others}a folder that `save_tabular` wrote")
    try:
        recipe = json.loads(config.read_text(encoding="utf-8"))
        state = load_file(weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"{weights.parent} cannot be read as a tabular model: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT or not isinstance(recipe.get("config"), dict):
        raise ModelError(f"{config}: expected format {FORMAT} and a config; it was not written by this version")
    if recipe.get("kind") != kind:
        raise ModelError(f"{weights.parent} holds a {recipe.get('kind')} model: load it as {recipe.get('kind')}:PATH")
    return recipe, state


def read_checkpoint(path: Path) -> Any:
    """What a torch file holds, read without running anything that is in it.

    Raises:
        ModelError: it cannot be read, or holds more than weights and plain values.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} cannot be read as weights alone (nothing else in it is run): {why}") from error


def load_weights(module: torch.nn.Module, state: Mapping[str, Tensor], name: str) -> None:
    """Put weights into a module.

    Raises:
        ModelError: names or shapes are not the module's, or a weight is not finite.
    """
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        raise ModelError(f"{name}: the weights do not fit the network: {' '.join(str(error).split())[:300]}") from error
    if not all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point()):
        raise ModelError(f"{name}: a weight is not finite (did training diverge?)")


def fingerprint_of(recipe: Mapping[str, Any], module: torch.nn.Module) -> str:
    """SHA-256, in hex, of what decides a model's answers: its kind, settings and weights."""
    digest = hashlib.sha256(json.dumps([recipe["kind"], recipe["config"]], sort_keys=True).encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
