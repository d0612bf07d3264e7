"""How the workflow is called: profiles, dry runs at paper scale without a network, lint, the DAG's picture."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from workflow.project import ROOT as PROJECT
from workflow.project import SNAKEMAKE, Project, Said, Server, clean_environment, project_files

PYTHIA = "pythia-1.4b"
PLACEMENT = [
    "lat_reft",
    *(f"lat_reft__window_{window}" for window in (1, 2, 5, 10, 15)),
    "lat_reft__reft_layer_4",
    "lat_reft__reft_layer_22",
]
GPU_RULES = {
    "finetune", "score_neurons", "train_defense", "evaluate_accuracy", "evaluate_classifier", "attack", "check_theory",
}  # fmt: skip
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Project:
    """The project as it is committed, nothing run."""
    folder = tmp_path_factory.mktemp("checkout") / "the project"
    folder.mkdir()
    names = [name for name in project_files() if not name.startswith(("tests/", "published/", "docs/"))]
    subprocess.run(["cp", "-a", "--parents", *names, str(folder)], cwd=PROJECT, check=True, timeout=60)
    return Project(folder, server)


def without_network() -> list[str]:
    """A command that gives a program no network, where one is to be had."""
    for command in (["unshare", "-n"], ["unshare", "-rn"]):
        try:
            if subprocess.run([*command, "true"], capture_output=True, timeout=30).returncode == 0:
                return command
        except FileNotFoundError:
            break
    return []


def blocks(said: Said) -> dict[str, list[str]]:
    """The planned jobs' lines, by rule."""
    found: dict[str, list[str]] = {}
    for block in re.split(r"^(?=(?:local)?rule \w+:$)", said.text, flags=re.MULTILINE)[1:]:
        found.setdefault(block.split(":", 1)[0].split()[1], []).append(block)
    return found


def test_the_default_profile_is_picked_up_by_itself(finished: Project) -> None:
    said = finished("-n", "--config", "scale=mini", "--", "all")
    assert said.code == 0 and "profiles/default" in said.text


def test_the_paper_s_placement_figure_is_planned_in_seconds_without_a_network(checkout: Project) -> None:
    before = os.times()
    called = subprocess.run(
        [*without_network(), SNAKEMAKE, "--cores", "1", "--resources", "gpu=1", "-n", "--", "figures/placement.pdf"],
        cwd=checkout.folder, env=clean_environment() | OFFLINE, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    after = os.times()
    said = Said(called.returncode, called.stdout + called.stderr)
    assert said.code == 0, said.text
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 6, "seconds of processor time"
    each = ("train_defense", "count_cost", "evaluate_accuracy")
    arms = {f"{rule}/{PYTHIA}/{arm}" for rule in each for arm in PLACEMENT}
    attacks = {f"attack/{PYTHIA}/{arm}/{attack}" for arm in PLACEMENT for attack in ("gcg", "random_token")}
    once = {
        "prepare_data",
        f"fetch_model/{PYTHIA}",
        f"finetune/{PYTHIA}",
        f"score_neurons/{PYTHIA}",
        "figure/placement",
    }
    assert said.names == arms | attacks | once and set(said.jobs.values()) == {1}


def test_the_slurm_profile_asks_for_a_gpu_and_time(checkout: Project) -> None:
    said = checkout("--workflow-profile", "profiles/slurm", "-n", "--", "all")
    assert said.code == 0, said.text
    jobs = blocks(said)
    assert set(jobs) >= GPU_RULES
    for rule in GPU_RULES:
        for block in jobs[rule]:
            resources = re.search(r"^    resources: (.*)$", block, re.MULTILINE)
            assert resources and re.search(r"\bgpu=1\b", resources[1]), block
            assert re.search(r"\bruntime=\d+", resources[1]) and "slurm_partition=gpu" in resources[1], block
    for rule in set(jobs) - GPU_RULES - {"all"}:
        assert not [block for block in jobs[rule] if re.search(r"\bgpu=[1-9]", block)], rule


def test_a_scale_says_what_its_jobs_get_on_a_cluster(checkout: Project) -> None:
    given = ["scale=paper", "threads=8", "resources={train_defense: {runtime: 2880, mem_mb: 200000}}"]
    said = checkout(
        "--workflow-profile", "profiles/slurm", "--cores", "16", "-n", "--config", *given, "--", "main_imdb"
    )
    assert said.code == 0, said.text
    for block in blocks(said)["train_defense"]:
        assert re.search(r"^    threads: 8$", block, re.MULTILINE), block
        assert re.search(r"\bmem_mb=200000\b.*\bruntime=2880\b", block) and "cpus_per_task" not in block, block


def test_what_evaluates_an_arm_goes_before_the_next_arms_training(checkout: Project) -> None:
    jobs = blocks(checkout("-n", "--", "results/paper/tables/main_imdb.md"))
    first = {rule for rule, texts in jobs.items() if any("    priority: 1\n" in text for text in texts)}
    assert first == {"attack", "evaluate_accuracy"} and "train_defense" in jobs


def test_resources_before_the_target_swallow_it(checkout: Project) -> None:
    said = checkout("--cores", "1", "--resources", "gpu=1", "figures/placement.pdf")
    assert said.code != 0 and "figures/placement.pdf" not in said.names
    assert "dictionary update sequence" in said.text or "Invalid resource" in said.text, said.text
    named_first = checkout("figures/placement.pdf", "--cores", "1", "--resources", "gpu=1", "-n")
    assert named_first.code == 0 and "figure/placement" in named_first.names


def test_lint_has_nothing_to_say(checkout: Project) -> None:
    assert checkout("--lint").code == 0


@pytest.mark.parametrize("picture", ["--rulegraph", "--dag"])
def test_the_dag_can_be_drawn(checkout: Project, picture: str) -> None:
    said = checkout("--config", "scale=smoke", picture, "--", "all")
    assert said.code == 0 and "digraph snakemake_dag" in said.text
    assert "train_defense" in said.text


def test_every_scale_plans_all_of_its_targets(checkout: Project) -> None:
    scales = [path.stem for path in checkout.path("config").glob("*.yaml")]
    for scale in sorted(set(scales) - {"models", "experiments", "claims", "config"} | {"paper"}):
        said = checkout("--config", f"scale={scale}", "-n", "--quiet", "rules", "--", "all")
        assert said.code == 0, said.text


def test_the_scripts_of_all_rules_are_there() -> None:
    scripts = {path.name for path in Path(PROJECT, "src").glob("*.py")}
    used = {
        name
        for path in Path(PROJECT, "workflow/rules").glob("*.smk")
        for name in re.findall(r'src/(\w+\.py)"', path.read_text())
    }
    assert scripts == used
