"""A batch made ready once: its prefix is stored, and each further pass runs over its last L positions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latreft.engine.graphs import (
    Form,
    Graphs,
    PrefixBuffers,
    capture,
    capturing_is_possible,
    flatten,
    moved_by,
    rounded,
    unflatten,
)
from latreft.engine.prefix import record_prefix
from latreft.engine.reference import FullPrepared, losses_of
from latreft.engine.window import EAGER, Tools, window_logits
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.batch import Batch, positions
from latreft.models.classifier import Classifier, Edit


class Stored:
    """What one pass without gradient leaves behind: the prefix's keys and values, the window's states of every layer."""

    def __init__(self, model: Classifier, batch: Batch, window: int):
        states: dict[int, Tensor] = {}

        def keep(layer: int) -> Edit:
            def catch(state: Tensor) -> Tensor:
                states[layer] = state[:, -window:]
                return state

            return catch

        with model.edited({layer: keep(layer) for layer in range(model.layers + 1)}):
            self.prefix = record_prefix(model, batch, batch.length - window, window)
        self.states = {layer: state.clone() for layer, state in states.items()}
        self.positions = positions(batch.mask)[:, -window:]


class ReusePrepared:
    """A batch whose passes run over its last L positions, from the lowest layer that changes.

    With ``graphs``, passes are captured once a shape and replayed, where the device can.
    """

    def __init__(
        self,
        model: Classifier,
        batch: Batch,
        window: int,
        prefix_of: Classifier | None = None,
        tools: Tools = EAGER,
        same_prefix: ReusePrepared | None = None,
    ):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.model, self.batch, self.prefix_of, self.tools = model, batch, prefix_of, tools
        self.window = min(window, batch.length)
        self.mask = batch.mask[:, -self.window :]
        self._same_prefix = same_prefix
        self._stored: Stored | None = None
        self._weights: int | None = None

    def _version(self) -> int:
        """Changes with every in-place change of a trainable weight."""
        return sum(p._version for p in self.model.parameters() if p.requires_grad)

    @property
    def stored(self) -> Stored:
        """The stored prefix, made at the first use; an error where the weights have changed since."""
        if self._same_prefix is not None:
            return self._same_prefix.stored
        if self._stored is None:
            with self.tools.compiling(self.prefix_of or self.model) as model:
                self._stored = Stored(model, self.batch, self.window)
            self._weights = self._version()
        elif self._weights != self._version():
            raise RuntimeError("the model's weights changed after this batch was prepared; prepare it again")
        return self._stored

    def hidden(self, layer: int) -> Tensor:
        if self.prefix_of is not None and layer > 0:
            return self._surrogate_hidden(layer)
        self.model.layer_module(layer)
        return self.stored.states[layer]

    def _surrogate_hidden(self, layer: int) -> Tensor:
        """The window's state of a surrogate that has another model's prefix: run from the embeddings."""
        caught: list[Tensor] = []

        def catch(state: Tensor) -> Tensor:
            caught.append(state)
            return state

        stored = self.stored
        with torch.no_grad(), self.model.edited({layer: catch}):
            window_logits(
                self.model, 0, stored.states[0][:, None], stored.prefix, stored.positions, [Edits()], self.mask
            )
        return caught[0]

    def logits(self, edits: Edits) -> Tensor:
        return self.logits_each(edits)[0]

    def logits_each(self, *edits: Edits) -> Tensor:
        if (full := self._full(edits)) is not None:
            return full.logits_each(*edits)
        if (twin := self._twin()) is not None and torch.is_grad_enabled():
            flat = flatten(edits)
            if flat is not None and any(tensor.requires_grad for tensor in flat[1]):
                return twin.graphed_logits(*flat)
        return self._logits_each(*edits)

    def _logits_each(self, *edits: Edits) -> Tensor:
        start = lowest(self.model, edits)
        clean = self._start_state(start, edits)
        hidden = torch.stack([one.apply(start, clean, self.mask) for one in edits], dim=1)
        stored = self.stored
        with self.tools.compiling(self.model) as model:
            return window_logits(model, start, hidden, stored.prefix, stored.positions, edits, self.mask)

    def _full(self, edits: Sequence[Edits]) -> FullPrepared | None:
        """Full passes, where the window is the whole text and its embeddings change: there is nothing to reuse."""
        if self.window == self.batch.length and lowest(self.model, edits) == 0:
            return FullPrepared(self.model, self.batch, self.window, self.prefix_of)
        return None

    def _twin(self) -> Twin | None:
        """The fixed-place twin of this batch's shape, filled with this batch; None where nothing can be captured."""
        graphs = self.tools.graphs
        if graphs is None or not capturing_is_possible(self.model.device):
            return None
        room = rounded(self.stored.prefix.positions)
        key = ("twin", id(self.model), id(self.prefix_of), len(self.batch), self.window, room)
        twin = graphs.once(key, (self.model, self.prefix_of), lambda: Twin(self, graphs, room))
        if twin.owner is not self:
            twin.fill(self)
        return twin

    def _whole_twin(self) -> WholeTwin | None:
        """The fixed-place twin of full passes; None where nothing can be captured, or arithmetic is what takes time."""
        graphs, room = self.tools.graphs, rounded(self.batch.length)
        if graphs is None or self.prefix_of is not None or not capturing_is_possible(self.model.device):
            return None
        if len(self.batch) * room * self.model.width > LAUNCH_BOUND:
            return None
        key = ("whole", id(self.model), len(self.batch), room)
        twin = graphs.once(key, self.model, lambda: WholeTwin(self.model, self.batch, graphs, room))
        twin.fill(self.batch)
        return twin

    def _start_state(self, start: int, edits: Sequence[Edits]) -> Tensor:
        """The clean state of the lowest edited layer; a surrogate's is not run where all edits replace it."""
        replaced = [
            one.perturbation for one in edits if one.perturbation is not None and one.perturbation.layer == start
        ]
        if len(replaced) == len(edits) and all(each.base is not None for each in replaced):
            return torch.zeros_like(replaced[0].delta)
        return self.hidden(start)

    def training_logits(self, edits: Edits) -> Tensor:
        return FullPrepared(self.model, self.batch, self.window, self.prefix_of).training_logits(edits)

    def ascend(
        self,
        defended: Edits,
        layer: int,
        base: Tensor | None,
        start: Tensor,
        labels: Tensor,
        ball: pgd.Ball,
        *,
        steps: int,
        step_size: float,
    ) -> Tensor:
        flat = flatten([defended.perturbed(layer, start, base)])
        if (full := self._full([defended.perturbed(layer, start, base)])) is not None:
            if flat is not None and (whole := self._whole_twin()) is not None:
                return whole.graphed_ascent(*flat, labels, ball, steps=steps, step_size=step_size)
            return full.ascend(defended, layer, base, start, labels, ball, steps=steps, step_size=step_size)
        if flat is not None and (twin := self._twin()) is not None:
            return twin.graphed_ascent(*flat, labels, ball, steps=steps, step_size=step_size)

        def loss_of(delta: Tensor) -> Tensor:
            return losses_of(self._logits_each(defended.perturbed(layer, delta, base))[0], labels)

        return pgd.ascend(loss_of, start, self.mask, ball, steps=steps, step_size=step_size)


