"""A batch made ready once: its prefix is stored, and each further pass runs over its last L positions."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from latreft.engine.graphs import (
    Form,
    Graphs,
    capture,
    flatten,
    graphed_callable,
    replay_ascent,
    rounded,
    shapes,
    unflatten,
)
from latreft.engine.prefix import record_prefix
from latreft.engine.reference import FullPrepared, losses_of
from latreft.engine.whole import FixedBatch, WholeTwin, filling, gradients_fit, launch_bound
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

    def take(self, other: Stored) -> None:
        """Copy in what a pass over another batch of this window left behind; its prefix may be shorter."""
        self.prefix.take(other.prefix)
        self.positions.copy_(other.positions)
        for layer, state in other.states.items():
            self.states[layer].copy_(state)


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
        if self._weights not in (None, self._version()):
            raise RuntimeError("the model's weights changed after this batch was prepared; prepare it again")
        self._weights = self._version()
        if (place := self._stored_place()) is not None:
            return place.holding(self)
        if self._stored is None:
            with self.tools.compiling(self.prefix_of or self.model, inner=True) as model:
                self._stored = Stored(model, self.batch, self.window)
        return self._stored

    @property
    def storing(self) -> ReusePrepared:
        """Whose prefix pass this batch uses: its own, or that of the model which a surrogate stands in for."""
        return self if self._same_prefix is None else self._same_prefix.storing

    def _stored_place(self) -> StoredPlace | None:
        """Where the prefix pass is captured; None where nothing can be, or where arithmetic is what takes time."""
        if self._same_prefix is not None:
            return self.storing._stored_place()
        model, graphs = self.prefix_of or self.model, self.tools.graphs
        room = rounded(self.batch.length - self.window, len(self.batch))
        if graphs is None or self._stored is not None or not graphs.usable(model.device):
            return None
        if not launch_bound(model, len(self.batch) * (room + self.window)):
            return None
        key = ("stored", id(model), len(self.batch), self.window, room, filling(self.batch, room + self.window))
        return graphs.once(key, model, lambda: StoredPlace(model, self.batch, self.window, room, graphs, self.tools))

    def hidden(self, layer: int) -> Tensor:
        if self.prefix_of is not None and layer > 0:
            return self._surrogate_hidden(layer)
        self.model.layer_module(layer)
        return self.stored.states[layer].clone()

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

    def _logits_each(self, *edits: Edits, ascent: bool = False) -> Tensor:
        start = lowest(self.model, edits)
        clean = self._start_state(start, edits)
        hidden = torch.stack([one.apply(start, clean, self.mask) for one in edits], dim=1)
        stored = self.stored
        with self.tools.compiling(self.model, inner=ascent) as model:
            return window_logits(model, start, hidden, stored.prefix, stored.positions, edits, self.mask)

    def _full(self, edits: Sequence[Edits]) -> FullPrepared | None:
        """Full passes, where the window is the whole text and its embeddings change: there is nothing to reuse."""
        if self.window == self.batch.length and lowest(self.model, edits) == 0:
            return FullPrepared(self.model, self.batch, self.window, self.prefix_of)
        return None

    def _twin(self) -> Twin | None:
        """The fixed-place twin of this batch's shape, filled with this batch; None where nothing can be captured."""
        graphs = self.tools.graphs
        if graphs is None or not graphs.usable(self.model.device):
            return None
        room = rounded(self.stored.prefix.positions, len(self.batch))
        place = self._stored_place()
        key = ("twin", id(self.model), id(self.prefix_of), id(place), len(self.batch), self.window, room)
        twin = graphs.once(key, (self.model, self.prefix_of), lambda: Twin(self, graphs, room))
        if twin.owner is not self:
            twin.fill(self)
        return twin

    def _whole_twin(self) -> WholeTwin | None:
        """The fixed-place twin of full passes; None where nothing can be captured, or arithmetic is what takes time."""
        graphs, rows, room = self.tools.graphs, len(self.batch), rounded(self.batch.length, len(self.batch))
        if graphs is None or self.prefix_of is not None or not graphs.usable(self.model.device):
            return None
        if not launch_bound(self.model, rows * room, predicting=not torch.is_grad_enabled()):
            return None
        window = None if self.window == self.batch.length else self.window
        key = ("whole", id(self.model), rows, room, window, filling(self.batch, room))
        twin = graphs.once(key, self.model, lambda: WholeTwin(self.model, self.batch, graphs, room, window, self.tools))
        twin.fixed.fill(self.batch)
        return twin

    def _start_state(self, start: int, edits: Sequence[Edits]) -> Tensor:
        """The clean state of the lowest edited layer; a surrogate's is not run where all edits replace it."""
        replaced = [
            one.perturbation for one in edits if one.perturbation is not None and one.perturbation.layer == start
        ]
        if len(replaced) == len(edits) and all(each.base is not None for each in replaced):
            return torch.zeros_like(replaced[0].delta)
        return self.hidden(start)

    def training_logits(self, *edits: Edits) -> Tensor:
        flat = flatten(edits)
        fits = not torch.is_grad_enabled() or gradients_fit(self.model)
        if flat is not None and fits and (whole := self._whole_twin()) is not None:
            return whole.logits(*flat)
        return FullPrepared(self.model, self.batch, self.window, self.prefix_of).training_logits(*edits)

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
                return whole.ascent(*flat, labels, ball, steps=steps, step_size=step_size)
            return full.ascend(defended, layer, base, start, labels, ball, steps=steps, step_size=step_size)
        if flat is not None and (twin := self._twin()) is not None:
            return twin.graphed_ascent(*flat, labels, ball, steps=steps, step_size=step_size)

        def loss_of(delta: Tensor) -> Tensor:
            return losses_of(self._logits_each(defended.perturbed(layer, delta, base), ascent=True)[0], labels)

        return pgd.ascend(loss_of, start, self.mask, ball, steps=steps, step_size=step_size)


