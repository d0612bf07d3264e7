"""Theorem 3: what PGD loses on a pruned surrogate is bounded by the act×grad mass of the pruned neurons.

[thm:surrogate, Eq. 7; D.4] Z are the neurons that read the attacked states H, a their activations, r = ∂L/∂a, and the
surrogate's gradient is the projected one, r^s = P_S r. Then ``Σ_s G_s ≤ C η Σ_s M_s(S) + o(K η)``, where
G_s = L(H + η u_s) − L(H + η u_s^surr) with u the signs of the gradients, M_s² = Σ_{j∉S} |a_j r_j|² (summed over tokens),
and C = c/m₀ · ‖∂Z/∂H‖: m₀ the smallest |a_j| of a pruned neuron (Assumption 2), c as in Assumption 3,
``⟨g, u⟩ − ⟨g, u^s⟩ ≤ c ‖g − g^s‖``.

Lemma 1 would bound ``‖∂Z/∂H‖ ≤ L_φ L_σ ‖W_1‖ (C_attn B_Q B_K B_V / √d + B_V)`` with C_attn = O(T).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from latreft.records import Metric
from latreft.theory.bounds import count, median_ratio, violations

TOKENS, WIDTH, NEURONS = 5, 6, 12
STEPS, STEP_SIZE = 4, 1e-3
RATIOS = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Network:
    """N networks of Lemma 1's form with a loss: ``attention`` W_QK [N, D, D], ``value`` [N, D, D], ``first`` W_1 [N, D, M],
    ``second`` [N, M, D]. σ = tanh and φ = softplus, both 1-Lipschitz; φ is never 0, so Assumption 2 can hold."""

    attention: Tensor
    value: Tensor
    first: Tensor
    second: Tensor

    def parts(self) -> tuple[Tensor, ...]:
        return self.attention, self.value, self.first, self.second


def neurons(hidden: Tensor, attention: Tensor, value: Tensor, first: Tensor, _second: Tensor) -> Tensor:
    """Z [T, M] of states [T, D]."""
    weights = (hidden @ attention @ hidden.T / WIDTH**0.5).softmax(dim=-1)
    return torch.nn.functional.softplus(torch.tanh(weights @ hidden @ value) @ first)


def loss_of_neurons(activations: Tensor, second: Tensor) -> Tensor:
    """L of Z [T, M]: a binary cross-entropy of a nonlinear readout."""
    return torch.nn.functional.softplus(torch.tanh(activations @ second).sum())


def _loss(hidden: Tensor, *parts: Tensor) -> Tensor:
    return loss_of_neurons(neurons(hidden, *parts), parts[-1])


def random_networks(trials: int, generator: torch.Generator) -> tuple[Network, Tensor]:
    """Gaussian networks, and states [N, T, D]."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(trials, *shape, generator=generator, dtype=torch.float64)

    network = Network(
        draw(WIDTH, WIDTH), draw(WIDTH, WIDTH) / WIDTH**0.5, draw(WIDTH, NEURONS), draw(NEURONS, WIDTH) / NEURONS
    )
    return network, draw(TOKENS, WIDTH)


