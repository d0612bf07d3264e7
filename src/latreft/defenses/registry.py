"""Defenses by name: a module in this package that defines ``Settings`` and ``train``.

A new defense is one such file and one entry under ``methods`` of the configuration.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from latreft import defenses
from latreft.settings import SettingsError

SHARED = frozenset({"base", "registry", "saved"})


def methods() -> list[str]:
    """The defenses there are, sorted."""
    return sorted({module.name for module in pkgutil.iter_modules(defenses.__path__)} - SHARED)


def defense_module(name: str, where: str) -> Any:
    """The module of a method; ``where`` names the file and section that asks for it."""
    if name not in methods():
        raise SettingsError(f"{where}: unknown method {name!r}; known methods: {', '.join(methods())}")
    module = importlib.import_module(f"latreft.defenses.{name}")
    for needed in ("Settings", "train"):
        if not hasattr(module, needed):
            raise SettingsError(
                f"{where}: {module.__file__} defines no '{needed}'; a defense defines Settings and train"
            )
    return module
