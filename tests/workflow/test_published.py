"""Published evidence: published and redrawn alike, refused where it does not hold, and true of what is committed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from workflow.project import ROOT, Project, clean_environment, copy_project

from latreft.published.facts import REWRITTEN
from latreft.published.front_page import markers

PUBLISHED = "published/mini"
COMMITTED = sorted(path.parent for path in ROOT.glob("published/*/records.jsonl"))
DIFFERENCES: dict[str, Any] = {
    "title": "Differences",
    "groups": [{"datasets": ["imdb"], "models": "main", "arms": ["none", "r2d2", "lat_reft"], "attacks": ["gcg"]}],
}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def change_record(published: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change the published record whose path ends with ``name``."""
    file = published / "records.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    (line,) = [line for line in lines if line["path"].endswith(name)]
    change(line["record"])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, finished: Project) -> Iterator[Project]:
    """The finished project with a table of differences and its evidence published; tests only read it."""
    project = copy_project(finished, tmp_path_factory.mktemp("published") / "the project")
    project.change(lambda wanted: wanted["tables"].update(differences=DIFFERENCES), "config/experiments.yaml")
    said = project.run()
    assert said.code == 0 and said.names == {"table/differences"}, said.text[-4000:]
    said = project.tool("publish", "mini")
    assert said.code == 0, said.text
    yield project


@pytest.fixture
def project(tmp_path: Path, original: Project) -> Project:
    """A copy of the published project, for one test."""
    return copy_project(original, tmp_path / "the project")


# --- there and back ---


def test_what_the_workflow_built_is_what_is_published(original: Project) -> None:
    published = original.path(PUBLISHED)
    assert files_of(published / "tables") == files_of(original.path("results/mini/tables"))
    assert files_of(published / "figures") == files_of(original.path("figures/mini"))
    for name in ("records.csv", "claims.csv", "claims.md", "claims.tex"):
        assert (published / name).read_bytes() == original.path(f"results/mini/{name}").read_bytes()
    assert {path.stem for path in (published / "tables").glob("*.csv")} == {"main_imdb", "differences"}


def test_no_text_of_an_example_and_no_weights_are_published(original: Project) -> None:
    published = original.path(PUBLISHED)
    texts = pd.read_parquet(original.path("results/mini/data/imdb/validation.parquet"))["text"]
    for name in ("outcomes_accuracy", "outcomes_attacks"):
        table = pq.read_table(published / f"{name}.parquet")
        assert "text" not in table.column_names
        strings = [name for name in table.column_names if pa.types.is_dictionary(table.schema.field(name).type)]
        held = {value for name in strings for value in table[name].cast(pa.string()).to_pylist()}
        assert not held & set(texts)
    kinds = {path.name for path in published.rglob("*.safetensors")}
    assert kinds == {"scores.safetensors"}


def test_a_clone_without_results_redraws_the_same_bytes(project: Project) -> None:
    for name in ("results", "figures", ".snakemake"):
        shutil.rmtree(project.path(name))
    # How many outcomes had their record's SHA-256 is true of the folder that was published, and cannot be told from here.
    readme = project.path(PUBLISHED) / "README.md"
    page = readme.read_text(encoding="utf-8")
    told = re.search(r"(?m)^Of (\d+) files of per-example outcomes, \1 have the SHA-256 that their record names", page)
    assert told
    fewer = told[0].replace(f", {told[1]} have", ", 1 have") + REWRITTEN
    readme.write_text(page.replace(told[0], fewer), encoding="utf-8")
    said = project.tool("redraw", "mini", "--into", "rebuilt")
    # three of a table, of the differences and of the verdicts each, two of three figures each, and four others
    assert said.code == 0 and "19 of 19 files are as they were published" in said.text, said.text
    assert "note:" not in said.text and "error:" not in said.text
    assert not project.path("results").exists() and not project.path("figures").exists()
    rebuilt = project.path("rebuilt")
    assert files_of(rebuilt / "figures/mini") == files_of(project.path(PUBLISHED) / "figures")
    assert not list(rebuilt.rglob("model.safetensors")), "something was trained"


def test_publishing_again_changes_no_byte_and_keeps_text_by_hand(project: Project) -> None:
    readme = project.path(PUBLISHED) / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8") + "\nBy hand.\n", encoding="utf-8")
    before = files_of(project.path(PUBLISHED))
    assert project.tool("publish", "mini").code == 0
    assert files_of(project.path(PUBLISHED)) == before
    assert list(project.path("published").iterdir()) == [project.path(PUBLISHED)]


