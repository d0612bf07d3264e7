"""What the benchmarks share: models of the public shapes with random weights, interleaved timing, the device's limits."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from latreft.cost.measured import FlopMeter
from latreft.cost.shapes import PUBLIC_SHAPES, ModelShape
from latreft.models.classifier import Classifier
from latreft.models.families import family

TINY = {
    "tiny-llama": ModelShape("llama", 3, 32, 64, heads=4, kv_heads=2, head_width=8, vocabulary=200),
    "tiny-neox": ModelShape("gpt_neox", 3, 32, 64, heads=4, kv_heads=4, head_width=8, vocabulary=200),
}
SHAPES = {**PUBLIC_SHAPES, **TINY}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def random_classifier(name: str, device: torch.device, dtype: torch.dtype) -> Classifier:
    """A classifier of a public shape with random weights, made on the device."""
    shape = SHAPES[name]
    fam = family(shape.family)
    values: dict[str, Any] = {
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 2048,
    }
    if shape.family != "gpt_neox":
        values["num_key_value_heads"] = shape.kv_heads
    torch.manual_seed(0)
    with device:
        base = fam.build(fam.config(**values), dtype=dtype)
        model = Classifier(base, fam)
    model.initialise_head(0)
    return model.to(device).requires_grad_(False).eval()


@dataclass(frozen=True)
class Timing:
    """Milliseconds of the repeats, TFLOP counted over one eager run, peak memory in GiB."""

    milliseconds: list[float]
    tflop: float
    peak_gib: float

    def columns(self) -> dict[str, float]:
        return {
            "ms_min": round(min(self.milliseconds), 3),
            "ms_median": round(statistics.median(self.milliseconds), 3),
            "ms_max": round(max(self.milliseconds), 3),
            "tflop": round(self.tflop, 6),
            "peak_gib": round(self.peak_gib, 3),
        }


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(
    runs: Mapping[Any, Callable[[], object]],
    device: torch.device,
    *,
    repeats: int,
    warm_ups: int = 2,
    flops: bool = True,
) -> dict[Any, Timing]:
    """Time each run ``repeats`` times after warm-up, in turn: one of each, then again, so that drift hits all alike.

    A run's peak memory is without what the runs before it keep.
    """
    peaks, counts, times = {}, {}, {key: list[float]() for key in runs}
    gpu = device.type == "cuda"
    gc.collect()  # what an earlier call captured lies in cycles
    before = torch.cuda.memory_allocated() if gpu else 0
    for key, run in runs.items():
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            kept = torch.cuda.memory_allocated() - before
        for _ in range(warm_ups):
            run()
        _synchronize(device)
        peaks[key] = (torch.cuda.max_memory_allocated() - kept) / 2**30 if gpu else float("nan")
        counts[key] = 0
        if flops:
            with FlopMeter() as meter:
                run()
            counts[key] = meter.flops
        if gpu:
            torch.cuda.empty_cache()
    for _ in range(repeats):
        for key, run in runs.items():
            _synchronize(device)
            began = time.perf_counter()
            run()
            _synchronize(device)
            times[key].append(1e3 * (time.perf_counter() - began))
    return {key: Timing(times[key], counts[key] / 1e12, peaks[key]) for key in runs}


def _seconds_a_call(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Mean seconds of ``run`` over ``repeats`` calls in a row, after three to warm up."""
    for _ in range(3):
        run()
    _synchronize(device)
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    _synchronize(device)
    return (time.perf_counter() - began) / repeats


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int = 8192, repeats: int = 20) -> float:
    """FLOP/s of one large matrix product."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / _seconds_a_call(lambda: left @ right, device, repeats)


def bandwidth(device: torch.device, gib: float = 4.0, repeats: int = 20) -> float:
    """Bytes/s read by a reduction over ``gib`` GiB of weights."""
    data = torch.ones(max(1, int(gib * 2**29) // 8192), 8192, device=device, dtype=torch.bfloat16)
    vector = torch.ones(8192, 1, device=device, dtype=torch.bfloat16)
    return data.numel() * 2 / _seconds_a_call(lambda: data @ vector, device, repeats)
