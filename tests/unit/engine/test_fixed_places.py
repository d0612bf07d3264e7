"""Passes on fixed buffers, as graphs are captured on, give the reference's numbers; here replayed eagerly on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from unit.engine.test_reuse_equals_reference import FAMILIES, WIDTH, batch_of, classifier, reft_step

from latreft.engine import graphs, prepared, search
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import Edits
from latreft.interventions.pgd import Ball


@dataclass
class Replayed:
    """Stands in for a captured graph: the function runs anew on the fixed inputs."""

    function: Any
    inputs: list[torch.Tensor]
    output: torch.Tensor | None = None

    @property
    def graph(self):
        return self

    def replay(self):
        self.output = self.function(*self.inputs)

    def __call__(self, *inputs):
        for fixed, given in zip(self.inputs, inputs, strict=True):
            fixed.copy_(given)
        self.replay()
        return self.output


@pytest.fixture
def eager_replay(monkeypatch):
    made: list[Replayed] = []

    def capture(function, inputs, _pool):
        made.append(Replayed(function, [tensor.detach().clone() for tensor in inputs]))
        return made[-1]

    for module in (graphs, prepared, search):
        for name, stand_in in (("capture", capture), ("capturing_is_possible", lambda _device: True)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda function, _sample, **_: function)
    return made


def cat_step(engine, model, batch):
    """The embeddings of the whole text perturbed, outer passes in full."""
    whole = engine.prepare(model, batch, batch.length)
    start = torch.zeros(len(batch), batch.length, WIDTH, dtype=torch.float64)
    delta = whole.ascend(Edits(), 0, None, start, batch.labels, Ball("l2_token", 0.5), steps=3, step_size=0.2)
    loss = F.cross_entropy(whole.training_logits(Edits().perturbed(0, delta)), batch.labels)
    return delta, loss


@pytest.mark.parametrize("name", FAMILIES)
def test_full_passes_of_changing_batches_share_one_place(name, eager_replay):
    """Batches of other lengths and labels, and weights that change between them, as in a training."""
    model, engine = classifier(name).requires_grad_(True), ReuseEngine()
    for lengths in ((17, 12, 5), (9, 4, 9), (64, 30, 2)):
        batch = batch_of(lengths)
        expected, found = cat_step(ReferenceEngine(), model, batch), cat_step(engine, model, batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert found[0].abs().max() > 0.1
        with torch.no_grad():
            model.head.weight.add_(0.01)
    assert len(eager_replay) == 1


def test_large_full_passes_are_left_alone(eager_replay, monkeypatch):
    monkeypatch.setattr(prepared, "LAUNCH_BOUND", 100)
    cat_step(ReuseEngine(), classifier("llama"), batch_of((17, 12)))
    assert not eager_replay


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
@pytest.mark.parametrize("layers", [(1, 3), (2, 2), (3, 1)], ids=str)
def test_window_passes_of_changing_batches_are_the_references(name, layers, surrogate, eager_replay):
    model, engine = classifier(name), ReuseEngine()
    for lengths in ((19, 4, 11), (70, 90, 8), (12, 12, 12)):
        batch = batch_of(lengths)
        expected, found = (reft_step(e, model, batch, 6, *layers, surrogate) for e in (ReferenceEngine(), engine))
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.delta, expected.delta, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.gradients, expected.gradients, rtol=0, atol=1e-10)
    assert eager_replay
