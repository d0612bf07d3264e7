"""A change reruns what it feeds, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from workflow.project import (
    ATTACKS,
    EVERYTHING,
    RUN,
    SHOWING,
    Project,
    Server,
    judging,
    new_project,
    redone,
    showing,
    training,
)

REFT_ARMS = [arm for arm in ATTACKS if arm.startswith("lat_reft")]
ARM = f"{RUN}/mini-neox/lat_reft/seed0"


def test_a_finished_project_has_nothing_to_do(project: Project) -> None:
    said = project.run()
    assert said.code == 0 and "Nothing to be done" in said.text


def test_new_times_rerun_nothing(project: Project) -> None:
    touched = [
        "README.md", "Snakefile", "workflow/rules/train.smk", "config/mini.yaml", "config/experiments.yaml",
        "src/train_defense.py", "src/latreft/attacks/gcg.py", "resources/sample/imdb.parquet",
        "resources/paper/table_main_imdb.csv", "results/mini/data/imdb/manifest.json", f"{ARM}/defense/manifest.json",
        f"{ARM}/train.json",
    ]  # fmt: skip
    for name in touched:
        project.path(name).touch()
    assert project.plan().names == set()


def test_words_for_readers_rerun_nothing(project: Project) -> None:
    project.append("README.md", "More of it.\n")
    project.append("src/latreft/attacks/gcg.py", "\n\n# A comment.\n")
    project.edit("src/latreft/attacks/gcg.py", '"""Greedy coordinate gradient', '"""The greedy coordinate gradient')
    project.append("src/train_defense.py", "# A comment.\n")
    project.append("workflow/rules/train.smk", "# A comment.\n")
    project.append("config/mini.yaml", "# A comment.\n")
    assert project.plan().names == set()


def test_code_that_no_arm_uses_reruns_nothing(project: Project) -> None:
    project.append("src/latreft/defenses/cat.py", "\n\nNEW = 1\n")
    project.path("src/latreft/defenses/another.py").write_text("NEW = 1\n")
    assert project.plan().names == set()


def test_how_jobs_are_started_and_saved_reruns_nothing(project: Project) -> None:
    project.change(
        lambda scale: scale.update(
            warm_start=False,
            checkpoint_seconds=77,
            jobs_per_gpu=3,
            resources={"train_defense": {"runtime": 5, "mem_mb": 1000}},
        )
    )
    assert project.plan().names == set()


def test_a_family_reruns_the_jobs_of_its_models(project: Project) -> None:
    """A new family, and another model's, are code of no job; the model's own is code of all that run it."""
    folder = "src/latreft/models/families"
    project.path(f"{folder}/mistral.py").write_text("NEW = 1\n")
    project.append(f"{folder}/llama.py", "\n\nNEW = 1\n")
    assert project.plan().names == set()
    project.append(f"{folder}/gpt_neox.py", "\n\nNEW = 1\n")
    assert project.plan().names == EVERYTHING - {"prepare_data"}


@pytest.mark.parametrize("figure", ["motivation", "placement"])
def test_the_code_of_one_figure_redraws_that_figure(project: Project, figure: str) -> None:
    project.append(f"src/latreft/plots/{figure}.py", '\n\nCOLOUR = "#123456"\n')
    assert project.plan().names == {f"figure/{figure}"}


def test_the_style_of_all_figures_redraws_figures_only(project: Project) -> None:
    project.edit("src/latreft/plots/style.py", '"#0072B2"', '"#0072B3"')
    assert project.plan().names == {"figure/motivation", "figure/placement", "figure/heatmaps_imdb"}


def test_the_code_of_one_table_remakes_that_table(project: Project) -> None:
    project.append("src/latreft/tables/main_imdb.py", "\n\nNEW = 1\n")
    assert project.plan().names == {"table/main_imdb"}


def test_a_scale_s_title_changes_what_shows_it(project: Project) -> None:
    project.change(lambda scale: scale.update(title="the smallest scale"))
    assert project.plan().names == SHOWING - {"records"} | {"figure/heatmaps_imdb"}


def test_a_method_s_setting_retrains_the_arms_of_that_method(project: Project) -> None:
    project.change(lambda scale: scale["methods"]["lat_reft"].update(epsilon=0.4))
    assert project.plan().names == redone(*REFT_ARMS)
    project.change(lambda scale: scale["methods"]["lat_reft"].update(epsilon=0.5))
    project.change(lambda scale: scale["methods"]["r2d2"].update(candidates=3))
    assert project.plan().names == redone("r2d2")


def test_a_method_that_no_target_wants_can_change_freely(project: Project) -> None:
    project.change(lambda scale: scale["methods"]["lat"].update(epsilon=0.4))
    assert project.plan().names == set()


def test_a_changed_arm_trains_that_arm(project: Project) -> None:
    def change(experiments):
        experiments["figures"]["motivation"]["groups"][0]["arms"][1]["rank"] = 2

    project.change(change, "config/experiments.yaml")
    new = "lat_reft__rank_2__reft_layer_2"
    assert project.plan().names == training(new) | judging(new) | {"figure/motivation", "records"}


def test_a_label_changes_the_figure_that_shows_it(project: Project) -> None:
    def change(experiments):
        experiments["figures"]["motivation"]["groups"][0]["arms"][1]["label"] = "The last layer"

    project.change(change, "config/experiments.yaml")
    assert project.plan().names == {"figure/motivation"}


def test_a_longer_sweep_trains_the_new_arm(project: Project) -> None:
    project.change(lambda scale: scale["grids"].update(window=[1, 5, 20]))
    new = "lat_reft__window_5"
    assert project.plan().names == training(new) | judging(new) | {"figure/placement", "records"}


def test_another_seed_trains_its_arms(project: Project) -> None:
    project.change(lambda scale: scale.update(seeds=[0, 1]))
    planned = project.plan().jobs
    assert set(planned) == redone(*ATTACKS) and set(planned.values()) == {1}


def test_changed_gcg_attacks_anew_and_retrains_what_trains_with_it(project: Project) -> None:
    project.append("src/latreft/attacks/gcg.py", "\n\nNEW = 1\n")
    attacks = {f"attack/mini-neox/{arm}/gcg" for arm in ATTACKS}
    assert project.plan().names == attacks | showing(*ATTACKS) | redone("r2d2")


def test_a_changed_defense_retrains_its_arms(project: Project) -> None:
    project.append("src/latreft/defenses/lat_reft.py", "\n\nNEW = 1\n")
    assert project.plan().names == redone(*REFT_ARMS)


def test_an_attack_s_strength_runs_that_attack_only(project: Project) -> None:
    project.change(lambda scale: scale["attacks"]["random_token"].update(draws=5))
    assert project.plan().names == {"attack/mini-neox/r2d2/random_token", "table/main_imdb", "records"}


def test_fewer_attacked_examples_rerun_attacks_only(project: Project) -> None:
    project.change(lambda scale: scale["attacks"]["gcg"].update(examples=3))
    assert project.plan().names == {f"attack/mini-neox/{arm}/gcg" for arm in ATTACKS} | showing(*ATTACKS)


def test_fine_tuning_reruns_everything_below_it(project: Project) -> None:
    project.change(lambda scale: scale["finetune"].update(learning_rate=1e-3))
    assert project.plan().names == EVERYTHING - {"prepare_data", "fetch_model/mini-neox"}


def test_the_checks_of_the_theorems_rerun_alone(project: Project) -> None:
    checked = {"check_theory/mini-neox", "records"}
    project.change(lambda scale: scale["theory"].update(trials=30))
    assert project.plan().names == checked
    project.change(lambda scale: scale["theory"].update(trials=20))
    project.append("src/latreft/theory/theorem_1.py", "\n\nNEW = 1\n")
    assert project.plan().names == checked


def test_cost_formulas_train_nothing(project: Project) -> None:
    project.append("src/latreft/cost/paper.py", "\n\nNEW = 1\n")
    planned = project.plan().names
    assert {f"count_cost/mini-neox/{arm}" for arm in ATTACKS} <= planned
    assert not [name for name in planned if name.startswith(("train_", "attack", "evaluate_", "finetune"))]


def test_one_figure_plans_its_own_arms(tmp_path: Path, server: Server) -> None:
    project = new_project(tmp_path / "the project", server)
    arms = ["lat_reft", "lat_reft__window_1"]
    wanted = {"prepare_data", "fetch_model/mini-neox", "finetune/mini-neox", "score_neurons/mini-neox"}
    planned = project.plan("figures/mini/placement.pdf").names
    assert planned == wanted | training(*arms) | judging(*arms) | {"figure/placement"}
    assert project.plan().names == EVERYTHING


def test_data_made_again_with_equal_content_rerun_nothing(project: Project) -> None:
    manifest = "results/mini/data/imdb/manifest.json"
    before = project.path(manifest).read_bytes()
    said = project.run("-R", "prepare_data", "--", manifest)
    assert said.code == 0 and said.names == {"prepare_data"}, said.text
    assert project.path(manifest).read_bytes() == before
    assert project.plan().names == set()


def test_an_arm_trained_again_with_equal_weights_is_not_judged_again(project: Project) -> None:
    manifest = f"{ARM}/defense/manifest.json"
    before = project.path(manifest).read_bytes()
    said = project.run("-R", "train_defense", "--", manifest)
    assert said.code == 0 and said.names == {"train_defense/mini-neox/lat_reft"}, said.text
    assert project.path(manifest).read_bytes() == before
    # The record holds how long it took, so what is made from records is made again.
    assert project.plan().names == {"count_cost/mini-neox/lat_reft"} | showing("lat_reft")


def test_changed_data_reach_the_jobs_below(project: Project) -> None:
    project.change(lambda scale: scale["datasets"]["imdb"].update(seed=43))
    assert project.plan().names == EVERYTHING


def test_a_changed_file_of_ones_own_makes_its_data_anew(project: Project) -> None:
    """The file is an input, so an edited text cannot leave an old table standing; a touched one changes nothing."""
    own = "data/own.parquet"
    project.path("data").mkdir(exist_ok=True)
    frame = pd.read_parquet(project.path("resources/sample/imdb.parquet"))
    frame.to_parquet(project.path(own))
    source = {
        "kind": "parquet",
        "path": own,
        "split_column": "split",
        "validation_value": "validation",
        "citation": "own",
    }
    project.change(lambda scale: scale["datasets"]["imdb"].update(source=source))
    manifest = "results/mini/data/imdb/manifest.json"
    assert project.run("--", manifest).code == 0
    assert project.plan(manifest).names == set()
    os.utime(project.path(own))
    assert project.plan(manifest).names == set()
    frame.loc[0, "text"] = "A text that was put right."
    frame.to_parquet(project.path(own))
    assert project.plan(manifest).names == {"prepare_data"}
