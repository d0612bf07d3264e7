"""CUDA graphs of window passes: a pass over a few tokens is bound by kernel launches unless it is captured.

What is captured is the engine's eager code, run on fixed buffers: a *twin* of a prepared batch whose stored prefix,
states and masks are copied into place before each replay. Prefixes are rounded up to a multiple of ``ROOM`` positions,
the surplus masked, so that few graphs serve batches of all lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from latreft.engine.prefix import Prefix
from latreft.interventions.edits import Edits, Perturbation, ReftEdit
from latreft.interventions.reft import LoReFT, loreft
from latreft.models.attention import MASKED

ROOM = 64
WARM_UPS = 2
T = TypeVar("T")


def capturing_is_possible(device: torch.device) -> bool:
    """On a GPU, and while nothing (a FLOP counter) watches operators: a replayed graph runs none."""
    return device.type == "cuda" and _get_current_dispatch_mode() is None


def rounded(positions: int) -> int:
    """The room for a prefix of ``positions``."""
    return max(ROOM, -(-positions // ROOM) * ROOM)


# --- edits as plain tensors ---

Form = tuple[tuple[str, tuple[int, bool] | None, tuple[int, int] | None], ...]


def flatten(edits: Sequence[Edits]) -> tuple[Form, list[Tensor]] | None:
    """Edits as a hashable form and the tensors that fill it; None for an intervention that is not LoReFT.

    A LoReFT gives its basis, W and b, each intervention once.
    """
    tensors: list[Tensor] = []
    places: dict[int, int] = {}
    form = []
    for one in edits:
        perturbation = reft = None
        if one.perturbation is not None:
            perturbation = (one.perturbation.layer, one.perturbation.base is not None)
            tensors.append(one.perturbation.delta)
            tensors += [] if one.perturbation.base is None else [one.perturbation.base]
        if one.reft is not None:
            intervention = one.reft.intervention
            if not isinstance(intervention, LoReFT):
                return None
            if id(intervention) not in places:
                places[id(intervention)] = len(places)
            reft = (one.reft.layer, places[id(intervention)])
        form.append((one.order, perturbation, reft))
    for one in edits:
        if one.reft is not None and places.pop(id(one.reft.intervention), None) is not None:
            module: Any = one.reft.intervention
            tensors += [module.basis(), module.source.weight, module.source.bias]
    return tuple(form), tensors


def moved_by(form: Form) -> int:
    """How many of a form's tensors are perturbations and their centres: the first ones."""
    return sum(1 + perturbation[1] for _, perturbation, _ in form if perturbation is not None)


def unflatten(form: Form, tensors: Sequence[Tensor]) -> list[Edits]:
    """The edits of a form, made of other tensors."""
    count = moved_by(form)
    moving, fixed = iter(tensors[:count]), tensors[count:]

    def intervention_of(place: int) -> Callable[[Tensor], Tensor]:
        basis, weight, bias = fixed[3 * place : 3 * place + 3]
        return lambda hidden: loreft(hidden, basis, weight, bias)

    edits = []
    for order, perturbation, reft in form:
        edits.append(
            Edits(
                None
                if perturbation is None
                else Perturbation(perturbation[0], next(moving), next(moving) if perturbation[1] else None),
                None if reft is None else ReftEdit(reft[0], intervention_of(reft[1])),
                order,  # type: ignore[arg-type]
            )
        )
    return edits


# --- fixed places ---


class PrefixBuffers:
    """A fixed place for the prefixes of batches of one size; shorter prefixes are masked on the left."""

    def __init__(self, like: Prefix, room: int):
        def wider(tensor: Tensor) -> Tensor:
            examples, heads, _, depth = tensor.shape
            return torch.zeros(examples, heads, room, depth, dtype=tensor.dtype, device=tensor.device)

        self.prefix = Prefix(
            [wider(key) for key in like.keys],
            [wider(value) for value in like.values],
            like.prefix_bias.new_empty(*like.prefix_bias.shape[:-1], room),
            like.window_bias.clone(),
        )

    def fill(self, prefix: Prefix) -> None:
        own = self.prefix
        first = own.positions - prefix.positions
        for fixed, given in ((own.keys, prefix.keys), (own.values, prefix.values)):
            for there, here in zip(fixed, given, strict=True):
                there[:, :, first:].copy_(here)
        own.prefix_bias.fill_(MASKED)
        own.prefix_bias[..., first:].copy_(prefix.prefix_bias)
        own.window_bias.copy_(prefix.window_bias)


@dataclass
class Captured:
    """A graph, and the fixed tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Tensor

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay on new inputs; the result is overwritten by the next replay."""
        for fixed, given in zip(self.inputs, inputs, strict=True):
            fixed.copy_(given)
        self.graph.replay()
        return self.output


def capture(function: Callable[..., Tensor], inputs: Sequence[Tensor], pool: Any) -> Captured:
    """Capture ``function`` on copies of ``inputs``. It must not wait for the GPU and must give one tensor."""
    fixed = [tensor.detach().clone() for tensor in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            function(*fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = function(*fixed)
    return Captured(graph, fixed, output)


class Graphs:
    """The graphs and buffers of one engine, each made at its first use."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._kept: list[Any] = []
        self._pool: Any = None

    @property
    def pool(self) -> Any:
        """One memory pool for all graphs: they run one after another, and results are taken before the next replay."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def once(self, key: Hashable, owner: Any, make: Callable[[], T]) -> T:
        """What ``make`` gave for ``key``; ``owner`` (whose id is part of the key) is kept alive with it."""
        if key not in self._made:
            self._made[key] = make()
            self._kept.append(owner)
        return self._made[key]
