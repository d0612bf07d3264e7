"""Figures from run records: one file a figure, each with ``draw(context)`` and ``caption(context)``."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

SHARED = {"bars", "style"}


def figure_module(target: str) -> ModuleType:
    """The module that draws ``target``: of its name, or ``heatmaps`` for ``heatmaps_DATASET``.

    An unknown name is a ``ValueError`` that lists the known ones.
    """
    known = sorted({module.name for module in pkgutil.iter_modules(__path__)} - SHARED)
    name = "heatmaps" if target.startswith("heatmaps_") else target
    if name not in known:
        raise ValueError(f"no figure is called {target!r}; figures are {', '.join(known)}")
    return importlib.import_module(f"{__name__}.{name}")