def random_pruned(trials: int, generator: torch.Generator) -> Tensor:
    """bool [N, M]: random pruned neurons, the ratios of ``RATIOS`` in turn."""
    rank = torch.rand(trials, NEURONS, generator=generator).argsort(dim=-1).argsort(dim=-1)
    ratio = torch.tensor(RATIOS).repeat(trials // len(RATIOS) + 1)[:trials]
    return rank < (ratio * NEURONS).round()[:, None]


@dataclass(frozen=True)
class Gap:
    """One trial an entry [N]: ``gap`` Σ G, ``mass`` Σ M, and what the constant C is made of.

    ``response`` is the largest ‖∂Z/∂H‖, ``alignment`` the smallest c that fits, ``smallest`` m₀.
    """

    gap: Tensor
    mass: Tensor
    response: Tensor
    alignment: Tensor
    smallest: Tensor

    def bound(self, step_size: float) -> Tensor:
        """C η Σ M, the o(Kη) taken as 0."""
        return self.alignment / self.smallest * self.response * step_size * self.mass


def alignment(gradient: Tensor, surrogate: Tensor) -> Tensor:
    """The smallest c [N] of Assumption 3 for gradients [N, …]; 0 where the two are equal."""
    gradient, surrogate = gradient.flatten(1), surrogate.flatten(1)
    lost = (gradient * (gradient.sign() - surrogate.sign())).sum(dim=-1)
    apart = (gradient - surrogate).norm(dim=-1)
    return torch.where(apart > 0, lost / apart, torch.zeros_like(lost))


def projected_gap(network: Network, hidden: Tensor, pruned: Tensor) -> Gap:
    """K steps with the projected gradient, on states [N, T, D] with pruned neurons [N, M]."""
    parts, omitted = network.parts(), pruned[:, None].double()
    losses, gap, mass = vmap(_loss), torch.zeros(len(hidden)).double(), torch.zeros(len(hidden)).double()
    responses, alignments, smallest = [], [], []
    for _ in range(STEPS):
        activations = vmap(neurons)(hidden, *parts)
        slopes = vmap(grad(loss_of_neurons))(activations, network.second)  # r
        jacobian = vmap(jacrev(neurons))(hidden, *parts)  # [N, T, M, T, D]
        gradient = torch.einsum("ntmsd,ntm->nsd", jacobian, slopes)
        surrogate = torch.einsum("ntmsd,ntm->nsd", jacobian, slopes * (1 - omitted))
        full, other = (hidden + STEP_SIZE * direction.sign() for direction in (gradient, surrogate))
        gap = gap + losses(full, *parts) - losses(other, *parts)
        mass = mass + (activations * slopes * omitted).square().sum(dim=(1, 2)).sqrt()
        responses.append(torch.linalg.matrix_norm(jacobian.flatten(3).flatten(1, 2), ord=2))
        alignments.append(alignment(gradient, surrogate))
        smallest.append(activations.abs().masked_fill(omitted == 0, torch.inf).amin(dim=(1, 2)))
        hidden = other
    response, worst = (torch.stack(part).amax(dim=0) for part in (responses, alignments))
    return Gap(gap, mass, response, worst, torch.stack(smallest).amin(dim=0))


def attention_constant(size: float) -> float:
    """The C_attn that Lemma 1 needs for three tokens of ``size``: e, −e and 0, all matrices and activations the identity."""
    hidden = torch.tensor([[size, 0.0], [-size, 0.0], [0.0, 0.0]], dtype=torch.float64)
    depth = hidden.shape[1] ** 0.5

    def attend(states: Tensor) -> Tensor:
        return (states @ states.T / depth).softmax(dim=-1) @ states

    jacobian = jacrev(attend)(hidden).reshape(hidden.numel(), -1)
    return (torch.linalg.matrix_norm(jacobian, ord=2).item() - 1) * depth


def check_random(trials: int, generator: torch.Generator, factor: float = 1.0) -> dict[str, Metric]:
    """The bound under its own assumptions. ``factor`` multiplies it."""
    network, hidden = random_networks(trials, generator)
    found = projected_gap(network, hidden, random_pruned(trials, generator))
    bound = found.bound(STEP_SIZE)
    limit = torch.full_like(found.alignment, 2 * (TOKENS * WIDTH) ** 0.5)
    return {
        "thm3_violations": count(violations(found.gap, factor * bound), trials),
        "thm3_assumption_3_violations": count(violations(found.alignment, limit), trials),
        "thm3_slack_median_random": median_ratio(bound, found.gap.clamp(min=0)),
        "lemma1_growth": Metric(value=attention_constant(20) / attention_constant(10), unit="ratio"),
    }
