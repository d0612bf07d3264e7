"""The runs behind the verdicts: rates of an arm from its records, and what happened to each example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from latreft.paired import outcomes_by_seed
from latreft.per_example import Run, outcomes_of, run_at, run_of
from latreft.records import RunRecord, long_form
from latreft.tables.collect import collect, pool_seeds
from latreft.tables.context import read_records

Cell = Mapping[str, Any]


class NotTestable(Exception):
    """Why a claim cannot be judged from the runs at hand."""


@dataclass(frozen=True)
class Runs:
    """Records of one scale, and files of per-example outcomes. Scores go by data set and model."""

    scale: str
    records: Mapping[Run, RunRecord]
    outcomes: Mapping[Run, Path] = field(default_factory=dict)
    scores: Mapping[tuple[str, str], RunRecord] = field(default_factory=dict)
    theory: RunRecord | None = None

    def of(self, cells: Iterable[Cell], source: str) -> list[RunRecord]:
        """The records of ``cells`` for ``source``; where one cell has none, the claim cannot be tested."""
        found = []
        for run in (_run(cell, source) for cell in cells):
            if run not in self.records:
                raise NotTestable(f"no run of {run}")
            found.append(self.records[run])
        return found

    def pooled(self, cells: Sequence[Cell], source: str, metric: str) -> Mapping[str, Any]:
        """A metric of one arm, seeds pooled as in tables: value, n, interval and seeds."""
        frame = long_form(self.of(cells, source))
        attacks = [] if source == "accuracy" else [source]
        rows = pool_seeds(collect([{**cell, "attacks": attacks} for cell in cells], frame, self.scale))
        (row,) = rows[(rows["source"] == source) & (rows["metric"] == metric)].to_dict("records") or [{"value": None}]
        if pd.isna(row["value"]):
            raise NotTestable(f"the records of {cells[0]['arm']} have no metric {metric} of {source}")
        return row

    def per_example(self, cells: Sequence[Cell], source: str, metric: str) -> pd.DataFrame:
        """Outcomes (0 and 1) of one arm: one row an example, one column a seed."""
        frames = []
        for record in self.of(cells, source):
            run = run_of(record)
            if run not in self.outcomes:
                raise NotTestable(f"no per-example outcomes of {run}")
            frames.append(outcomes_of(record, self.outcomes[run], metric))
        return outcomes_by_seed(pd.concat(frames), tuple(sorted(int(cell["seed"]) for cell in cells)))


def _run(cell: Cell, source: str) -> Run:
    kind, attack = ("accuracy", "") if source == "accuracy" else ("attack", source)
    return Run(str(cell["dataset"]), str(cell["model"]), str(cell["arm"]), int(cell["seed"]), kind, attack)


def read_runs(records: Iterable[str | Path], outcomes: Iterable[str | Path], scale: str) -> Runs:
    """The runs whose files are there. A record of another scale is a ``ValueError``."""
    found = read_records(records)
    for record in found:
        if record.scale != scale:
            raise ValueError(f"a record of scale {record.scale!r} was given to the claims of scale {scale!r}")
    return Runs(
        scale,
        {run_of(record): record for record in found if record.kind in ("accuracy", "attack")},
        {run_at(path): path for path in map(Path, outcomes) if path.is_file()},
        {(record.dataset, record.model.name): record for record in found if record.kind == "scores"},
        next((record for record in found if record.kind == "theory"), None),
    )
