"""Settings files: YAML whose top level has keys and values, each key once."""

from __future__ import annotations

import io
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from indelible.errors import ConfigError


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a repeated key: YAML's own readers keep the last one and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key.value}' stands there twice; keep one", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_settings(file: str | Path, what: str) -> dict[str, Any]:
    """The keys and values of a YAML file. `what` names it in messages, such as "study".

    Raises:
        ConfigError: unreadable, not YAML, a key given twice in one place, or no keys at the top.
    """
    try:
        stream = io.StringIO(Path(file).read_text(encoding="utf-8"))
        stream.name = str(file)  # YAML's own messages name it
        read = yaml.load(stream, Loader=_Strict)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{what} {file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"{what} {file}: expected keys and values, found {type(read).__name__}")
    return read
