"""Algorithm 1 written out with plain full passes gives the loss and the gradients of the method's own step."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F
from unit.defenses.arms import arm, fresh, scores, settings
from unit.models.tiny import FAMILIES, silenced

from latreft.circuits.allocation import keep_mask, kept_neurons
from latreft.defenses import base, lat_reft

STEP = 1


def own_step(monkeypatch, model, chosen, step):
    """The method's ReFT and the losses of one step, its loop taken away."""
    caught = {}

    class Stop(Exception):
        pass

    def instead(reft, _optimizer, losses_at, *_args, **_kwargs):
        caught["reft"], caught["losses"] = reft, losses_at(step)
        caught["losses"].total.backward()
        raise Stop

    monkeypatch.setattr(base, "run_training", instead)
    run = arm(model, scores(model.family.name, model.dtype))
    with pytest.raises(Stop):
        lat_reft.train(run, chosen)
    return run, caught["reft"], caught["losses"]


def algorithm_1(run, reft, chosen, step):
    """Lines 1 to 7, by passes over the whole sequence; the surrogate is the model with its neurons silenced."""
    model, batch = run.classifier, run.batches(chosen).at(step)
    rotation, weight, bias = reft.basis().T, reft.source.weight, reft.source.bias
    window = torch.zeros_like(batch.mask)
    window[:, -chosen.window :] = True
    window = (window & batch.mask)[..., None]
    first, second = chosen.attack_layer, chosen.reft_layer

    def phi(h):
        edited = h + (h @ weight.T + bias - h @ rotation.T) @ rotation
        return torch.where(window, edited, h)

    def loss(edits):
        with model.edited(edits):
            return F.cross_entropy(model(batch), batch.labels, reduction="none")

    caught = {}
    with torch.no_grad(), model.edited({first: lambda h: caught.setdefault("clean", h)}):
        model(batch)
    clean_hidden = caught["clean"]
    clean = loss({second: phi}).mean()

    def attacked(delta):
        def perturb(h):
            # Below the edit the ball's centre is the full model's clean state, above it the defended model's own.
            behind = first > second or (first == second and chosen.same_layer_order == "reft_then_perturb")
            return torch.where(window, (h if behind else clean_hidden) + delta, h)

        if first != second:
            return {first: perturb, second: phi}
        if chosen.same_layer_order == "perturb_then_reft":
            return {first: lambda h: phi(perturb(h))}
        return {first: lambda h: perturb(phi(h))}

    kept = kept_neurons(keep_mask(chosen.pruning_rule, run.scores, chosen.pruning_ratio, run.seed))
    pruned_at = {"window": chosen.window} if chosen.surrogate == "window" else {}
    delta = torch.zeros_like(clean_hidden)
    for _ in range(chosen.steps):
        delta = delta.detach().requires_grad_(True)
        with silenced(model, kept, **pruned_at) if chosen.pruning_ratio else nullcontext():
            (gradient,) = torch.autograd.grad(loss(attacked(delta)).sum(), delta)
        delta = (delta.detach() + chosen.epsilon / chosen.steps * gradient.sign()).clamp(
            -chosen.epsilon, chosen.epsilon
        )
    adversarial = loss(attacked(delta)).mean()
    return clean, adversarial, clean + chosen.lambda_adv * adversarial


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("attack", "defense", "order"),
    [
        (1, 2, "perturb_then_reft"),
        (2, 2, "perturb_then_reft"),
        (2, 2, "reft_then_perturb"),
        (3, 1, "perturb_then_reft"),
    ],
)
@pytest.mark.parametrize(("ratio", "surrogate"), [(0.0, "exact"), (0.5, "exact"), (0.5, "window"), (1.0, "exact")])
def test_loss_and_gradients_are_those_written_out(monkeypatch, name, attack, defense, order, ratio, surrogate):
    model = fresh(name, torch.float64)
    chosen = settings(
        "lat_reft", attack_layer=attack, reft_layer=defense, same_layer_order=order, pruning_ratio=ratio, surrogate=surrogate,
        reft_start="random", steps=3, lambda_adv=0.7,
    )  # fmt: skip
    run, reft, losses = own_step(monkeypatch, model, chosen, STEP)
    found = {key: p.grad.clone() for key, p in reft.named_parameters()}
    reft.zero_grad()
    clean, adversarial, total = algorithm_1(run, reft, chosen, STEP)
    total.backward()
    assert losses.total.item() == pytest.approx(total.item(), rel=1e-10)
    assert losses.values == pytest.approx({"clean": clean.item(), "adversarial": adversarial.item()}, rel=1e-10)
    for key, parameter in reft.named_parameters():
        assert parameter.grad.abs().max() > 0, key
        torch.testing.assert_close(found[key], parameter.grad, rtol=1e-10, atol=1e-10)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert losses.tokens == run.batches(chosen).at(STEP).tokens.numel()


def test_ratio_zero_attacks_the_model_itself():
    model = fresh()
    run = arm(model, scores("llama", torch.float32))
    assert lat_reft.surrogate_of(run, settings("lat_reft", pruning_ratio=0)) is model
    assert lat_reft.surrogate_of(run, settings("lat_reft", pruning_ratio=0.25)) is not model


@pytest.mark.parametrize("order", ["perturb_then_reft", "reft_then_perturb"])
def test_at_one_layer_the_adversarial_loss_still_trains_the_edit(monkeypatch, order):
    """Perturbing behind the edit must not overwrite it with the clean states: no gradient would be left."""
    model = fresh("llama", torch.float64)
    chosen = settings("lat_reft", attack_layer=2, reft_layer=2, same_layer_order=order, reft_start="random")
    gradients = []
    for lambda_adv in (0.0, 1.0):
        _, reft, _ = own_step(monkeypatch, model, chosen.model_copy(update={"lambda_adv": lambda_adv}), STEP)
        gradients.append(reft.source.weight.grad.clone())
    assert (gradients[0] - gradients[1]).abs().max() > 1e-6
