"""Intervals for rates."""

from __future__ import annotations

from statsmodels.stats.proportion import proportion_confint


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided Wilson score interval of a proportion, as fractions; ``(0.0, 1.0)`` when ``n`` is 0."""
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and n, got {successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    low, high = proportion_confint(successes, n, alpha=1 - level, method="wilson")
    return (float(low) if successes else 0.0), (float(high) if successes < n else 1.0)
