"""Edits of the hidden states in the suffix window: the perturbation of Eq. 1 and the ReFT edit of Sec. 3.

A method says what is changed and where. How the hidden states are computed is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Order = Literal["perturb_then_reft", "reft_then_perturb"]


@dataclass(frozen=True)
class Perturbation:
    """Replace the window's hidden state at ``layer`` by ``base + delta``, or add ``delta`` where ``base`` is None.

    ``delta`` and ``base`` are [B, L, D]. With a surrogate, ``base`` is the full model's clean hidden state [Eq. 4].
    """

    layer: int
    delta: Tensor
    base: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        base = hidden if self.base is None else self.base
        return (base + self.delta).to(hidden.dtype)


@dataclass(frozen=True)
class ReftEdit:
    """Apply ``intervention`` to the window's hidden state at ``layer``."""

    layer: int
    intervention: Callable[[Tensor], Tensor]

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.intervention(hidden)


@dataclass(frozen=True)
class Edits:
    """What is changed in one pass. At one and the same layer, ``order`` says which comes first."""

    perturbation: Perturbation | None = None
    reft: ReftEdit | None = None
    order: Order = "perturb_then_reft"

    def perturbed(self, layer: int, delta: Tensor, base: Tensor | None = None) -> Edits:
        """The same edits under a perturbation."""
        return replace(self, perturbation=Perturbation(layer, delta, base))

    def layers(self) -> list[int]:
        """The layers that are edited, lowest first."""
        return sorted({edit.layer for edit in (self.perturbation, self.reft) if edit is not None})

    def apply(self, layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
        """The window's hidden state [B, L, D] of ``layer`` after its edits; padded positions (``mask`` False) stay."""
        edits = [edit for edit in (self.perturbation, self.reft) if edit is not None and edit.layer == layer]
        if self.order == "reft_then_perturb":
            edits.reverse()
        edited = hidden
        for edit in edits:
            edited = edit(edited)
        return torch.where(mask[..., None], edited, hidden)
