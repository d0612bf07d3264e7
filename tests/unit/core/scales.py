"""A small scale, its models and its experiments as plain values, for tests to break."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from latreft.config import Scale, load_models, load_scale
from latreft.experiments import Plan, load_plan

MODELS: dict[str, Any] = {
    "tiny": {
        "title": "Tiny", "family": "llama", "layers": 4, "placements": {"early": 1, "middle": 2, "late": 4},
        "source": {"kind": "random", "vocabulary": 300, "shape": {"hidden_size": 16}},
    },
    "other": {
        "title": "Other", "family": "gpt_neox", "layers": 6, "placements": {"early": 2},
        "source": {"kind": "random", "vocabulary": 300, "shape": {"hidden_size": 16}},
    },
}  # fmt: skip

_DATASET = {
    "title": "Words", "label_names": ["no", "yes"], "max_length": 40, "ft_train": 8, "attack": 4,
    "source": {"kind": "generated", "generator": "password_match", "train": 20, "validation": 8},
    "length": {"min_tokens": 1, "max_tokens": 50, "tokenizer": "whitespace"},
}  # fmt: skip

SCALE: dict[str, Any] = {
    "scale": "toy", "title": "toy scale", "datasets": {"words": _DATASET, "more": _DATASET},
    "models": ["tiny", "other"], "main_model": "other", "seeds": [0, 1],
    "methods": {
        "none": {}, "lat": {"attack_layer": "early", "epsilon": 1.0},
        "lat_reft": {"attack_layer": "early", "reft_layer": "last", "epsilon": 0.5, "rank": 16},
    },
    "attacks": {"gcg": {}, "weak": {"kind": "gcg", "rounds": 1}},
    "grids": {"window": [1, 20], "pruning": [0.0, 0.25]},
}  # fmt: skip

EXPERIMENTS: dict[str, Any] = {
    "tables": {
        "main": {
            "title": "Main",
            "groups": [{"datasets": ["words"], "models": "all", "arms": ["none", "lat_reft"], "attacks": ["gcg"]}],
        },
    },
    "figures": {
        "sweep": {
            "title": "Sweep",
            "groups": [
                {"datasets": ["words"], "models": "main", "arms": ["lat_reft"], "vary": {"window": "window"},
                 "attacks": ["weak"]},
                {"panel": "layer", "datasets": ["words"], "models": ["tiny"], "arms": ["lat_reft"],
                 "vary": {"reft_layer": ["early", "late"]}, "attacks": ["gcg"]},
            ],
        },
    },
}  # fmt: skip


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``values`` with the entry at a dotted path set."""
    result = copy.deepcopy(values)
    place = result
    *parents, last = path.split(".")
    for part in parents:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[int(part)]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return result


def models(folder: Path, values: dict[str, Any] = MODELS) -> dict[str, Any]:
    (folder / "models.yaml").write_text(yaml.safe_dump(values))
    return load_models(folder)


def scale(folder: Path, values: dict[str, Any] = SCALE, of: dict[str, Any] = MODELS) -> Scale:
    return load_scale(values, models(folder, of), "config/toy.yaml")


def plan(folder: Path, experiments: dict[str, Any] = EXPERIMENTS, values: dict[str, Any] = SCALE) -> Plan:
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump(experiments))
    return load_plan(scale(folder, values), path)
