"""What a user can get wrong is one clear line, an exit code, and no harm to what is finished."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unit.models.tiny import damage
from workflow.project import RUN, Project

ALL = ("--config", "scale=mini", "--", "all")
ARM = f"{RUN}/mini-neox/lat_reft/seed0"


def assert_one_line(project: Project, *arguments: str, named: tuple[str, ...]) -> None:
    """The call fails, says one line that holds all of ``named``, and leaves what is finished as it was."""
    before = project.state()
    said = project.run(*arguments)
    assert said.code != 0
    assert len(said.errors()) == 1 and "Traceback" not in said.text, said.text
    assert [part for part in named if part not in said.errors()[0]] == []
    after = project.state()
    assert {name: after.get(name) for name in before} == before


def in_scale(change: Callable[[dict[str, Any]], Any]) -> Callable[[Project], None]:
    return lambda project: project.change(change)


def stray_attack(project: Project) -> None:
    def change(experiments: dict[str, Any]) -> None:
        experiments["tables"]["main_imdb"]["groups"][0]["attacks"] = ["gcgg"]

    project.change(change, "config/experiments.yaml")


def stray_target(project: Project) -> None:
    def change(experiments: dict[str, Any]) -> None:
        experiments["figures"]["motivation"]["groups"][0]["models"] = ["mini-gpt"]

    project.change(change, "config/experiments.yaml")


def bad_yaml(project: Project) -> None:
    project.append("config/mini.yaml", "\nbroken: [1\n")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (in_scale(lambda c: c.update(epsilom=1)), ("config/mini.yaml", "epsilom", "known keys")),
        (in_scale(lambda c: c["methods"]["lat_reft"].update(epsilom=1)), ("config/mini.yaml", "epsilom", "known keys")),
        (in_scale(lambda c: c["methods"]["lat_reft"].update(epsilon=-1)), ("mini.yaml", "epsilon", "-1", "greater than 0")),
        (in_scale(lambda c: c["methods"]["lat_reft"].update(window=0)), ("mini.yaml", "window", "0", "equal to 1")),
        (in_scale(lambda c: c["grids"].update(window=[0])), ("mini.yaml", "window", "0", "equal to 1")),
        (in_scale(lambda c: c["methods"]["lat_reft"].update(reft_layer=99)), ("mini.yaml", "reft_layer", "99", "1 to 2")),
        (in_scale(lambda c: c["methods"]["lat_reft"].update(reft_layer="top")), ("mini.yaml", "top", "early")),
        (in_scale(lambda c: c.update(models=["mini-gpt"])), ("mini.yaml", "mini-gpt", "mini-neox")),
        (in_scale(lambda c: c["methods"].update(lat_loreft={})), ("mini.yaml", "lat_loreft", "lat_reft")),
        (in_scale(lambda c: c["attacks"].update(gcg={"kind": "gcgg"})), ("mini.yaml", "gcgg", "random_token")),
        (in_scale(lambda c: c.update(device="gpu")), ("mini.yaml", "device", "gpu", "cuda")),
        (in_scale(lambda c: c.update(scale="other")), ("mini.yaml", "scale", "other", "mini")),
        (in_scale(lambda c: c["datasets"]["imdb"].update(max_length=0)), ("mini.yaml", "max_length", "0")),
        (in_scale(lambda c: c["finetune"].update(learning_rate="fast")), ("mini.yaml", "learning_rate", "fast")),
        (in_scale(lambda c: c.pop("methods")), ("mini.yaml", "methods", "missing")),
        (in_scale(lambda c: c.pop("grids")), ("mini.yaml", "grids.window", "missing")),
        (stray_attack, ("experiments.yaml", "main_imdb", "gcgg", "random_token")),
        (stray_target, ("experiments.yaml", "motivation", "mini-gpt", "mini-neox")),
        (bad_yaml, ("config/mini.yaml", "not valid YAML", "line")),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_one_line(
    project: Project, spoil: Callable[[Project], None], named: tuple[str, ...]
) -> None:
    spoil(project)
    assert_one_line(project, *ALL, named=named)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["scale=nope"], ("nope", "mini")),
        (["scale=mini", "finetune={epochs: -1}"], ("--config", "epochs", "-1")),
        (["scale=mini", "windows=3"], ("--config", "windows", "known keys")),
    ],
)
def test_a_bad_value_on_the_command_line_is_one_line(
    project: Project, given: list[str], named: tuple[str, ...]
) -> None:
    assert_one_line(project, "--config", *given, "--", "all", named=named)


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("results/nope/records.csv", "scale nope cannot be planned; to see why"),
        ("figures/nope/placement.pdf", "planned are mini"),
        ("nope", "no target is called 'nope'; there are all, tables, figures, heatmaps, claims, "),
        ("results/mini/tables/nope.csv", "targets are main_imdb"),
        ("figures/mini/nope.pdf", "targets are main_imdb"),
        ("figures/mini/main_imdb.pdf", "main_imdb is no figure; its files are results/mini/tables/main_imdb.csv and"),
        ("results/mini/tables/placement.md", "placement is no table; its files are figures/mini/placement.pdf and"),
        ("results/mini/data/nope/manifest.json", "no data set is called 'nope'; there are imdb"),
        ("results/mini/models/nope/manifest.json", "no model is called 'nope'; there are mini-neox"),
        (f"{RUN}/mini-neox/nope/seed0/train.json", "no target of scale mini wants the arm imdb/mini-neox/nope/seed0"),
        (f"{RUN}/mini-neox/none/seed0/attack_nope.json", "unknown attack 'nope'; attacks are gcg, random_token"),
    ],
)
def test_a_target_that_does_not_exist_says_which_do(project: Project, target: str, named: str) -> None:
    before = project.state()
    said = project.run("--", target)
    assert said.code == 1 and named in said.text
    assert project.state() == before


def test_a_target_goes_by_its_name_too(project: Project) -> None:
    project.path("results/mini/tables/main_imdb.md").unlink()
    assert project.plan("main_imdb").names == project.plan("results/mini/tables/main_imdb.md").names | {"main_imdb"}
    assert project.plan("placement").names == set()  # its files are there


def test_a_fault_in_one_scale_stops_no_other_that_is_named(project: Project) -> None:
    project.change(lambda scale: scale.update(epsilom=1), "config/config.yaml")
    assert project.plan().names == set()
    named = ("config/config.yaml", "epsilom")
    assert_one_line(project, "-n", "--", "figures/mini/placement.pdf", named=named)
    assert_one_line(project, "-n", "--config", "scale=paper", "--", "all", named=named)
    said = project.run("-n", "--config", "scale=mini", "--", "figures/placement.pdf")
    assert said.code == 1 and "scale paper cannot be planned; to see why: snakemake --config scale=paper" in said.text


def own_parquet(project: Project, frame: pd.DataFrame) -> None:
    """A second data set, of the user's own rows."""
    project.path("mine").mkdir()
    frame.to_parquet(project.path("mine/reviews.parquet"))

    def change(scale: dict[str, Any]) -> None:
        source = {"kind": "parquet", "path": "mine/reviews.parquet", "citation": "our own"}
        scale["datasets"]["mine"] = scale["datasets"]["imdb"] | {"source": source, "validation_share": 0.2}

    project.change(change)


