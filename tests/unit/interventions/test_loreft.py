"""The LoReFT edit: pyreft's equal, the identity at its start, and orthonormal for as long as it is trained."""

from __future__ import annotations

import warnings

import pyreft
import pytest
import torch
from safetensors.torch import load_file, save_file

from latreft.interventions.pyreft_format import from_pyreft, pyreft_intervention, to_pyreft
from latreft.interventions.reft import LoReFT

torch.set_num_threads(1)
WIDTH, RANK = 12, 4


def orthonormality_error(reft: LoReFT) -> float:
    basis = reft.basis().detach()
    return (basis.T @ basis - torch.eye(reft.rank, dtype=basis.dtype)).abs().max().item()


def trained(dtype=torch.float64, steps: int = 5, **kwargs) -> LoReFT:
    """A ReFT some steps away from its start."""
    reft = LoReFT(WIDTH, RANK, start="random", seed=1, dtype=dtype, **kwargs)
    optimizer = torch.optim.AdamW(reft.parameter_groups(0.1), lr=0.05)
    hidden = torch.randn(6, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(2))
    for _ in range(steps):
        optimizer.zero_grad()
        reft(hidden).square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return reft


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_equals_pyreft_forward_and_in_every_gradient(dtype, tolerance):
    ours = trained(dtype)
    theirs = pyreft.LoreftIntervention(embed_dim=WIDTH, low_rank_dimension=RANK, dtype=dtype).to(dtype)
    with torch.no_grad():
        theirs.learned_source.weight.copy_(ours.source.weight)
        theirs.learned_source.bias.copy_(ours.source.bias)
        # The whole state of the parametrisation, so that gradients through R reach one and the same parameter.
        mine, other = ours.rotation.parametrizations.weight, theirs.rotate_layer.parametrizations.weight
        # Theirs multiplies by the signs on the diagonal; ours has the sign -1 built in.
        other.original.copy_(mine.original.tril(-1) - torch.eye(WIDTH, RANK, dtype=dtype))
        other[0].base.copy_(mine[0].base)
    hidden = torch.randn(3, 5, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(3))
    goal = torch.randn(3, 5, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(4))

    def gradients(forward, parameters):
        state = hidden.clone().requires_grad_(True)
        output = forward(state)
        return output.detach(), torch.autograd.grad((output * goal).sum(), [state, *parameters])

    output, own = gradients(ours, [ours.source.weight, ours.source.bias, mine.original])
    expected, reference = gradients(theirs, [theirs.learned_source.weight, theirs.learned_source.bias, other.original])
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
    for gradient, wanted in zip(own, reference, strict=True):
        assert wanted.abs().max() > 0
        torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=tolerance * 10)


