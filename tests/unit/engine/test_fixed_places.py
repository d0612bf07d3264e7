"""Passes on fixed buffers, as graphs are captured on, give the reference's numbers; here replayed eagerly on a CPU."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch.nn import functional as F
from unit.engine.test_reuse_equals_reference import FAMILIES, WIDTH, batch_of, classifier, reft_step
from unit.models.flash import by_definition

from latreft.attacks import gcg
from latreft.attacks.together import run_all
from latreft.engine import flight, graphs, prefix, prepared, search, whole
from latreft.engine.interface import Defended, predict
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.interventions.reft import LoReFT
from latreft.interventions.surrogate import prune
from latreft.models import attention
from latreft.models.adapter import add_lora, merged_adapters


@dataclass(eq=False)
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

    for module in (flight, graphs, prepared, search, whole):
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
    loss = F.cross_entropy(whole.training_logits(Edits(), Edits().perturbed(0, delta))[1], batch.labels)
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


@pytest.mark.parametrize("adapters", [False, True])
def test_compiled_inner_passes_over_whole_texts_need_few_variants_for_all_lengths(eager_replay, traced_inner, adapters):
    engine, variants = traced_inner
    model = classifier("llama").requires_grad_(True)
    if adapters:
        add_lora(model, rank=2, alpha=4, seed=0)
        merged = merged_adapters(model)
        merged.refresh()
        model = merged.classifier
    for lengths in (
        (17, 12, 5),
        (64, 64, 64),
        (100, 30, 2),
        (130, 9, 9),
        (128, 128, 128),
        (200, 30, 2),
        (192, 192, 192),
    ):
        batch = batch_of(lengths)
        expected, found = cat_step(ReferenceEngine(), model, batch), cat_step(engine, model, batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert 1 <= variants() <= 4  # with padding and without, the first length and all others
    assert eager_replay


def test_large_full_passes_are_left_alone(eager_replay, monkeypatch):
    monkeypatch.setattr(whole, "LAUNCH_BOUND", 100)
    cat_step(ReuseEngine(), classifier("llama"), batch_of((17, 12)))
    assert not eager_replay


def test_large_predictions_are_left_alone_where_training_is_not(eager_replay, monkeypatch):
    monkeypatch.setattr(whole, "PREDICTING", 100)
    model, batch = classifier("llama"), batch_of((17, 12))
    predict(ReuseEngine(), Defended(model), batch)
    assert not eager_replay
    cat_step(ReuseEngine(), model, batch)
    assert eager_replay


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
@pytest.mark.parametrize("layers", [(1, 3), (2, 2), (3, 1)], ids=str)
def test_window_passes_of_changing_batches_are_the_references(name, layers, surrogate, eager_replay):
    model, engine = classifier(name), ReuseEngine()
    for lengths in ((19, 4, 11), (70, 70, 70), (70, 90, 8), (70, 70, 70), (12, 12, 12)):
        batch = batch_of(lengths)
        expected, found = (reft_step(e, model, batch, 6, *layers, surrogate) for e in (ReferenceEngine(), engine))
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.delta, expected.delta, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.gradients, expected.gradients, rtol=0, atol=1e-10)
    assert eager_replay


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
def test_mixed_precision_runs_on_fixed_places(name, surrogate, eager_replay):
    """Float32 weights under autocast, as the scales that train all weights have them; equal to bfloat16's rounding."""
    model, engine = classifier(name, torch.float32), ReuseEngine()
    for lengths in ((19, 4, 11), (70, 90, 8)):
        batch = batch_of(lengths)
        results = []
        for one in (ReferenceEngine(), engine):
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                results.append(reft_step(one, model, batch, 6, 1, 3, surrogate))
        expected, found = results
        torch.testing.assert_close(found.loss.float(), expected.loss.float(), rtol=0.05, atol=0.05)
    assert eager_replay


def lat_step(engine, model, batch):
    """The states of a window perturbed, all weights trained; gradients of every weight."""
    prepared_batch = engine.prepare(model, batch, 6)
    shape = torch.Size((len(batch), prepared_batch.mask.shape[1], WIDTH))
    start = Ball("l2_window", 1.0).start(shape, "random", torch.Generator().manual_seed(2), model.head.weight)
    delta = prepared_batch.ascend(Edits(), 2, None, start, batch.labels, Ball("l2_window", 1.0), steps=3, step_size=0.2)
    clean, attacked = prepared_batch.training_logits(Edits(), Edits().perturbed(2, delta))
    loss = F.cross_entropy(clean, batch.labels) + F.cross_entropy(attacked, batch.labels)
    return delta, torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("name", FAMILIES)
