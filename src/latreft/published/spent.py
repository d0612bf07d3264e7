"""What a published sweep took: the seconds of every arm's jobs, and their sums by part of the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from latreft.experiments import Plan
from latreft.records import RunRecord, jobs_at_a_time

ARM = ["dataset", "model", "method", "arm", "seed", "device"]
STEPS = {"train": "training", "accuracy": "accuracy", "attack": "attacks"}
"""Kind of an arm's record → the column of its seconds."""


def seconds(cost: Mapping[str, Any]) -> float:
    """Wall clock of a run. A resumed job's ``seconds`` are of its last part, its ``training_seconds`` of all."""
    return max(float(cost.get("seconds", 0)), float(cost.get("training_seconds", 0)))


def card_seconds(cost: Mapping[str, Any]) -> float:
    """A run's share of a card's time: its ``seconds`` by the number of jobs that could run on the card beside each other.

    A lower bound, for a card does not always hold so many, and the start of a job is not counted.
    """
    return seconds(cost) / jobs_at_a_time(str(cost.get("device", "")))


def by_arm(records: Iterable[RunRecord]) -> pd.DataFrame:
    """A row an arm, seed and device: seconds of training, of its accuracy and of all attacks on it, and their sum."""
    rows = [
        {**{key: getattr(r, key) for key in ("dataset", "method", "arm", "seed")}, "model": r.model.name,
         "device": r.cost.get("device", "unknown"), "step": STEPS[r.kind], "seconds": seconds(r.cost)}
        for r in records if r.kind in STEPS
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=[*ARM, "step", "seconds"])
    sums = frame.pivot_table(index=ARM, columns="step", values="seconds", aggfunc="sum", fill_value=0.0)
    sums = sums.reindex(columns=list(STEPS.values()), fill_value=0.0)
    return sums.assign(total=sums.sum(axis=1)).round(3).reset_index().rename_axis(columns=None)


def by_part(plan: Plan, records: Iterable[RunRecord]) -> pd.DataFrame:
    """A row for the classifiers' jobs (scores and theorems included), the search's, and those of the arms of each seed.

    Columns: runs, and sums of their seconds and card_seconds. An arm that some other target shows too, as that without
    defense, is not the search's.
    """
    rows = []
    for record in records:
        if record.kind in STEPS:
            path = f"{record.dataset}/{record.model.name}/{record.arm}/seed{record.seed}"
            searched = path in plan.all_arms and path not in plan.arms_of_known_accuracy
            part = "search" if searched else f"seed {record.seed}"
        elif record.kind in ("finetune", "scores", "theory"):
            part = "classifiers"
        else:
            continue
        rows.append((part, 1, seconds(record.cost), card_seconds(record.cost)))
    return pd.DataFrame(rows, columns=["part", "runs", "seconds", "card_seconds"]).groupby("part").sum()