class Twin(ReusePrepared):
    """A prepared batch in a fixed place, on which passes are captured; see :mod:`latreft.engine.graphs`."""

    def __init__(self, like: ReusePrepared, graphs: Graphs, room: int):
        self.model, self.prefix_of, self.window, self.tools = like.model, like.prefix_of, like.window, like.tools
        self.graphs: Graphs = graphs
        self.owner: ReusePrepared | None = None
        self.mask = like.mask.clone()
        self.buffers = PrefixBuffers(like.stored.prefix, room)
        self._own = copy.copy(like.stored)
        self._own.prefix = self.buffers.prefix
        self._own.positions = like.stored.positions.clone()
        self._own.states = {layer: state.clone() for layer, state in like.stored.states.items()}

    @property
    def stored(self) -> Stored:
        return self._own

    def fill(self, one: ReusePrepared) -> None:
        """Take the place of ``one``: copy what it stored."""
        self.owner = one
        self.mask.copy_(one.mask)
        self.buffers.fill(one.stored.prefix)
        self.stored.positions.copy_(one.stored.positions)
        for layer, state in one.stored.states.items():
            self.stored.states[layer].copy_(state)

    def _key(self, what: str, form: Form, *more: Hashable) -> Hashable:
        return (what, id(self), form, *more)

    def graphed_logits(self, form: Form, tensors: list[Tensor]) -> Tensor:
        """Logits of the edits, differentiable in those of ``tensors`` that require a gradient."""

        def function(*inputs: Tensor) -> Tensor:
            return self._logits_each(*unflatten(form, inputs))

        def make() -> Callable[..., Tensor]:
            sample = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
            graphed: Any = torch.cuda.make_graphed_callables(
                function, sample, pool=self.graphs.pool, allow_unused_input=True
            )
            return graphed

        wants = tuple(tensor.requires_grad for tensor in tensors)
        return self.graphs.once(self._key("logits", form, wants), self, make)(*tensors).clone()

    def graphed_ascent(
        self, form: Form, tensors: list[Tensor], labels: Tensor, ball: pgd.Ball, *, steps: int, step_size: float
    ) -> Tensor:
        """K replays of one PGD step; the first of ``tensors`` is the start."""
        run = partial(replay_ascent, self.graphs, self._key("ascent", form, ball, step_size), self)
        return run(
            lambda inputs: self._logits_each(*unflatten(form, inputs))[0],
            tensors, labels, self.mask, ball, steps=steps, step_size=step_size,
        )  # fmt: skip


