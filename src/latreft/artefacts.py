"""Where everything lies. The scale is part of every path; figures of the paper scale lie in ``figures/`` itself."""

from __future__ import annotations

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
ARM = RESULTS + "/runs/{dataset}/{model}/{arm}/seed{seed}"
DEFENSE = ARM + "/defense/manifest.json"
DEFENSE_WEIGHTS = ARM + "/defense/weights.safetensors"
TRAIN_RECORD = ARM + "/train.json"
COST_RECORD = ARM + "/cost.json"
ACCURACY_RECORD = ARM + "/accuracy.json"
ACCURACY_OUTCOMES = ARM + "/accuracy.parquet"
ATTACK_RECORD = ARM + "/attack_{attack}.json"
ATTACK_OUTCOMES = ARM + "/attack_{attack}.parquet"
CHECKPOINTS = RESULTS + "/checkpoints"
RECORDS = RESULTS + "/records.csv"
TABLE = RESULTS + "/tables/{table}"


def figure(scale: str, name: str) -> str:
    """Path of a figure without its ending."""
    return f"figures/{name}" if scale == "paper" else f"figures/{scale}/{name}"
