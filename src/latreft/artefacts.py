"""Where everything lies. The scale is part of every path; figures of the paper scale lie in ``figures/`` itself."""

from __future__ import annotations

from collections.abc import Iterable

RESULTS = "results/{scale}"
DATA = RESULTS + "/data/{dataset}/manifest.json"
BASE = RESULTS + "/models/{model}/manifest.json"
CLASSIFIER = RESULTS + "/runs/{dataset}/{model}/classifier/manifest.json"
CLASSIFIER_WEIGHTS = RESULTS + "/runs/{dataset}/{model}/classifier/model.safetensors"
FINETUNE_TRAINING = RESULTS + "/runs/{dataset}/{model}/classifier/training.json"
FINETUNE_OUTCOMES = RESULTS + "/runs/{dataset}/{model}/classifier/finetune.parquet"
FINETUNE_RECORD = RESULTS + "/runs/{dataset}/{model}/classifier/finetune.json"
SCORES_MANIFEST = RESULTS + "/runs/{dataset}/{model}/scores/manifest.json"
SCORES = RESULTS + "/runs/{dataset}/{model}/scores/scores.safetensors"
SCORES_RECORD = RESULTS + "/runs/{dataset}/{model}/scores/scores.json"
THEORY_RECORD = RESULTS + "/runs/{dataset}/{model}/theory.json"
ARM = RESULTS + "/runs/{dataset}/{model}/{arm}/seed{seed}"
DEFENSE = ARM + "/defense/manifest.json"
DEFENSE_WEIGHTS = ARM + "/defense/weights.safetensors"
TRAIN_RECORD = ARM + "/train.json"
COST_RECORD = ARM + "/cost.json"
ACCURACY_RECORD = ARM + "/accuracy.json"
ACCURACY_OUTCOMES = ARM + "/accuracy.parquet"
ATTACK_RECORD = ARM + "/attack_{attack}.json"
ATTACK_OUTCOMES = ARM + "/attack_{attack}.parquet"
RECORD_OF = {
    "finetune": FINETUNE_RECORD,
    "scores": SCORES_RECORD,
    "theory": THEORY_RECORD,
    "train": TRAIN_RECORD,
    "cost": COST_RECORD,
    "accuracy": ACCURACY_RECORD,
    "attack": ATTACK_RECORD,
}
"""Kind of record → where it lies, as tables read it."""
MANIFEST_OF = {"data": DATA, "classifier": CLASSIFIER, "scores": SCORES_MANIFEST, "defense": DEFENSE}
"""Key of a record's ``provenance.inputs`` → where the manifest lies whose SHA-256 stands there."""
CHECKPOINTS = RESULTS + "/checkpoints"
RECORDS = RESULTS + "/records.csv"
TABLE = RESULTS + "/tables/{table}"
CLAIMS = RESULTS + "/claims"


def theory_record(scale: str, datasets: Iterable[str], main_model: str) -> str:
    """Where a scale's theorems are checked: on its main model and the data set imdb, or its first where it has none."""
    known = list(datasets)
    return THEORY_RECORD.format(scale=scale, dataset="imdb" if "imdb" in known else known[0], model=main_model)


def figure(scale: str, name: str) -> str:
    """Path of a figure without its ending."""
    return f"figures/{name}" if scale == "paper" else f"figures/{scale}/{name}"
