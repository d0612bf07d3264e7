"""A sliced surrogate is the model with the pruned neurons silenced, only smaller."""

from __future__ import annotations

import pytest
import torch
from unit.models.tiny import FAMILIES, LAYERS, NEURONS, WIDTH, classifier, examples, silenced

from latreft.cost import shapes
from latreft.engine.reference import ReferenceEngine
from latreft.interventions import surrogate as surrogate_module
from latreft.interventions.edits import Edits, Perturbation
from latreft.interventions.surrogate import prune, room_for
from latreft.models.batch import collate
from latreft.models.classifier import parameter_count

KEPT = {
    "some of each": [torch.arange(0, NEURONS, 2), torch.tensor([1, 2, 20]), torch.arange(5, 12)],
    "an emptied layer": [torch.arange(NEURONS), torch.tensor([], dtype=torch.long), torch.arange(7)],
    "all emptied": [torch.tensor([], dtype=torch.long)] * LAYERS,
    "all kept": [torch.arange(NEURONS)] * LAYERS,
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_equals_the_model_with_its_neurons_silenced(name, kept):
    model = classifier(name)
    surrogate = prune(model, kept)
    batch = collate(examples([9, 4, 7]))
    base = torch.randn(3, 9, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def outputs(which):
        state = base.clone().requires_grad_(True)
        with which.edited({1: lambda _h: state}):
            logits = which(batch)
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, batch.labels), state)
        return which(batch), logits.detach(), gradient

    with silenced(model, kept):
        expected = outputs(model)
    for found, wanted in zip(outputs(surrogate), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_shares_all_but_the_mlp_and_leaves_the_model_as_it_was(name):
    model = classifier(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batch = collate(examples([6, 3]))
    logits = model(batch)
    surrogate = prune(model, KEPT["some of each"])
    own, cut = dict(model.named_parameters()), dict(surrogate.named_parameters())
    assert set(own) == set(cut)
    mlp = {*model.family.mlp_inputs, model.family.mlp_output}
    for key in own:
        inside = any(f".{part}." in key for part in mlp)
        is_output_bias = key.endswith(f"{model.family.mlp_output}.bias")
        if not inside:
            assert cut[key] is own[key], key
        elif not is_output_bias:
            assert cut[key].shape != own[key].shape, key
        assert cut[key].requires_grad is False
    assert set(model.state_dict()) == set(before)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert torch.equal(model(batch), logits)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_parameter_count_is_the_ledgers(name, kept):
    model = classifier(name)
    shape = shapes.from_config(model.base.config)
    assert parameter_count(model) == shape.parameters
    assert parameter_count(prune(model, kept)) == shape.pruned([len(neurons) for neurons in kept])


def test_a_surrogate_of_a_surrogate_leaves_the_first_one_whole():
    model = classifier()
    first = prune(model, KEPT["some of each"])
    batch = collate(examples([6, 3]))
    logits, full = first(batch), model(batch)
    widths = [len(neurons) for neurons in KEPT["some of each"]]
    second = prune(first, [torch.arange(width - 1) for width in widths])
    assert parameter_count(second) < parameter_count(first)
    assert torch.equal(first(batch), logits)
    assert torch.equal(model(batch), full)


def test_a_wrong_number_of_layers_is_an_error():
    with pytest.raises(ValueError, match="kept has 2 layers, the model has 3"):
        prune(classifier(), KEPT["all kept"][:2])


@pytest.mark.parametrize("name", FAMILIES)
def test_an_emptied_surrogate_can_be_attacked(name):
    model = classifier(name)
    prepared = ReferenceEngine().prepare(prune(model, KEPT["all emptied"]), collate(examples([6, 3])), 4)
    delta = torch.zeros(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(prepared.logits(Edits(Perturbation(1, delta))).sum(), delta)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(("kept", "width", "room"), [(0, 1024, 0), (1, 1024, 64), (64, 1024, 64), (1000, 1030, 1024),
                                                      (1030, 1030, 1030), (7, 1023, 7)])  # fmt: skip
def test_slices_of_a_wide_block_are_rounded_up_within_it(kept, width, room):
    assert room_for(kept, width) == room


@pytest.mark.parametrize("name", FAMILIES)
def test_zeros_that_round_a_slice_up_change_nothing(name, monkeypatch):
    model = classifier(name)
    batch = collate(examples([9, 4, 7]))
    exact = [prune(model, kept)(batch) for kept in KEPT.values()]
    monkeypatch.setattr(surrogate_module, "WIDE", 8)
    monkeypatch.setattr(surrogate_module, "STEP", 5)
    for kept, expected in zip(KEPT.values(), exact, strict=True):
        rounded = prune(model, kept)
        torch.testing.assert_close(rounded(batch), expected, rtol=1e-12, atol=1e-12)
    widths = {model.family.neuron_layers(b)[1].in_features for b in model.family.block_list(rounded.base)}
    assert widths == {NEURONS}
