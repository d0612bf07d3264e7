"""What one training step costs: full passes against exact prefix reuse, side by side in one run.

    python benchmarks/step_cost.py --models Pythia-1.4B Llama-3.1-8B --out published/bench/step_cost.csv

Random weights in the exact public shapes, bfloat16. A step is its passes, forward and backward; the optimiser's update
of all weights (fine-tuning, LAT) is left out for every method alike. Rows of models that are measured anew replace
their old ones in the file.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from common import SHAPES, bandwidth, device_name, interleaved, matrix_rate, random_classifier
from torch.nn import functional as F

from latreft.circuits.allocation import keep_mask, kept_neurons
from latreft.determinism import deterministic
from latreft.engine.interface import Engine
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.files import write_text
from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.interventions.reft import LoReFT
from latreft.interventions.surrogate import prune
from latreft.models.adapter import add_lora
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier

LAYERS = {"Llama-3.1-8B": (4, 8), "Qwen2.5-3B": (18, 18), "Pythia-1.4B": (4, 12), "SmolLM2-135M": (10, 15)}
K, RANK, PRUNED = 8, 64, 0.25
Step = Callable[[], object]


def layers_of(name: str) -> tuple[int, int]:
    """Attack layer and ReFT layer of Table 4; the tiny models' are theirs."""
    return LAYERS.get(name, (1, 2))


def batch_of(size: int, tokens: int, vocabulary: int, device: torch.device) -> Batch:
    """A batch without padding, as long reviews cut to ``tokens`` are."""
    drawn = torch.randint(3, vocabulary, (size, tokens), generator=torch.Generator().manual_seed(1))
    labels = torch.arange(size) % 2
    return Batch(drawn, torch.ones_like(drawn, dtype=torch.bool), labels, padded=False).to(device)


