"""How much a process has made at its first use and uses again: code compiled by torch, captured graphs.

Compiled code sums in an order that depends on the shapes it was compiled for, and a graph keeps the code that was there
when it was captured. So what a step computes, to the last bit, depends on the steps in which something was made.
"""

from __future__ import annotations

import sys
from typing import Any

_noted = 0


def note() -> None:
    """Something other than torch's compiled code was made."""
    global _noted
    _noted += 1


def count() -> int:
    """How many things have been made in this process; torch counts the code that it compiles."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return _noted + (0 if dynamo is None else dynamo.counters["stats"]["unique_graphs"])
