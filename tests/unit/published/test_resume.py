"""A scale that is published in part goes on from its records; what they do not hold is not taken to be there."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.core.scales import plan
from unit.published.test_published import RUNS, files_of, published_of, results_of

from latreft.files import write_json
from latreft.plans import Plans
from latreft.published.resume import bring_back, missing


@pytest.fixture
def published(tmp_path: Path) -> Path:
    found = published_of(tmp_path / "made", results_of(tmp_path / "made"), tmp_path / "published")
    write_json(found / "manifests" / "runs/imdb/m/classifier/manifest.json", {"files": {"model.safetensors": "0" * 64}})
    return found


def test_records_come_back_beside_what_is_there_and_manifests_do_not(published: Path, tmp_path: Path) -> None:
    """Snakemake asks for a classifier's manifest: one without weights would keep it from being fine-tuned."""
    results = tmp_path / "results"
    write_json(results / "data/imdb/manifest.json", {})
    assert bring_back(published, results) == 8
    assert bring_back(published, results) == 0
    assert files_of(results) == files_of(tmp_path / "made") | {"data/imdb/manifest.json": b"{}\n"}


def test_another_record_in_the_place_of_a_published_one_is_named_and_nothing_is_changed(
    published: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    write_json(results / RUNS / "none/seed1/accuracy.json", {})
    before = files_of(results)
    with pytest.raises(ValueError, match="none/seed1/accuracy.json is not the published one; move it away"):
        bring_back(published, results)
    assert files_of(results) == before


def test_missing_are_the_records_without_file_or_outcomes_by_seed(tmp_path: Path) -> None:
    toy = plan(tmp_path)
    plans = Plans(tmp_path, {toy.scale.name: toy})
    everything = missing(plans, toy.scale.name, tmp_path)
    seeds = [int(path.split("/seed")[1].split("/")[0]) if "/seed" in path else -1 for path in everything]
    assert seeds == sorted(seeds) and seeds[0] == -1
    attack = next(path for path in everything if "attack_" in path)
    trained = next(path for path in everything if path.endswith("train.json"))
    for path in (attack, trained):
        write_json(tmp_path / path, {})
    assert missing(plans, toy.scale.name, tmp_path) == [path for path in everything if path != trained]
    (tmp_path / attack).with_suffix(".parquet").touch()
    assert missing(plans, toy.scale.name, tmp_path) == [path for path in everything if path not in (attack, trained)]
