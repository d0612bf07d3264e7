"""Proposition 1: the error of an edit fitted at the last token, at another token, splits into two orthogonal parts.

[prop:orthogonal_misalignment] With R Rᵀ = I and h̃ = h + Δ,
``E‖Φ(h̃) − h‖² = E‖(I − RᵀR) Δ‖² + E‖Rᵀ (W h̃ + b − R h)‖²``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latreft.interventions.reft import loreft
from latreft.records import Metric


@dataclass(frozen=True)
class Edit:
    """Rᵀ = ``basis`` [D, R], ``weight`` W [R, D], ``bias`` b [R]."""

    basis: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Split:
    """Mean squared error of the edited states, and its two parts."""

    total: float
    outside: float
    inside: float

    @property
    def relative_error(self) -> float:
        """How far the parts are from their sum."""
        return abs(self.total - self.outside - self.inside) / self.total


def split(hidden: Tensor, change: Tensor, edit: Edit) -> Split:
    """The three terms for clean states [N, D] and their changes [N, D]; Φ is the project's own."""
    attacked = hidden + change
    edited = loreft(attacked, edit.basis, edit.weight, edit.bias)
    outside = change - change @ edit.basis @ edit.basis.T
    inside = (attacked @ edit.weight.T + edit.bias - hidden @ edit.basis) @ edit.basis.T
    return Split(*(part.square().sum(dim=-1).mean().item() for part in (edited - hidden, outside, inside)))


def fit(hidden: Tensor, change: Tensor, rank: int) -> Edit:
    """The edit with the least squared error on states [N, D]: R spans what changes most, W and b by least squares."""
    basis = torch.linalg.svd(change, full_matrices=False).Vh[:rank].T
    ones = torch.ones(len(hidden), 1, dtype=hidden.dtype)
    inputs = torch.cat([hidden + change, ones], dim=1)
    solution = torch.linalg.lstsq(inputs, hidden @ basis, driver="gelsd").solution.T
    return Edit(basis, solution[:, :-1], solution[:, -1])


def random_split(trials: int, generator: torch.Generator, width: int = 32, rank: int = 8) -> Split:
    """The terms for random states, changes and an edit with orthonormal R."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    basis = torch.linalg.qr(draw(width, rank)).Q
    return split(draw(trials, width), draw(trials, width), Edit(basis, draw(rank, width), draw(rank)))


def check(trials: int, generator: torch.Generator, hidden: Tensor, change: Tensor) -> dict[str, Metric]:
    """Random states, then real ones: states [B, k, D] of the attacked tokens and their changes, float64, B ≥ 2, k ≥ 2.

    For each text an edit is fitted at the last token of the others, and judged on that text: at its last token, and at its
    other attacked tokens.
    """
    random, last, others = random_split(trials, generator), [], []
    for text in range(len(hidden)):
        rest = torch.arange(len(hidden)) != text
        edit = fit(hidden[rest, -1], change[rest, -1], rank=max(1, len(hidden) // 2))
        last.append(split(hidden[text, -1:], change[text, -1:], edit))
        others.append(split(hidden[text, :-1], change[text, :-1], edit))
    size_last, size_others = (part.square().sum().item() for part in (change[:, -1], change[:, :-1]))
    texts, tokens = len(hidden), change[:, :-1].shape[1]
    worst = max(each.relative_error for each in (random, *last, *others))
    total = sum(each.total for each in others)
    outside = sum(each.outside for each in others)
    return {
        "prop1_relative_error": Metric(value=worst, unit="ratio", n=trials + texts * (1 + tokens)),
        "prop1_outside_share": Metric(value=outside / total, unit="share", n=texts * tokens),
        "prop1_error_at_last": Metric(value=sum(each.total for each in last) / size_last, unit="ratio", n=texts),
        "prop1_error_at_others": Metric(value=total * tokens / size_others, unit="ratio", n=texts * tokens),
    }