def test_the_page_states_devices_runs_and_versions(original: Project) -> None:
    page = (original.path(PUBLISHED) / "README.md").read_text(encoding="utf-8")
    for words in ("CPU, 1 thread(s)", "version of torch", "train_defense", "6 attack", "mini-neox at random-0"):
        assert words in page
    assert "Partial" not in page and str(original.folder) not in page


# --- one arm again ---


def test_one_arm_is_run_again_without_results_and_compared(project: Project) -> None:
    arm = "imdb/mini-neox/lat_reft/seed0"
    folder = project.path(f"results/mini/runs/{arm}")
    said = project.tool("rerun", "mini", arm)
    assert said.code == 1 and "is the published one itself, and would not be made again" in said.text, said.text
    for name in ("results", ".snakemake"):
        shutil.rmtree(project.path(name))
    said = project.tool("rerun", "mini", arm, "--", "-n")
    assert said.code == 0 and "train_defense" in said.text and not folder.exists(), said.text
    said = project.tool("rerun", "mini", f"results/mini/runs/{arm}/")
    assert said.code == 0 and any(name.startswith("train_defense") for name in said.names), said.text
    assert re.search(rf"(\d+) of \1 records of {arm} are as they were published", said.text), said.text
    assert f"runs/{arm}/attack_gcg.json: equal, 4 examples" in said.text and "made otherwise" not in said.text
    assert not project.path("results/mini/runs/imdb/mini-neox/r2d2").exists(), "another arm was run"

    # the same command goes on with what was stopped
    (folder / "attack_gcg.json").unlink()
    said = project.tool("rerun", "mini", arm)
    assert said.code == 0 and not any(name.startswith("train_defense") for name in said.names), said.text


def test_an_arm_whose_data_are_not_there_is_not_begun(project: Project) -> None:
    for name in ("results", ".snakemake"):
        shutil.rmtree(project.path(name))
    source = {"kind": "sample", "citation": "none", "path": "data/away.parquet"}
    project.change(lambda scale: scale["datasets"]["imdb"].update(source=source))
    said = project.tool("rerun", "mini", "imdb/mini-neox/lat_reft/seed0")
    assert said.code == 1 and not said.names, said.text
    assert "lat_reft/seed0 cannot be run here: data set imdb: " in said.text
    assert "data/away.parquet does not exist: " in said.text and "Traceback" not in said.text
    said = project.tool("rerun", "mini", "imdb/mini-neox/lat_reft/seed0", "--", "-n")
    assert said.code == 0 and "train_defense" in said.text, said.text
    said = project.tool("rerun", "mini", "imdb/mini-neox/lat_reft/seed0", "-n")
    assert said.code == 2 and "unknown options: -n; those of Snakemake stand behind --" in said.text, said.text


