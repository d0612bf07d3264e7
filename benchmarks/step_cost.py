"""What one training step costs: full passes against exact prefix reuse, side by side in one run.

    PYTHONPATH=src python benchmarks/step_cost.py --models Pythia-1.4B Llama-3.1-8B --out published/bench/step_cost.csv

Random weights in the exact public shapes, bfloat16. A step is its passes, forward and backward; the optimiser's update
of all weights (fine-tuning, LAT) is left out for every method alike. Rows that are measured anew replace their old ones
in the file. ``--free`` measures LAT-ReFT without a surrogate by any kernels, too, beside deterministic ones: their ratio is the
price of determinism.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from common import SHAPES, bandwidth, device_name, interleaved, matrix_rate, random_classifier
from torch.nn import functional as F

from latreft.circuits.allocation import keep_mask, kept_neurons
from latreft.defenses.base import clean_and_adversarial
from latreft.determinism import deterministic
from latreft.engine.interface import Engine
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.engine.whole import gradients_fit, launch_bound
from latreft.files import write_text
from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.interventions.reft import LoReFT
from latreft.interventions.surrogate import prune
from latreft.models.adapter import add_lora
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier
from latreft.training import own_gradients

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
        for number, losses in enumerate(clean_and_adversarial(prepared, batch, layer, delta, 1.0)):
            losses.total.backward()
            if number == 0:
                own_gradients(model.parameters())
            del losses
        model.zero_grad(set_to_none=True)

    return step


def finetune_step(engine: Engine, model: Classifier, batch: Batch) -> Step:
    def step() -> None:
        F.cross_entropy(engine.prepare(model, batch, 1).training_logits(Edits())[0], batch.labels).backward()
        model.zero_grad(set_to_none=True)

    return step


def limit_ms(name: str, size: int, tokens: int, rate: float, bytes_per_second: float) -> float:
    """The least a LAT-ReFT step can take: the prefix pass's arithmetic at the measured matrix-product rate, and the
    weights of the blocks above the attack layer read once per window pass (K inner and one outer, forward and
    backward) at the measured bandwidth."""
    shape = SHAPES[name]
    attack_layer, _ = layers_of(name)
    arithmetic = 2 * shape.block_parameters * shape.layers * size * tokens / rate
    above = 2 * shape.block_parameters * (shape.layers - attack_layer)
    return 1e3 * (arithmetic + 2 * (K + 1) * above / bytes_per_second)


@dataclass(frozen=True)
class Way:
    """How a step is run: by which engine, with which surrogate, by deterministic kernels only or by any."""

    engine: str
    surrogate: str = "none"
    deterministic: bool = True

    def of(self, step: Step) -> Step:
        """``step``, run this way."""

        def run() -> object:
            deterministic(self.deterministic)
            return step()

        return run


Runs = dict[Way, Step]
KEY = ["device", "model", "method", "engine", "surrogate", "batch", "tokens", "window", "compiled", "deterministic"]


@dataclass
class Bench:
    """One model on one device, and the rows measured so far, written after each method."""

    name: str
    args: argparse.Namespace
    device: torch.device
    model: Classifier

    def engines(self, eager: bool = False) -> dict[str, Engine]:
        """Fresh engines: what an old one has captured would hold memory. ``eager``: reuse without capturing and
        compiling, too, which tells what reuse alone saves."""
        engines: dict[str, Engine] = {"reference": ReferenceEngine()}
        if eager:
            engines["reuse_eager"] = ReuseEngine(capture=False)
        return engines | {"reuse": ReuseEngine(compiled=self.args.compiled)}

    def batch(self, size: int) -> Batch:
        return batch_of(size, self.args.tokens, SHAPES[self.name].vocabulary, self.device)

    def record(self, method: str, size: int, runs: Runs, *, compiles: bool, window: int | None = None) -> None:
        """Time ``runs`` in turn and write their rows; where one does not fit the memory, none is written. ``compiles``:
        whether passes of reuse are among those that can be compiled; ``window``: how many tokens change."""
        try:
            timings = interleaved(
                {way: way.of(step) for way, step in runs.items()}, self.device, repeats=self.args.repeats
            )
        except torch.OutOfMemoryError as error:
            print(f"{self.name}, {method}, batch {size}: out of memory ({str(error)[:80]})", flush=True)
            return
        rows = []
        for way, timing in timings.items():
            row = {"device": device_name(self.device), "torch": torch.__version__, "model": self.name, "method": method}
            row |= {"engine": way.engine, "surrogate": way.surrogate, "batch": size, "tokens": self.args.tokens}
            row |= {
                "window": window or self.args.window,
                "compiled": self.args.compiled and self.device.type == "cuda" and way.engine == "reuse" and compiles,
            }
            row |= {"deterministic": way.deterministic}
            rows.append(row | timing.columns())
            print(rows[-1], flush=True)
        write_text(self.args.out, merged(self.args.out, rows, KEY))

    def surrogate(self) -> Classifier:
        """A quarter of all neurons cut, by random scores: layers differ in width, as they do by ActGrad."""
        scores = {"act_grad": torch.rand(self.model.layers, SHAPES[self.name].mlp_width, dtype=torch.float64)}
        return prune(self.model, kept_neurons(keep_mask("act_grad", scores, PRUNED, 0)))

    def lat_reft(self) -> None:
        """Every surrogate by both engines at the first batch size, by reuse alone at the others."""
        for size in self.args.batch:
            for surrogate in self.args.surrogates:
                self.record("lat_reft", size, self.lat_reft_runs(size, surrogate), compiles=True)
                gc.collect()  # before the next surrogate is made

    def lat_reft_runs(self, size: int, surrogate: str) -> Runs:
        """One step by each engine; nothing of it outlives the runs."""
        batch = self.batch(size)
        pruned = self.model if surrogate == "none" else self.surrogate()
        compared = size == self.args.batch[0]
        kernels = (True, False) if self.args.free and compared and surrogate == "none" else (True,)
        return {
            Way(label, surrogate, strict): lat_reft_step(
                engine, self.model, batch, self.name, self.args.window, surrogate, pruned
            )
            for strict in kernels
            for label, engine in self.engines(eager=surrogate == "none").items()
            if label == "reuse" or compared
        }

    def lat(self) -> None:
        """All weights trained."""
        self.model.requires_grad_(True)
        size = self.args.batch[0]
        layer = layers_of(self.name)[0]
        runs: Runs = {
            Way(label): perturbed_step(engine, self.model, self.batch(size), layer, self.args.window, K)
            for label, engine in self.engines().items()
        }
        self.record("lat", size, runs, compiles=True)
        self.model.requires_grad_(False)

    def _whole(self, size: int) -> dict[str, Engine]:
        """The engines for passes over whole texts: reuse can do no more than capture them, on a small model."""
        engines = self.engines()
        captured = launch_bound(self.model, size * self.args.tokens) and gradients_fit(self.model)
        return engines if captured else {"reference": engines["reference"]}

    def finetune(self) -> None:
        """All weights trained on clean text."""
        self.model.requires_grad_(True)
        size = self.args.batch[0]
        runs: Runs = {
            Way(label): finetune_step(engine, self.model, self.batch(size))
            for label, engine in self._whole(size).items()
        }
        self.record("finetune", size, runs, compiles=False)
        self.model.requires_grad_(False)

    def cat(self) -> None:
        """LoRA trained against perturbed embeddings: the whole sequence changes, so nothing can be reused. Adapters run
        in all passes, for bfloat16 weights are too coarse to multiply them out."""
        add_lora(self.model, rank=16, alpha=32, seed=0)
        size = self.args.batch[0]
        runs: Runs = {
            Way(label): perturbed_step(engine, self.model, self.batch(size), 0, self.args.tokens, 10)
            for label, engine in self._whole(size).items()
        }
        self.record("cat", size, runs, compiles=False, window=self.args.tokens)


SURROGATES = ("none", "exact", "window")
METHODS = ("lat_reft", "lat", "finetune", "cat")  # cat last: its adapters stay in the model


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
    parser.add_argument("--compiled", action="store_true", help="compile the blocks of the reuse engine's passes")
    parser.add_argument("--free", action="store_true", help="measure kernels that are not deterministic, too")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--surrogates", nargs="+", default=list(SURROGATES), choices=SURROGATES)
    parser.add_argument(
        "--out", type=Path, default=Path("published/bench/step_cost.csv"), help="rows of equal settings are replaced"
    )
    args = parser.parse_args()
    if args.window > args.tokens:
        parser.error(f"--window is {args.window}, longer than the text; --tokens is {args.tokens}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    deterministic()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    scale = (8192, 4.0) if device.type == "cuda" else (256, 0.01)
    rate, read = matrix_rate(device, dtype, scale[0]), bandwidth(device, scale[1])
    for name in args.models:
        limits = [
            {
                "device": device_name(device),
                "model": name,
                "batch": size,
                "tokens": args.tokens,
                "matrix_tflop_per_s": round(rate / 1e12, 1),
                "read_gb_per_s": round(read / 1e9, 1),
                "limit_ms": round(limit_ms(name, size, args.tokens, rate, read), 3),
            }
            for size in args.batch
        ]
        path = args.out.with_name("step_limit.csv")
        write_text(path, merged(path, limits, ["device", "model", "batch", "tokens"]))
        bench = Bench(name, args, device, random_classifier(name, device, dtype))
        for method in METHODS:
            if method in args.methods:
                getattr(bench, method)()
        del bench
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
