"""An arm that was run again is compared with what is published of it, in all its results, and never with itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unit.published.test_published import RUNS, accuracy_outcomes, attack_outcomes, published_of, record_of, results_of

from latreft.attacks.base import recompute
from latreft.evaluation import accuracy_metrics
from latreft.files import read_json, write_json
from latreft.published.rerun import Comparison, arm_at, brought_back, compare_runs, records_of, targets
from latreft.records import Metric, write_record

ARM = f"{RUNS.removeprefix('runs/')}/none/seed0"
NAMES = ("accuracy", "attack_gcg", "cost", "train")
ACCURACY, ATTACKED, COSTS, TRAINED = (f"runs/{ARM}/{name}.json" for name in NAMES)
WEIGHTS = f"runs/{ARM}/defense/manifest.json"


class Places:
    """A published arm, restored in ``before``, and a rerun of it in ``after``, which took other seconds."""

    def __init__(self, folder: Path) -> None:
        self.before, self.after = folder / "before", folder / "after"
        paths = results_of(self.before)
        for kind, costs, inputs in (
            ("train", {"flops_per_token": 5.0}, {"classifier": "c" * 64}),
            ("cost", {"measured_flops_per_example": 7.0}, {"record": "r" * 64}),
        ):
            record = record_of(
                kind,
                0,
                settings={"rank": 4},
                metrics={"final_loss": Metric(value=0.25, unit="nats")} if kind == "train" else {},
                cost=costs,
                provenance={"inputs": inputs, "versions": {"torch": "2.11.0+cu130.1"}, "code": "old"},
            )
            write_record(record, self.before / f"runs/{ARM}/{kind}.json")
            paths.append(f"runs/{ARM}/{kind}.json")
        write_json(self.before / WEIGHTS, {"files": {"weights.safetensors": "a" * 64, "config.json": "b" * 64}})
        shutil.copytree(self.before, self.after)
        for root, seconds in ((self.before, 1.0), (self.after, 2.0)):
            for path in (ACCURACY, ATTACKED, TRAINED):
                self.change(path, lambda record, s=seconds: record["cost"].update(seconds=s), root)
        self.change(COSTS, lambda record: record["provenance"]["inputs"].update(record="s" * 64))
        self.published = published_of(self.before, paths, folder / "published")
        self.records = records_of(self.published, ARM)

    def change(self, path: str, how: Callable[[Any], Any], root: Path | None = None) -> None:
        """Change the record of the rerun."""
        record = read_json((root or self.after) / path)
        how(record)
        write_json((root or self.after) / path, record)

    def outcomes(self, path: str, frame: pd.DataFrame) -> None:
        """Other outcomes of the rerun, and the metrics that follow from them."""
        frame.to_parquet((self.after / path).with_suffix(".parquet"), index=False)
        metrics = recompute(frame) if "attack" in path else accuracy_metrics(frame)
        self.change(path, lambda record: record["metrics"].update({k: v.model_dump() for k, v in metrics.items()}))

    def compared(self) -> dict[str, Comparison]:
        return {run.path: run for run in compare_runs(self.before, self.after, self.records)}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_a_rerun_that_took_other_seconds_is_the_same(places: Places) -> None:
    assert targets("s", places.records) == [f"results/s/{path}" for path in (ACCURACY, ATTACKED, COSTS, TRAINED)]
    assert [str(run) for run in places.compared().values()] == [
        f"{ACCURACY}: equal, 12 examples", f"{ATTACKED}: equal, 12 examples", f"{COSTS}: equal", f"{TRAINED}: equal",
    ]  # fmt: skip
    assert all(run.same and not run.made for run in places.compared().values())


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("prediction_before", "outcome"),
        ("attack_tokens", "attack"),
        ("attack_text", "attack"),
        ("iterations", "attack"),
    ],
)
def test_every_example_with_another_attack_or_outcome_is_counted(places: Places, column: str, what: str) -> None:
    frame = attack_outcomes(0)
    wrong = frame.index[frame["prediction_before"] != frame["label"]][:2]
    for row in wrong:
        value = frame.at[row, column]
        other = {"attack_tokens": lambda v: [*v[:-1], 999], "attack_text": lambda v: v + "x"}
        frame.at[row, column] = other.get(column, lambda v: 1 - v)(value)
    places.outcomes(ATTACKED, frame)
    run = places.compared()[ATTACKED]
    assert not run.same and run.words[0] == f"2 of 12 examples have another {what}"
    assert ("have another outcome" in str(run)) == (what == "outcome")


def test_tokens_in_another_type_of_integer_are_the_same(places: Places) -> None:
    frame = attack_outcomes(0)
    frame["attack_tokens"] = [pd.array(row, dtype="int32").to_numpy() for row in frame["attack_tokens"]]
    frame.to_parquet((places.after / ATTACKED).with_suffix(".parquet"), index=False)
    assert places.compared()[ATTACKED].same


def test_a_difference_is_measured_on_the_same_examples(places: Places) -> None:
    frame = accuracy_outcomes(0)
    wrong = frame["prediction"] != frame["label"]
    assert 0 < wrong.sum() < len(frame)
    frame["prediction"] = frame["label"]
    places.outcomes(ACCURACY, frame)
    words = places.compared()[ACCURACY].words
    assert words[0] == f"{wrong.sum()} of 12 examples have another outcome"
    assert words[1].startswith(f"accuracy differs by {wrong.mean():+.4f} [")
    assert f"accuracy {1 - wrong.mean():.10g}, now 1" in words


@pytest.mark.parametrize(
    ("path", "change", "word"),
    [
        (TRAINED, lambda r: r["metrics"]["final_loss"].update(value=0.2500001), "final_loss 0.25, now 0.2500001"),
        (TRAINED, lambda r: r["metrics"].pop("final_loss"), "final_loss 0.25, now none"),
        (TRAINED, lambda r: r["metrics"].update(odd=r["metrics"]["final_loss"]), "odd none, now 0.25"),
        (TRAINED, lambda r: r["cost"].update(flops_per_token=6.0), "flops_per_token 5.0, now 6.0"),
        (COSTS, lambda r: r["cost"].update(measured_flops_per_example=1.0), "measured_flops_per_example 7.0, now 1.0"),
        (ATTACKED, lambda r: r["cost"].update(engine="x"), "engine None, now 'x'"),
        (TRAINED, lambda r: r["settings"].update(rank=8), "no rerun of the published run: rank 4, now 8"),
        (TRAINED, lambda r: r["settings"].pop("rank"), "no rerun of the published run: rank 4, now None"),
        (
            ACCURACY,
            lambda r: r["model"].update(revision="x"),
            "no rerun of the published run: model.revision 'random-0'",
        ),
        (ACCURACY, lambda r: r.update(scale="t"), "no rerun of the published run: scale 's', now 't'"),
        (ACCURACY, lambda r: r.update(seed=1), "seed is 1 in the record and 0 by its path"),
        (ATTACKED, lambda r: r["metrics"].pop("asr"), "the outcomes give asr"),
        (ATTACKED, lambda r: r["metrics"]["loss_after"].update(value=9.0), "loss_after is 9.0"),
    ],
)
def test_whatever_a_record_has_otherwise_is_told_and_the_others_are_compared_all_the_same(
    places: Places, path: str, change: Callable[[Any], Any], word: str
) -> None:
    places.change(path, change)
    found = places.compared()
    assert not found[path].same and word in str(found[path])
    assert [run.path for run in found.values() if run.same] == [p for p in places.records if p != path]


def test_other_weights_are_told_by_their_manifests_and_another_version_in_a_file_beside_them_is_not(
    places: Places,
) -> None:
    files = {"weights.safetensors": "a" * 64, "config.json": "x" * 64}
    write_json(places.after / WEIGHTS, {"files": files})
    assert places.compared()[TRAINED].same
    write_json(places.after / WEIGHTS, {"files": files | {"weights.safetensors": "x" * 64}})
    assert places.compared()[TRAINED].words == ("weights.safetensors 'aaaaaaaaaaaa', now 'xxxxxxxxxxxx'",)


def test_what_a_run_was_made_with_is_told_and_makes_no_result_another(places: Places) -> None:
    def elsewhere(record: Any) -> None:
        record["cost"].update(device="CPU")
        record["provenance"] = {
            "inputs": {"classifier": "d" * 64},
            "versions": {"torch": "2.11.0+cu130.2"},
            "code": "new",
        }
        record["provenance"]["runtime"] = {"autocast": "float32"}

    places.change(TRAINED, elsewhere)
    run = places.compared()[TRAINED]
    assert run.same and run.made == (
        "classifier 'cccccccccccc', now 'dddddddddddd'", "code 'old', now 'new'", "device None, now 'CPU'",
        "runtime.autocast None, now 'float32'", "torch '2.11.0+cu130.1', now '2.11.0+cu130.2'",
    )  # fmt: skip
    places.change(TRAINED, lambda record: record.update(provenance={"inputs": None}))
    assert places.compared()[TRAINED].same


def test_what_was_not_run_again_is_never_the_same(places: Places) -> None:
    for results, why in (
        (places.before, "the published run itself"),
        (places.before.parent / "nowhere", "not run again"),
    ):
        for run in compare_runs(places.before, results, places.records):
            assert not run.same and f"{run.path}: {why}" in str(run)
    assert brought_back(places.before, places.records) == ACCURACY
    assert brought_back(places.after, places.records) is None


@pytest.mark.parametrize(
    "broken", [lambda f: f.iloc[1:], lambda f: f.iloc[::-1], lambda f: f.drop(columns="id"), lambda f: f.assign(more=1)]
)
def test_outcomes_of_other_examples_are_not_compared(
    places: Places, broken: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    broken(attack_outcomes(0)).to_parquet((places.after / ATTACKED).with_suffix(".parquet"), index=False)
    found = places.compared()
    assert "its outcomes are of other examples, or have other columns" in str(found[ATTACKED])
    assert sum(run.same for run in found.values()) == 3


def test_outcomes_that_are_missing_or_unreadable_are_told(places: Places) -> None:
    file = (places.after / ATTACKED).with_suffix(".parquet")
    file.write_bytes(b"no parquet")
    assert not places.compared()[ATTACKED].same
    file.unlink()
    assert "attack_gcg.parquet is missing" in str(places.compared()[ATTACKED])
    (places.after / TRAINED).write_text("{", encoding="utf-8")
    assert not places.compared()[TRAINED].same


@pytest.mark.parametrize("given", [ARM, f"{ARM}/", f"runs/{ARM}", f"results/s/runs/{ARM}/"])
def test_an_arm_is_named_by_its_folder_in_any_length(given: str) -> None:
    assert arm_at(given, "s") == ARM


def test_an_unknown_arm_is_answered_with_the_likest(places: Places) -> None:
    with pytest.raises(
        ValueError, match="no records of an arm 'imdb/m/none/seed7'; the likest of its 2 are imdb/m/none/seed0, "
    ):
        records_of(places.published, "imdb/m/none/seed7")
