"""Validated settings: the base class of every settings model, and errors that name key, value and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError


class SettingsError(ValueError):
    """A setting is wrong. The message names the file, the key, the value and what would be right."""


class Settings(BaseModel):
    """Base of all settings: unknown keys are errors, values are immutable, no silent number-from-string coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


S = TypeVar("S", bound=Settings)


def _describe(error: Any, model: type[Settings]) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "(top level)"
    if error["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields)) if len(error["loc"]) == 1 else "see docs/configuration.md"
        return f"unknown key '{key}' (value {error['input']!r}); known keys: {known}"
    if error["type"] == "missing":
        return f"key '{key}' is missing; it has no default and must be given"
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
