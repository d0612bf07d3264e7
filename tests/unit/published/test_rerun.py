"""An arm that was run again is compared with what is published of it, and never with itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unit.published.test_published import RUNS, accuracy_outcomes, attack_outcomes, published_of, results_of

from latreft.attacks.base import recompute
from latreft.evaluation import accuracy_metrics
from latreft.files import read_json, write_json
from latreft.published.rerun import compare_runs, records_of, targets

ARM = f"{RUNS.removeprefix('runs/')}/none/seed0"
TRAINED = f"runs/{ARM}/accuracy.json"
ATTACKED = f"runs/{ARM}/attack_gcg.json"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A published folder, the results it was made of, and equal results of a rerun, which took other seconds."""
    before, after = tmp_path / "before", tmp_path / "after"
    paths = results_of(before)
    for path in paths:
        change(before, path, lambda record: record["cost"].update(seconds=1.0))
    published = published_of(before, paths, tmp_path / "published")
    results_of(after)
    for path in paths:
        change(after, path, lambda record: record["cost"].update(seconds=2.0))
    return published, before, after


def change(results: Path, path: str, how: Callable[[Any], Any]) -> None:
    record = read_json(results / path)
    how(record)
    write_json(results / path, record)


def outcomes(results: Path, path: str, frame: pd.DataFrame) -> None:
    """Other outcomes at ``path``, and the metrics that follow from them."""
    frame.to_parquet((results / path).with_suffix(".parquet"), index=False)
    metrics = recompute(frame) if "attack" in path else accuracy_metrics(frame)
    change(results, path, lambda record: record["metrics"].update({k: v.model_dump() for k, v in metrics.items()}))


def test_a_rerun_that_took_other_seconds_is_the_same(places: tuple[Path, Path, Path]) -> None:
    published, before, after = places
    records = records_of(published, ARM)
    assert targets("s", records) == [f"results/s/{TRAINED}", f"results/s/{ATTACKED}"]
    found = compare_runs(before, after, records)
    assert [str(run) for run in found] == [f"{path}: 0 of 12 examples differ" for path in (TRAINED, ATTACKED)]
    assert all(run.same for run in found)


@pytest.mark.parametrize("column", ["prediction_before", "prediction_after", "attack_tokens", "attack_text"])
def test_every_example_with_another_attack_or_prediction_is_counted(
    places: tuple[Path, Path, Path], column: str
) -> None:
    published, before, after = places
    frame = attack_outcomes(0)
    for row in (3, 7):
        value = frame.at[row, column]
        other = {"attack_tokens": lambda v: [*v[:-1], 999], "attack_text": lambda v: v + "x"}
        frame.at[row, column] = other.get(column, lambda v: 1 - v)(value)
    frame.to_parquet((after / ATTACKED).with_suffix(".parquet"), index=False)
    run = compare_runs(before, after, records_of(published, ARM))[1]
    assert not run.same and run.different == 2
    assert str(run) == f"{ATTACKED}: 2 of 12 examples differ; asr differs by +0.0000 [0.0000, 0.0000]"


def test_a_rate_that_is_not_that_of_its_examples_is_refused(places: tuple[Path, Path, Path]) -> None:
    published, before, after = places
    frame = attack_outcomes(0)
    assert frame["success"].any()
    frame["success"] = False
    frame.to_parquet((after / ATTACKED).with_suffix(".parquet"), index=False)
    with pytest.raises(ValueError, match="the record's asr is .* its outcomes give 0.0"):
        compare_runs(before, after, records_of(published, ARM))


def test_a_difference_is_measured_on_the_same_examples(places: tuple[Path, Path, Path]) -> None:
    published, before, after = places
    frame = accuracy_outcomes(0)
    wrong = frame["prediction"] != frame["label"]
    assert 0 < wrong.sum() < len(frame)
    frame["prediction"] = frame["label"]
    outcomes(after, TRAINED, frame)
    run = compare_runs(before, after, records_of(published, ARM))[0]
    assert run.different == wrong.sum()
    assert f"accuracy {1 - wrong.mean():.6g}, now 1" in run.words
    assert f"accuracy differs by {wrong.mean():+.4f} [" in run.words[-1]


def test_another_classifier_is_named_and_a_loss_by_another_rounding_is_not_an_example(
    places: tuple[Path, Path, Path],
) -> None:
    published, before, after = places
    change(after, TRAINED, lambda record: record["provenance"].setdefault("inputs", {}).update(classifier="b" * 64))
    frame = accuracy_outcomes(0)
    frame["loss"] += 1e-3
    outcomes(after, TRAINED, frame)
    run = compare_runs(before, after, records_of(published, ARM))[0]
    assert not run.same and run.different == 0
    assert "classifier None, now bbbbbbbb" in run.words and any(word.startswith("loss ") for word in run.words)


def test_what_is_no_rerun_is_refused(places: tuple[Path, Path, Path]) -> None:
    published, before, after = places
    records = records_of(published, ARM)
    for place, why in ((before, "the published run itself"), (before.parent / "nowhere", "not run again")):
        for run in compare_runs(before, place, records):
            assert not run.same and f"{run.path}: {why}" in str(run)
    outcomes(after, ATTACKED, attack_outcomes(0).iloc[1:])
    with pytest.raises(ValueError, match="attack_gcg.json is of other examples"):
        compare_runs(before, after, records)
    change(after, TRAINED, lambda record: record["settings"].update(batch_size=3))
    with pytest.raises(ValueError, match="accuracy.json is no rerun of the published run: batch_size was None, is 3"):
        compare_runs(before, after, records)


def test_an_unknown_arm_is_answered_with_the_likest(places: tuple[Path, Path, Path]) -> None:
    with pytest.raises(
        ValueError, match=r"no records of an arm 'imdb/m/none/seed7'; the likest of its 2 are imdb/m/none/seed"
    ):
        records_of(places[0], "imdb/m/none/seed7")
