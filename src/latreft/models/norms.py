"""RMS norms under autocast: one kernel for seven, and as many fewer backward."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MixedPrecisionNorm(nn.Module):
    """Goes before a family's own norm of a block. Without autocast the family's own runs, to the last bit.

    Under autocast torch's norm runs, whose output is rounded as the linear layers that read it would round it, once for
    all of them.
    """

    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden: Tensor) -> Tensor:
        kind = hidden.device.type
        if not torch.is_autocast_enabled(kind):
            own: Tensor = super().forward(hidden)
            return own
        normed = F.rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)
        return normed.to(torch.get_autocast_dtype(kind))


def mix_norms(blocks: Iterable[nn.Module], name: str) -> None:
    """Have the norms of class ``name`` in ``blocks`` run so; their weights stay in place."""
    for module in (module for block in blocks for module in block.modules()):
        if type(module).__name__ == name and not isinstance(module, MixedPrecisionNorm):
            kind: Any = type(module)
            module.__class__ = _mixed(kind)


@cache
def _mixed(norm: Any) -> Any:
    """One class for all norms of a class: a compiler that sees another class compiles anew."""
    return type(norm.__name__, (MixedPrecisionNorm, norm), {})
