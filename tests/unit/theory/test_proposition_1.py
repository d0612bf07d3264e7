"""Proposition 1: an identity for orthonormal R, and none for any other."""

from __future__ import annotations

import torch

from latreft.theory import proposition_1
from latreft.theory.proposition_1 import Edit


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_error_splits_in_two():
    found = proposition_1.random_split(200, torch.Generator().manual_seed(0))
    assert found.relative_error < 1e-12 and found.outside > 0 and found.inside > 0


def test_a_basis_that_is_not_orthonormal_gives_a_mismatch():
    basis = torch.linalg.qr(draw(12, 3)).Q
    for wrong in (1.1 * basis, basis + 0.1 * draw(12, 3, seed=1)):
        found = proposition_1.split(draw(50, 12, seed=2), draw(50, 12, seed=3), Edit(wrong, draw(3, 12), draw(3)))
        assert found.relative_error > 1e-3


def test_a_fitted_edit_leaves_what_its_basis_does_not_reach():
    """Changes of rank 2: a fitted edit of rank 2 undoes them where it was fitted, one of rank 1 only in part."""
    hidden, change = draw(6, 12), draw(6, 2, seed=1) @ draw(2, 12, seed=2)
    full, part = (proposition_1.split(hidden, change, proposition_1.fit(hidden, change, rank)) for rank in (2, 1))
    assert full.total < 1e-20 and part.outside > 0.01 and part.inside < 1e-20


def test_on_real_states_the_parts_and_errors_are_reported():
    hidden, change = draw(6, 4, 12), draw(6, 4, 12, seed=1)
    found = proposition_1.check(50, torch.Generator().manual_seed(0), hidden, change)
    assert found["prop1_relative_error"].value < 1e-12
    assert found["prop1_relative_error"].n == 50 + 24 and found["prop1_error_at_others"].n == 18
    assert 0 < found["prop1_outside_share"].value < 1
