"""Projected gradient ascent on hidden states [Eq. 4, Algorithm 1 line 5]: balls, steps, starts.

All act on perturbations [B, L, D] whose padded positions (``mask`` [B, L] False) stay zero. Each example's result is
its own: the loss is summed over the batch, never averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Norm = Literal["linf", "l2_window", "l2_token"]
Start = Literal["zero", "random"]


@dataclass(frozen=True)
class Ball:
    """The allowed perturbations: ``norm`` over each element, the whole window, or each token; radius ``epsilon``."""

    norm: Norm
    epsilon: float

    def length(self, delta: Tensor) -> Tensor:
        """The ℓ2 norm over the window [B, 1, 1] or each token [B, L, 1]."""
        dims = (1, 2) if self.norm == "l2_window" else (2,)
        return torch.linalg.vector_norm(
            delta, dim=dims, keepdim=True, dtype=torch.promote_types(delta.dtype, torch.float32)
        )

    def project(self, delta: Tensor) -> Tensor:
        """The nearest allowed perturbation."""
        if self.norm == "linf":
            return delta.clamp(-self.epsilon, self.epsilon)
        length = self.length(delta).clamp(min=torch.finfo(torch.float32).tiny)
        return delta * (self.epsilon / length).clamp(max=1.0).to(delta.dtype)

    def direction(self, gradient: Tensor) -> Tensor:
        """Steepest ascent: the sign for ℓ∞, the normalised gradient for ℓ2."""
        if self.norm == "linf":
            return gradient.sign()
        return gradient / self.length(gradient).clamp(min=1e-30).to(gradient.dtype)

    def start(self, shape: torch.Size, kind: Start, generator: torch.Generator | None, like: Tensor) -> Tensor:
        """The first perturbation: zero, or random in the ball (drawn on the CPU: every device gets the same)."""
        if kind == "zero":
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        if generator is None:
            raise ValueError("a random start needs a generator")
        if self.norm == "linf":
            noise = (2 * torch.rand(shape, generator=generator) - 1) * self.epsilon
        else:
            noise = torch.randn(shape, generator=generator)
            noise = noise / self.length(noise) * self.epsilon * torch.rand((shape[0], 1, 1), generator=generator)
        return noise.to(dtype=like.dtype, device=like.device)


def ascend(
    loss_of: Callable[[Tensor], Tensor],
    start: Tensor,
    mask: Tensor,
    ball: Ball,
    *,
    steps: int,
    step_size: float,
) -> Tensor:
    """K steps of projected gradient ascent from ``start``; returns the perturbation, detached.

    ``loss_of`` maps a perturbation [B, L, D] to per-example losses [B]. Gradients are taken with respect to the
    perturbation only, so no parameter's ``.grad`` is touched.
    """
    delta = ball.project(start * mask[..., None])
    for _ in range(steps):
        delta = step(loss_of, delta, mask, ball, step_size)
    return delta.detach()


def step(loss_of: Callable[[Tensor], Tensor], delta: Tensor, mask: Tensor, ball: Ball, step_size: float) -> Tensor:
    """One step of :func:`ascend`: along the gradient's direction, back into the ball, padded positions zero."""
    keep = mask[..., None]
    delta = delta.detach().requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss_of(delta).sum(), delta)
    return ball.project(delta.detach() + step_size * ball.direction(gradient * keep)) * keep
