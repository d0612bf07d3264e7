"""The compact Householder product is the one by one."""

from __future__ import annotations

import pytest
import torch

from latreft.interventions.orthonormal import Orthonormal, householder_columns


@pytest.mark.parametrize(("width", "rank"), [(7, 3), (16, 16), (40, 1), (64, 20)])
def test_the_product_and_its_gradient_are_torchs(width, rank):
    generator = torch.Generator().manual_seed(0)
    reflectors = torch.randn(width, rank, dtype=torch.float64, generator=generator).requires_grad_(True)
    weights = torch.randn(width, rank, dtype=torch.float64, generator=generator)
    below = reflectors.tril(diagonal=-1)
    expected = -torch.linalg.householder_product(below, 2 / (1 + below.square().sum(dim=0)))
    found = householder_columns(reflectors)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad((value * weights).sum(), reflectors)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    assert gradients[0].triu().abs().max() == 0


def test_columns_are_orthonormal_for_any_reflectors():
    columns = householder_columns(100 * torch.randn(50, 12, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(columns.T @ columns, torch.eye(12), rtol=0, atol=1e-5)


def test_an_assigned_matrix_is_kept_to_the_last_bit():
    matrix = torch.linalg.qr(torch.randn(30, 5, generator=torch.Generator().manual_seed(2))).Q
    module = Orthonormal()
    assert torch.equal(module(module.right_inverse(matrix)), matrix)
    torch.testing.assert_close(module.base.T @ module.base, torch.eye(30), rtol=0, atol=1e-5)
