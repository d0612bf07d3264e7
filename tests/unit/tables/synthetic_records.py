"""Plausible run records for tests of tables and figures, and the cells that go with them."""

import hashlib
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from latreft import artefacts
from latreft.files import write_json
from latreft.records import Metric, ModelInfo, RunRecord, rate, write_record
from latreft.tables.context import Context, read_records

TITLES = {
    "models": {"pythia_1.4b": "Pythia-1.4B", "qwen2.5_3b": "Qwen2.5-3B", "llama_3.1_8b": "Llama-3.1-8B"},
    "datasets": {"imdb": "IMDB", "enron": "EnronSpam", "password_match": "PasswordMatch"},
}
MODELS = tuple(TITLES["models"])
LAYERS = {"early": 4, "middle": 12, "late": 22}
COUNTS = ("accuracy_before", "accuracy_after", "asr", "asr_of_correct", "asr_round_trip", "round_trip")
N, N_ACCURACY = 100, 22253


def share(*parts):
    """A share that depends on nothing but ``parts``."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


def cell(method, *, label=None, panel="main", dataset="imdb", model="pythia_1.4b", arm=None, seed=0, attacks=("gcg",)):
    return {
        "panel": panel, "label": label or method, "dataset": dataset, "model": model, "method": method,
        "arm": arm or method, "seed": seed, "attacks": list(attacks),
    }  # fmt: skip


class Runs:
    """A folder of records; ``write`` adds those of one arm."""

    def __init__(self, folder: Path, scale="small"):
        self.folder, self.scale, self.paths = folder, scale, []

    def record(self, cell, kind, metrics, attack=None, **changes):
        run = {
            "kind": kind, "scale": self.scale, "dataset": cell["dataset"], "method": cell["method"],
            "arm": cell["arm"], "seed": cell["seed"], "attack": attack, "settings": {}, "metrics": metrics,
            "model": ModelInfo(name=cell["model"], family="llama", revision="0" * 40, parameters=10**9),
        }  # fmt: skip
        record = RunRecord(**(run | changes))
        place = {"scale": record.scale, **cell, "attack": attack}
        path = self.folder / artefacts.RECORD_OF[kind].format(**place)
        write_record(record, path)
        self.paths.append(path)
        return record

    def write(
        self, cell, *, asr=None, accuracy=0.95, settings=None, cost=None, kinds=("accuracy", "train", "cost", "attack")
    ):
        """Records of an arm. ``asr`` maps an attack to its rate; settings and cost go into the training record."""
        if "accuracy" in kinds:
            self.record(cell, "accuracy", {"accuracy": rate(round(accuracy * N_ACCURACY), N_ACCURACY)})
        settings = {} if cell["method"] == "none" else settings or {"reft_layer": 12, "window": 20}
        if "train" in kinds:
            loss = {"final_clean": Metric(value=0.25, unit="nats")}
            cost_of_run = {"seconds": 12.5, "peak_memory_bytes": 123, "device": "cpu", "trainable_parameters": 262208}
            self.record(cell, "train", loss, settings=settings, cost=cost_of_run)
        if "cost" in kinds:
            self.record(cell, "cost", {}, settings=settings, cost=costs() if cost is None else cost)
        if "attack" in kinds:
            for attack in cell["attacks"]:
                self.attack(cell, attack, (asr or {}).get(attack, share(cell["arm"], cell["seed"], attack)))

    def attack(self, cell, attack, value, n=N):
        hits, right = round(value * n), round(0.97 * n)
        hits = min(hits, right)
        numbers = {
            "accuracy_before": (right, n), "accuracy_after": (right - hits, n), "asr": (hits, n),
            "asr_of_correct": (hits, right), "asr_round_trip": (round(0.9 * hits), n), "round_trip": (round(0.9 * n), n),
        }  # fmt: skip
        return self.record(cell, "attack", {name: rate(*numbers[name]) for name in COUNTS}, attack=attack)

    def classifier(self, dataset, model, value=0.944):
        """A clean classifier's record and cell."""
        own = cell("finetune", dataset=dataset, model=model, arm="classifier", seed=42, attacks=())
        self.record(own, "finetune", {"accuracy": rate(round(value * N_ACCURACY), N_ACCURACY)}, settings={"epochs": 3})
        return {"dataset": dataset, "model": model}

    def context(self, target, cells, **further):
        values = {
            "target": target, "title": f"Title of {target}", "scale": self.scale, "scale_title": "SmolLM2 on one GPU",
            "cells": cells, "records": read_records(self.paths), "titles": TITLES,
        }  # fmt: skip
        return Context(**(values | further))


def costs(paper=19.6e12, uniform=17.2e12, measured=16.6e12, percent=0.0203):
    return {
        "paper_flops_per_example": paper, "uniform_flops_per_example": uniform, "measured_flops_per_example": measured,
        "trainable_parameters": 262208, "trainable_percent": percent, "surrogate_parameters": 10**9,
    }  # fmt: skip


