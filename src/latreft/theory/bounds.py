"""Measured values beside their bounds: how often a bound is broken, and how far it is from what it bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from latreft.records import Metric

ROUNDING = 1e-9


def violations(smaller: Tensor, larger: Tensor) -> int:
    """In how many trials ``smaller`` [N] exceeds ``larger`` [N] by more than rounding; a NaN is a violation."""
    room = ROUNDING * (smaller.abs() + larger.abs())
    return int((~(smaller <= larger + room.nan_to_num(posinf=0.0))).sum())


def count(value: int, trials: int) -> Metric:
    """So many of ``trials``."""
    return Metric(value=value, unit="count", n=trials)


def share(holds: Tensor) -> Metric:
    """In which share of the trials ``holds`` [N]. Trials share models and texts, so no interval is given."""
    return Metric(value=holds.double().mean().item(), unit="share", n=holds.numel())


def median_ratio(above: Tensor, below: Tensor) -> Metric:
    """Median of ``above`` / ``below`` [N], over the trials in which it is finite; n = 0 where there are none."""
    ratio = above / below
    ratio = ratio[ratio.isfinite()]
    return Metric(value=ratio.median().item() if len(ratio) else 0.0, unit="ratio", n=len(ratio))


def log_uniform(generator: torch.Generator, low: float, high: float, trials: int) -> Tensor:
    """Numbers [N] whose logarithms are uniform between those of ``low`` and ``high``."""
    uniform = torch.rand(trials, generator=generator, dtype=torch.float64)
    return low * (high / low) ** uniform
