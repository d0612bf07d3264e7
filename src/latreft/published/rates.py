"""Every rate of every record, recomputed from what happened to each example."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latreft.attacks.base import recompute
from latreft.evaluation import accuracy_metrics
from latreft.files import sha256
from latreft.published.folder import WITH_OUTCOMES, has_outcomes
from latreft.records import Metric, RunRecord, read_record

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 1e-9
"""Relative, for means and ends of intervals, which other machines may round otherwise; rates and n are exact."""


@dataclass(frozen=True)
class Checked:
    """How many runs and metrics were found right; of how many runs the outcomes have their record's SHA-256."""

    runs: int
    metrics: int
    same_hash: int


def check_rates(results: Path, records: Iterable[str] | None = None) -> Checked:
    """Check the records of ``results`` (a scale's folder) against the outcomes beside them.

    ``records`` are paths below it; by default all records there that have outcomes. Raises ``ValueError`` that names
    record, metric and both values at the first mismatch, and where a record has no outcomes.
    """
    runs = metrics = same_hash = 0
    for path in sorted(found_records(results) if records is None else filter(has_outcomes, records)):
        record, outcomes = read_record(results / path), (results / path).with_suffix(".parquet")
        metrics += check_record(path, record, read_outcomes(outcomes))
        same_hash += sha256(outcomes) == recorded_hash(record)
        runs += 1
    if not runs:
        raise ValueError(f"{results} has no record with outcomes beside it")
    return Checked(runs, metrics, same_hash)


def found_records(results: Path) -> list[str]:
    """The records below ``results`` that have outcomes beside them, or should."""
    return [str(path.relative_to(results)) for name in WITH_OUTCOMES for path in (results / "runs").rglob(name)]


def read_outcomes(path: Path) -> pd.DataFrame:
    """One row an example."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"{path} is missing: the rates of the record beside it cannot be recomputed")
    return pd.read_parquet(path)


def recorded_hash(record: RunRecord) -> str | None:
    """The SHA-256 that a record gives of its outcomes."""
    made = record.provenance.get("evaluation" if record.kind == "finetune" else "inputs", {})
    return made.get("outcomes") if isinstance(made, dict) else None


def check_record(name: str, record: RunRecord, outcomes: pd.DataFrame) -> int:
    """Check one record, called ``name``, against its outcomes; the number of metrics that agree.

    Raises ``ValueError`` at the first that does not, or at a rate that outcomes cannot give.
    """
    try:
        found = recompute(outcomes) if record.kind == "attack" else accuracy_metrics(outcomes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    for metric, value in found.items():
        if metric not in record.metrics:
            raise ValueError(f"{name}: the outcomes give {metric} {value.value}, which the record does not have")
        if not agree(record.metrics[metric], value):
            raise ValueError(
                f"{name}: {metric} is {words(record.metrics[metric])} in the record, "
                f"but {words(value)} by the outcomes of its examples"
            )
    odd = [metric for metric, value in record.metrics.items() if value.unit == "rate" and metric not in found]
    if odd:
        raise ValueError(f"{name}: the rate {odd[0]} cannot be recomputed from the outcomes")
    return len(found)


def agree(recorded: Metric, found: Metric) -> bool:
    """Whether two metrics are one number."""
    if (recorded.unit, recorded.n) != (found.unit, found.n):
        return False
    if found.unit == "rate" and recorded.value != found.value:
        return False
    pairs = [(recorded.value, found.value), (recorded.ci_low, found.ci_low), (recorded.ci_high, found.ci_high)]
    return all(
        a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12))
        for a, b in pairs
    )


def words(metric: Metric) -> str:
    return f"{metric.value} (n = {metric.n})"
