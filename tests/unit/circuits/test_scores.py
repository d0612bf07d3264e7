"""Neuron scores are the paper's sums, written out slowly, whatever the batches."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from unit.models.tiny import FAMILIES, LAYERS, NEURONS, classifier, examples

from latreft.circuits.scores import neuron_scores
from latreft.models.batch import Example, collate

SOME = examples([7, 2, 4, 1, 9])


def slow(model, some) -> tuple[torch.Tensor, torch.Tensor]:
    """One example at a time, one token and one neuron at a time [Eq. 3, Eq. 8]."""
    act_grad = torch.zeros(LAYERS, NEURONS, dtype=torch.float64)
    sums = torch.zeros(2, LAYERS, NEURONS, dtype=torch.float64)
    for example in some:
        caught: list[torch.Tensor] = []
        handles = [
            model.family.neuron_layers(block)[1].register_forward_pre_hook(
                lambda _m, inputs, to=caught: to.append(inputs[0])
            )
            for block in model.family.block_list(model.base)
        ]
        model.requires_grad_(True)
        loss = F.cross_entropy(model(collate([example])), torch.tensor([example.label]))
        gradients = torch.autograd.grad(loss, caught)
        model.requires_grad_(False)
        for handle in handles:
            handle.remove()
        for layer in range(LAYERS):
            for t in range(len(example.tokens)):
                for j in range(NEURONS):
                    a, g = caught[layer][0, t, j].item(), gradients[layer][0, t, j].item()
                    act_grad[layer, j] += abs(a * g)
                    sums[example.label, layer, j] += abs(a)
    count = [sum(example.label == label for example in some) for label in (0, 1)]
    return act_grad, (sums[1] / count[1] - sums[0] / count[0]).abs()


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_the_slow_double_loop(name):
    model = classifier(name)
    act_grad, act_diff = slow(model, SOME)
    scores = neuron_scores(model, SOME, 2)
    assert scores["act_grad"].dtype == torch.float64
    torch.testing.assert_close(scores["act_grad"], act_grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(scores["act_diff"], act_diff, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_do_not_depend_on_batches_or_order(name):
    model = classifier(name)
    whole = neuron_scores(model, SOME, 100)
    seen = []
    for some, size in ((SOME, 1), (SOME[::-1], 3)):
        scores = neuron_scores(model, some, size, seen.append)
        for key, value in whole.items():
            torch.testing.assert_close(scores[key], value, rtol=1e-10, atol=1e-12)
    assert sum(seen) == 2 * len(SOME)


def test_leave_the_model_without_hooks_and_gradients():
    model = classifier()
    neuron_scores(model, SOME, 2)
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("label", "message"), [(0, "5 examples of class 0 and 0 of class 1"), (1, "0 .* 5 of class 1")]
)
def test_a_missing_class_is_an_error(label, message):
    some = [Example(example.id, example.tokens, label) for example in SOME]
    with pytest.raises(ValueError, match=f"{message}; both are needed"):
        neuron_scores(classifier(), some, 2)


def test_bfloat16_weights_give_finite_scores():
    scores = neuron_scores(classifier(dtype=torch.bfloat16, head=3.0), SOME, 2)
    assert all(value.isfinite().all() and value.dtype == torch.float64 for value in scores.values())
