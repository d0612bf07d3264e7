"""Projected gradient ascent: inside the ball, by the stated step, each example for itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from unit.models.tiny import WIDTH, classifier, examples

from latreft.interventions.pgd import Ball, ascend

NORMS = ("linf", "l2_window", "l2_token")
B, L = 3, 5


def noise(seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(B, L, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def size(norm: str, delta: torch.Tensor) -> torch.Tensor:
    """The largest norm of each example [B], written out."""
    if norm == "linf":
        return delta.abs().amax(dim=(1, 2))
    squared = delta.square().sum(dim=2)
    return squared.sum(dim=1).sqrt() if norm == "l2_window" else squared.amax(dim=1).sqrt()


MASK = torch.ones(B, L, dtype=torch.bool)
MASK[1, :3] = False


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 7])
def test_stays_in_the_ball_and_off_the_padding(norm, dtype, steps):
    ball, goal = Ball(norm, 0.3), noise(1, dtype)
    losses = lambda delta: (delta * goal).sum(dim=(1, 2)).exp()  # noqa: E731
    for kind in ("zero", "random"):
        start = ball.start(goal.shape, kind, torch.Generator().manual_seed(2), goal)
        delta = ascend(losses, start, MASK, ball, steps=steps, step_size=0.2)
        assert delta.dtype == dtype
        assert not delta.requires_grad
        assert (size(norm, delta.double()) <= 0.3 * (1 + 4 * torch.finfo(dtype).eps)).all()
        assert (delta[~MASK] == 0).all()
        assert (size(norm, delta.double()) > 0.19).all()


@pytest.mark.parametrize("norm", NORMS)
def test_projection_keeps_what_is_inside_and_brings_the_rest_to_the_surface(norm):
    ball = Ball(norm, 1.0)
    inside = noise() * 0.01
    assert torch.equal(ball.project(inside), inside)
    outside = noise() * 100
    torch.testing.assert_close(size(norm, ball.project(outside)), torch.ones(B, dtype=torch.float64))
    assert torch.equal(ball.project(torch.zeros_like(outside)), torch.zeros_like(outside))


@pytest.mark.parametrize("norm", NORMS)
def test_the_first_step_from_zero_is_the_one_written_out(norm):
    goal = noise(1)
    delta = ascend(lambda d: (d * goal).sum(dim=(1, 2)), torch.zeros_like(goal), MASK, Ball(norm, 10.0),
                   steps=1, step_size=0.2)  # fmt: skip
    gradient = goal * MASK[..., None]
    if norm == "linf":
        direction = gradient.sign()
    elif norm == "l2_window":
        direction = gradient / gradient.square().sum(dim=(1, 2), keepdim=True).sqrt()
    else:
        direction = gradient / gradient.square().sum(dim=2, keepdim=True).sqrt().clamp(min=1e-30)
    torch.testing.assert_close(delta, 0.2 * direction, rtol=1e-12, atol=1e-14)


def test_a_single_sign_step_of_epsilon_is_fgsm():
    goal = noise(1)
    full = torch.ones(B, L, dtype=torch.bool)
    delta = ascend(lambda d: (d * goal).sum(dim=(1, 2)), torch.zeros_like(goal), full, Ball("linf", 0.5),
                   steps=1, step_size=0.5)  # fmt: skip
    assert torch.equal(delta, 0.5 * goal.sign())


@pytest.mark.parametrize("norm", NORMS)
def test_a_vanished_gradient_moves_nothing_and_gives_no_nan(norm):
    start = noise() * 0.001
    delta = ascend(lambda d: (d * 0).sum(dim=(1, 2)), start, MASK, Ball(norm, 1.0), steps=3, step_size=0.5)
    assert torch.equal(delta, start * MASK[..., None])


@pytest.mark.parametrize("norm", NORMS)
def test_a_random_start_lies_inside_and_is_the_generators(norm):
    ball, like = Ball(norm, 0.4), noise(dtype=torch.float32)
    one, again, other = (ball.start(like.shape, "random", torch.Generator().manual_seed(s), like) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert (size(norm, one) <= 0.4 * (1 + 1e-6)).all()
    assert (size(norm, one) > 0).all()
    with pytest.raises(ValueError, match="needs a generator"):
        ball.start(like.shape, "random", None, like)
    assert torch.equal(ball.start(like.shape, "zero", None, like), torch.zeros_like(like))


@pytest.mark.parametrize("norm", NORMS)
def test_neighbours_change_nothing(norm):
    goal, start, ball = noise(1), noise(2) * 0.01, Ball(norm, 0.3)

    def run(rows):
        return ascend(lambda d: (d * goal[rows]).sum(dim=(1, 2)).exp(), start[rows], MASK[rows], ball,
                      steps=4, step_size=0.1)  # fmt: skip

    together = run(torch.arange(B))
    for row in range(B):
        torch.testing.assert_close(together[row : row + 1], run(torch.tensor([row])), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("norm", NORMS)
def test_the_loss_never_falls_on_a_convex_toy(norm):
    goal, ball = noise(1), Ball(norm, 1.0)
    losses = lambda d: (d - goal).square().sum(dim=(1, 2))  # noqa: E731
    kept = [losses(ascend(losses, torch.zeros_like(goal), MASK, ball, steps=k, step_size=0.1)) for k in range(1, 12)]
    for before, after in itertools.pairwise(kept):
        assert (after >= before - 1e-12).all()
    assert (kept[0] > losses(torch.zeros_like(goal))).all()


def test_no_parameter_gets_a_gradient():
    from latreft.engine.reference import ReferenceEngine, losses_of
    from latreft.interventions.edits import Edits, Perturbation
    from latreft.models.batch import collate

    model = classifier().requires_grad_(True)
    prepared = ReferenceEngine().prepare(model, (batch := collate(examples([6, 3]))), 4)
    ascend(
        lambda d: losses_of(prepared.logits(Edits(Perturbation(1, d))), batch.labels),
        torch.zeros(2, 4, WIDTH, dtype=torch.float64), prepared.mask, Ball("linf", 0.3), steps=3, step_size=0.1,
    )  # fmt: skip
    assert all(parameter.grad is None for parameter in model.parameters())
