"""What a user adds: a data set and a scale of their own, a defense or an attack in one file."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
from workflow.project import RUN, SCALE, Project, Said

from latreft.records import read_record

DEFENSE = '''"""Random noise on the token embeddings, all weights trained."""

from __future__ import annotations

import torch

from latreft.defenses.base import AdversarialSettings, Trained, Training
from latreft.defenses.lat import full_weights
from latreft.models.classifier import parameter_count
from latreft.training import Losses
from latreft.training import train as run_training


class Settings(AdversarialSettings):
    """Weight of the noise in the loss."""

    strength: float = 0.1


def train(run: Training, settings: Settings) -> Trained:
    """Minimise the clean loss, and decay the head at random."""
    model = run.classifier
    model.requires_grad_(True)
    batches = run.batches(settings)

    def losses_at(step: int) -> Losses:
        batch = batches.at(step)
        noise = torch.rand((), generator=run.generator(step))
        clean = torch.nn.functional.cross_entropy(model(batch), batch.labels)
        return Losses(clean + settings.strength * noise * model.head.weight.square().sum(), batch.tokens.numel())

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    steps = run.steps(settings)
    summary = run_training(model, optimizer, losses_at, steps, checkpoint=run.checkpoint, progress=run.progress)
    return Trained("full", full_weights(model), {}, summary, parameter_count(model))
'''

ATTACK = '''"""One token, repeated: the one of a few random tokens that the classifier likes least."""

from __future__ import annotations

from typing import Literal

import torch

from latreft.attacks.base import AttackSettings, Found, highest


class Settings(AttackSettings):
    """How many tokens are tried."""

    kind: Literal["repeated"] = "repeated"
    tries: int = 4


def attack(search, *, label, allowed, encode, generator, settings, survives=None) -> Found:
    """Try ``tries`` tokens, each N times in a row."""
    choices = allowed.nonzero().flatten()
    drawn = choices[torch.randint(len(choices), (settings.tries,), generator=generator)]
    rows = drawn[:, None].repeat(1, settings.tokens)
    losses, _ = search.losses(rows)
    best = highest(losses)
    return Found(tuple(rows[best].tolist()), losses[best].item(), settings.tries, settings.tries)
'''


def test_a_new_defense_is_one_file_one_line_and_an_arm(project: Project) -> None:
    project.path("src/latreft/defenses/noise.py").write_text(DEFENSE)

    def change(scale: dict[str, Any]) -> None:
        scale["methods"]["noise"] = {
            "strength": 0.2,
            "examples": 16,
            "epochs": 1,
            "batch_size": 8,
            "learning_rate": 1e-3,
        }

    project.change(change)
    assert project.plan().names == set()

    # The other scales do not know the method, and need not.
    def add(experiments: dict[str, Any]) -> None:
        experiments["tables"]["main_imdb"]["groups"][0]["arms"].append("noise")

    project.change(add, "config/experiments.yaml")
    said = project.run("--config", "scale=mini", "--", "tables")
    arm = "mini-neox/noise"
    jobs = {f"train_defense/{arm}", f"count_cost/{arm}", f"evaluate_accuracy/{arm}", f"attack/{arm}/gcg"}
    assert said.code == 0 and said.names == jobs | {"table/main_imdb"}, said.text
    record = read_record(project.path(f"{RUN}/{arm}/seed0/train.json"))
    assert record.settings["strength"] == 0.2 and record.metrics["steps"].value == 2
    table = pd.read_csv(project.path("results/mini/tables/main_imdb.csv"))
    own = table[table["method"] == "noise"]
    assert (
        len(own)
        and not own["missing"].any()
        and "noise" in project.path("results/mini/tables/main_imdb.md").read_text()
    )


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ("return None", "train returned None; right is a Trained"),
        (
            'return Trained("reft", LoReFT(model.width, 2).weights(), {}, summary, 8)',
            "details have no 'layer', only []; kind 'reft' needs layer, window",
        ),
    ],
)
def test_a_defense_that_could_not_be_loaded_is_refused_by_its_own_job(
    project: Project, returns: str, said: str
) -> None:
    code = DEFENSE.replace('return Trained("full", full_weights(model), {}, summary, parameter_count(model))', returns)
    code = code.replace("import torch\n", "import torch\n\nfrom latreft.interventions.reft import LoReFT\n", 1)
    assert returns in code
    project.path("src/latreft/defenses/noise.py").write_text(code)
    settings = {"examples": 8, "epochs": 1, "batch_size": 8, "learning_rate": 1e-3}
    project.change(lambda scale: scale["methods"].update(noise=settings))
    project.change(
        lambda content: content["tables"]["main_imdb"]["groups"][0]["arms"].append("noise"), "config/experiments.yaml"
    )
    run = project.run("--config", "scale=mini", "--", f"{RUN}/mini-neox/noise/seed0/attack_gcg.json")
    assert run.code == 1 and run.names == {"train_defense/mini-neox/noise"} and "Traceback" not in run.text, run.text
    (error,) = run.errors()
    assert error.startswith("error: src/latreft/defenses/noise.py: train returned ") and said in error


def test_a_new_attack_is_one_file_and_one_line(project: Project) -> None:
    project.path("src/latreft/attacks/repeated.py").write_text(ATTACK)
    project.change(lambda scale: scale["attacks"].update(repeated={"tries": 3}))
    assert project.plan().names == set()

    def add(experiments: dict[str, Any]) -> None:
        experiments["tables"]["main_imdb"]["groups"][1]["attacks"].append("repeated")

    project.change(add, "config/experiments.yaml")
    said = project.run("--config", "scale=mini", "--", "tables")
    assert said.code == 0 and said.names == {"attack/mini-neox/r2d2/repeated", "table/main_imdb"}, said.text
    record = read_record(project.path(f"{RUN}/mini-neox/r2d2/seed0/attack_repeated.json"))
    assert record.settings["tries"] == 3 and record.metrics["asr"].n == 4
    assert "repeated" in project.path("results/mini/tables/main_imdb.md").read_text()


def attacking(project: Project, attack: str) -> tuple[Said, list[str]]:
    """R2D2's arm under an attack with the code ``attack``: what was said, and the lines of the job's log."""
    project.path("src/latreft/attacks/repeated.py").write_text(attack)
    project.change(lambda scale: scale["attacks"].update(repeated={}))
    project.change(
        lambda content: content["tables"]["main_imdb"]["groups"][1]["attacks"].append("repeated"),
        "config/experiments.yaml",
    )
    said = project.run("--config", "scale=mini", "--", f"{RUN}/mini-neox/r2d2/seed0/attack_repeated.json")
    log = project.path("logs/mini/attack/imdb_mini-neox_r2d2_0_repeated.log")
    return said, log.read_text().splitlines()


def test_an_attack_that_reports_another_loss_is_warned_of_in_the_log(project: Project) -> None:
    said, log = attacking(project, ATTACK.replace(".item()", ".item() + 99"))
    (line,) = [line for line in log if "the evaluated one" in line]
    assert line.startswith(
        "warning: repeated: for 4 of 4 examples the search's loss is not the evaluated one (example "
    )
    assert said.code == 0 and line in said.text.splitlines()


def test_an_attack_that_returns_other_tokens_is_one_line(project: Project) -> None:
    said, log = attacking(project, ATTACK.replace("rows[best].tolist()", "rows[best].tolist()[1:]"))
    assert said.code == 1 and len(said.errors()) == 1 and "Traceback" not in said.text, said.text
    assert "under repeated: the attack returned 9 tokens, [" in said.errors()[0] and log == said.errors()


def own_reviews(project: Project) -> None:
    """The user's own file: other columns, labels by name, no split of its own."""
    sample = pd.read_parquet(project.path("resources/sample/imdb.parquet"))
    names = sample["label"].map({0: "bad", 1: "good"})
    project.path("my data").mkdir()
    pd.DataFrame({"review": sample["text"], "verdict": names}).to_parquet(project.path("my data/reviews.parquet"))


