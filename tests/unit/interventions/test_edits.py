"""What an edit does to the states of a window, and in which order two of them work."""

from __future__ import annotations

import pytest
import torch

from latreft.interventions.edits import Edits, Perturbation, ReftEdit
from latreft.interventions.reft import LoReFT

torch.set_num_threads(1)
B, L, D = 2, 4, 8
MASK = torch.tensor([[True] * L, [False, False, True, True]])


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, L, D, dtype=torch.float64, generator=generator) for _ in range(3)]


def reft() -> LoReFT:
    return LoReFT(D, 3, start="random", seed=1, dtype=torch.float64)


def test_a_perturbation_adds_or_replaces():
    hidden, delta, base = tensors()
    assert torch.equal(Perturbation(1, delta)(hidden), hidden + delta)
    assert torch.equal(Perturbation(1, delta, base)(hidden), base + delta)
    assert Perturbation(1, delta)(hidden.to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("order", ["perturb_then_reft", "reft_then_perturb"])
def test_at_one_layer_the_order_is_the_one_asked_for(order):
    hidden, delta, _ = tensors()
    edit = reft()
    edits = Edits(Perturbation(2, delta), ReftEdit(2, edit), order)
    expected = edit(hidden + delta) if order == "perturb_then_reft" else edit(hidden) + delta
    assert edits.layers() == [2]
    found = edits.apply(2, hidden, MASK)
    torch.testing.assert_close(found[MASK], expected[MASK], rtol=0, atol=0)
    assert torch.equal(found[~MASK], hidden[~MASK])


def test_a_layer_gets_its_own_edits_only():
    hidden, delta, _ = tensors()
    edit = reft()
    edits = Edits(Perturbation(3, delta), ReftEdit(1, edit))
    assert edits.layers() == [1, 3]
    assert torch.equal(edits.apply(1, hidden, MASK)[MASK], edit(hidden)[MASK])
    assert torch.equal(edits.apply(3, hidden, MASK)[MASK], (hidden + delta)[MASK])
    assert torch.equal(edits.apply(2, hidden, MASK), hidden)
    assert Edits().layers() == []


def test_no_gradient_comes_through_padded_positions():
    hidden, delta, _ = tensors()
    delta.requires_grad_(True)
    Edits(Perturbation(1, delta)).apply(1, hidden, MASK).square().sum().backward()
    assert (delta.grad[~MASK] == 0).all()
    assert (delta.grad[MASK] != 0).all()