def write_scores(path: Path, layers=24, neurons=8192, emptied=(), seed=0):
    """A score file with keep masks at 25%: ActGrad keeps early layers, ActDiff is diffuse."""
    noise = np.random.default_rng(seed)
    slope = np.linspace(1.6, 0.25, layers)[:, None]
    tensors = {}
    for rule, trend in (("act_grad", slope), ("act_diff", np.ones((layers, 1)) + 0.2 * slope[::-1])):
        clumps = np.repeat(noise.gamma(2.0, 1.0, (layers, -(-neurons // 64))), 64, axis=1)[:, :neurons]
        scores = trend * (clumps + noise.gamma(2.0, 1.0, (layers, neurons)))
        scores[[layer - 1 for layer in emptied]] = 0
        keep = np.zeros(scores.size, dtype=np.uint8)
        keep[np.argsort(-scores.ravel(), kind="stable")[: round(0.75 * scores.size)]] = 1
        tensors |= {rule: scores, f"keep_{rule}": keep.reshape(scores.shape)}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path


def write_manifest(path: Path, name="imdb", carved=False):
    """A data manifest as the data rule writes it; a carved data set has no validation texts of its own."""
    counts = {"raw": 25000, "distinct": 24904, "filtered": 22465, "dropped": {}}
    splits = {"ft_train": 20000, "attack": 100, "validation": 22253}
    origin = {"train": counts} | ({} if carved else {"validation": counts | {"filtered": 22253}})
    write_json(path, {
        "name": name, "seed": 42, "origin": origin, "splits": {key: {"rows": rows} for key, rows in splits.items()},
    })  # fmt: skip
    return path


# --- whole targets ---


def motivation(runs, seeds=(0,), skip=()):
    arms = {
        "No defense": ("none", "none", 0.97), "Last token, last layer": ("lat_reft", "lat_reft__window_1", 0.88),
        "Suffix window": ("lat_reft", "lat_reft", 0.31),
    }  # fmt: skip
    cells = []
    for label, (method, arm, asr) in arms.items():
        for seed in seeds:
            cells.append(cell(method, label=label, arm=arm, seed=seed))
            if label not in skip:
                runs.write(cells[-1], asr={"gcg": asr + 0.02 * seed})
    return cells


def placement(runs, seeds=(0,), skip=()):
    both = ("random_token", "gcg")
    asr = dict(zip((1, 2, 4, 8, 12, 16, 20), (0.61, 0.55, 0.48, 0.40, 0.33, 0.29, 0.26), strict=True))
    cells = []
    for seed in seeds:
        for window, value in asr.items():
            arm = "lat_reft" if window == 20 else f"lat_reft__window_{window}"
            own = cell("lat_reft", label=str(window), panel="window", arm=arm, seed=seed, attacks=both)
            cells.append(own)
            if str(window) not in skip:
                runs.write(own, asr={"gcg": value + 0.03 * seed, "random_token": 0.12})
        for (name, layer), value in zip(LAYERS.items(), (0.28, 0.26, 0.74), strict=True):
            arm = "lat_reft" if name == "middle" else f"lat_reft__reft_layer_{layer}"
            own = cell("lat_reft", label=name, panel="layer", arm=arm, seed=seed, attacks=both)
            cells.append(own)
            if name not in skip:
                settings = {"reft_layer": layer, "window": 20}
                asrs = {"gcg": value + 0.03 * seed, "random_token": 0.5 * value}
                if name != "middle":
                    runs.write(own, asr=asrs, settings=settings)
    return cells


def pruning(runs, seeds=(0,), skip=()):
    cells = []
    for ratio, asr in (("0.0", 0.26), ("0.25", 0.33), ("0.5", 0.89), ("0.75", 0.95)):
        arm = "lat_reft" if ratio == "0.25" else f"lat_reft__pruning_ratio_{ratio}"
        left = 1 - float(ratio)
        for seed in seeds:
            cells.append(cell("lat_reft", label=ratio, arm=arm, seed=seed))
            if ratio not in skip:
                cost = costs(23e12 * (0.49 + 0.51 * left), 19e12 * (0.55 + 0.45 * left), 18e12 * (0.62 + 0.38 * left))
                runs.write(cells[-1], asr={"gcg": asr}, cost=cost)
    return cells


def selection(runs, seeds=(0,), skip=()):
    rules = {"random": 0.95, "act_diff": 0.97, "act_grad": 0.33, "random_matched": 0.58, "act_grad_uniform": 0.71}
    cells = []
    for rule, asr in rules.items():
        arm = "lat_reft" if rule == "act_grad" else f"lat_reft__pruning_rule_{rule}"
        for seed in seeds:
            cells.append(cell("lat_reft", label=rule, arm=arm, seed=seed))
            if rule not in skip:
                settings = {"pruning_ratio": 0.25, "pruning_rule": rule}
                runs.write(
                    cells[-1], asr={"gcg": asr - 0.02 * seed}, accuracy=0.93 + 0.01 * share(rule), settings=settings
                )
    return cells


def main_imdb(runs, models=MODELS, skip=()):
    cells = []
    for model in models:
        for method in ("none", "r2d2", "lat", "cat", "lat_reft"):
            cells.append(cell(method, model=model, attacks=("random_token", "gcg")))
            if (model, method) not in skip:
                percent = {"r2d2": 100.0, "lat": 100.0, "cat": 0.9505}.get(method, 0.0203)
                cost = costs(None, None, None, 0.0) if method == "none" else costs(percent=percent)
                runs.write(cells[-1], settings={"epsilon": 0.5 if method == "lat" else 0.2}, cost=cost)
    return cells
