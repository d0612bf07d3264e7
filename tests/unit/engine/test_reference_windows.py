"""Edits change the last L real positions and nothing else, at any layer, in any order."""

from __future__ import annotations

import pytest
import torch
from unit.models.tiny import FAMILIES, LAYERS, WIDTH, classifier, examples

from latreft.engine.interface import Defended, predict
from latreft.engine.reference import ReferenceEngine
from latreft.interventions.edits import Edits, Perturbation, ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models.batch import collate

ENGINE = ReferenceEngine()
LENGTHS = [9, 3, 6]
T = 9


def reft(layer: int) -> ReftEdit:
    return ReftEdit(layer, LoReFT(WIDTH, 3, start="random", seed=1, dtype=torch.float64))


def noise(window: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(len(LENGTHS), window, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def states(model, batch, layer):
    caught = []
    with model.edited({layer: lambda h: caught.append(h) or h}):
        model(batch)
    return caught[0]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, LAYERS])
@pytest.mark.parametrize("window", [1, 4, T, T + 20])
def test_only_the_last_real_positions_change(name, layer, window):
    model, batch = classifier(name), collate(examples(LENGTHS))
    prepared = ENGINE.prepare(model, batch, window)
    length = min(window, T)
    assert prepared.mask.shape == (3, length)
    assert prepared.mask.sum(dim=1).tolist() == [min(window, n) for n in LENGTHS]
    norm = model.base.final_layer_norm if name == "gpt_neox" else model.base.norm
    reader = [*model.family.block_list(model.base), norm][layer]  # what reads the layer's output next
    read = []
    handle = reader.register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0]))
    logits = prepared.logits(Edits(Perturbation(layer, noise(length))))
    model(batch)
    handle.remove()
    edited, clean = read
    changed = (edited != clean).any(dim=-1)
    expected = batch.mask.clone()
    expected[:, : T - length] = False
    assert torch.equal(changed, expected)
    torch.testing.assert_close(edited[expected], (clean[:, -length:] + noise(length))[expected[:, -length:]])
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, LAYERS])
def test_hidden_is_the_clean_window_without_gradient(name, layer):
    model, batch = classifier(name).requires_grad_(True), collate(examples(LENGTHS))
    hidden = ENGINE.prepare(model, batch, 4).hidden(layer)
    assert hidden.shape == (3, 4, WIDTH)
    assert not hidden.requires_grad
    torch.testing.assert_close(hidden, states(model, batch, layer)[:, -4:].detach())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("attack", "defense"), [(1, 2), (2, 2), (3, 1), (0, 3), (3, 3), (1, 1)])
@pytest.mark.parametrize("order", ["perturb_then_reft", "reft_then_perturb"])
def test_edits_at_any_two_layers_are_those_written_out(name, attack, defense, order):
    model, batch, window = classifier(name), collate(examples(LENGTHS)), 4
    edit, delta = reft(defense), noise(window)
    found = ENGINE.prepare(model, batch, window).logits(Edits(Perturbation(attack, delta), edit, order))

    def on_window(change):
        def whole(state):
            result = state.clone()
            for row, length in enumerate(LENGTHS):
                for back in range(1, min(window, length) + 1):
                    result[row, -back] = change(state[row, -back], row, window - back)
            return result

        return whole

    perturb = on_window(lambda h, row, place: h + delta[row, place])
    defend = on_window(lambda h, _row, _place: edit.intervention(h))
    if attack == defense:
        both = (perturb, defend) if order == "perturb_then_reft" else (defend, perturb)
        context = model.edited({attack: lambda h: both[1](both[0](h))})
    else:
        context = model.edited({attack: perturb, defense: defend})
    with context:
        expected = model(batch)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", FAMILIES)
def test_orders_differ_at_the_same_layer_and_nowhere_else(name):
    model, batch = classifier(name), collate(examples(LENGTHS))
    prepared = ENGINE.prepare(model, batch, 4)

    def logits(attack, defense, order):
        return prepared.logits(Edits(Perturbation(attack, noise(4)), reft(defense), order))

    assert (logits(2, 2, "perturb_then_reft") - logits(2, 2, "reft_then_perturb")).abs().max() > 1e-3
    for attack, defense in ((1, 2), (2, 1)):
        same = logits(attack, defense, "perturb_then_reft"), logits(attack, defense, "reft_then_perturb")
        assert torch.equal(*same)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, LAYERS])
def test_for_the_full_model_replacing_equals_adding(name, layer):
    model, batch = classifier(name), collate(examples(LENGTHS))
    prepared = ENGINE.prepare(model, batch, 4)
    base = prepared.hidden(layer)
    replaced = prepared.logits(Edits(Perturbation(layer, noise(4), base), reft(LAYERS)))
    added = prepared.logits(Edits(Perturbation(layer, noise(4)), reft(LAYERS)))
    torch.testing.assert_close(replaced, added, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_defended_examples_logits_do_not_depend_on_its_batch(name):
    defended = Defended(classifier(name), reft(2), 5)
    some = examples([12, 2, 5, 7])
    together = predict(ENGINE, defended, collate(some))
    assert not together.requires_grad
    for row, example in enumerate(some):
        alone = predict(ENGINE, defended, collate([example]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-11, atol=1e-11)
    plain = predict(ENGINE, Defended(defended.classifier), collate(some))
    assert (plain - together).abs().max() > 1e-3


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_below_one_is_an_error(window):
    with pytest.raises(ValueError, match=f"window must be at least 1, got {window}"):
        ENGINE.prepare(classifier(), collate(examples([3])), window)


def test_an_exception_in_an_edit_leaves_no_hook():
    model, batch = classifier(), collate(examples(LENGTHS))
    prepared = ENGINE.prepare(model, batch, 4)
    logits = prepared.logits(Edits())
    with pytest.raises(RuntimeError):
        prepared.logits(Edits(Perturbation(1, torch.zeros(3, 2, WIDTH, dtype=torch.float64)), reft(2)))
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0
    assert torch.equal(prepared.logits(Edits()), logits)


def test_a_prepared_batch_sees_weights_that_changed_after_it_was_prepared():
    """Methods step the weights between batches only; a pass must never show states of older weights."""
    model, batch = classifier(), collate(examples(LENGTHS))
    before = ENGINE.prepare(model, batch, 4).logits(Edits())
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    after = ENGINE.prepare(model, batch, 4)
    assert (after.logits(Edits()) - before).abs().max() > 1e-3
    torch.testing.assert_close(after.logits(Edits()), model(batch))
