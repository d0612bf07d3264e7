"""Which neurons stay: exact numbers, ties decided, the controls matched."""

from __future__ import annotations

import pytest
import torch

from latreft.circuits.allocation import RULES, keep_mask, kept_count, kept_neurons

LAYERS, NEURONS = 4, 10
RATIOS = (0.0, 0.1, 0.25, 0.33, 0.5, 0.75, 1.0)


def scores(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 5.0, 2.0, 0.1], dtype=torch.float64)[:, None]
    draw = lambda: torch.rand(LAYERS, NEURONS, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    return {"act_grad": draw(), "act_diff": draw()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_number_kept_is_exact(rule, ratio):
    mask = keep_mask(rule, scores(), ratio, 3)
    assert mask.shape == (LAYERS, NEURONS)
    if rule == "act_grad_uniform":
        assert mask.sum(dim=1).tolist() == [kept_count(NEURONS, ratio)] * LAYERS
    else:
        assert mask.sum().item() == LAYERS * NEURONS - round(LAYERS * NEURONS * ratio)
    assert [len(n) for n in kept_neurons(mask)] == mask.sum(dim=1).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_ratio_zero_keeps_all_and_ratio_one_none(rule):
    assert keep_mask(rule, scores(), 0.0, 0).all()
    assert not keep_mask(rule, scores(), 1.0, 0).any()
    assert all(len(neurons) == 0 for neurons in kept_neurons(keep_mask(rule, scores(), 1.0, 0)))


@pytest.mark.parametrize("rule", ["act_grad", "act_diff"])
def test_all_layers_are_ranked_together(rule):
    mask, values = keep_mask(rule, scores(), 0.5, 0), scores()[rule]
    assert values[mask].min() >= values[~mask].max()
    assert mask.sum(dim=1).tolist() != [NEURONS // 2] * LAYERS


def test_ties_go_to_the_earlier_layer_then_the_lower_index():
    equal = {"act_grad": torch.zeros(2, 4, dtype=torch.float64)}
    assert keep_mask("act_grad", equal, 0.25, 0).tolist() == [[True] * 4, [True, True, False, False]]
    assert keep_mask("act_grad_uniform", equal, 0.25, 0).tolist() == [[True, True, True, False]] * 2


def test_the_matched_control_has_actgrads_budget_in_each_layer_and_other_neurons():
    for ratio in RATIOS:
        act_grad, matched = (keep_mask(rule, scores(), ratio, 5) for rule in ("act_grad", "random_matched"))
        assert torch.equal(act_grad.sum(dim=1), matched.sum(dim=1))
    assert not torch.equal(*(keep_mask(rule, scores(), 0.5, 5) for rule in ("act_grad", "random_matched")))


def test_the_uniform_control_keeps_actgrads_best_of_each_layer():
    mask, values = keep_mask("act_grad_uniform", scores(), 0.5, 0), scores()["act_grad"]
    for layer in range(LAYERS):
        assert values[layer][mask[layer]].min() >= values[layer][~mask[layer]].max()


@pytest.mark.parametrize("rule", ["random", "random_matched"])
def test_random_rules_are_the_seeds_alone(rule):
    torch.manual_seed(1)
    one = keep_mask(rule, scores(), 0.5, 5)
    torch.manual_seed(2)
    assert torch.equal(one, keep_mask(rule, scores(), 0.5, 5))
    assert not torch.equal(one, keep_mask(rule, scores(), 0.5, 6))
    assert torch.equal(keep_mask("random", scores(), 0.5, 5), keep_mask("random", scores(1), 0.5, 5))


def test_kept_indices_ascend():
    for neurons in kept_neurons(keep_mask("random", scores(), 0.4, 0)):
        assert neurons.tolist() == sorted(neurons.tolist())


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_an_impossible_ratio_is_an_error(ratio):
    with pytest.raises(ValueError, match="pruning ratio must be between 0 and 1"):
        keep_mask("act_grad", scores(), ratio, 0)


def test_an_unknown_rule_lists_the_rules():
    with pytest.raises(ValueError, match="unknown pruning rule 'best'; rules are act_grad, act_diff, random"):
        keep_mask("best", scores(), 0.5, 0)
