"""Attacks by their kind: the name of a module in this package that defines ``Settings`` and ``attack``.

A new attack is one such file and one entry of the configuration that names its kind.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from latreft import attacks
from latreft.attacks.base import Attack, AttackSettings
from latreft.settings import SettingsError, validate

SHARED = frozenset({"base", "journal", "registry", "run", "together"})


def kinds() -> list[str]:
    """The kinds of attack there are, sorted."""
    return sorted({module.name for module in pkgutil.iter_modules(attacks.__path__)} - SHARED)


def _module(kind: object, where: str) -> Any:
    if kind not in kinds():
        raise SettingsError(f"{where}: key 'kind' has value {kind!r}; known kinds of attack: {', '.join(kinds())}")
    module = importlib.import_module(f"latreft.attacks.{kind}")
    for name in ("Settings", "attack"):
        if not hasattr(module, name):
            raise SettingsError(
                f"{where}: {module.__file__} defines no '{name}'; an attack defines Settings and attack"
            )
    return module


def attack_settings(values: Mapping[str, Any], where: str) -> AttackSettings:
    """Checked settings of the attack whose ``kind`` is in ``values``; ``where`` names the file and section."""
    if "kind" not in values:
        raise SettingsError(f"{where}: key 'kind' is missing; known kinds of attack: {', '.join(kinds())}")
    settings: type[AttackSettings] = _module(values["kind"], where).Settings
    return validate(settings, values, where)


def attack_of(settings: AttackSettings) -> Attack:
    """The search that ``settings`` configure."""
    attack: Attack = _module(settings.kind, "attack settings").attack
    return attack
