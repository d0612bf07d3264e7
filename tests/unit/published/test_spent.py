"""What a sweep took: every job's seconds are counted once, with the arm and the part of the sweep that it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.core.scales import EXPERIMENTS, changed, plan

from latreft.published.spent import by_arm, by_part, card_seconds, seconds
from latreft.records import ModelInfo, RunRecord


def record(kind: str, arm: str, seed: int, spent: float, attack: str | None = None, **cost: Any) -> RunRecord:
    return RunRecord(
        kind=kind,  # type: ignore[arg-type]
        scale="s",
        dataset="words",
        model=ModelInfo(name="other", family="llama", revision="r", parameters=1),
        method=arm.split("__")[0],
        arm=arm,
        seed=seed,
        attack=attack,
        settings={},
        metrics={},
        cost={"seconds": spent, "device": "card"} | cost,
        provenance={},
    )


RECORDS = [
    record("train", "lat_reft", 0, 5.0, training_seconds=60.0),
    record("accuracy", "lat_reft", 0, 2.0),
    record("attack", "lat_reft", 0, 10.0, "gcg"),
    record("attack", "lat_reft", 0, 20.5, "weak"),
    record("train", "lat_reft", 1, 50.0),
    record("train", "lat_reft__window_1", 0, 7.0),
    record("attack", "lat_reft__window_1", 0, 1.0, "weak"),
    record("cost", "lat_reft", 0, 99.0),
]


def test_a_resumed_training_counts_all_of_its_parts() -> None:
    assert seconds({"seconds": 5.0, "training_seconds": 60.0}) == 60.0 and seconds({"seconds": 5.0}) == 5.0


def test_an_arms_row_has_its_jobs_and_no_others() -> None:
    frame = by_arm(RECORDS).set_index(["arm", "seed"])
    assert list(frame.loc[("lat_reft", 0), ["training", "accuracy", "attacks", "total"]]) == [60.0, 2.0, 30.5, 92.5]
    assert list(frame["total"]) == [92.5, 50.0, 8.0]
    assert by_arm([]).empty


def test_the_search_is_a_part_of_its_own(tmp_path: Path) -> None:
    toy = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.0.accuracy", False))
    found = by_part(toy, [*RECORDS, record("finetune", "clean", 0, 30.0)])
    sums = {"classifiers": (1, 30.0), "search": (2, 8.0), "seed 0": (4, 92.5), "seed 1": (1, 50.0)}
    assert dict(zip(found.index, zip(found["runs"], found["seconds"], strict=True), strict=True)) == sums
    assert found["seconds"].sum() == pytest.approx(by_arm(RECORDS)["total"].sum() + 30.0)
    assert (found["card_seconds"] == found["seconds"]).all()
    assert by_part(toy, []).empty


def test_jobs_that_share_a_card_share_its_time(tmp_path: Path) -> None:
    alone, shared = ({"seconds": 60.0, "device": d} for d in ("NVIDIA H200", "NVIDIA H200, up to 4 jobs at a time"))
    assert card_seconds(alone) == 60.0 and card_seconds(shared) == 15.0
    assert card_seconds(shared | {"training_seconds": 80.0}) == 20.0
    found = by_part(
        plan(tmp_path, EXPERIMENTS), [record("train", "lat_reft", 1, 60.0, **cost) for cost in (alone, shared)]
    )
    assert list(found.loc["seed 1"]) == [2, 120.0, 75.0]
