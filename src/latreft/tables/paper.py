"""The paper's own numbers, read from ``resources/paper``. They are shown at the paper scale only, and labelled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from latreft.tables.context import PAPER_SCALE, Context

if TYPE_CHECKING:
    import pandas as pd

METHODS = {"none": "No Defense", "r2d2": "R2D2", "lat": "LAT", "cat": "CAT", "lat_reft": "Ours"}
SAME = {"enron": "enronspam"}
NOTE = "Columns that begin with “paper:” are the authors' numbers (resources/paper), not ours."


def shown(context: Context) -> bool:
    """Whether the paper's numbers stand beside ours: at the paper scale alone."""
    return context.scale == PAPER_SCALE


def read(context: Context, file: str) -> pd.DataFrame:
    """One CSV of the paper's numbers; a missing file is an error that names it."""
    import pandas as pd

    return pd.read_csv(context.paper / file)


def same(name: str) -> str:
    """A name without spelling differences: the paper writes Qwen-2.5-3B and Qwen2.5-3B, EnronSpam and Enron."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return SAME.get(plain, plain)


def number(frame: pd.DataFrame, column: str, **where: set[str] | str | float) -> float:
    """The one value of ``column`` in the row where each column named has one of the given values; NaN if not reported.

    Texts are compared by :func:`same`.
    """
    chosen = frame
    for key, wanted in where.items():
        if isinstance(wanted, float | int):
            chosen = chosen[(chosen[key] - wanted).abs() < 1e-9]
        else:
            names = {same(name) for name in ({wanted} if isinstance(wanted, str) else wanted)}
            chosen = chosen[chosen[key].map(same).isin(names)]
    if len(chosen) > 1:
        raise ValueError(f"the paper's numbers have {len(chosen)} rows for {where}; expected one")
    return float(chosen[column].iloc[0]) if len(chosen) else float("nan")


def names_of(context: Context, kind: str, key: str) -> set[str]:
    """What a model or data set may be called: its key and its title."""
    return {key, context.name(kind, key)}
