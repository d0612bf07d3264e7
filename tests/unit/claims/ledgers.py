"""A small scale with the project's own claims, and made-up runs of it, for tests of verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from latreft.claims.quantities import Measured
from latreft.claims.runs import read_runs
from latreft.claims.settings import Ledger
from latreft.claims.verdict import Judged, judge
from latreft.claims.wanted import Wanted, load_ledger, paper_costs
from latreft.config import ModelSettings, load_models, load_scale, read_yaml
from latreft.experiments import ExperimentSettings, Plan
from latreft.records import Metric, ModelInfo, RunRecord, rate, write_record
from latreft.settings import validate

CONFIG = Path(__file__).resolve().parents[3] / "config"
MODEL = "smollm2-135m"
PAPER_NUMBERS = CONFIG.parent / "resources" / "paper" / "claims.csv"


@cache
def models() -> dict[str, ModelSettings]:
    return load_models(CONFIG)


@cache
def project_ledger() -> Ledger:
    """The project's own ledger."""
    return load_ledger(CONFIG)


@cache
def costs() -> dict[str, dict[str, Any]]:
    """Models of the paper scale, with their methods' settings."""
    return paper_costs(CONFIG)


@cache
def paper_values() -> dict[str, Any]:
    return read_yaml(CONFIG / "config.yaml")


@cache
def plan(scale: str, changes: str) -> Plan:
    """A scale with the paper's data, methods and grids, on a model of its own, and the targets of all scales."""
    own = {"scale": scale, "title": f"{scale} scale", "models": [MODEL], "main_model": MODEL, "per_model": {}}
    values = paper_values() | own | json.loads(changes)
    content = read_yaml(CONFIG / "experiments.yaml")
    targets = {
        part: {name: target for name, target in content[part].items() if not target.get("scales")} for part in content
    }
    experiments = validate(ExperimentSettings, targets, "config/experiments.yaml")
    return Plan(load_scale(values, models(), f"config/{scale}.yaml"), experiments)


def wanted(scale: str = "small", ledger: Ledger | None = None, **changes: Any) -> Wanted:
    """What claims need at a scale; ``changes`` are values of its file."""
    return Wanted(ledger or project_ledger(), plan(scale, json.dumps(changes)), frozenset(models()))


class Folder:
    """Runs of a scale, written where the workflow would write them."""

    def __init__(self, root: Path, of: Wanted):
        self.root, self.wanted = root, of

    def record(self, path: str, metrics: Mapping[str, Metric], attack: str | None = None) -> None:
        """A record at ``path``, a path of the workflow."""
        parts = Path(path).parts
        kind = "attack" if attack else Path(path).stem
        seed = int(parts[6].removeprefix("seed")) if kind in ("attack", "accuracy") else 0
        arm = parts[5] if kind in ("attack", "accuracy") else "classifier"
        write_record(
            RunRecord(
                kind=kind, scale=self.wanted.plan.scale.name, dataset=parts[3], method=arm.split("__")[0], arm=arm, seed=seed,
                model=ModelInfo(name=parts[4], family="llama", revision="0" * 40, parameters=10**8), attack=attack,
                settings={}, metrics=dict(metrics),
            ),
            self.root / path,
        )  # fmt: skip

    def attack(self, path: str, attack: str, success: np.ndarray) -> None:
        """An attack's record and outcomes; ``success`` is an example each."""
        success = np.asarray(success, dtype=bool)
        metrics = {"asr": rate(int(success.sum()), len(success))}
        if success.any():
            metrics["flips_0_to_1"] = rate(int(success.sum()), int(success.sum()))
        self.record(path, metrics, attack)
        ids = [f"e{i}" for i in range(len(success))]
        frame = pd.DataFrame({"id": ids, "success": success, "success_after_round_trip": success})
        frame.to_parquet((self.root / path).with_suffix(".parquet"))

    def accuracy(self, path: str, right: np.ndarray) -> None:
        """An arm's accuracy record and outcomes; ``right`` is an example each."""
        right = np.asarray(right, dtype=int)
        self.record(path, {"accuracy": rate(int(right.sum()), len(right))})
        ids = [f"v{i}" for i in range(len(right))]
        frame = pd.DataFrame({"id": ids, "label": 1, "prediction": right})
        frame.to_parquet((self.root / path).with_suffix(".parquet"))

    def theory(self, **metrics: float) -> None:
        """The theory record."""
        (path,) = [path for path in self.wanted.records() if path.endswith("theory.json")]
        self.record(path, {name: Metric(value=value, unit="ratio") for name, value in metrics.items()})

    def measured(self) -> Measured:
        """The runs as the rule's script reads them."""
        scale = self.wanted.plan.scale
        records, outcomes = (
            [self.root / path for path in paths] for paths in (self.wanted.records(), self.wanted.outcomes())
        )
        runs = read_runs(records, outcomes, scale.name)
        return Measured(runs, self.wanted.arms, costs(), scale.settings.main_model, list(scale.models))

    def judge(self) -> dict[str, Judged]:
        """The verdicts, by claim."""
        return {one.key: one for one in judge(self.wanted.ledger, self.measured())}


def kept(late: float, layers: int = 30) -> dict[str, Metric]:
    """Scores metrics: ActGrad keeps ``late`` of each of the last ten layers, ActDiff a quarter less than all of every layer."""
    metrics = {}
    for layer in range(1, layers + 1):
        metrics[f"keep_act_grad_layer_{layer}"] = Metric(value=late if layer > 20 else 0.9, unit="share")
        metrics[f"keep_act_diff_layer_{layer}"] = Metric(value=0.75, unit="share")
    return metrics


def only(*keys: str) -> Ledger:
    """The project's ledger with some of its claims."""
    claims = {key: project_ledger().claims[key] for key in keys}
    return project_ledger().model_copy(update={"claims": claims})
