"""What happened to each example of a run: from the file beside its record, and never another rate than the record's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from latreft.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

ATTACK_COLUMNS = {"asr": "success", "asr_round_trip": "success_after_round_trip"}
"""Rates of an attack that are shares of all examples, with the outcome of an example that they count."""
SHARES = ("accuracy", *ATTACK_COLUMNS)
"""Every metric that is a share of all examples."""
ROUNDING = 1e-9


class Run(NamedTuple):
    """Whose outcomes they are; ``attack`` is empty for those of clean accuracy."""

    dataset: str
    model: str
    arm: str
    seed: int
    kind: str
    attack: str

    def __str__(self) -> str:
        return f"{self.dataset}/{self.model}/{self.arm}/seed{self.seed}, {self.attack or self.kind}"


def run_of(record: RunRecord) -> Run:
    """The run of a record."""
    return Run(record.dataset, record.model.name, record.arm, record.seed, record.kind, record.attack or "")


def run_at(path: Path) -> Run:
    """The run of an arm whose outcomes lie at ``path``, by where ``artefacts`` puts them."""
    dataset, model, arm, seed = path.parts[-5:-1]
    kind, _, attack = path.stem.partition("_")
    return Run(dataset, model, arm, int(seed.removeprefix("seed")), kind, attack)


def outcomes_of(record: RunRecord, path: Path, metric: str) -> pd.DataFrame:
    """Columns id, seed and the boolean outcome that ``metric`` (of ``SHARES``) counts, one row an example.

    Raises ``ValueError`` where the outcomes give another rate than the record.
    """
    import pandas as pd

    frame = pd.read_parquet(path)
    outcome = frame["prediction"] == frame["label"] if metric == "accuracy" else frame[ATTACK_COLUMNS[metric]]
    recorded, found = record.metrics[metric].value, float(outcome.astype(bool).mean())
    if abs(recorded - found) > ROUNDING:
        raise ValueError(
            f"{run_of(record)}: the record's {metric} is {recorded}, its outcomes give {found}; run it anew"
        )
    return pd.DataFrame({"id": frame["id"], "seed": record.seed, "outcome": outcome.astype(bool)})
