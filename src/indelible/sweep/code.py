"""What a cell's outcome hangs on beside its settings: the package's own source, and files that settings name."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import indelible
from indelible.models.builtin import file_sha256

PACKAGE = "indelible"
NOT_HASHED = ("indelible.report", "indelible.cli")
"""Reports are written from numbers and change none."""

ROLES = ("base",)
"""Values of settings that name a model of the study, whatever file is called so."""


@functools.cache
def code_digest(*modules: str) -> str:
    """A hash of the sources of these modules and of all of this package's that they import, within functions too."""
    found = sources(*modules)
    text = "".join(f"{name}:{hashlib.sha256(found[name]).hexdigest()};" for name in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources(*modules: str) -> dict[str, bytes]:
    """Module to its source: these, and what they import of this package, but for its list of public names."""
    found: dict[str, bytes] = {}
    todo = list(modules)
    while todo:
        name = todo.pop()
        path = _source(name)
        if path is None or name in found or name.startswith(NOT_HASHED):
            continue
        found[name] = path.read_bytes()
        todo += _imported(name, found[name], is_package=path.name == "__init__.py")
    return found


def _source(name: str) -> Path | None:
    first, *rest = name.split(".")
    if first != PACKAGE or not rest:
        return None
    path = Path(indelible.__file__).parent.joinpath(*rest)
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _imported(name: str, source: bytes, *, is_package: bool) -> Iterator[str]:
    parts = name.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = parts[: len(parts) - node.level + is_package] if node.level else []
            module = ".".join([*here, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def with_contents(value: Any) -> Any:
    """Settings with every file or folder that a text in them names replaced by a hash of what it holds."""
    if isinstance(value, dict):
        return {key: with_contents(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_contents(inner) for inner in value]
    if not isinstance(value, str) or value in ROLES:
        return value
    path = Path(value).expanduser()
    try:
        there = bool(value) and path.exists()
    except OSError:  # a long text is no path
        return value
    return f"{path.name}:{_content(path)}" if there else value


def _content(path: Path) -> str:
    if path.is_file():
        return file_sha256(path)
    inside = sorted(p for p in path.rglob("*") if p.is_file())
    text = "".join(f"{p.relative_to(path)}:{file_sha256(p)};" for p in inside)
    return hashlib.sha256(text.encode()).hexdigest()
