"""Theorems 1 and 2 hold where they are true, and the checks say so where a bound is wrong."""

from __future__ import annotations

import torch

from latreft.theory import theorem_1, theorem_2
from latreft.theory.bounds import violations
from latreft.theory.heads import Heads

TRIALS = 300


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def heads() -> Heads:
    return theorem_1.random_trials(TRIALS, generator())


def test_violations_count_rounding_not_and_nan_always():
    one = torch.ones(3, dtype=torch.float64)
    assert violations(one, one * (1 - 1e-12)) == 0
    assert violations(one, torch.tensor([1.0, 0.9, torch.nan]).double()) == 2
    assert violations(one, one * torch.inf) == 0


def test_theorem_1_holds_and_shrunk_error_terms_are_found_out():
    right = theorem_1.check(heads(), heads())
    assert right["thm1_violations"].value == right["thm1_attention_violations"].value == 0
    assert right["thm1_violations"].n == 2 * TRIALS
    assert theorem_1.check(heads(), heads(), factor=0.3)["thm1_violations"].value > 0
    assert theorem_1.check(heads(), heads(), factor=0.01)["thm1_attention_violations"].value > 0


def test_theorem_1_s_terms_are_the_written_sums():
    found, both = theorem_1.terms(heads()), heads()
    before, after = both.clean.weights(), both.changed.weights()
    for n in range(5):
        leak = sum(before[n, t] * (both.changed.values[n, t] - both.clean.values[n, t]) for t in range(23))
        torch.testing.assert_close(found.leak[n], leak.norm())
        spread = sum((after[n, t] - before[n, t]).abs() * both.changed.values[n, t].norm() for t in range(24))
        torch.testing.assert_close(found.attention[n], spread)
        torch.testing.assert_close(found.last_token[n], before[n, 23] * both.value_norm[n] * both.moved[n, 23])


def test_a_restored_last_token_leaves_no_error_of_its_own():
    found = theorem_1.terms(theorem_1.with_last_token_restored(heads()))
    assert (found.last_token == 0).all() and (found.leak > 0).all()


def test_a_bound_at_or_below_zero_is_counted_as_vacuous():
    found = theorem_1.terms(theorem_1.with_last_token_restored(heads()))
    wanted = (found.leak - found.attention <= 0).double().mean().item()
    right = theorem_1.check(heads(), heads())
    assert right["thm1_vacuous_share"].value == wanted and 0 < wanted < 1
    assert right["thm1_vacuous_share_by_constant"].value >= wanted


def test_theorem_2_holds_on_random_heads_and_a_shrunk_bound_is_found_out():
    right = theorem_2.check(TRIALS, generator(), heads(), 6)
    assert right["thm2_violations"].value == 0 and right["thm2_violations"].n == 3 * TRIALS
    assert right["thm2_slack_median"].value > 1
    wrong = theorem_2.check(TRIALS, generator(), heads(), 6, factor=1e-3)
    assert wrong["thm2_violations"].value > 0 and wrong["thm2_violations_assumption_1"].value > 0


def test_theorem_2_fails_where_more_keys_move_than_it_counts():
    found = theorem_2.counterexamples()
    assert found["thm2_counterexample"].value > 2
    assert found["thm2_counterexample_window"].value < 1
    assert found["thm2_counterexample_assumption_1"].value > 100


def test_the_counterexample_meets_the_theorem_s_hypotheses():
    example, change = theorem_2.counterexample()
    both = example.heads(change)
    assert (both.moved > 0).sum() == 20
    torch.testing.assert_close(both.moved[both.moved > 0], torch.full((20,), 1e-4).double())
    torch.testing.assert_close(both.key_norm, torch.ones(1).double())
    steps = (both.changed.keys - both.clean.keys).norm(dim=-1).sum(dim=-1)
    assert (both.weight_change().sum(dim=-1) <= both.weight_constant() * steps).all()


def test_the_constant_of_assumption_1_bounds_the_output():
    example, change = theorem_2.counterexample()
    limit = theorem_2.state_constant(example, change) * change.flatten(1).norm(dim=-1)
    assert (example.heads(change).output_change() <= limit).all()
