"""Theorem 3 under its own assumptions, and on small classifiers with surrogates that are really pruned."""

from __future__ import annotations

import pytest
import torch
from unit.models.tiny import FAMILIES, LAYERS, NEURONS, classifier, examples

from latreft.engine.reference import FullPrepared
from latreft.models.batch import collate
from latreft.theory import surrogates, theorem_3

TEXTS = examples([12] * 4)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores() -> dict[str, torch.Tensor]:
    return {
        name: torch.rand(LAYERS, NEURONS, generator=generator(seed), dtype=torch.float64)
        for seed, name in enumerate(("act_grad", "act_diff"))
    }


def attack(name: str = "llama", **options) -> surrogates.Attack:
    return surrogates.Attack(classifier(name, **options), collate(TEXTS), 5, 1, 2)


# --- under the theorem's assumptions ---


def test_the_bound_holds_and_a_shrunk_one_is_found_out():
    right = theorem_3.check_random(200, generator())
    assert right["thm3_violations"].value == right["thm3_assumption_3_violations"].value == 0
    assert right["thm3_violations"].n == 200 and right["thm3_slack_median_random"].value > 1
    assert theorem_3.check_random(200, generator(), factor=1e-4)["thm3_violations"].value > 0


def test_nothing_pruned_loses_nothing():
    network, hidden = theorem_3.random_networks(5, generator())
    found = theorem_3.projected_gap(network, hidden, torch.zeros(5, theorem_3.NEURONS, dtype=torch.bool))
    assert (found.gap == 0).all() and (found.mass == 0).all()


def test_the_gap_and_mass_are_the_written_ones():
    """One network, one step at a time, the surrogate's gradient by autograd with the pruned neurons' paths cut."""
    network, states = theorem_3.random_networks(1, generator())
    pruned = theorem_3.random_pruned(1, generator())
    parts, hidden, gap, mass = [part[0] for part in network.parts()], states[0], 0.0, 0.0
    for _ in range(theorem_3.STEPS):
        hidden = hidden.detach().requires_grad_(True)
        neurons = theorem_3.neurons(hidden, *parts)
        loss = theorem_3.loss_of_neurons(neurons, parts[-1])
        gradient, slopes = torch.autograd.grad(loss, [hidden, neurons], retain_graph=True)
        cut = torch.where(pruned[0], neurons.detach(), neurons)
        (other,) = torch.autograd.grad(theorem_3.loss_of_neurons(cut, parts[-1]), hidden)
        ends = [hidden.detach() + theorem_3.STEP_SIZE * g.sign() for g in (gradient, other)]
        losses = [theorem_3.loss_of_neurons(theorem_3.neurons(end, *parts), parts[-1]) for end in ends]
        gap += losses[0] - losses[1]
        mass += (neurons * slopes)[:, pruned[0]].square().sum().sqrt()
        hidden = ends[1]
    found = theorem_3.projected_gap(network, states, pruned)
    torch.testing.assert_close(found.gap[0], gap, rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(found.mass[0], mass.detach())


def test_the_smallest_constant_of_assumption_3_is_attained():
    one, other = torch.tensor([[3.0, -1.0]]).double(), torch.tensor([[3.0, 1.0]]).double()
    torch.testing.assert_close(theorem_3.alignment(one, other), torch.tensor([1.0]).double())
    assert theorem_3.alignment(one, one).item() == 0


def test_lemma_1_s_constant_grows_with_the_states():
    assert theorem_3.check_random(3, generator())["lemma1_growth"].value == pytest.approx(4, rel=0.02)


# --- on classifiers ---


@pytest.mark.parametrize("name", FAMILIES)
def test_the_part_of_the_gradient_through_pruned_neurons_is_what_cutting_them_takes(name):
    """With the neurons' values kept and their gradients cut, the gradient is g less that part."""
    run, prunings = attack(name), surrogates.layer_prunings(scores(), 1)
    (step, *_) = run.trajectory(prunings, generator())
    _, output = run.model.family.neuron_layers(run.model.family.block_list(run.model.base)[1])
    for index in (0, 2, 9):
        lacks = ~prunings[index].keep[1]
        handle = output.register_forward_pre_hook(
            lambda _m, inputs, lacks=lacks: (torch.where(lacks, inputs[0].detach(), inputs[0]),)
        )
        delta = step.delta.clone().requires_grad_(True)
        full = FullPrepared(run.model, run.batch, run.window)
        (gradient,) = torch.autograd.grad(run.losses(full.logits(run.edits(delta))).sum(), delta)
        handle.remove()
        torch.testing.assert_close(step.gradient - step.through[index], gradient, rtol=0, atol=1e-6)


def test_a_surrogate_that_lacks_nothing_has_the_full_model_s_gradient_and_no_gap():
    run = attack()
    whole = surrogates.Pruning("random", 0.0, torch.ones(LAYERS, NEURONS, dtype=torch.bool))
    steps = run.trajectory([], generator())
    for window_only in (True, False):
        gradients = run.surrogate_gradients(whole, steps, window_only)
        torch.testing.assert_close(gradients[1], steps[1].gradient, rtol=1e-8, atol=1e-12)
    assert (run.gap(steps, [step.gradient for step in steps]) == 0).all()


def test_the_gap_is_the_difference_of_two_written_passes():
    run = attack()
    steps = run.trajectory([], generator())
    other = [torch.randn(step.gradient.shape, generator=generator(3), dtype=torch.float64) for step in steps]
    slow = torch.zeros(4).double()
    for step, gradient in zip(steps, other, strict=True):
        for g, sign in ((step.gradient, 1), (gradient, -1)):
            full = FullPrepared(run.model, run.batch, run.window)
            slow += sign * run.losses(full.logits(run.edits(step.delta + run.step_size * g.sign())))
    torch.testing.assert_close(run.gap(steps, other), slow, rtol=1e-7, atol=1e-12)


def test_a_shrunk_bound_is_found_out_on_a_classifier():
    run, prunings = attack(), surrogates.layer_prunings(scores(), 1)
    judged = surrogates.judge_layer(run, run.trajectory(prunings, generator()), prunings)
    assert surrogates.bound_metrics(run, judged)["thm3_violations"].value == 0
    assert surrogates.bound_metrics(run, judged, factor=1e-9)["thm3_violations"].value > 0


def test_random_pruning_omits_its_share_and_a_biased_one_would_show():
    mass = torch.rand(NEURONS, generator=generator(), dtype=torch.float64)
    error, deviation = surrogates.random_omission(mass, 0.25, 400)
    assert abs(error) < 4 * deviation < 0.2
    lacks = torch.zeros(1, NEURONS, dtype=torch.bool)
    lacks[0, mass.argsort()[:6]] = True
    step = surrogates.Step(mass, mass, mass, mass[None, None], mass, mass, mass)
    assert surrogates.omitted_share([step], lacks) < 0.1 < 0.25


def test_rank_correlation_shares_ranks_between_ties():
    assert surrogates.rank_correlation([1, 2, 3], [10, 20, 30]).value == pytest.approx(1)
    assert surrogates.rank_correlation([1, 2, 3], [3, 2, 1]).value == pytest.approx(-1)
    assert surrogates.rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]).value == pytest.approx(0.9486833)
    assert surrogates.rank_correlation([1, 2, 3], [5, 5, 5]).value == 0
