"""Published evidence in its parts: outcomes and records come back as they were, rates are checked, text is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from latreft.attacks.base import recompute
from latreft.evaluation import accuracy_metrics
from latreft.files import sha256, write_json
from latreft.per_example import Run
from latreft.published.facts import BEGIN, END, counted, page, with_count_of
from latreft.published.outcomes import pack, unpack
from latreft.published.publish import replaced
from latreft.published.rates import Checked, check_rates
from latreft.published.restore import read_lines, restore, write_lines
from latreft.records import Metric, ModelInfo, RunRecord, write_record

RUNS = "runs/imdb/m"
N = 12


def accuracy_outcomes(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": [f"imdb-{i}" for i in range(N)],
            "label": np.arange(N) % 2,
            "prediction": rng.integers(0, 2, N),
            "loss": rng.random(N).astype("float32").astype("float64"),
        }
    )


def attack_outcomes(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    labels, before, after = np.arange(N) % 2, rng.integers(0, 2, N), rng.integers(0, 2, N)
    success = (before == labels) & (after != labels)
    losses = {f"loss_{name}": rng.random(N).astype("float32") for name in ("before", "after", "in_search")}
    return pd.DataFrame(
        {
            "id": [f"imdb-{i}" for i in range(N)],
            "label": labels,
            "prediction_before": before,
            "prediction_after": after,
            **{name: values.astype("float64") for name, values in losses.items()},
            "attack_tokens": [row.tolist() for row in rng.integers(0, 300, (N, 4))],
            "attack_text": [f"é “{i}” 日本" for i in range(N)],
            "round_trips": rng.random(N) < 0.5,
            "success": success,
            "success_after_round_trip": success,
            "iterations": 1,
            "forwards": 9,
            "backwards": 1,
            "without_survivor": 0,
        }
    )


def record_of(kind: str, seed: int, **content: Any) -> RunRecord:
    """A record of the undefended arm, with ``content``."""
    model = ModelInfo(name="m", family="llama", revision="random-0", parameters=10)
    return RunRecord(
        kind=kind,  # type: ignore[arg-type]
        scale="s",
        dataset="imdb",
        model=model,
        method="none",
        arm="none",
        seed=seed,
        **content,
    )


def results_of(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> list[str]:
    """Records with outcomes in ``folder``; their paths below it."""
    paths = []
    for seed in seeds:
        for kind, attack, outcomes in (
            ("accuracy", None, accuracy_outcomes(seed)),
            ("attack", "gcg", attack_outcomes(seed)),
        ):
            name = f"{RUNS}/none/seed{seed}/{'attack_gcg' if attack else 'accuracy'}"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            outcomes.to_parquet(folder / f"{name}.parquet", index=False)
            record = record_of(
                kind,
                seed,
                attack=attack,
                settings={"text": "é", "small": 1e-07, "none": None},
                metrics=recompute(outcomes) if attack else accuracy_metrics(outcomes),
                provenance={"inputs": {"outcomes": sha256(folder / f"{name}.parquet")}},
            )
            write_record(record, folder / f"{name}.json")
            paths.append(f"{name}.json")
    return paths


def published_of(results: Path, paths: list[str], folder: Path) -> Path:
    """A published folder of records and outcomes alone."""
    folder.mkdir()
    write_lines(results, paths, folder / "records.jsonl")
    for name, kind in (("outcomes_accuracy.parquet", "accuracy"), ("outcomes_attacks.parquet", "attack")):
        runs = [
            (Run("imdb", "m", "none", seed, kind, "gcg" if kind == "attack" else ""), results / path)
            for seed in (0, 1)
            for path in [f"{RUNS}/none/seed{seed}/{'attack_gcg' if kind == 'attack' else 'accuracy'}.parquet"]
        ]
        pack(runs, folder / name)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- there and back ---


def test_records_and_outcomes_come_back_byte_for_byte(tmp_path: Path) -> None:
    paths = results_of(tmp_path / "results")
    published = published_of(tmp_path / "results", paths, tmp_path / "published")
    restore(published, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "results")


def test_equal_results_are_packed_into_equal_bytes(tmp_path: Path) -> None:
    paths = results_of(tmp_path / "results")
    once = files_of(published_of(tmp_path / "results", paths, tmp_path / "once"))
    assert files_of(published_of(tmp_path / "results", paths[::-1], tmp_path / "twice")) == once


def test_rows_keep_their_order_and_losses_all_their_digits(tmp_path: Path) -> None:
    frame = accuracy_outcomes(0).iloc[::-1].reset_index(drop=True)
    frame.loc[3, "loss"] = 0.1  # no float32
    frame.to_parquet(tmp_path / "one.parquet", index=False)
    run = Run("imdb", "m", "none", 0, "accuracy", "")
    pack([(run, tmp_path / "one.parquet")], tmp_path / "all.parquet")
    ((found, again),) = unpack(tmp_path / "all.parquet")
    assert found == run
    pd.testing.assert_frame_equal(again, frame)


def test_no_runs_make_no_file_and_no_file_gives_no_runs(tmp_path: Path) -> None:
    pack([], tmp_path / "all.parquet")
    assert not list(tmp_path.iterdir()) and not list(unpack(tmp_path / "all.parquet"))


def test_nothing_is_restored_over_other_results(tmp_path: Path) -> None:
    paths = results_of(tmp_path / "results")
    published = published_of(tmp_path / "results", paths, tmp_path / "published")
    before = files_of(tmp_path / "results")
    with pytest.raises(ValueError, match="holds files already"):
        restore(published, tmp_path / "results")
    assert files_of(tmp_path / "results") == before


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"path":"a","record":{}}\n{"path":\n')
    with pytest.raises(ValueError, match="records.jsonl, line 2: no record"):
        read_lines(tmp_path / "records.jsonl")


def test_outcomes_without_their_record_are_named(tmp_path: Path) -> None:
    paths = results_of(tmp_path / "results")
    published = published_of(tmp_path / "results", paths[:-1], tmp_path / "published")
    with pytest.raises(ValueError, match="without record: imdb/m/none/seed1, gcg"):
        restore(published, tmp_path / "again")


# --- rates ---


def test_rates_of_examples_that_hold_are_counted(tmp_path: Path) -> None:
    results_of(tmp_path)
    checked = check_rates(tmp_path)
    assert (checked.runs, checked.same_hash) == (4, 4) and checked.metrics > 4 * 4


def test_a_changed_prediction_is_found_and_the_first_metric_named(tmp_path: Path) -> None:
    results_of(tmp_path)
    path = tmp_path / RUNS / "none/seed1/accuracy.parquet"
    frame = pd.read_parquet(path)
    frame.loc[0, "prediction"] = 1 - frame.loc[0, "prediction"]
    frame.to_parquet(path, index=False)
    with pytest.raises(ValueError, match=r"seed1/accuracy.json: accuracy is .* in the record, but .* by the outcomes"):
        check_rates(tmp_path)


def test_a_success_that_is_no_flip_is_found(tmp_path: Path) -> None:
    results_of(tmp_path)
    path = tmp_path / RUNS / "none/seed0/attack_gcg.parquet"
    frame = pd.read_parquet(path)
    frame.loc[~frame["success"], "success"] = True
    frame.to_parquet(path, index=False)
    with pytest.raises(ValueError, match=r"seed0/attack_gcg.json: example .* its predictions are not a flip"):
        check_rates(tmp_path)


def test_a_rate_that_outcomes_do_not_give_is_refused(tmp_path: Path) -> None:
    path = tmp_path / results_of(tmp_path)[0]
    record = RunRecord.model_validate_json(path.read_text())
    more = {"praise": Metric(value=1.0, unit="rate", n=1, ci_low=0.2, ci_high=1.0)}
    write_record(record.model_copy(update={"metrics": record.metrics | more}), path)
    with pytest.raises(ValueError, match="the rate praise cannot be recomputed"):
        check_rates(tmp_path)


def test_a_record_without_outcomes_is_named(tmp_path: Path) -> None:
    results_of(tmp_path)
    (tmp_path / RUNS / "none/seed0/attack_gcg.parquet").unlink()
    with pytest.raises(ValueError, match=r"attack_gcg.parquet is missing"):
        check_rates(tmp_path)


def test_a_folder_without_records_is_no_success(tmp_path: Path) -> None:
    write_json(tmp_path / "runs/manifest.json", {})
    with pytest.raises(ValueError, match="no record with outcomes"):
        check_rates(tmp_path)


# --- the page ---


def test_text_around_the_markers_is_kept() -> None:
    first = page(None, "small", "one")
    assert first.startswith("# Published evidence: small") and f"{BEGIN}\n\none\n\n{END}" in first
    own = first.replace("\n\n<!--", "\n\nBy hand, before.\n\n<!--", 1) + "\nBy hand, behind.\n"
    again = page(own, "small", "two")
    assert "By hand, before." in again and "By hand, behind." in again and "one" not in again
    assert page(again, "small", "two") == again


@pytest.mark.parametrize("broken", ["# Title\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n"])
def test_a_page_without_its_markers_is_left_alone(broken: str) -> None:
    with pytest.raises(ValueError, match="published/small/README.md must have the lines"):
        page(broken, "small", "facts")


def test_several_devices_are_told_with_their_runs() -> None:
    assert counted(["H100", "H100"]) == "H100"
    assert counted(["H100", "A100", "H100"]) == "A100 (1 run), H100 (2 runs)"


@pytest.mark.parametrize(
    ("told", "taken"),
    [("Of 1,234 files", 17), ("Of 1,200 files", 17), ("Of 1,234 outcomes", 3), (" Of 1,234 files", 3)],
)
def test_the_count_of_unchanged_outcomes_is_the_pages_own(told: str, taken: int) -> None:
    page = f"before\n{told} of per-example outcomes, 17 have the SHA-256 that their record names. 9 metrics\n"
    assert with_count_of(page, Checked(1234, 9, 3)) == Checked(1234, 9, taken)


def test_a_count_that_cannot_be_is_not_taken() -> None:
    page = "Of 4 files of per-example outcomes, 5 have the SHA-256 that their record names."
    assert with_count_of(page, Checked(4, 9, 3)).same_hash == 3
    assert with_count_of("", Checked(4, 9, 3)).same_hash == 3


# --- whole or not at all ---


def test_a_failure_leaves_the_old_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    old = tmp_path / "small"
    old.mkdir()
    (old / "records.csv").write_text("old")
    with pytest.raises(RuntimeError), replaced(old) as stage:
        (stage / "records.csv").write_text("new")
        raise RuntimeError
    assert files_of(tmp_path) == {"small/records.csv": b"old"}


def test_a_new_folder_takes_the_old_one_s_place_and_keeps_files_of_others(tmp_path: Path) -> None:
    old = tmp_path / "small"
    (old / "notes").mkdir(parents=True)
    (old / "tables").mkdir()
    (old / "tables" / "gone.csv").write_text("old")
    (old / "notes" / "mine.txt").write_text("kept")
    with replaced(old) as stage:
        (stage / "records.csv").write_text("new")
    assert files_of(tmp_path) == {"small/records.csv": b"new", "small/notes/mine.txt": b"kept"}