def test_training_all_weights_over_changing_batches_is_the_references(name, eager_replay):
    model, engine = classifier(name).requires_grad_(True), ReuseEngine()
    for lengths in ((19, 4, 11), (70, 70, 70), (64, 64, 64), (70, 90, 8), (5, 5, 3), (12, 12, 12)):
        batch = batch_of(lengths)
        expected, found = lat_step(ReferenceEngine(), model, batch), lat_step(engine, model, batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * parameter.sign())


def target_of(model, defended):
    """The model, with a random edit of its last 6 positions or without."""
    if not defended:
        return Defended(model)
    return Defended(model, ReftEdit(2, LoReFT(WIDTH, 4, start="random", seed=1, dtype=torch.float64)), 6)


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_predictions_of_changing_batches_are_the_references(name, defended, eager_replay):
    model, engine = classifier(name), ReuseEngine()
    target = target_of(model, defended)
    for lengths in ((19,), (3,), (256,), (258,), (64, 64), (9, 30)):
        batch = batch_of(lengths)
        found, expected = predict(engine, target, batch), predict(ReferenceEngine(), target, batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert eager_replay


def test_a_batch_that_another_has_displaced_is_run_again(eager_replay):
    """Two batches of one shape share a place; each gives its own numbers whichever was there last."""
    model, engine = classifier("llama"), ReuseEngine()
    first, second = (engine.prepare(model, batch_of(lengths), 6) for lengths in ((19, 4), (12, 17)))
    kept = first.hidden(2)
    expected = [ReferenceEngine().prepare(model, batch_of(lengths), 6) for lengths in ((19, 4), (12, 17))]
    for one, other in ((second, expected[1]), (first, expected[0]), (second, expected[1])):
        torch.testing.assert_close(one.hidden(2)[one.mask], other.hidden(2)[other.mask], rtol=0, atol=1e-10)
        delta = torch.ones(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
        edits = Edits().perturbed(2, delta)
        torch.testing.assert_close(one.logits(edits), other.logits(edits), rtol=0, atol=1e-10)
    torch.testing.assert_close(kept[first.mask], expected[0].hidden(2)[first.mask], rtol=0, atol=1e-10)


@pytest.fixture
def one_memory(eager_replay, monkeypatch):
    """Graphs share a memory: a replay overwrites what graphs that were captured later have left there."""
    replay = Replayed.replay

    def overwrite(left: Any, kept: list[torch.Tensor]) -> None:
        if isinstance(left, torch.Tensor):
            if left.is_floating_point() and not any(left is one for one in kept):
                left.fill_(float("nan"))
        elif isinstance(left, (list, dict)):
            for part in left.values() if isinstance(left, dict) else left:
                overwrite(part, kept)
        elif hasattr(left, "__dict__"):
            overwrite(vars(left), kept)

    def replay_over(self):
        for later in eager_replay[eager_replay.index(self) + 1 :]:
            overwrite(later.output, later.inputs)
        replay(self)

    monkeypatch.setattr(Replayed, "replay", replay_over)


@pytest.mark.parametrize("surrogate", [False, True])
def test_batches_of_two_shapes_in_turn_keep_what_they_stored(surrogate, one_memory):
    """The second shape's graphs are captured after the first one's, which then run between the second's passes."""
    model, found = classifier("llama"), {}
    for engine in (ReuseEngine(), ReferenceEngine()):
        batches = [batch_of(lengths) for lengths in ((19, 4), (90, 70))]
        full = [engine.prepare(model, batch, 6) for batch in batches]
        other = halved(model)
        inner = full if not surrogate else [engine.prepare(other, batch, 6) for batch in batches]
        results = found[engine.name] = []
        for i in (0, 1, 0, 1, 1, 0):
            base = full[i].hidden(2)
            for j in (0, i):
                start, labels = torch.zeros_like(full[j].hidden(1)), batches[j].labels
                settings = {"steps": 2, "step_size": 0.2}
                results.append(inner[j].ascend(Edits(), 1, None, start, labels, Ball("linf", 1.0), **settings))
            delta = torch.ones_like(base, requires_grad=True)
            results.append(full[i].logits(Edits().perturbed(2, delta, base)))
            results.append(torch.autograd.grad(results[-1].sum(), delta)[0])
            results.append(full[i].logits(Edits().perturbed(3, delta.detach())))
    torch.testing.assert_close(found["reuse"], found["reference"], rtol=0, atol=1e-10)


def halved(model):
    """A surrogate without every other neuron."""
    block = model.family.block_list(model.base)[0]
    neurons = model.family.neuron_layers(block)[1].in_features
    return prune(model, [torch.arange(0, neurons, 2)] * model.layers)


def test_edits_of_another_rank_or_layer_take_a_graph_of_their_own(eager_replay):
    model, engine, batch = classifier("llama"), ReuseEngine(), batch_of((19, 4))
    for rank in (4, 1, 2):
        reft = LoReFT(WIDTH, rank, start="random", seed=rank, dtype=torch.float64)
        for layer in (2, 3):
            target = Defended(model, ReftEdit(layer, reft), 6)
            found, expected = predict(engine, target, batch), predict(ReferenceEngine(), target, batch)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
            candidates = torch.tensor([[5, 6, 7], [9, 8, 7]])
            losses = [
                one.search(target, (5, 6, 7, 8), 4, 1, 8).losses(candidates)[0] for one in (engine, ReferenceEngine())
            ]
            torch.testing.assert_close(*losses, rtol=0, atol=1e-10)


def test_trainings_of_very_many_weights_are_not_captured(eager_replay, monkeypatch):
    """Every graph of theirs would keep a gradient of each weight; predictions keep none."""
    model, engine, batch = classifier("llama").requires_grad_(True), ReuseEngine(), batch_of((19, 4))
    monkeypatch.setattr(whole, "GRADIENTS", 100)
    engine.prepare(model, batch, 6).training_logits(Edits()).sum().backward()
    assert not eager_replay and engine.tools.graphs.usable(torch.device("cpu"))
    assert model.head.weight.grad is not None
    predict(engine, Defended(model), batch)
    assert len(eager_replay) == 1


def test_weights_that_changed_are_refused_in_a_fixed_place_too(eager_replay):
    model, engine = classifier("llama").requires_grad_(True), ReuseEngine()
    one = engine.prepare(model, batch_of((19, 4)), 6)
    one.hidden(2)
    engine.prepare(model, batch_of((9, 9)), 6).hidden(2)
    with torch.no_grad():
        model.head.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="weights changed"):
        one.hidden(2)


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_attacks_in_fixed_places_choose_the_references_suffixes(name, defended, eager_replay):
    model, engine = classifier(name), ReuseEngine()
    target = target_of(model, defended)
    settings = gcg.Settings(rounds=3, top_k=16, candidates=12, tokens=3, start="random")
    allowed = torch.ones(model.vocabulary, dtype=torch.bool)
    for seed, length in enumerate((1, 5, 258, 12, 256)):
        content = tuple(torch.randint(3, 120, (length,), generator=torch.Generator().manual_seed(seed)).tolist())
        found = [
            gcg.attack(
                one.search(target, content, length, seed % 2, 8), label=seed % 2, allowed=allowed,
                encode=lambda text: (5,), generator=torch.Generator().manual_seed(seed), settings=settings, survives=None,
            )
            for one in (ReferenceEngine(), engine)
        ]  # fmt: skip
        assert found[0].tokens == found[1].tokens
        assert found[0].loss == pytest.approx(found[1].loss, abs=1e-10)


def test_nothing_is_replayed_between_a_forward_pass_and_its_backward_pass(eager_replay):
    """Graphs share their memory: a replay in between would overwrite what the gradient needs."""
    model, engine = classifier("llama").requires_grad_(True), ReuseEngine()
    one, other = batch_of((19, 4)), batch_of((12, 17))
    usable = lambda: engine.tools.graphs.usable(torch.device("cpu"))  # noqa: E731
    logits = engine.prepare(model, one, 6).training_logits(Edits())
    assert not usable()
    made = len(eager_replay)
    loss = F.cross_entropy(logits[0], one.labels)
    loss = loss + F.cross_entropy(engine.prepare(model, other, 6).training_logits(Edits())[0], other.labels)
    cat_step(engine, model, other)
    assert len(eager_replay) == made
    loss.backward()
    assert usable()
    expected = F.cross_entropy(model(one), one.labels) + F.cross_entropy(model(other), other.labels)
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(expected, list(model.parameters())), tuple(found), rtol=0, atol=1e-10
    )


