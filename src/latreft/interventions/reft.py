"""LoReFT [Sec. 3; D.1]: Φ(h) = h + Rᵀ(W h + b − R h), with R Rᵀ = I."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from latreft.interventions.orthonormal import Orthonormal

Start = Literal["identity", "random"]


def loreft(hidden: Tensor, basis: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Φ(h) of hidden states [..., D] with Rᵀ = ``basis`` [D, R], W = ``weight`` [R, D], b = ``bias`` [R].

    Computed in the parameters' precision, under mixed precision too, and returned in the input's dtype.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        state = hidden.to(basis.dtype)
        difference = torch.nn.functional.linear(state, weight, bias) - state @ basis
        return (state + difference @ basis.T).to(hidden.dtype)


class Rotation(nn.Module):
    """Holds Rᵀ [D, R] as ``weight``, kept orthonormal by a parametrisation."""

    weight: Tensor

    def __init__(self, basis: Tensor):
        super().__init__()
        self.weight = nn.Parameter(basis)


class LoReFT(nn.Module):
    """A rank-R edit of hidden states of width D.

    ``R`` is kept orthonormal as a product of Householder reflections, stored transposed as [D, R] like pyreft's.
    Parameters are float32 at least, and so is all arithmetic on them, under autocast too: a bfloat16 R is
    not orthonormal. ``start='identity'`` takes W = R and b = 0, so that Φ(h) = h before training; ``'random'`` is
    pyreft's, W and b from ``nn.Linear``. ``seed`` decides all of it, whatever was drawn before.

    Weight decay does not belong on R: it would pull it back to its start. (Under torch's own orthogonal
    parametrisation R would vanish: its diagonal holds signs, which are truncated to 0 as soon as they shrink.)
    :meth:`parameter_groups` keeps R out of it.
    """

    def __init__(self, width: int, rank: int, *, start: Start = "identity", seed: int = 0, dtype=torch.float32):
        super().__init__()
        if not 1 <= rank <= width:
            raise ValueError(f"rank must be between 1 and the hidden width {width}, got {rank}")
        generator = torch.Generator().manual_seed(seed)
        basis = torch.empty(width, rank, dtype=dtype)
        nn.init.orthogonal_(basis, generator=generator)
        self.rotation = Rotation(basis)
        parametrize.register_parametrization(self.rotation, "weight", Orthonormal())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.source = nn.Linear(width, rank, dtype=dtype)
        with torch.no_grad():
            if start == "identity":
                self.source.weight.copy_(self.rotation.weight.T)
                self.source.bias.zero_()
            else:
                bound = float(width) ** -0.5
                for parameter in (self.source.weight, self.source.bias):
                    parameter.copy_(
                        torch.empty(parameter.shape, dtype=dtype).uniform_(-bound, bound, generator=generator)
                    )

    @property
    def rank(self) -> int:
        return self.source.out_features

    def basis(self) -> Tensor:
        """Rᵀ as [D, R]; built anew at each call unless within :meth:`built_once`."""
        return self.rotation.weight

    @contextmanager
    def built_once(self) -> Iterator[None]:
        """Within the context R is built once and shared by all passes: it is constant within a training step."""
        with parametrize.cached():
            yield

    def forward(self, hidden: Tensor) -> Tensor:
        """Φ(h) for hidden states [..., D], computed in the parameters' precision, returned in the input's dtype."""
        return loreft(hidden, self.basis(), self.source.weight, self.source.bias)

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """Optimiser groups: ``weight_decay`` on W and b, none on R."""
        return [
            {"params": list(self.source.parameters()), "weight_decay": weight_decay},
            {"params": list(self.rotation.parameters()), "weight_decay": 0.0},
        ]

    def trained_parameters(self) -> int:
        """2 R D + R, as counted by the paper: the entries of R, W and b."""
        return 2 * self.source.weight.numel() + self.source.bias.numel()

    def weights(self) -> dict[str, Tensor]:
        """R [D, R], W [R, D], b [R] as plain tensors, the form in which a defense is saved."""
        return {
            "rotation": self.basis().detach().cpu().clone().contiguous(),
            "weight": self.source.weight.detach().cpu().clone(),
            "bias": self.source.bias.detach().cpu().clone(),
        }

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> LoReFT:
        """The edit with saved weights; an error if R has lost its orthonormality or the shapes do not belong together."""
        expected = {"rotation", "weight", "bias"}
        if set(weights) != expected:
            raise ValueError(f"a saved ReFT has tensors {sorted(expected)}, found {sorted(weights)}")
        rotation = weights["rotation"]
        if rotation.dim() != 2:
            raise ValueError(
                f"the rotation of a saved ReFT has the shape {list(rotation.shape)}; right is [width, rank]"
            )
        width, rank = rotation.shape
        found = {"weight": tuple(weights["weight"].shape), "bias": tuple(weights["bias"].shape)}
        if found != {"weight": (rank, width), "bias": (rank,)}:
            raise ValueError(f"a saved ReFT with rotation {(width, rank)} has weight {(rank, width)}, found {found}")
        exact = rotation.double()  # autocast leaves float64 alone
        error = (exact.T @ exact - torch.eye(rank, dtype=exact.dtype)).abs().max().item()
        if not error < 1e-4:
            raise ValueError(f"the saved R is not orthonormal: max |R Rᵀ − I| = {error:.2e}, at most 1e-4 is right")
        reft = cls(width, rank, dtype=rotation.dtype)
        with torch.no_grad():
            reft.rotation.weight = rotation
            reft.source.weight.copy_(weights["weight"])
            reft.source.bias.copy_(weights["bias"])
        return reft