def test_gradient_through_the_rotation_is_that_of_finite_differences():
    """Below the diagonal, where the parameter is free; the signs on it are constants."""
    reft = trained()
    hidden = torch.randn(4, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    original = reft.rotation.parametrizations.weight.original.detach()

    def edited(free):
        state = {"rotation.parametrizations.weight.original": original.triu() + free.tril(-1)}
        return torch.func.functional_call(reft, state, hidden)

    assert torch.autograd.gradcheck(edited, original.clone().requires_grad_(True), atol=1e-6)


def test_is_the_formula_of_the_paper():
    reft = trained()
    h = torch.randn(7, WIDTH, dtype=torch.float64)
    r, w, b = reft.basis().T, reft.source.weight, reft.source.bias
    for row in h:
        expected = row + r.T @ (w @ row + b - r @ row)
        torch.testing.assert_close(reft(row), expected)


def test_survives_pyreft_and_back_through_a_file(tmp_path):
    ours = trained(torch.float32)
    hidden = torch.randn(5, WIDTH)
    there = pyreft_intervention(ours)
    torch.testing.assert_close(there(hidden), ours(hidden), rtol=1e-5, atol=1e-5)
    torch.save(there.state_dict(), tmp_path / "intkey.bin")
    back = from_pyreft(torch.load(tmp_path / "intkey.bin", weights_only=True))
    torch.testing.assert_close(back(hidden), ours(hidden), rtol=1e-5, atol=1e-5)
    save_file(to_pyreft(ours), tmp_path / "reft.safetensors")
    again = from_pyreft(load_file(tmp_path / "reft.safetensors"))
    torch.testing.assert_close(again(hidden), ours(hidden), rtol=1e-5, atol=1e-5)


def test_a_state_that_is_not_pyrefts_names_what_is_missing():
    with pytest.raises(ValueError, match="rotate_layer missing"):
        from_pyreft({"weight": torch.zeros(RANK, WIDTH), "bias": torch.zeros(RANK)})
    with pytest.raises(ValueError, match="bias, rotate_layer, weight missing, found \\[\\]"):
        from_pyreft({})


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_identity_start_is_the_identity(dtype, tolerance):
    reft = LoReFT(64, 16, seed=3, dtype=dtype)
    hidden = torch.randn(5, 64, dtype=dtype)
    torch.testing.assert_close(reft(hidden), hidden, rtol=tolerance, atol=tolerance)


def test_random_start_is_no_identity_and_within_the_bounds_of_a_linear_layer():
    reft = LoReFT(64, 16, start="random", seed=3)
    hidden = torch.randn(5, 64)
    assert (reft(hidden) - hidden).abs().max() > 0.1
    assert reft.source.weight.abs().max() <= 64**-0.5


def test_the_seed_alone_decides_the_start_and_all_that_training_meets():
    torch.manual_seed(1)
    one = LoReFT(WIDTH, RANK, start="random", seed=7).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    other = LoReFT(WIDTH, RANK, start="random", seed=7).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert set(one) == set(other)
    for name in one:
        assert torch.equal(one[name], other[name]), name
    assert not torch.equal(one["source.weight"], LoReFT(WIDTH, RANK, start="random", seed=8).source.weight)


@pytest.mark.parametrize("rank", [0, -1, WIDTH + 1])
def test_an_impossible_rank_is_an_error(rank):
    with pytest.raises(ValueError, match=f"between 1 and the hidden width {WIDTH}, got {rank}"):
        LoReFT(WIDTH, rank)


@pytest.mark.parametrize("rank", [1, WIDTH])
def test_smallest_and_full_rank_work(rank):
    reft = LoReFT(WIDTH, rank, dtype=torch.float64)
    hidden = torch.randn(3, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(reft(hidden), hidden)
    loaded = LoReFT.from_weights(reft.weights())
    torch.testing.assert_close(loaded(hidden), reft(hidden))


def test_stays_orthonormal_over_200_steps_with_weight_decay_on_the_rest():
    reft = trained(torch.float32, steps=200)
    assert orthonormality_error(reft) < 1e-5
    LoReFT.from_weights(reft.weights())


def test_weight_decay_on_pyrefts_rotation_destroys_it_in_one_step():
    """What happens in torch 2.13: the ±1 on the factor's diagonal shrinks and is truncated to 0, and R is 0."""
    theirs = pyreft.LoreftIntervention(embed_dim=WIDTH, low_rank_dimension=RANK, dtype=torch.float32)
    hidden = torch.randn(5, WIDTH)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.01)
    theirs(hidden).square().sum().backward()
    optimizer.step()
    assert theirs.rotate_layer.weight.abs().max() == 0
    with pytest.raises(ValueError, match="not orthonormal"):
        from_pyreft(theirs.state_dict())


def test_weight_decay_on_our_rotation_would_keep_it_orthonormal():
    reft = LoReFT(WIDTH, RANK, start="random", seed=1)
    optimizer = torch.optim.AdamW(reft.parameters(), lr=1e-2, weight_decay=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        reft(torch.randn(5, WIDTH)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(reft.basis().T @ reft.basis(), torch.eye(RANK), rtol=0, atol=1e-5)


def test_parameter_groups_hold_every_parameter_once_and_decay_the_rotation_never():
    reft = LoReFT(WIDTH, RANK)
    groups = reft.parameter_groups(0.3)
    seen = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, seen)) == sorted(map(id, reft.parameters()))
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in reft.named_parameters():
        assert decay[id(parameter)] == (0.0 if "rotation" in name else 0.3), name


@pytest.mark.parametrize("fault", [0.999, 0.0, float("nan")])
def test_a_saved_rotation_that_is_not_orthonormal_is_refused(fault):
    weights = LoReFT(WIDTH, RANK).weights()
    weights["rotation"] = weights["rotation"] * fault
    with pytest.raises(ValueError, match="the saved R is not orthonormal: .* at most 1e-4"):
        LoReFT.from_weights(weights)


def test_saved_tensors_that_do_not_belong_together_are_refused():
    weights = LoReFT(WIDTH, RANK).weights()
    with pytest.raises(ValueError, match="has tensors"):
        LoReFT.from_weights({"rotation": weights["rotation"]})
    with pytest.raises(ValueError, match="has tensors"):
        LoReFT.from_weights(weights | {"more": weights["bias"]})
    for wrong in ({"bias": torch.zeros(1)}, {"weight": torch.zeros(1, WIDTH)}):
        with pytest.raises(ValueError, match="a saved ReFT with rotation"):
            LoReFT.from_weights(weights | wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saving_and_loading_keeps_outputs_and_dtype(dtype):
    reft = trained(dtype)
    loaded = LoReFT.from_weights(reft.weights())
    hidden = torch.randn(5, WIDTH, dtype=dtype)
    assert loaded.source.weight.dtype == dtype
    torch.testing.assert_close(loaded(hidden), reft(hidden), rtol=1e-5, atol=1e-5)


def test_bfloat16_states_are_edited_in_float32():
    reft = trained(torch.float32)
    hidden = torch.randn(5, WIDTH).to(torch.bfloat16)
    edited = reft(hidden)
    assert edited.dtype == torch.bfloat16
    assert torch.equal(edited, reft(hidden.float()).to(torch.bfloat16))
    assert reft.basis().dtype == torch.float32


def test_saved_weights_load_under_autocast():
    """Attacks and evaluation load a defense in mixed precision, where a product of two R would be rounded."""
    saved = LoReFT(576, 64, seed=0).weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loaded = LoReFT.from_weights(saved)
    torch.testing.assert_close(loaded.weights(), saved, rtol=0, atol=1e-6)


def test_autocast_does_not_round_the_edit():
    reft = trained(torch.float32)
    hidden = torch.randn(5, WIDTH)
    expected = reft(hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert reft.basis().dtype == torch.float32
        assert torch.equal(reft(hidden), expected)
        with reft.built_once():
            assert torch.equal(reft(hidden), expected)
        saved = reft.weights()
    assert saved["rotation"].dtype == torch.float32
    LoReFT.from_weights(saved)


def test_the_rotation_is_built_once_within_a_step_and_still_differentiable():
    reft = trained()
    hidden = torch.randn(5, WIDTH, dtype=torch.float64)
    with reft.built_once():
        assert reft.basis() is reft.basis()
        (reft(hidden).sum() + reft(2 * hidden).sum()).backward()
    gradient = reft.rotation.parametrizations.weight.original.grad.clone()
    reft.zero_grad()
    (reft(hidden).sum() + reft(2 * hidden).sum()).backward()
    torch.testing.assert_close(gradient, reft.rotation.parametrizations.weight.original.grad)
    before = reft.basis().detach()
    with torch.no_grad():
        reft.rotation.parametrizations.weight.original.add_(0.1 * torch.randn(WIDTH, RANK).tril(-1))
    assert not torch.equal(before, reft.basis())


def test_a_container_holds_the_edits_whole_state():
    reft = trained()
    state = torch.nn.ModuleDict({"edit": reft}).state_dict()
    assert {key.split(".")[1] for key in state} == {"rotation", "source"}
    other = LoReFT(WIDTH, RANK, seed=9, dtype=torch.float64)
    torch.nn.ModuleDict({"edit": other}).load_state_dict(state)
    hidden = torch.randn(5, WIDTH, dtype=torch.float64)
    assert torch.equal(other(hidden), reft(hidden))


def test_counts_the_papers_parameters():
    assert LoReFT(WIDTH, RANK).trained_parameters() == 2 * RANK * WIDTH + RANK


def test_no_warning_is_raised_on_the_way():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LoReFT.from_weights(LoReFT(WIDTH, RANK).weights())