def test_a_result_that_nobody_descends_on_holds_nothing_up(eager_replay):
    model, engine = classifier("llama").requires_grad_(True), ReuseEngine()
    logits = engine.prepare(model, batch_of((19, 4)), 6).training_logits(Edits())
    assert not engine.tools.graphs.usable(torch.device("cpu"))
    del logits
    assert engine.tools.graphs.usable(torch.device("cpu"))


def test_the_window_passes_hold_the_graphs_too(eager_replay):
    model, engine = classifier("llama"), ReuseEngine()
    delta = torch.zeros(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)
    logits = engine.prepare(model, batch_of((19, 4)), 6).logits(Edits().perturbed(2, delta))
    assert not engine.tools.graphs.usable(torch.device("cpu"))
    logits.sum().backward()
    assert engine.tools.graphs.usable(torch.device("cpu"))


def found_by(engine, target, contents, settings):
    """GCG on several contents, in the groups that the engine makes."""
    allowed = torch.ones(target.classifier.vocabulary, dtype=torch.bool)
    found, sizes = {}, []
    for members in engine.groups(target, [(len(content), len(content)) for content in contents], 4):
        sizes.append(len(members))
        searches = [engine.search(target, contents[i], len(contents[i]), i % 2, 8) for i in members]
        attacks = [
            partial(
                gcg.attack, label=i % 2, allowed=allowed, encode=lambda text: (5,), settings=settings, survives=None,
                generator=torch.Generator().manual_seed(i),
            )
            for i in members
        ]  # fmt: skip
        results = run_all(engine, searches, attacks, 3, 4)
        found.update(zip(members, results, strict=True))
    return [found[i] for i in range(len(contents))], sizes


