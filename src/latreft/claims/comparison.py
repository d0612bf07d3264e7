"""Arms compared on the same examples: a value made of their rates, with a paired bootstrap interval.

Seeds share their examples, so an example is the unit: its outcomes are averaged over seeds before examples are drawn,
each with its outcomes under all arms. The difference of two arms is that of :mod:`latreft.paired`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from latreft.paired import bootstrap_interval, check_examples, p_by_seed

Rates = np.ndarray
"""Rates [arms, ...]."""

KINDS: dict[str, Callable[[Rates], np.ndarray]] = {
    "difference": lambda rates: rates[0] - rates[1],
    "over_highest": lambda rates: rates[0] - rates[1:].max(axis=0),
    "over_lowest": lambda rates: rates[0] - rates[1:].min(axis=0),
    "range": lambda rates: rates.max(axis=0) - rates.min(axis=0),
    "highest": lambda rates: rates.max(axis=0),
    "lowest": lambda rates: rates.min(axis=0),
}
LARGEST = ("highest", "range")
"""Kinds of which the largest of several models is judged unless it is said otherwise."""


@dataclass(frozen=True)
class Compared:
    """The value, its 95% interval, examples, seeds; ``p`` is McNemar's of each seed where two arms were compared."""

    estimate: float
    low: float
    high: float
    n: int
    seeds: int
    p: tuple[float, ...] = ()


def compare(kind: str, models: Sequence[Sequence[pd.DataFrame]], across: str | None = None) -> Compared:
    """The value of ``kind`` of arms: ``models[m][a]`` holds outcomes of arm ``a`` (a row an example, a column a seed).

    Of the values of several models the ``across`` (smallest, largest) one counts. Raises ``ValueError`` where arms were
    run on different examples or on fewer than two.
    """
    arms = [arm for model in models for arm in model]
    check_examples(arms)
    columns = [arm.mean(axis=1).to_numpy() for arm in arms]  # arms x [examples]
    ends = np.cumsum([len(model) for model in models])[:-1]
    join = np.max if (across or ("largest" if kind in LARGEST else "smallest")) == "largest" else np.min

    def value(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        rates = np.stack([column.mean(axis=axis) for column in drawn])
        result: np.ndarray = join(np.stack([KINDS[kind](part) for part in np.split(rates, ends)]), axis=0)
        return result

    low, high = bootstrap_interval(columns, value)
    return Compared(float(value(*columns)), low, high, len(columns[0]), len(arms[0].columns), _p(kind, models))


def _p(kind: str, models: Sequence[Sequence[pd.DataFrame]]) -> tuple[float, ...]:
    if kind != "difference" or len(models) > 1:
        return ()
    return tuple(p_by_seed(*models[0]).values())