LAUNCH_BOUND = 2**22
"""Hidden states' elements of a full pass up to which launching its kernels takes longer than running them."""


class WholeTwin:
    """A batch in a fixed place, rounded up to ``room`` positions by padding, on which full passes are captured."""

    def __init__(self, model: Classifier, like: Batch, graphs: Graphs, room: int):
        shape = (len(like), room)
        device = model.device
        tokens, mask = (
            torch.zeros(shape, dtype=torch.long, device=device),
            torch.zeros(shape, dtype=torch.bool, device=device),
        )
        self.batch = Batch(tokens, mask, torch.zeros_like(tokens[:, 0]))
        self.full = FullPrepared(model, self.batch, room)
        self.graphs, self.length = graphs, room

    def fill(self, batch: Batch) -> None:
        """Take the place of ``batch``; shorter ones are padded on the left."""
        self.length = batch.length
        for fixed, given in ((self.batch.tokens, batch.tokens), (self.batch.mask, batch.mask)):
            fixed.zero_()
            fixed[:, -self.length :].copy_(given)

    def _wide(self, tensor: Tensor) -> Tensor:
        """Perturbations or states [B, T, D] with zeros for the padding."""
        return F.pad(tensor, (0, 0, self.batch.length - self.length, 0))

    def graphed_ascent(
        self, form: Form, tensors: list[Tensor], labels: Tensor, ball: pgd.Ball, *, steps: int, step_size: float
    ) -> Tensor:
        """K replays of one PGD step; the first of ``tensors`` is the start."""
        wide = [self._wide(t) if i < moved_by(form) else t for i, t in enumerate(tensors)]
        run = partial(replay_ascent, self.graphs, ("whole ascent", id(self), form, ball, step_size), self)
        delta = run(
            lambda inputs: self.full.logits(unflatten(form, inputs)[0]),
            wide, labels, self.batch.mask, ball, steps=steps, step_size=step_size,
        )  # fmt: skip
        return delta[:, -self.length :]


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
            return losses_of(logits_of([moved, *rest]), fixed_labels)

        delta.copy_(pgd.step(loss_of, delta.detach().clone(), mask, ball, step_size))
        return delta

    delta, *rest = tensors
    inputs = [ball.project(delta.detach() * mask[..., None]), labels, *(t.detach() for t in rest)]
    step = graphs.once(key, owner, lambda: capture(function, inputs, graphs.pool))
    step(*inputs)
    for _ in range(steps - 1):
        step.graph.replay()
    return step.output.clone()


def lowest(model: Classifier, edits: Sequence[Edits]) -> int:
    """The lowest edited layer, from which passes start; the last one where nothing is edited."""
    return min((layer for one in edits for layer in one.layers()), default=model.layers)