@pytest.fixture(params=["plain", "flash"])
def kernel(request, monkeypatch):
    """Which kernel attends to the prefix of candidates."""
    if request.param == "flash":
        monkeypatch.setattr(attention, "varlen_attn", by_definition)
        monkeypatch.setattr(prefix, "flash_serves", lambda _, variants: variants > 1 and not torch.is_grad_enabled())


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_attacks_in_flight_choose_the_references_suffixes(name, defended, stop, eager_replay, kernel):
    """Contents of two rooms, in groups of up to four, one of them not full; 20 candidates of at most 8 a pass."""
    model = classifier(name)
    target = target_of(model, defended)
    settings = gcg.Settings(
        rounds=3, top_k=16, candidates=20, tokens=3, start="random", batch_size=8, stop_at_flip=stop
    )
    lengths = (1, 5, 258, 12, 40, 128, 9, 270)
    contents = [
        tuple(torch.randint(3, 120, (length,), generator=torch.Generator().manual_seed(length)).tolist())
        for length in lengths
    ]
    expected, alone = found_by(ReferenceEngine(), target, contents, settings)
    found, sizes = found_by(ReuseEngine(), target, contents, settings)
    assert alone == [1] * 8 and sizes == [4, 2, 2]
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens, one.iterations, one.forwards) == (other.tokens, other.iterations, other.forwards)
        assert one.loss == pytest.approx(other.loss, abs=1e-10)


def test_a_flight_that_does_not_fit_goes_on_one_by_one(eager_replay, monkeypatch):
    model, engine = classifier("llama"), ReuseEngine()
    contents = [(5, 6, 7), (8, 9, 10, 11)]
    settings = gcg.Settings(rounds=2, top_k=16, candidates=12, tokens=3, start="random", batch_size=8)
    expected, _ = found_by(engine, Defended(model), contents, settings)

    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(flight.FlightPlace, "logits", full)
    found, sizes = found_by(ReuseEngine(), Defended(model), contents, settings)
    assert sizes == [2] and [one.tokens for one in found] == [one.tokens for one in expected]


def test_prefix_attacks_and_large_models_fly_alone(eager_replay, monkeypatch):
    engine, target = ReuseEngine(), Defended(classifier("llama"))
    assert engine.groups(target, [(9, 0), (9, 9), (9, 9)], 8) == [[0], [1, 2]]
    monkeypatch.setattr(whole, "LAUNCH_BOUND", 100)
    assert engine.groups(target, [(9, 9), (9, 9)], 8) == [[0], [1]]


def test_no_garbage_is_collected_while_a_graph_is_captured(monkeypatch):
    """A dead graph or event that is freed during another's capture ends it with an error."""
    collecting = []

    @contextmanager
    def scope(*_arguments, **_settings):
        yield

    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, scope)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda function, sample, **_: function(*sample))

    def function(tensor):
        collecting.append(gc.isenabled())
        return tensor

    graphs.capture(function, [torch.zeros(1)], None)
    assert collecting[-1] is False
    graphs.graphed_callable(function, [torch.zeros(1)], None)
    assert collecting[-1] is False
    assert gc.isenabled()
