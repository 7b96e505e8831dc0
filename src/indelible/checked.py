"""Settings checked against their models, and what is wrong with them in one line of plain words."""

from __future__ import annotations

import types
from collections.abc import Mapping, Set
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from indelible.errors import ConfigError, did_you_mean

Checked = TypeVar("Checked", bound=BaseModel)

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "keys and values",
    "model": "keys and values",
    "mapping": "keys and values",
    "tuple": "a list",
    "list": "a list",
    "finite": "a finite number",
}
_PLAIN_KINDS = ("int", "float", "bool", "str")
_COMPOSED = ("[key]", "literal[", "tuple[", "list[", "dict[", "function-", "constrained-")
"""How pydantic names the kinds that a value of several kinds was tried as."""
_LIMITS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "too_short": "at least {min_length} of them",
    "string_pattern_mismatch": "letters, digits and . _ - alone, a letter or digit first",
}


def check(kind: type[Checked], given: Mapping[str, Any], what: str = "") -> Checked:
    """Settings as their checked form.

    Raises:
        ConfigError: an unknown key (with the closest known one), a missing or a wrong value; `what` says in which file.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        raise ConfigError(what + _one_line(kind, error)) from error


def _one_line(kind: type[BaseModel], error: ValidationError) -> str:
    kinds = {*_PLAIN_KINDS, *(model.__name__ for model in _models_below(kind))}
    errors = _of_the_kind_meant(error, kinds)
    unknown = [e for e in errors if e["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    where = [str(part) for part in first["loc"]]
    if unknown:
        inside = ".".join(part for part in where[:-1] if not _is_kind(part, kinds))
        owner = _owner(kind, first["loc"])
        known = [field.alias or name for name, field in owner.model_fields.items()]
        return did_you_mean(where[-1], known, f"setting of {inside}" if inside else "setting")
    name = ".".join(part for part in where if not _is_kind(part, kinds))
    if first["type"] == "missing":
        has_flag = len(where) == 1 and get_origin(kind.model_fields[name].annotation) is not dict
        return f"setting '{name}' is missing" + (f": give --{name.replace('_', '-')}" if has_flag else "")
    given = "" if isinstance(first["input"], Mapping) else f" (given: {first['input']!r})"
    return f"setting '{name}': {said(first)}{given}" if name else said(first)


def _is_kind(part: str, kinds: Set[str]) -> bool:
    """Whether a part of a location names a kind of value, which the user did not write: one of `kinds`, or composed."""
    return part in kinds or part.startswith(_COMPOSED)


def _of_the_kind_meant(error: ValidationError, kinds: Set[str]) -> list[ErrorDetails]:
    """A value that may be of several kinds has errors for each: those of the kind that fits best, first."""
    found: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for one in error.errors():
        found.setdefault(tuple(part for part in map(str, one["loc"]) if _is_kind(part, kinds)), []).append(one)

    def misfit(errors: list[ErrorDetails]) -> tuple[bool, int, int]:
        other_shape = any(e["type"] == "literal_error" and isinstance(e["input"], Mapping) for e in errors)
        return other_shape, sum(e["type"] == "extra_forbidden" for e in errors), len(errors)

    plain = found.pop((), [])
    return plain or min(found.values(), key=misfit)


def said(error: Mapping[str, Any]) -> str:
    """An error of pydantic in our words."""
    type_, context = str(error["type"]), error.get("ctx", {})
    if type_ == "value_error":
        return str(context["error"])
    if type_ in _LIMITS:
        return "expected " + _LIMITS[type_].format(**context)
    kind = _KINDS.get(type_.split("_")[0])
    return f"expected {kind}" if kind is not None else str(error["msg"])


def _owner(kind: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The model that the last key of an error's location was looked up in."""
    current: Any = kind
    for part in loc[:-1]:
        models = _models_in(current)
        named = next((m for m in models if part in (_tag(m), m.__name__)), None)
        if named is not None:
            current = named
            continue
        fields = [
            field
            for m in models
            for name, field in m.model_fields.items()
            if part in (name, field.alias)
        ]  # fmt: skip
        current = fields[0].annotation if fields else current
    return next(iter(_models_in(current)), kind)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, dict, tuple, Annotated):
        return [m for part in get_args(annotation) for m in _models_in(part)]
    return []


def _tag(model: type[BaseModel]) -> str | None:
    """The value of `kind` that stands for a model of a union."""
    field = model.model_fields.get("kind")
    return next(iter(get_args(field.annotation)), None) if field is not None else None


def _models_below(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """A model and all models in its fields, at any depth."""
    found: set[type[BaseModel]] = set()
    left = [kind]
    while left:
        model = left.pop()
        if model not in found:
            found.add(model)
            left += [inner for field in model.model_fields.values() for inner in _models_in(field.annotation)]
    return found
