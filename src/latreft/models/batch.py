"""Examples as token ids, and left-padded batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """One labelled text: a stable id, the token ids that the classifier sees, and its class (0 or 1)."""

    id: str
    tokens: tuple[int, ...]
    label: int


@dataclass(frozen=True)
class Batch:
    """A left-padded batch.

    ``tokens`` int64 [B, T]; ``mask`` bool [B, T], True on real tokens, which end the row; ``labels`` int64 [B].
    ``padded`` False says that the mask is True everywhere, which saves every pass a mask.
    """

    tokens: Tensor
    mask: Tensor
    labels: Tensor
    padded: bool = True

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        """T, padding included."""
        return self.tokens.shape[1]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.tokens.to(device), self.mask.to(device), self.labels.to(device), self.padded)


def collate(examples: Sequence[Example], pad: int = 0) -> Batch:
    """Left-pad ``examples`` to the longest of them. The padding id is never read, for the mask covers it."""
    if not examples:
        raise ValueError("cannot collate no examples")
    length = max(len(example.tokens) for example in examples)
    tokens = torch.full((len(examples), length), pad, dtype=torch.long)
    mask = torch.zeros((len(examples), length), dtype=torch.bool)
    for row, example in enumerate(examples):
        if not example.tokens:
            raise ValueError(f"example {example.id} has no tokens")
        tokens[row, length - len(example.tokens) :] = torch.tensor(example.tokens)
        mask[row, length - len(example.tokens) :] = True
    return Batch(tokens, mask, torch.tensor([example.label for example in examples]), padded=not bool(mask.all()))


def causal_mask(mask: Tensor) -> Tensor:
    """Boolean attention mask [B, 1, T, T] of a left-padded batch.

    A real query sees the real keys up to itself. A padded query sees itself, so that no row of the softmax is empty:
    empty rows give NaN gradients on some kernels.
    """
    length = mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((causal & mask[:, None, :] & mask[:, :, None]) | itself)[:, None]


def positions(mask: Tensor) -> Tensor:
    """Position ids [B, T]: 0 at the first real token, whatever the padding."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def batches_by_length(examples: Sequence[Example], size: int) -> list[list[int]]:
    """Indices of ``examples`` in batches of at most ``size`` of like length, longest first."""
    order = sorted(range(len(examples)), key=lambda i: (-len(examples[i].tokens), examples[i].id))
    return [order[start : start + size] for start in range(0, len(order), size)]
