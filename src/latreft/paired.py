"""Arms compared on the same examples: the paired difference of two, bootstrap intervals, and McNemar's test.

Seeds share their examples, so an example is the unit: its outcomes are averaged over seeds before anything is drawn.
The interval speaks of other examples of the same kind, not of other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import bootstrap
from statsmodels.stats.contingency_tables import mcnemar

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
DRAWN_AT_ONCE = 10_000_000
"""Values that the bootstrap holds at a time; the interval does not depend on it."""


@dataclass(frozen=True)
class PairedDifference:
    """Mean of a − b over ``n`` examples, as a fraction, with the ends of its 95% interval.

    ``seeds`` are those that both arms have; ``p`` maps each of them to McNemar's exact two-sided p.
    """

    estimate: float
    low: float
    high: float
    n: int
    seeds: tuple[int, ...] = ()
    p: Mapping[int, float] = field(default_factory=dict)


def paired_difference(a: pd.DataFrame, b: pd.DataFrame) -> PairedDifference:
    """The difference a − b of the rates of two arms that were run on the same examples.

    ``a`` and ``b`` hold one row an example and seed: columns ``id``, ``seed`` and the boolean ``outcome``. Only seeds
    that both have count. The interval is a percentile interval of the cluster bootstrap over examples, from a fixed
    seed: equal outcomes give equal numbers, in whatever order the rows stand.

    Raises ``ValueError`` where the arms share no seed, or a seed's examples are not the same throughout, or there are
    fewer than two of them.
    """
    seeds = tuple(sorted({int(seed) for seed in set(a["seed"]) & set(b["seed"])}))
    if not seeds:
        raise ValueError(f"the arms share no seed: {sorted(set(a['seed']))} and {sorted(set(b['seed']))}")
    of_a, of_b = outcomes_by_seed(a, seeds), outcomes_by_seed(b, seeds)  # [examples, seeds]
    check_examples([of_a, of_b])
    differences = (of_a.mean(axis=1) - of_b.mean(axis=1)).to_numpy()
    low, high = bootstrap_interval([differences], np.mean)
    p = p_by_seed(of_a, of_b)
    return PairedDifference(float(differences.mean()), low, high, len(differences), seeds, p)


def outcomes_by_seed(frame: pd.DataFrame, seeds: tuple[int, ...]) -> pd.DataFrame:
    """Outcomes as 0 and 1, one row an example (sorted by id) and one column a seed."""
    chosen = frame[frame["seed"].isin(seeds)].astype({"id": str})  # categories would sort in an order of their own
    twice = chosen[chosen.duplicated(["id", "seed"])]
    if len(twice):
        raise ValueError(f"example {twice['id'].iloc[0]} is twice in seed {twice['seed'].iloc[0]}")
    wide = chosen.pivot(index="id", columns="seed", values="outcome").sort_index()
    absent = wide.index[wide.isna().any(axis=1)]
    if len(absent):
        raise ValueError(f"example {absent[0]} has no outcome in some of the seeds {', '.join(map(str, seeds))}")
    return wide[list(seeds)].astype(float)


def check_examples(arms: Sequence[pd.DataFrame]) -> None:
    """Raise ``ValueError`` where arms (outcomes by seed) were run on different examples, or on fewer than two."""
    first = arms[0]
    for arm in arms[1:]:
        if not arm.index.equals(first.index):
            odd = min(map(str, set(arm.index) ^ set(first.index)))
            raise ValueError(f"arms that are compared were run on different examples: {odd} is not in all of them")
    if len(first) < 2:
        raise ValueError(f"a comparison needs two examples or more, got {len(first)}")


def bootstrap_interval(columns: Sequence[np.ndarray], value: Callable[..., np.ndarray]) -> tuple[float, float]:
    """95% percentile interval of ``value`` of ``columns`` [examples]; an example is drawn with its entry in each."""
    drawn = bootstrap(
        tuple(columns),
        value,
        paired=True,
        n_resamples=RESAMPLES,
        batch=max(1, DRAWN_AT_ONCE // (len(columns) * len(columns[0]))),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def p_by_seed(a: pd.DataFrame, b: pd.DataFrame) -> dict[int, float]:
    """McNemar's p of two arms for each seed: a row an example, the same in both, and a column a seed."""
    return {int(seed): mcnemar_p(a[seed].to_numpy(), b[seed].to_numpy()) for seed in a.columns}


def mcnemar_p(a: np.ndarray, b: np.ndarray) -> float:
    """McNemar's exact two-sided p of two rows of 0 and 1 on the same examples; 1 where no example differs."""
    a, b = a.astype(bool), b.astype(bool)
    table = [[int((a & b).sum()), int((a & ~b).sum())], [int((~a & b).sum()), int((~a & ~b).sum())]]
    return float(mcnemar(table, exact=True).pvalue)
