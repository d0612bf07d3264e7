"""Tiny trainings of every method, shared by the tests of defenses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from unit.models.tiny import classifier

from latreft.circuits.scores import neuron_scores
from latreft.defenses.base import Trained, Training
from latreft.defenses.registry import defense_module
from latreft.engine.reference import ReferenceEngine
from latreft.models.classifier import Classifier
from latreft.models.tokenisation import TextTokenizer
from latreft.models.tokenizer_training import train_tokenizer
from latreft.training import Checkpoint

TEXTS = [
    "a joy to watch", "great cast, great film", "loved it", "what a wonderful and warm story this is",
    "dull", "a waste of time!", "the plot was worse than the acting", "bad, bad, bad film",
]  # fmt: skip
LABELS = [1, 1, 1, 1, 0, 0, 0, 0]
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "lat_reft": {
        "attack_layer": 1, "reft_layer": 2, "rank": 4, "window": 5, "epsilon": 0.3, "steps": 2, "examples": 8,
        "epochs": 3, "batch_size": 4, "learning_rate": 0.02,
    },
    "lat": {
        "attack_layer": 1, "window": 5, "epsilon": 0.5, "steps": 2, "examples": 8, "epochs": 3, "batch_size": 4,
        "learning_rate": 2e-3,
    },
    "cat": {
        "lora_rank": 2, "lora_alpha": 4, "steps": 2, "epsilon": 0.1, "step_size": 0.05, "examples": 8, "epochs": 3,
        "batch_size": 4, "learning_rate": 0.01,
    },
    "r2d2": {
        "rounds": 2, "attacked_per_round": 2, "gcg_start": 1, "gcg_end": 2, "gcg_r_max": 2, "top_k": 4, "candidates": 3,
        "suffix_tokens": 3, "augmented": 8, "steps_per_round": 3, "batch_size": 4, "learning_rate": 2e-3,
    },
}  # fmt: skip
TRAINED = tuple(method for method in SETTINGS if method != "none")


@cache
def tokenizer() -> TextTokenizer:
    return TextTokenizer(train_tokenizer(TEXTS, 300, beginning=True))


def fresh(name: str = "llama", dtype: torch.dtype = torch.float32, head: float = 10.0) -> Classifier:
    return classifier(name, dtype=dtype, vocabulary=len(tokenizer()), head=head)


@cache
def scores(name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return neuron_scores(fresh(name, dtype), arm(fresh(name, dtype), {}).examples, 4)


def arm(model: Classifier, neurons: dict[str, torch.Tensor], **parts: Any) -> Training:
    """What a method is given; ``parts`` replace the defaults."""
    examples = tokenizer().examples([f"t{i}" for i in range(len(TEXTS))], TEXTS, LABELS, 40)
    given = {"engine": ReferenceEngine(), "classifier": model, "tokenizer": tokenizer(), "examples": examples,
             "scores": neurons, "seed": 3, "max_length": 40, "log": lambda _message: None}  # fmt: skip
    return Training(**given | parts)


def settings(method: str, **changes: Any) -> Any:
    return defense_module(method, "test").Settings(**SETTINGS[method] | changes)


def train(method: str, model: Classifier | None = None, changes: dict[str, Any] | None = None, **parts: Any) -> Trained:
    """Train ``method`` on ``model`` (a fresh one by default)."""
    model = fresh() if model is None else model
    run = arm(model, scores(model.family.name, model.dtype), **parts)
    return defense_module(method, "test").train(run, settings(method, **changes or {}))


def checkpoint(path: Path, fingerprint: str = "one", every_seconds: float = 0.0) -> Checkpoint:
    return Checkpoint(path, fingerprint, every_seconds, lambda _message: None)


class StopAt:
    """Progress that dies at a step, before the step's state is saved, as a killed job does."""

    def __init__(self, step: int):
        self.step = step

    def update(self, done: int, total: int, values: object) -> None:
        if done == self.step:
            raise KeyboardInterrupt