def test_one_arm_that_came_out_otherwise_is_told_with_an_exit_code(project: Project) -> None:
    arm = "imdb/mini-neox/lat_reft/seed0"
    file = project.path(f"results/mini/runs/{arm}/train.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    record["cost"]["seconds"] = 1e6
    record["metrics"]["final_loss"]["value"] += 1.0
    file.write_text(json.dumps(record), encoding="utf-8")
    said = project.tool("rerun", "mini", arm, "--compare")
    assert said.code == 1 and re.search(r"train.json: final_loss [\d.]+, now [\d.]+\n", said.text), said.text
    assert f"runs/{arm}/accuracy.json: the published run itself" in said.text and "0 of 4 records" in said.text
    said = project.tool("rerun", "mini", arm, "another", "--compare")
    assert said.code == 2 and "another" in said.text, said.text
    said = project.tool("rerun", "mini", arm, "--compare", "--", "-n")
    assert said.code == 2 and "Snakemake gets no options: -n" in said.text, said.text
    change_record(project.path(PUBLISHED), f"{arm}/train.json", lambda record: record["settings"].update(window=3))
    shutil.rmtree(file.parent)
    said = project.tool("rerun", "mini", arm)
    assert said.code == 1 and "error: not the published arm any more: " in said.text and "window 3" in said.text, (
        said.text
    )


# --- what does not hold ---


def test_a_missing_record_is_refused_unless_partial_is_asked_for(project: Project) -> None:
    record = "runs/imdb/mini-neox/r2d2/seed0/attack_random_token.json"
    project.path(f"results/mini/{record}").unlink()
    before = files_of(project.path(PUBLISHED))
    said = project.tool("publish", "mini")
    assert said.code == 1 and len(said.errors()) == 1 and record in said.text and "--partial" in said.text
    assert files_of(project.path(PUBLISHED)) == before

    assert project.tool("publish", "mini", "--partial").code == 0
    page = (project.path(PUBLISHED) / "README.md").read_text(encoding="utf-8")
    assert "2 are missing" in page and record in page and record.replace(".json", ".parquet") in page
    assert "Targets not built: `main_imdb`" in page
    assert not (project.path(PUBLISHED) / "tables/main_imdb.csv").exists()
    said = project.tool("redraw", "mini")
    assert said.code == 0 and "error:" not in said.text, said.text


def test_a_run_with_other_settings_than_configured_is_refused(project: Project) -> None:
    project.change(lambda scale: scale["methods"]["lat_reft"].update(epsilon=0.4))
    said = project.tool("publish", "mini")
    assert said.code == 1 and "was made with epsilon 0.5, the configuration has 0.4" in said.text


def test_an_accuracy_of_another_training_than_its_attack_is_refused(project: Project) -> None:
    path = project.path("results/mini/runs/imdb/mini-neox/r2d2/seed0/accuracy.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["provenance"]["inputs"]["defense"] = "f" * 64
    path.write_text(json.dumps(record), encoding="utf-8")
    said = project.tool("publish", "mini")
    assert said.code == 1 and len(said.errors()) == 1, said.text
    assert "two versions of its defense: runs/imdb/mini-neox/r2d2/seed0/accuracy.json (ffffffff" in said.text


DEFENSE = "runs/imdb/mini-neox/r2d2/seed0/defense/manifest.json"


def test_a_manifest_that_is_not_the_one_its_records_name_is_refused(project: Project) -> None:
    manifest = project.path(f"results/mini/{DEFENSE}")
    manifest.write_text(manifest.read_text(encoding="utf-8") + " ", encoding="utf-8")
    said = project.tool("publish", "mini")
    assert said.code == 1 and len(said.errors()) == 1, said.text
    assert f"{DEFENSE} (" in said.text and "is not the one that runs/imdb/mini-neox/r2d2/seed0/a" in said.text

    shutil.copy(manifest, project.path(f"{PUBLISHED}/manifests/{DEFENSE}"))
    said = project.tool("redraw", "mini")
    assert said.code == 1 and len(said.errors()) == 1 and "is not the one that" in said.text, said.text


def test_a_defense_s_manifest_that_was_published_is_kept_where_results_have_lost_it(project: Project) -> None:
    published = project.path(f"{PUBLISHED}/manifests/{DEFENSE}")
    before = published.read_bytes()
    project.path(f"results/mini/{DEFENSE}").unlink()
    assert project.tool("publish", "mini").code == 0
    assert published.read_bytes() == before

    published.write_text("{}", encoding="utf-8")  # of another training: its records do not name it
    assert project.tool("publish", "mini").code == 0
    assert not published.exists()


def test_manifests_of_data_and_classifiers_are_kept_too(project: Project) -> None:
    before = files_of(project.path(PUBLISHED))
    for manifest in project.path("results/mini").rglob("manifest.json"):
        manifest.unlink()
    said = project.tool("publish", "mini")
    assert said.code == 0, said.text
    assert files_of(project.path(PUBLISHED)) == before


@pytest.mark.parametrize(("key", "value"), [("classifier", "f" * 64), ("trainable", 7)])
def test_a_manifest_that_no_record_names_must_fit_its_training(project: Project, key: str, value: object) -> None:
    (arm,) = project.path("results/mini/runs/imdb/mini-neox/r2d2").iterdir()
    for record in [*arm.glob("accuracy.*"), *arm.glob("attack_*")]:
        record.unlink()
    said = project.tool("publish", "mini", "--partial")
    assert said.code == 0, said.text
    manifest = arm / "defense/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text(encoding="utf-8")) | {key: value}), encoding="utf-8")
    said = project.tool("publish", "mini", "--partial")
    assert said.code == 1 and len(said.errors()) == 1, said.text
    assert f"{DEFENSE} has {key} {value!r}, its training" in said.text


def test_scores_that_their_manifest_does_not_list_are_refused(project: Project) -> None:
    (scores,) = project.path(f"{PUBLISHED}/scores").rglob("scores.safetensors")
    scores.write_bytes(scores.read_bytes()[:-1] + b"x")
    said = project.tool("redraw", "mini")
    assert said.code == 1 and len(said.errors()) == 1, said.text
    assert "scores.safetensors beside runs/imdb/mini-neox/scores/manifest.json is not the file" in said.text


def test_a_tampered_outcome_fails_the_check_of_rates(project: Project) -> None:
    assert project.tool("check_rates", PUBLISHED).code == 0
    assert project.tool("check_rates", "results/mini").code == 0
    path = project.path(PUBLISHED) / "outcomes_accuracy.parquet"
    table = pq.read_table(path)
    predictions = table["prediction"].to_pylist()
    predictions[-1] = 1 - predictions[-1]
    place = table.column_names.index("prediction")
    pq.write_table(table.set_column(place, "prediction", pa.array(predictions)), path)
    said = project.tool("check_rates", PUBLISHED)
    assert said.code == 1 and "accuracy.json: accuracy is" in said.text and len(said.errors()) == 1, said.text


def test_a_changed_record_changes_the_redrawn_table(project: Project) -> None:
    def change(record: Any) -> None:
        record["cost"]["trainable_percent"] = 12.5

    change_record(project.path(PUBLISHED), "lat_reft/seed0/cost.json", change)
    said = project.tool("redraw", "mini", "--into", "rebuilt")
    assert said.code == 1 and "error: tables/main_imdb.csv: differs in line " in said.text, said.text
    assert "12.5" in project.path("rebuilt/results/mini/tables/main_imdb.csv").read_text()


def test_an_edited_number_beside_the_tables_is_named(project: Project) -> None:
    published = project.path(PUBLISHED)

    def edit(name: str, pattern: str, new: str) -> None:
        text, count = re.subn(pattern, new, (published / name).read_text(encoding="utf-8"), count=1)
        assert count == 1, f"{name} has no {pattern}"
        (published / name).write_text(text, encoding="utf-8")

    edit("seconds.csv", r"(imdb,mini-neox,lat_reft,lat_reft,0,.*),[0-9.]+\n", r"\1,99.5\n")
    edit("config/settings.json", r'"epsilon": 0.5', '"epsilon": 0.75')
    edit("README.md", r"\| train_defense .*", "| train_defense | none | 0 | 0 | 0 |")
    said = project.tool("redraw", "mini")
    assert said.code == 1 and "16 of 19 files" in said.text, said.text
    errors = said.errors()
    assert len(errors) == 3 and all(" is published, " in error for error in errors), errors
    for words in (
        "error: seconds.csv: differs in line ",
        "error: README.md: differs in line ",
        "error: config/settings.json: differs in arms > imdb/mini-neox/lat_reft > settings > epsilon: '0.75'",
    ):
        assert words in said.text, said.text


def test_an_edited_number_of_the_front_page_is_named(project: Project) -> None:
    begin, end = markers("mini")
    readme = project.path("README.md")
    readme.write_text(f"# The project\n\n{begin}\n{end}\n", encoding="utf-8")
    assert project.tool("publish", "mini").code == 0
    page = readme.read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| LAT-ReFT .*", page)
    said = project.tool("redraw", "mini")
    assert said.code == 0, said.text
    readme.write_text(page.replace(row, row.replace("0.", "9.", 1)), encoding="utf-8")
    said = project.tool("redraw", "mini")
    assert said.code == 1 and "error: the project's README.md: differs in line" in said.text, said.text


def test_a_published_configuration_with_which_a_run_was_not_made_is_named(project: Project) -> None:
    project.change(lambda scale: scale["methods"]["lat_reft"].update(epsilon=0.4), f"{PUBLISHED}/config/mini.yaml")
    said = project.tool("redraw", "mini")
    assert said.code == 1 and len(said.errors()) == 2, said.text
    assert "error: config/settings.json: differs in arms > imdb/mini-neox/lat_reft > settings > epsilon" in said.text
    assert "error: config: runs/imdb/mini-neox/lat_reft/" in said.text
    assert "was made with epsilon 0.5, the configuration has 0.4" in said.text


# --- what is committed ---


@pytest.mark.parametrize("evidence", COMMITTED, ids=lambda path: path.name)
def test_committed_evidence_holds(evidence: Path) -> None:
    for tool in ("check_rates", "redraw"):
        given = str(evidence) if tool == "check_rates" else evidence.name
        called = subprocess.run(
            [sys.executable, f"tools/{tool}.py", given],
            cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert called.returncode == 0, called.stdout + called.stderr
