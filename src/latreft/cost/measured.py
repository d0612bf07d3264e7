"""What a step really cost: FLOPs of the operators that ran, seconds, peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Two products forward. Shapes [B, H, S, d], [B, H_kv, T, d], [B, H_kv, T, d_v]: grouped heads are all charged."""
    batch, heads, queries, depth = query
    return 2 * batch * heads * queries * key[2] * (depth + value[3])


def _attention_backward(_gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Five products backward: the scores are made again, then the gradients of scores, query, key and value."""
    batch, heads, queries, depth = query
    return 2 * batch * heads * queries * key[2] * (3 * depth + 2 * value[3])


def _fused_attention() -> dict[Any, Callable[..., int]]:
    """torch's own counter takes the CPU's fused attention for free and refuses grouped heads on a GPU (2.11, 2.13)."""
    aten = torch.ops.aten
    names = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    mapping: dict[Any, Callable[..., int]] = {}
    for name in names:
        mapping[getattr(aten, f"_scaled_dot_product_{name}")] = _attention
        mapping[getattr(aten, f"_scaled_dot_product_{name}_backward")] = _attention_backward
    return mapping


def operators_are_watched() -> bool:
    """Whether something looks at each operator at present, as :class:`FlopMeter` does: what hides some from it is not to
    be used then."""
    return _get_current_dispatch_mode() is not None


class FlopMeter(TorchDispatchMode):
    """Count the FLOPs, forward and backward, of everything that runs inside ``with FlopMeter() as meter:``.

    Counted are matrix products (mm, addmm, bmm, baddbmm), convolutions and scaled-dot-product attention, a
    multiply-add as 2. Fused attention is charged in full, masked pairs included: two products forward, five backward
    (the scores are made again). Not counted: element-wise work, norms, softmax, matrix-vector products,
    decompositions (an orthogonal parametrisation), kernels of one's own that torch does not know, and a replayed CUDA
    graph, which runs no operators: measure such a step on its eager path.

    The formulas are torch's. Its own counter takes five times as long: it follows the modules, too, and looks for a
    decomposition of every operator each time. A step of many small operators is then bound by being counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._formulas = FlopCounterMode(display=False, custom_mapping=_fused_attention()).flop_registry
        self._counts: Counter[Any] = Counter()
        self._free: set[Any] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._free:
            return func(*args, **kwargs)
        if (formula := self._formulas.get(func._overloadpacket)) is not None:
            output = func(*args, **kwargs)
            self._counts[func._overloadpacket] += formula(*args, **kwargs, out_val=output)
            return output
        with self:  # in inference mode operators come whole that are made of others
            output = func.decompose(*args, **kwargs)
        if output is not NotImplemented:
            return output
        self._free.add(func)
        return func(*args, **kwargs)

    @property
    def flops(self) -> int:
        """FLOPs so far."""
        return int(self._counts.total())

    @property
    def by_operator(self) -> dict[str, int]:
        """FLOPs so far of each operator, by its name."""
        return {str(operator): int(flops) for operator, flops in self._counts.items()}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Wall-clock ``seconds`` of a ``with`` block; on a GPU the queued work of before is waited for, and that of the
    block is part of it."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.seconds = 0.0

    def __enter__(self) -> Self:
        _synchronize(self.device)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        _synchronize(self.device)
        self.seconds = time.perf_counter() - self._start


@dataclass(frozen=True)
class PeakMemory:
    """A peak in bytes and what it is the peak of."""

    bytes: int
    measure: str


def reset_peak_memory(device: torch.device | str) -> None:
    """Start a new peak on a GPU; the resident peak of a process (CPU) cannot be reset and stays."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device | str) -> PeakMemory:
    """Peak memory: on a GPU of torch's tensors on ``device`` since the last reset (``cuda_allocated``); on the CPU of
    the whole process since it began (``process_resident``), which is another quantity and not to be compared."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return PeakMemory(torch.cuda.max_memory_allocated(device), "cuda_allocated")
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process_resident")
