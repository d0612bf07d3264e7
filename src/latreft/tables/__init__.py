"""Tables from run records: one file a table, each with ``build(context) -> Table``. No model is ever loaded here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from latreft.tables.context import Context
from latreft.tables.render import Table

SHARED = {"collect", "context", "contradictions", "layout", "names", "paper", "render"}


def table_builder(target: str) -> Callable[[Context], Table]:
    """``build`` of the table called ``target``; an unknown name is a ``ValueError`` that lists the known ones."""
    known = sorted({module.name for module in pkgutil.iter_modules(__path__)} - SHARED)
    if target not in known:
        raise ValueError(f"no table is called {target!r}; tables are {', '.join(known)}")
    build: Callable[[Context], Table] = importlib.import_module(f"{__name__}.{target}").build
    return build
