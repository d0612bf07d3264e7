"""Attention heads at the last position, in two runs: the setting of Theorems 1 and 2 [Sec. 5, D.1].

N heads, T tokens, D the width of what a head reads, d that of a head. All in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latreft.theory.bounds import log_uniform


@dataclass(frozen=True)
class Run:
    """What N heads see at the last position: ``query`` [N, d] of token T, ``keys`` and ``values`` [N, T, d]."""

    query: Tensor
    keys: Tensor
    values: Tensor

    def weights(self) -> Tensor:
        """α [N, T] = softmax(q·k / √d)."""
        depth = self.query.shape[-1]
        return torch.einsum("nd,ntd->nt", self.query, self.keys).div(depth**0.5).softmax(dim=-1)

    def output(self) -> Tensor:
        """o [N, d] = Σ α v."""
        return torch.einsum("nt,ntd->nd", self.weights(), self.values)

    def largest_value(self) -> Tensor:
        """M_V [N]: the largest ‖v‖."""
        return self.values.norm(dim=-1).amax(dim=-1)


@dataclass(frozen=True)
class Heads:
    """N heads in a clean and a changed run.

    ``moved`` [N, T] is how far each token's state, as the head reads it, has moved (ℓ2). ``query_norm``, ``key_norm``,
    ``value_norm`` [N] are the spectral norms of W_Q, W_K, W_V.
    """

    clean: Run
    changed: Run
    moved: Tensor
    query_norm: Tensor
    key_norm: Tensor
    value_norm: Tensor

    def undone(self, kept: Tensor) -> Heads:
        """The same heads with the share ``kept`` [T] of each token's change left, the rest undone.

        Exact, for queries, keys and values are affine in the state.
        """
        clean, changed = self.clean, self.changed
        partly = Run(
            clean.query.lerp(changed.query, kept[-1].item()),
            torch.lerp(clean.keys, changed.keys, kept[:, None]),
            torch.lerp(clean.values, changed.values, kept[:, None]),
        )
        return Heads(clean, partly, self.moved * kept, self.query_norm, self.key_norm, self.value_norm)

    def output_change(self) -> Tensor:
        """‖ô − o‖ [N]."""
        return (self.changed.output() - self.clean.output()).norm(dim=-1)

    def weight_change(self) -> Tensor:
        """|α̂ − α| [N, T]."""
        return (self.changed.weights() - self.clean.weights()).abs()

    def weight_constant(self, points: int = 5) -> Tensor:
        """L_α [N]: the constant of (query, keys) → attention weights that the paper's proofs use.

        Such that ‖α̂ − α‖₁ ≤ L_α (‖q̂ − q‖ + Σ_t ‖k̂_t − k_t‖). Taken as small as it may be: the largest operator norm on
        ``points`` of the straight line between the two runs. That of key t is 2 α_t (1 − α_t) ‖q‖ / √d, exactly; that of
        the query is at most the square root of the largest eigenvalue of the keys' covariance under α, over √d.
        """
        line = torch.linspace(0, 1, points, dtype=torch.float64)
        return torch.stack([_operator_norm(_between(self.clean, self.changed, at)) for at in line.tolist()]).amax(dim=0)


def _between(clean: Run, changed: Run, at: float) -> Run:
    return Run(
        clean.query.lerp(changed.query, at), clean.keys.lerp(changed.keys, at), clean.values.lerp(changed.values, at)
    )


def _operator_norm(run: Run) -> Tensor:
    """Norm [N] of the derivative of (q, k_1 … k_T) → α, from ‖·‖ + Σ ‖·‖ to ℓ1."""
    weights, depth = run.weights(), run.query.shape[-1]
    of_key = (2 * weights * (1 - weights)).amax(dim=-1) * run.query.norm(dim=-1)
    centred = run.keys - torch.einsum("nt,ntd->nd", weights, run.keys)[:, None]
    covariance = torch.einsum("nt,ntd,nte->nde", weights, centred, centred)
    of_query = torch.linalg.eigvalsh(covariance)[:, -1].clamp(min=0).sqrt()
    return torch.maximum(of_key, of_query) / depth**0.5


@dataclass(frozen=True)
class RandomHeads:
    """N random heads with their matrices [N, d, D] and states [N, T, D], so that states can be moved at will."""

    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor

    def run(self, hidden: Tensor) -> Run:
        """The heads' run on states [N, T, D]."""
        project = "nde,nte->ntd"
        return Run(
            torch.einsum("nde,ne->nd", self.query, hidden[:, -1]),
            torch.einsum(project, self.key, hidden),
            torch.einsum(project, self.value, hidden),
        )

    def heads(self, change: Tensor) -> Heads:
        """The clean run beside that of states moved by ``change`` [N, T, D]."""
        norms = [torch.linalg.matrix_norm(matrix, ord=2) for matrix in (self.query, self.key, self.value)]
        return Heads(self.run(self.hidden), self.run(self.hidden + change), change.norm(dim=-1), *norms)


TOKENS, WIDTH, DEPTH = 24, 16, 8


def random_heads(trials: int, generator: torch.Generator) -> RandomHeads:
    """Gaussian states and matrices of every size: attention from flat to concentrated on one token."""

    def matrix(low: float, high: float) -> Tensor:
        entries = torch.randn(trials, DEPTH, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
        return entries * log_uniform(generator, low, high, trials)[:, None, None]

    hidden = torch.randn(trials, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return RandomHeads(hidden, matrix(0.1, 5), matrix(0.1, 5), matrix(0.01, 100))


def random_change(heads: RandomHeads, changed: Tensor, generator: torch.Generator) -> Tensor:
    """Moves [N, T, D] of the tokens where ``changed`` [T], none elsewhere, of sizes from 1e-3 to 3, one size a trial."""
    trials, tokens, width = heads.hidden.shape
    direction = torch.randn(trials, tokens, width, generator=generator, dtype=torch.float64)
    direction = direction / direction.norm(dim=-1, keepdim=True)
    length = torch.rand(trials, tokens, 1, generator=generator, dtype=torch.float64)
    return direction * length * log_uniform(generator, 1e-3, 3, trials)[:, None, None] * changed[:, None]


def last(tokens: int, count: int) -> Tensor:
    """bool [T]: the last ``count`` of so many tokens."""
    return torch.arange(tokens) >= tokens - count
