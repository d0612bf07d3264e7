"""What a round of candidates and a whole attack cost: full sequences against a shared prefix, side by side.

    PYTHONPATH=src python benchmarks/attack_cost.py --models Pythia-1.4B Llama-3.1-8B --out published/bench/attack_cost.csv

``candidates``: the losses of one round's candidates. ``gradient``: one gradient of the attacked tokens. ``gcg``: whole
attacks at the paper's strength on ``--examples`` contents of 100 to ``--content`` tokens, one by one and several in flight.
"""

from __future__ import annotations

import argparse
import gc
from functools import partial
from pathlib import Path

import torch
from common import SHAPES, device_name, interleaved, random_classifier
from step_cost import LAYERS, merged

from latreft.attacks import gcg
from latreft.attacks.together import run_all
from latreft.determinism import deterministic
from latreft.engine.interface import Defended, Engine
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.files import write_text
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT

KEY = ["device", "model", "attack", "engine", "content_tokens", "suffix_tokens", "candidates", "compiled"]


def content_of(length: int, vocabulary: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def measure(name: str, args: argparse.Namespace, device: torch.device) -> list[dict]:
    """All rows of one model."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_classifier(name, device, dtype)
    vocabulary = SHAPES[name].vocabulary
    reft = LoReFT(model.width, min(64, model.width // 2)).to(device).requires_grad_(False)
    defended = Defended(model, ReftEdit(LAYERS.get(name, (1, 2))[1], reft), 20)
    engines: dict[str, Engine] = {"reference": ReferenceEngine(), "reuse": ReuseEngine(compiled=args.compiled)}
    content = content_of(args.content, vocabulary, 0)
    candidates = torch.randint(3, vocabulary, (args.candidates, args.suffix), device=device)
    rows = []

    def record(attack: str, timings: dict, length: int) -> None:
        for engine, timing in timings.items():
            row = {"device": device_name(device), "torch": torch.__version__, "model": name, "attack": attack}
            row |= {
                "compiled": args.compiled and device.type == "cuda" and engine == "reuse",
                "engine": engine,
                "content_tokens": length,
                "suffix_tokens": args.suffix,
                "candidates": args.candidates,
            }
            rows.append(row | {key: value for key, value in timing.columns().items() if key != "tflop"})
            print(rows[-1], flush=True)

    searches = {label: e.search(defended, content, len(content), 0, args.candidates) for label, e in engines.items()}
    losses = {label: lambda s=search: s.losses(candidates) for label, search in searches.items()}
    record("candidates", interleaved(losses, device, repeats=args.repeats, flops=False), args.content)
    gradients = {label: lambda s=search: s.gradient(candidates[0]) for label, search in searches.items()}
    record("gradient", interleaved(gradients, device, repeats=args.repeats, flops=False), args.content)

    if name in args.whole:
        allowed = torch.ones(vocabulary, dtype=torch.bool)
        settings = gcg.Settings(
            candidates=args.candidates, tokens=args.suffix, start="random", batch_size=args.candidates
        )
        lengths = torch.linspace(min(100, args.content), args.content, args.examples).long().tolist()

        def attack_all(engine: Engine, together: int) -> None:
            for members in engine.groups(defended, [(length, length) for length in lengths], together):
                searches = [
                    engine.search(defended, content_of(lengths[i], vocabulary, i), lengths[i], 0, args.candidates)
                    for i in members
                ]
                attacks = [
                    partial(
                        gcg.attack, label=0, allowed=allowed, encode=lambda text: (5,), settings=settings,
                        survives=None, generator=torch.Generator().manual_seed(i),
                    )
                    for i in members
                ]  # fmt: skip
                run_all(engine, searches, attacks, settings.tokens, together)

        for together in (1, settings.in_flight):
            whole = {"reuse": partial(attack_all, engines["reuse"], together)}
            timings = interleaved(whole, device, repeats=3, warm_ups=1, flops=False)
            record(f"gcg_{args.examples}_examples_{together}_in_flight", timings, args.content)
    return rows


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(LAYERS), choices=sorted(SHAPES))
    parser.add_argument(
        "--whole",
        nargs="*",
        default=["SmolLM2-135M"],
        choices=sorted(SHAPES),
        help="models that whole attacks are run on",
    )
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--content", type=int, default=502)
    parser.add_argument("--suffix", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--compiled", action="store_true", help="compile the blocks of the reuse engine's passes")
    parser.add_argument("--out", type=Path, default=Path("published/bench/attack_cost.csv"))
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    deterministic()
    for name in args.models:
        rows = measure(name, args, device)
        write_text(args.out, merged(args.out, rows, KEY))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