OWN = {
    "title": "My reviews",
    "source": {
        "kind": "parquet", "path": "my data/reviews.parquet", "text_column": "review", "label_column": "verdict",
        "citation": "our own",
    },
    "label_names": ["bad", "good"],
    "validation_share": 0.2,
}  # fmt: skip


def test_a_scale_of_one_s_own_data_plans_and_runs(project: Project) -> None:
    own_reviews(project)
    scale = json.loads(json.dumps(SCALE)) | {"scale": "mine", "title": "my own data"}
    scale["datasets"]["imdb"].update(OWN)
    del scale["datasets"]["imdb"]["validation"]
    project.write_yaml("config/mine.yaml", scale)
    assert project.plan().names == set()
    target = "results/mine/runs/imdb/mini-neox/lat_reft/seed0/attack_gcg.json"
    said = project.run("--config", "scale=mine", "--", target)
    assert said.code == 0, said.text
    assert read_record(project.path(target)).scale == "mine"
    manifest = json.loads(project.path("results/mine/data/imdb/manifest.json").read_text())
    assert list(manifest["splits"]["ft_train"]["classes"]) == ["bad", "good"]
    assert project.plan().names == set()


def test_a_data_set_added_to_a_scale_plans_its_own_arms(project: Project) -> None:
    own_reviews(project)

    def change(scale: dict[str, Any]) -> None:
        scale["datasets"]["mine"] = scale["datasets"]["imdb"] | OWN
        del scale["datasets"]["mine"]["validation"]

    project.change(change)
    group = {"datasets": "all", "models": "main", "arms": ["none"], "attacks": ["gcg"]}
    project.change(
        lambda content: content.update(extra={"everywhere": {"title": "Every data set", "groups": [group]}}),
        "config/experiments.yaml",
    )
    records = "results/mini/runs/mine/mini-neox/none/seed0"
    planned = project.plan(f"{records}/attack_gcg.json").jobs
    # A random-weight model's tokenizer learns from all data sets of the scale: the model is made anew too.
    rules = {"prepare_data", "fetch_model", "finetune", "score_neurons", "train_defense", "attack"}
    assert {name.split("/")[0] for name in planned} == rules and set(planned.values()) == {1}
