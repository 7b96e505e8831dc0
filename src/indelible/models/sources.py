"""From what the user names to files on disk: hub id, folder, adapter folder, GGUF file, builtin."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from indelible.errors import ModelError
from indelible.models.builtin import builtin_folder, file_sha256, gguf_folder
from indelible.servers.address import parse_address


@dataclass(frozen=True)
class Source:
    """A model located on disk.

    Attributes:
        given: what the user wrote.
        folder: where its files are.
        kind: `builtin`, `folder`, `adapter`, `gguf`, `hub` or `server`.
        base: the base model an adapter names, resolvable like any other; None otherwise.
        quantise: `none`, `4bit` or `8bit`.
    """

    given: str
    folder: Path
    kind: str
    base: str | None = None
    quantise: str = "none"

    def fingerprint(self) -> str:
        """SHA-256 over the weight, config and tokenizer files (names and contents), and the system turn of training.

        What a training says of itself (how long it took, where it wrote) does not count: equal weights are one model.
        """
        digest = hashlib.sha256(f"system:{trained_system(self.folder)};".encode())
        for path in sorted(self.folder.iterdir()):
            if (
                path.suffix in {".safetensors", ".json", ".jinja", ".model", ".txt"}
                and path.name not in _NOT_OF_THE_MODEL
            ):
                digest.update(f"{path.name}:{file_sha256(path)};".encode())
        return digest.hexdigest()


_NOT_OF_THE_MODEL = ("source.json", "training.json", "epochs.json", "trainer_state.json")


def locate(given: str, *, quantise: str = "none") -> Source:
    """Find a model's files.

    Raises:
        ModelError: nothing there, no weights, or pickled weights only; the message says what was looked for.
    """
    if given.startswith("server:"):
        parse_address(given)
        return Source(given, Path(os.devnull) / "server", "server", quantise=quantise)
    if given.startswith("builtin:"):
        return Source(given, builtin_folder(given.removeprefix("builtin:")), "builtin", quantise=quantise)
    path = Path(given).expanduser()
    if path.suffix == ".gguf":
        return Source(given, gguf_folder(path), "gguf", quantise=quantise)
    if path.is_dir():
        return _local(given, path, quantise)
    if path.exists():
        raise ModelError(f"{given} is a file; expected a model folder, a .gguf file, a hub id or builtin:NAME")
    if given.startswith((".", "/", "~")) or given.count("/") > 1 or not given:
        raise ModelError(f"no model folder at {given!r}")
    source = _local(given, _download(given), quantise)  # an adapter may come from a hub too
    return source if source.kind == "adapter" else replace(source, kind="hub")


def trained_system(folder: Path) -> str | None:
    """The system turn that `indelible train` put before every row; it stands beside the weights, in training.json."""
    path = folder / "training.json"
    try:
        system = json.loads(path.read_text(encoding="utf-8")).get("system") if path.exists() else None
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is not a JSON object: write it again, or remove it") from error
    return system if isinstance(system, str) else None


def _local(given: str, path: Path, quantise: str) -> Source:
    adapter = path / "adapter_config.json"
    if adapter.exists():
        if not (path / "adapter_model.safetensors").exists():
            raise ModelError(f"adapter folder {given} has no adapter_model.safetensors (pickled weights are not read)")
        try:
            base = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
        except (ValueError, AttributeError) as error:
            raise ModelError(f"{adapter} is not a JSON object: write the adapter again") from error
        return Source(given, path, "adapter", base, quantise)
    if not (path / "config.json").exists():
        raise ModelError(f"{given} is no model folder: it has no config.json")
    if not any(path.glob("*.safetensors")):
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        why = "only pickled weights, which are not read: convert them to safetensors" if pickled else "no weights"
        raise ModelError(f"model folder {given} has {why} (expected *.safetensors)")
    return Source(given, path, "folder", quantise=quantise)


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            hub_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"], max_workers=4
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"no folder named {hub_id!r} here, and the model hub did not give a model of that name "
            f"({type(error).__name__})"
        ) from error
    return Path(folder)
