"""Mixed precision, through every script: it runs from nothing to a table, and it trains."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from workflow.project import RUN, Project, Server, copy_project, new_project

from latreft.records import RunRecord, read_record

TABLE = "results/mini/tables/main_imdb.csv"
CLASSIFIER = f"{RUN}/mini-neox/classifier/training.json"
DEFENSES = ["r2d2", "lat_reft"]


def trained(project: Project, arm: str) -> RunRecord:
    return read_record(project.path(f"{RUN}/mini-neox/{arm}/seed0/train.json"))


def loss(record: RunRecord) -> float:
    return record.metrics["final_loss"].value


def longer(project: Project) -> Project:
    """The project with a fine-tuning that is long enough to learn its texts by heart."""
    project.change(lambda scale: scale["finetune"].update(epochs=16))
    return project


@pytest.fixture(scope="module")
def in_float32(tmp_path_factory: pytest.TempPathFactory, finished: Project) -> Project:
    project = longer(copy_project(finished, tmp_path_factory.mktemp("float32") / "project"))
    said = project.run("--", CLASSIFIER, *(f"{RUN}/mini-neox/{arm}/seed0/train.json" for arm in DEFENSES))
    assert said.code == 0, said.text[-4000:]
    return project


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Project:
    """Table 1 from nothing, in mixed precision, of a classifier stored in half the bytes."""
    project = longer(new_project(tmp_path_factory.mktemp("bfloat16") / "project", server))
    project.change(lambda scale: (scale.update(autocast="bfloat16"), scale["finetune"].update(saved_as="bfloat16")))
    said = project.run("--config", "scale=mini", "--", TABLE)
    assert said.code == 0, said.text[-4000:]
    return project


def test_table_1_has_every_rate(in_bfloat16: Project) -> None:
    table = pd.read_csv(in_bfloat16.path(TABLE))
    rates = table[table["metric"].isin(["accuracy", "asr"])]
    assert set(rates["arm"]) == {"none", *DEFENSES} and not table["missing"].any()
    assert rates["value"].between(0, 1).all()


def test_fine_tuning_follows_its_own_steps(in_float32: Project, in_bfloat16: Project) -> None:
    """It learns its texts by heart, as in float32. With weights rounded once and kept it would stay above 0.3."""
    exact, mixed = (loss(read_record(project.path(CLASSIFIER))) for project in (in_float32, in_bfloat16))
    assert exact < 0.1 < math.log(2)  # that of a guess
    assert mixed == pytest.approx(exact, abs=0.05)


def test_the_classifier_is_stored_as_asked(in_float32: Project, in_bfloat16: Project) -> None:
    for project, dtype in ((in_float32, torch.float32), (in_bfloat16, torch.bfloat16)):
        weights = load_file(project.path(CLASSIFIER).with_name("model.safetensors"))
        assert {tensor.dtype for tensor in weights.values()} == {dtype}


@pytest.mark.parametrize("arm", DEFENSES)
def test_defenses_end_where_float32_ends(in_float32: Project, in_bfloat16: Project, arm: str) -> None:
    exact, mixed = (trained(project, arm) for project in (in_float32, in_bfloat16))
    assert mixed.metrics["steps"] == exact.metrics["steps"]
    assert loss(mixed) == pytest.approx(loss(exact), rel=0.2)