def lat_reft_step(
    engine: Engine, model: Classifier, batch: Batch, name: str, window: int, surrogate: str, pruned: Classifier
) -> Step:
    """One step of LAT-ReFT, as :mod:`latreft.defenses.lat_reft` runs it."""
    attack_layer, reft_layer = layers_of(name)
    reft = LoReFT(model.width, min(RANK, model.width // 2)).to(model.device)
    defended = Edits(reft=ReftEdit(reft_layer, reft))
    ball = Ball("linf", 0.5)

    def step() -> None:
        with reft.built_once():
            full = engine.prepare(model, batch, window)
            hidden = full.hidden(attack_layer)
            inner = full
            if surrogate != "none":
                inner = engine.prepare(pruned, batch, window, model if surrogate == "window" else None)
            delta = inner.ascend(
                defended, attack_layer, hidden, torch.zeros_like(hidden), batch.labels, ball, steps=K, step_size=0.0625
            )
            logits = full.logits_each(defended, defended.perturbed(attack_layer, delta, hidden))
            loss = F.cross_entropy(logits[0], batch.labels) + F.cross_entropy(logits[1], batch.labels)
            reft.zero_grad()
            loss.backward()

    return step


def perturbed_step(engine: Engine, model: Classifier, batch: Batch, layer: int, window: int, steps: int) -> Step:
    """One step of LAT (``layer`` > 0) or CAT (``layer`` 0, the window being the whole sequence)."""
    ball = Ball("l2_token" if layer == 0 else "l2_window", 1.0)

    def step() -> None:
        prepared = engine.prepare(model, batch, window)
        start = torch.zeros(len(batch), window, model.width, dtype=model.dtype, device=model.device)
        delta = prepared.ascend(Edits(), layer, None, start, batch.labels, ball, steps=steps, step_size=0.2)
        F.cross_entropy(prepared.training_logits(Edits()), batch.labels).backward()
        F.cross_entropy(prepared.training_logits(Edits().perturbed(layer, delta)), batch.labels).backward()
        model.zero_grad(set_to_none=True)

    return step


def finetune_step(model: Classifier, batch: Batch) -> Step:
    def step() -> None:
        F.cross_entropy(model(batch), batch.labels).backward()
        model.zero_grad(set_to_none=True)

    return step


def limit_ms(name: str, size: int, tokens: int, rate: float, bytes_per_second: float) -> float:
    """The least a LAT-ReFT step can take: the prefix pass's arithmetic at the measured matrix-product rate, and the
    weights of the blocks above the attack layer read once per window pass (K inner and one outer, forward and
    backward) at the measured bandwidth."""
    shape = SHAPES[name]
    attack_layer, _ = layers_of(name)
    arithmetic = 2 * shape.block_parameters * size * tokens / rate
    above = 2 * shape.block_parameters * (shape.layers - attack_layer) / shape.layers
    return 1e3 * (arithmetic + 2 * (K + 1) * above / bytes_per_second)


def measure(name: str, args: argparse.Namespace, device: torch.device) -> list[dict]:
    """All rows of one model."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_classifier(name, device, dtype)
    scores = {"act_grad": torch.rand(model.layers, SHAPES[name].mlp_width, dtype=torch.float64)}
    pruned = prune(model, kept_neurons(keep_mask("act_grad", scores, PRUNED, 0)))
    engines: dict[str, Engine] = {"reference": ReferenceEngine(), "reuse": ReuseEngine()}
    rows = []

    def record(method: str, size: int, timings: dict) -> None:
        for (engine, surrogate), timing in timings.items():
            row = {"device": device_name(device), "torch": torch.__version__, "model": name, "method": method}
            row |= {
                "engine": engine,
                "surrogate": surrogate,
                "batch": size,
                "tokens": args.tokens,
                "window": args.window,
            }
            rows.append(row | timing.columns())
            print(rows[-1], flush=True)

    for size in args.batch:
        batch = batch_of(size, args.tokens, SHAPES[name].vocabulary, device)
        runs = {}
        for surrogate in ("none", "exact", "window"):
            for label, engine in engines.items():
                if label == "reference" and size != args.batch[0]:
                    continue  # the full passes' memory is the reason for small batches
                runs[label, surrogate] = lat_reft_step(engine, model, batch, name, args.window, surrogate, pruned)
        record("lat_reft", size, interleaved(runs, device, repeats=args.repeats))
        del runs
        engines["reuse"] = ReuseEngine()
        gc.collect()
    batch = batch_of(args.batch[0], args.tokens, SHAPES[name].vocabulary, device)
    model.requires_grad_(True)
    attack_layer, _ = layers_of(name)
    runs = {
        (label, "none"): perturbed_step(engine, model, batch, attack_layer, args.window, K)
        for label, engine in engines.items()
    }
    record("lat", args.batch[0], interleaved(runs, device, repeats=args.repeats))
    record(
        "finetune",
        args.batch[0],
        interleaved({("reference", "none"): finetune_step(model, batch)}, device, repeats=args.repeats),
    )
    model.requires_grad_(False)
    add_lora(model, rank=16, alpha=32, seed=0)
    cat = {("reference", "none"): perturbed_step(engines["reference"], model, batch, 0, args.tokens, 10)}
    record("cat", args.batch[0], interleaved(cat, device, repeats=args.repeats))
    return rows


def merged(path: Path, rows: list[dict], key: list[str]) -> str:
    """The file's rows with those of ``rows`` in place of rows of equal ``key``, as CSV."""
    frame = pd.DataFrame(rows)
    if path.is_file():
        old = pd.read_csv(path)
        fresh = set(frame[key].itertuples(index=False, name=None))
        old = old[[row not in fresh for row in old[key].itertuples(index=False, name=None)]]
        frame = pd.concat([old, frame], ignore_index=True)
    return frame.sort_values(key, kind="stable").to_csv(index=False, lineterminator="\n")


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(LAYERS), choices=sorted(SHAPES))
    parser.add_argument("--batch", nargs="+", type=int, default=[8, 32], help="the first is that of full passes too")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("published/bench/step_cost.csv"))
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    deterministic()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    scale = (8192, 4.0) if device.type == "cuda" else (256, 0.01)
    rate, read = matrix_rate(device, dtype, scale[0]), bandwidth(device, scale[1])
    limits = []
    for name in args.models:
        rows = measure(name, args, device)
        write_text(args.out, merged(args.out, rows, ["model", "method", "engine", "surrogate", "batch"]))
        for size in args.batch:
            limits.append(
                {"device": device_name(device), "model": name, "batch": size, "tokens": args.tokens,
                 "matrix_tflop_per_s": round(rate / 1e12, 1), "read_gb_per_s": round(read / 1e9, 1),
                 "limit_ms": round(limit_ms(name, size, args.tokens, rate, read), 3)}
            )  # fmt: skip
        path = args.out.with_name("step_limit.csv")
        write_text(path, merged(path, limits, ["model", "batch"]))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
