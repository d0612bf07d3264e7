"""Validated settings: the base class of every settings model, and errors that name key, value and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class SettingsError(ValueError):
    """A setting is wrong. The message names the file, the key, the value and what would be right."""


def _members(annotation: Any) -> set[Any]:
    """The types that a field takes: those of a union, bounds left out."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {member for part in get_args(annotation) for member in _members(part)}
    return {get_origin(annotation) or annotation}


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors, values are immutable, true and false are no numbers.

    A number may be written as a string, for YAML reads ``1e-5`` as one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _no_truth_as_number(cls, values: Any) -> Any:
        for key, field in cls.model_fields.items():
            if isinstance(values, Mapping) and isinstance(values.get(key), bool):
                members = _members(field.annotation)
                if members & {int, float} and bool not in members:
                    raise ValueError(f"key '{key}' has value {values[key]}: a number is needed, not true or false")
        return values


S = TypeVar("S", bound=Settings)


def _describe(error: Any, model: type[Settings]) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "(top level)"
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields)) if len(error["loc"]) == 1 else "see docs/configuration.md"
        return f"unknown key '{key}' (value {error['input']!r}); known keys: {known}"
    if error["type"] == "missing":
        return f"key '{key}' is missing; it has no default and must be given"
    if error["type"] == "value_error" and "key '" in error["msg"]:
        return error["msg"].removeprefix("Value error, ")
    return f"key '{key}' has value {error['input']!r}: {error['msg']}"


def validate(model: type[S], values: Mapping[str, Any] | None, where: str) -> S:
    """Build ``model`` from ``values`` or raise one :class:`SettingsError` that names every fault.

    ``where`` names the file and section that the values come from.
    """
    try:
        return model.model_validate(dict(values or {}))
    except ValidationError as error:
        faults = "; ".join(_describe(fault, model) for fault in error.errors())
        raise SettingsError(f"{where}: {faults}") from None