def rows(labels: list[int], column: str = "text") -> pd.DataFrame:
    words = " ".join(f"word{i}" for i in range(70))
    return pd.DataFrame({column: [f"{words} {i}" for i in range(200)], "label": labels})


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (rows([0, 1] * 100, "review"), ("mine/reviews.parquet", "'text'", "review")),
        (rows([1] * 200), ("'mine'", "'negative'", "check the source's labels")),
        (rows([0, 2] * 100), ("mine/reviews.parquet", "unknown labels 2 (100 rows)", "0 or 'negative'")),
        (rows([0, 1] * 100)[:50], ("'mine'", "ft_train 96", "lower ft_train")),
    ],
    ids=["no text column", "one class", "a third class", "too few rows"],
)
def test_data_of_the_wrong_kind_are_one_line(project: Project, frame: pd.DataFrame, named: tuple[str, ...]) -> None:
    own_parquet(project, frame)
    assert_one_line(project, "--", "results/mini/data/mine/manifest.json", named=named)
    assert not project.path("results/mini/data/mine/manifest.json").exists()
    (said,) = project.path("logs/mini/prepare_data/mine.log").read_text().splitlines()
    assert said.startswith("error: ") and all(part in said for part in named)


def test_a_parquet_file_that_cannot_be_read_is_one_line(project: Project) -> None:
    own_parquet(project, rows([0, 1] * 100))
    path = project.path("mine/reviews.parquet")
    path.write_bytes(path.read_bytes()[:1000])
    target = "results/mini/data/mine/manifest.json"
    assert_one_line(project, "--", target, named=("mine/reviews.parquet", "cannot be read as parquet"))
    path.unlink()
    assert_one_line(project, "--", target, named=("mine/reviews.parquet", "does not exist"))


