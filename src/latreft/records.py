"""The run record: one JSON a run, written once and atomically, read many times.

A record says what was run (settings, fully resolved), what came out (metrics, with n and a 95% Wilson interval for
rates), what it cost and what it was made with. Tables and figures are built from records only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from latreft.files import fingerprint, read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

Kind = Literal["finetune", "scores", "train", "cost", "accuracy", "attack", "theory"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Metric(Strict):
    """One measured value. A rate carries the number of examples and its 95% Wilson interval."""

    value: float
    unit: str
    n: int | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @model_validator(mode="after")
    def _rates_carry_intervals(self) -> Metric:
        if self.unit == "rate":
            if self.n is None or self.ci_low is None or self.ci_high is None:
                raise ValueError("a rate needs n, ci_low and ci_high")
            if not self.ci_low - 1e-12 <= self.value <= self.ci_high + 1e-12:
                raise ValueError(f"the interval [{self.ci_low}, {self.ci_high}] does not hold the rate {self.value}")
        return self


def rate(successes: int, n: int) -> Metric:
    """A proportion as a metric of unit ``rate``; n = 0 is an error, for nothing was measured."""
    from latreft.stats import wilson

    if n == 0:
        raise ValueError("a rate over no examples: the evaluated set is empty")
    low, high = wilson(successes, n)
    return Metric(value=successes / n, unit="rate", n=n, ci_low=low, ci_high=high)


class ModelInfo(Strict):
    """Which model: configured name, family, pinned revision, parameters with the two-class head."""

    name: str
    family: str
    revision: str
    parameters: int


def model_info(name: str, manifest: Mapping[str, Any]) -> ModelInfo:
    """A classifier as its manifest describes it."""
    return ModelInfo(name=name, **{key: manifest[key] for key in ("family", "revision", "parameters")})


class RunRecord(Strict):
    """Everything one run says of itself; see ``docs/records.md`` for each field."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    scale: str
    dataset: str
    model: ModelInfo
    method: str
    arm: str
    seed: int
    attack: str | None = None
    settings: dict[str, Any]
    metrics: dict[str, Metric]
    cost: dict[str, Any] = {}
    provenance: dict[str, Any] = {}

    def digest(self) -> str:
        """Hash of the record's content, without what differs between two equal runs (seconds, memory, times)."""
        content = self.model_dump(mode="json")
        content["cost"] = lasting_cost(content["cost"])
        content.pop("provenance")
        return fingerprint(content)


VOLATILE_COST = frozenset({"seconds", "training_seconds", "peak_memory_bytes", "peak_memory_measure", "device"})


def lasting_cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    """A record's costs without those that differ between two equal runs."""
    return {key: value for key, value in cost.items() if key not in VOLATILE_COST}


def device_name(card: str, jobs: int) -> str:
    """A record's ``device``: a card's name, and how many jobs could run on it at a time where that is more than one."""
    return f"{card}, up to {jobs} jobs at a time" if jobs > 1 else card


def jobs_at_a_time(device: str) -> int:
    """How many jobs could run on the card of a record's ``device`` at a time."""
    shared = re.search(r", up to (\d+) jobs at a time$", device)
    return int(shared[1]) if shared else 1


def write_record(record: RunRecord, path: str | Path) -> None:
    """Publish a record in one rename."""
    write_json(path, record.model_dump(mode="json"))


def read_record(path: str | Path) -> RunRecord:
    """Read and check one record; a record that breaks the schema is an error that names file and field."""
    content = read_json(path)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path}: schema_version is {version!r}, this code reads {SCHEMA_VERSION}; rerun the run")
    try:
        return RunRecord.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, f['loc']))}: {f['msg']}" for f in error.errors())
        raise ValueError(f"{path} is not a run record: {faults}") from None


LONG_COLUMNS = [
    "scale", "dataset", "model", "method", "arm", "seed", "attack", "kind",
    "metric", "value", "n", "ci_low", "ci_high", "unit", "record",
]  # fmt: skip


COST_UNITS = (("flops", "flop"), ("percent", "percent"), ("parameters", "parameters"))


def cost_metrics(cost: Mapping[str, Any]) -> dict[str, Metric]:
    """The numeric entries of ``cost`` as metrics ``cost_KEY``, without those that differ between two equal runs.

    The unit is flop, percent or parameters, by the key's name; count for any other.
    """
    return {
        f"cost_{key}": Metric(value=value, unit=next((unit for part, unit in COST_UNITS if part in key), "count"))
        for key, value in lasting_cost(cost).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def long_form(records: Iterable[RunRecord]) -> pd.DataFrame:
    """One row a metric (columns ``LONG_COLUMNS``), sorted, so that equal records give equal bytes."""
    import pandas as pd

    rows = []
    for record in records:
        shared = {
            "scale": record.scale, "dataset": record.dataset, "model": record.model.name, "method": record.method,
            "arm": record.arm, "seed": record.seed, "attack": record.attack or "", "kind": record.kind,
            "record": record.digest()[:16],
        }  # fmt: skip
        for name, metric in (record.metrics | cost_metrics(record.cost)).items():
            rows.append(shared | {"metric": name} | metric.model_dump())
    frame = pd.DataFrame(rows, columns=LONG_COLUMNS)
    return frame.sort_values(LONG_COLUMNS[:9], kind="stable").reset_index(drop=True)
