"""CUDA graphs of window passes: a pass over a few tokens is bound by kernel launches unless it is captured.

What is captured is the engine's eager code, run on fixed buffers: a *twin* of a prepared batch whose stored prefix,
states and masks are copied into place before each replay. Prefixes are rounded up to a multiple of ``ROOM`` positions,
the surplus masked, so that few graphs serve batches of all lengths.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from latreft import made_once
from latreft.cost.measured import operators_are_watched
from latreft.interventions import pgd
from latreft.interventions.edits import Edits, Perturbation, ReftEdit
from latreft.interventions.reft import LoReFT, loreft

ROOM = 64
WARM_UPS = 2
T = TypeVar("T")


def capturing_is_possible(device: torch.device) -> bool:
    """On a GPU, and while nothing (a FLOP counter) watches operators: a replayed graph runs none."""
    return device.type == "cuda" and not operators_are_watched()


def rounded(positions: int, rows: int) -> int:
    """The room for ``positions`` of a batch of ``rows``.

    Single texts, as attacks have them, come in all lengths and each shape is used a few times only: theirs are coarser,
    for capturing takes longer than the masked positions do.
    """
    step = ROOM if rows > 1 else 4 * ROOM
    return max(step, -(-positions // step) * step)


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


def shapes(tensors: Sequence[Tensor]) -> Hashable:
    """What a graph takes for granted of the tensors that fill a form: interventions differ in rank."""
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)


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


@dataclass
class Captured:
    """A graph, and the fixed tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    output: Any

    def __call__(self, *inputs: Tensor) -> Any:
        """Replay on new inputs; the result is overwritten by the next replay."""
        for fixed, given in zip(self.inputs, inputs, strict=True):
            fixed.copy_(given)
        self.graph.replay()
        return self.output


def capture(function: Callable[..., Any], inputs: Sequence[Tensor], pool: Any) -> Captured:
    """Capture ``function`` on copies of ``inputs``. It must not wait for the GPU; what it gives is overwritten by replays."""
    fixed = [tensor.detach().clone() for tensor in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            function(*fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph, pool=pool):
        output = function(*fixed)
    return Captured(graph, fixed, output)


def graphed_callable(function: Callable[..., Tensor], inputs: Sequence[Tensor], pool: Any) -> Callable[..., Tensor]:
    """``function`` with its forward and its backward pass captured on copies of ``inputs``, differentiable in those that
    require a gradient and in the parameters of ``function``, where it is a module."""
    sample = tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs)
    with uncollected():
        graphed: Any = torch.cuda.make_graphed_callables(
            function, sample, num_warmup_iters=WARM_UPS, pool=pool, allow_unused_input=True
        )
    return graphed  # type: ignore[no-any-return]


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection within the context: a graph or an event that dies while another is captured ends the
    capture with an error."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Waiting:
    """What a captured forward pass left for its backward pass, until that has run or its result is dropped."""

    done = False


class Held(torch.autograd.Function):
    """A copy of a captured pass's result, which keeps ``waiting`` alive as long as its gradient may be asked for."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, waiting: Waiting) -> Tensor:
        ctx.waiting = waiting
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.waiting.done = True
        return gradients[0], None


class Graphs:
    """The graphs and buffers of one engine, each made at its first use.

    All share one memory, so between a captured forward pass and its backward pass no other may run: until then
    :meth:`usable` is False, and passes are eager.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._kept: list[Any] = []
        self._pool: Any = None
        self._waiting: Callable[[], Waiting | None] = lambda: None

    def usable(self, device: torch.device) -> bool:
        """Whether passes on ``device`` may be captured and replayed now."""
        waiting = self._waiting()
        return capturing_is_possible(device) and (waiting is None or waiting.done)

    def held(self, result: Tensor) -> Tensor:
        """A copy of the result of a captured differentiable pass; nothing is replayed until its backward pass has run."""
        waiting = Waiting()
        self._waiting = weakref.ref(waiting)
        return Held.apply(result, waiting)  # type: ignore[no-any-return, no-untyped-call]

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
            made_once.note()
            self._kept.append(owner)
        return self._made[key]


def replay_ascent(
    graphs: Graphs,
    key: Hashable,
    owner: object,
    logits_of: Callable[[Sequence[Tensor]], Tensor],
    tensors: Sequence[Tensor],
    labels: Tensor,
    mask: Tensor,
    ball: pgd.Ball,
    *,
    steps: int,
    step_size: float,
) -> Tensor:
    """:func:`latreft.interventions.pgd.ascend` by one captured step, replayed; the first of ``tensors`` is the start.

    ``logits_of`` [B, 2] of all ``tensors`` must read nothing else that changes between calls with one ``key``.
    """

    def function(delta: Tensor, fixed_labels: Tensor, *rest: Tensor) -> Tensor:
        def loss_of(moved: Tensor) -> Tensor:
            return F.cross_entropy(logits_of([moved, *rest]), fixed_labels, reduction="none")

        delta.copy_(pgd.step(loss_of, delta.detach().clone(), mask, ball, step_size))
        return delta

    delta, *rest = tensors
    inputs = [ball.project(delta.detach() * mask[..., None]), labels, *(t.detach() for t in rest)]
    step = graphs.once((key, shapes(inputs)), owner, lambda: capture(function, inputs, graphs.pool))
    step(*inputs)
    for _ in range(steps - 1):
        step.graph.replay()
    return step.output.clone()
