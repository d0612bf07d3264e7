"""Full passes of small models, captured on fixed buffers: launching their kernels would take longer than running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.engine.graphs import (
    Captured,
    Form,
    Graphs,
    capture,
    graphed_callable,
    moved_by,
    replay_ascent,
    shapes,
    unflatten,
)
from latreft.engine.reference import FullPrepared
from latreft.engine.window import Tools
from latreft.interventions import pgd
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier

LAUNCH_BOUND = 2.5e11
"""Parameters of a block times tokens of a pass up to which a GPU waits for the kernels of that block to be launched."""

PREDICTING = 6e10
"""The same for passes without gradient, which launch fewer kernels; beyond it the many shapes of an evaluation are not
worth capturing."""

GRADIENTS = 3e8
"""Trained parameters up to which full passes are captured for training: every such graph, one a shape, keeps a gradient
of each of them."""


def launch_bound(model: Classifier, tokens: int, *, predicting: bool = False) -> bool:
    """Whether a full pass over ``tokens`` (rows times positions) is short enough for capturing to pay."""
    limit = PREDICTING if predicting else LAUNCH_BOUND
    block = model.family.block_list(model.base)[0]
    return tokens * sum(parameter.numel() for parameter in block.parameters()) <= limit


def gradients_fit(model: Classifier) -> bool:
    """Whether the gradients of the trained weights are few enough for graphs to keep."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) <= GRADIENTS


def filling(batch: Batch, room: int) -> bool:
    """Whether a batch needs no padding to fill ``room`` positions: its passes then need no mask."""
    return not batch.padded and batch.length == room


class FixedBatch:
    """A batch in a fixed place, padded on the left to ``room`` positions. All that fill it are :func:`filling`, or none."""

    def __init__(self, like: Batch, room: int):
        tokens = like.tokens.new_zeros(len(like), room)
        self.batch = Batch(tokens, tokens.bool(), torch.zeros_like(like.labels), padded=not filling(like, room))
        self.length = room

    def fill(self, batch: Batch) -> None:
        """Copy in a batch of as many rows and at most ``room`` positions. Labels are not copied: no pass reads them."""
        self.length = batch.length
        for fixed, given in ((self.batch.tokens, batch.tokens), (self.batch.mask, batch.mask)):
            fixed.zero_()
            fixed[:, -self.length :].copy_(given)


class Passes(nn.Module):
    """A function of tensors, and the model whose weights it is differentiable in."""

    def __init__(self, model: Classifier, run: Callable[[Sequence[Tensor]], Tensor]):
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(inputs)


class WholeTwin:
    """The full passes of batches of one shape. ``window`` None: edits are of the whole text."""

    def __init__(self, model: Classifier, like: Batch, graphs: Graphs, room: int, window: int | None, tools: Tools):
        self.tools = tools
        self.fixed = FixedBatch(like, room)
        self.full = FullPrepared(model, self.fixed.batch, window or room)
        self.model, self.graphs, self.whole = model, graphs, window is None

    def _wide(self, form: Form, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Where edits are of the whole text, perturbations and states [B, T, D] get zeros for the padding."""
        if not self.whole:
            return list(tensors)
        added = self.fixed.batch.length - self.fixed.length
        return [F.pad(t, (0, 0, added, 0)) if i < moved_by(form) else t for i, t in enumerate(tensors)]

    def _run(self, form: Form, inputs: Sequence[Tensor]) -> Tensor:
        return self.full.training_logits(*unflatten(form, inputs))

    def logits(self, form: Form, tensors: Sequence[Tensor]) -> Tensor:
        """Logits [V, B, 2] of the V edits of ``form``, differentiable in weights and tensors that require a gradient."""
        wide = self._wide(form, tensors)
        wants = tuple(tensor.requires_grad for tensor in wide)
        if torch.is_grad_enabled() and (any(wants) or any(p.requires_grad for p in self.model.parameters())):
            training = self.graphs.once(
                ("whole training", id(self), form, wants, shapes(wide)), self, lambda: self._graphed(form, wide)
            )
            return self.graphs.held(training(*wide))
        plain = [tensor.detach() for tensor in wide]
        key = ("whole logits", id(self), form, shapes(plain))
        run = self.graphs.once(key, self, lambda: self._captured(form, plain))
        return run(*plain).clone()

    def _captured(self, form: Form, tensors: Sequence[Tensor]) -> Captured:
        """The captured forward pass."""
        return capture(lambda *inputs: self._run(form, inputs), tensors, self.graphs.pool)

    def _graphed(self, form: Form, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
        """The captured forward and backward pass."""
        return graphed_callable(Passes(self.model, lambda inputs: self._run(form, inputs)), tensors, self.graphs.pool)

    def ascent(
        self, form: Form, tensors: Sequence[Tensor], labels: Tensor, ball: pgd.Ball, *, steps: int, step_size: float
    ) -> Tensor:
        """PGD on the first of ``tensors``; see :func:`latreft.engine.graphs.replay_ascent`."""

        def logits_of(inputs: Sequence[Tensor]) -> Tensor:
            with self.tools.compiling(self.model, inner=True):
                return self._run(form, inputs)[0]

        delta = replay_ascent(
            self.graphs, ("whole ascent", id(self), form, ball, step_size), self,
            logits_of, self._wide(form, tensors), labels, self.full.mask, ball, steps=steps, step_size=step_size,
        )  # fmt: skip
        return delta[:, -self.fixed.length :] if self.whole else delta