class StoredPlace:
    """The prefix pass of batches of one shape, captured; what it stores is overwritten by that of the next batch.

    It is stored outside the graphs' memory, into which graphs captured earlier write.
    """

    def __init__(self, model: Classifier, like: Batch, window: int, room: int, graphs: Graphs, tools: Tools):
        self.model, self.window, self.graphs, self.tools = model, window, graphs, tools
        self.fixed = FixedBatch(like, room + window)
        self.owner: ReusePrepared | None = None
        self._stored: Stored | None = None

    def holding(self, one: ReusePrepared) -> Stored:
        """What the pass over the batch of ``one`` leaves behind, run anew if another batch has been here since."""
        if self.owner is not one:
            self.fixed.fill(one.batch)
            self.graphs.once(("prefix", id(self)), self, lambda: capture(self._run, [], self.graphs.pool))()
            self.owner = one
        return self.stored

    @property
    def stored(self) -> Stored:
        """Of the batch that was here last."""
        assert self._stored is not None, "no batch has been here"
        return self._stored

    def _run(self) -> None:
        with self.tools.compiling(self.model, inner=True) as model:
            stored = Stored(model, self.fixed.batch, self.window)
        if self._stored is None:  # the first pass, which warms up
            self._stored = stored
        else:
            self._stored.take(stored)


class Twin(ReusePrepared):
    """A prepared batch in a fixed place, on which passes are captured; see :mod:`latreft.engine.graphs`."""

    def __init__(self, like: ReusePrepared, graphs: Graphs, room: int):
        self.model, self.prefix_of, self.window, self.tools = like.model, like.prefix_of, like.window, like.tools
        self.graphs: Graphs = graphs
        self.owner: ReusePrepared | None = None
        self.mask = like.mask.clone()
        self.place = like._stored_place()
        if self.place is None:
            self._own = copy.copy(like.stored)
            self._own.prefix = like.stored.prefix.roomy(room)
            self._own.positions = like.stored.positions.clone()
            self._own.states = {layer: state.clone() for layer, state in like.stored.states.items()}

    @property
    def stored(self) -> Stored:
        return self._own if self.place is None else self.place.stored

    def fill(self, one: ReusePrepared) -> None:
        """Take the place of ``one``: copy what it stored, where that is not in a fixed place already."""
        self.owner = one
        self.mask.copy_(one.mask)
        if self.place is not None:
            self.place.holding(one.storing)
            return
        self._own.take(one.stored)

    def _key(self, what: str, form: Form, *more: Hashable) -> Hashable:
        return (what, id(self), form, *more)

    def graphed_logits(self, form: Form, tensors: list[Tensor]) -> Tensor:
        """Logits of the edits, differentiable in those of ``tensors`` that require a gradient."""

        def function(*inputs: Tensor) -> Tensor:
            return self._logits_each(*unflatten(form, inputs))

        wants = tuple(tensor.requires_grad for tensor in tensors)
        key = self._key("logits", form, wants, shapes(tensors))
        graphed = self.graphs.once(key, self, lambda: graphed_callable(function, tensors, self.graphs.pool))
        return self.graphs.held(graphed(*tensors))

    def graphed_ascent(
        self, form: Form, tensors: list[Tensor], labels: Tensor, ball: pgd.Ball, *, steps: int, step_size: float
    ) -> Tensor:
        """K replays of one PGD step; the first of ``tensors`` is the start."""
        run = partial(replay_ascent, self.graphs, self._key("ascent", form, ball, step_size), self)
        return run(
            lambda inputs: self._logits_each(*unflatten(form, inputs), ascent=True)[0],
            tensors, labels, self.mask, ball, steps=steps, step_size=step_size,
        )  # fmt: skip


def lowest(model: Classifier, edits: Sequence[Edits]) -> int:
    """The lowest edited layer, from which passes start; the last one where nothing is edited."""
    return min((layer for one in edits for layer in one.layers()), default=model.layers)