def test_cuda_without_a_gpu_is_one_line(project: Project) -> None:
    project.change(lambda scale: scale.update(device="cuda"))
    said = project.run("--config", "scale=mini", "--", f"{ARM}/accuracy.json", CUDA_VISIBLE_DEVICES="")
    assert said.code == 1 and "Traceback" not in said.text
    assert said.errors() == [
        "error: device is 'cuda', but no GPU is visible; set device to 'cpu' or 'auto', or check the driver"
    ]
    log = "logs/mini/finetune/imdb_mini-neox.log"  # the first that would take a card
    assert project.path(log).read_text().splitlines() == said.errors()


def test_a_fault_of_the_program_is_in_the_log_of_its_job(project: Project) -> None:
    project.edit("src/latreft/defenses/none.py", "return Trained(", "raise KeyError('layer')\n    return Trained(")
    said = project.run("--", f"{RUN}/mini-neox/none/seed0/train.json")
    log = project.path("logs/mini/train_defense/imdb_mini-neox_none_0.log").read_text()
    assert said.code == 1 and log.startswith("Traceback") and log.endswith("KeyError: 'layer'\n")
    assert "KeyError: 'layer'" in said.text


CLASSIFIER = f"{RUN}/mini-neox/classifier"


@pytest.mark.parametrize(
    ("damaged", "job"),
    [
        ("results/mini/models/mini-neox/model.safetensors", f"{CLASSIFIER}/manifest.json"),
        (f"{CLASSIFIER}/model.safetensors", f"{ARM}/attack_gcg.json"),
        (f"{CLASSIFIER}/tokenizer.json", f"{CLASSIFIER}/finetune.json"),
        (f"{CLASSIFIER}/config.json", f"{ARM}/cost.json"),
        (f"{ARM}/defense/weights.safetensors", f"{ARM}/accuracy.json"),
        (f"{RUN}/mini-neox/scores/scores.safetensors", f"{ARM}/train.json"),
        ("results/mini/data/imdb/validation.parquet", f"{RUN}/mini-neox/theory.json"),
    ],
)
def test_a_file_that_its_manifest_does_not_list_so_is_read_by_no_job(project: Project, damaged: str, job: str) -> None:
    """Snakemake looks at the manifest alone, which is as it was."""
    path, time = project.path(damaged), project.path(damaged).stat()
    damage(path)
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
    assert project.plan().names == set()
    project.path(job).unlink()
    said = project.run("--", job)
    assert said.code == 1 and len(said.errors()) == 1 and "Traceback" not in said.text, said.text
    assert f"error: {damaged} is not the file that " in said.text and "manifest.json lists: its SHA-256" in said.text
    assert not project.path(job).exists()


# --- places ---


def test_results_may_be_a_link_to_scratch(project: Project, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch disk"
    project.path("results").rename(scratch)
    project.path("results").symlink_to(scratch)
    assert project.plan().names == set()
    said = project.run("-R", "train_defense", "--config", "scale=mini", "--", f"{ARM}/defense/manifest.json")
    assert said.code == 0, said.text
    assert project.path("results").is_symlink()


@pytest.fixture
def read_only(project: Project) -> Iterator[Path]:
    """The results of the copy on a read-only mount; needs the right to mount."""
    folder = str(project.path("results"))
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True).returncode:
        pytest.skip("no right to mount")
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True, timeout=30)
    yield project.path("results")
    subprocess.run(["umount", "-l", folder], check=True, timeout=30)


def test_results_that_cannot_be_written_are_named(project: Project, read_only: Path) -> None:
    assert project.plan().names == set()
    before = project.state()
    said = project.run("-R", "train_defense", "--config", "scale=mini", "--", f"{ARM}/defense/manifest.json")
    assert said.code == 1 and "Write-protected output files" in said.text and f"{ARM}/train.json" in said.text
    assert project.state() == before
