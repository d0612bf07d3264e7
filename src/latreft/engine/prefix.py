"""The stored prefix of a batch: every block's keys and values of the positions that no pass changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from latreft.models.attention import MASKED, PrefixLayer, RecordTo, flash_serves, segments_of
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier


@dataclass(frozen=True)
class Prefix:
    """Keys and values [E, H_kv, P, d] of each block, and who may attend to whom; see :class:`PrefixLayer`."""

    keys: list[Tensor]
    values: list[Tensor]
    prefix_bias: Tensor
    window_bias: Tensor

    @property
    def positions(self) -> int:
        """P."""
        return self.prefix_bias.shape[-1]

    def clone(self) -> Prefix:
        """A copy that no later pass overwrites."""
        return Prefix(
            [key.clone() for key in self.keys],
            [value.clone() for value in self.values],
            self.prefix_bias.clone(),
            self.window_bias.clone(),
        )

    def roomy(self, room: int, rows: int | None = None) -> Prefix:
        """A place for prefixes like this one of up to ``room`` positions; ``rows`` of them, if other than this has."""
        count = self.prefix_bias.shape[0] if rows is None else rows

        def wider(tensor: Tensor) -> Tensor:
            _, heads, _, depth = tensor.shape
            return tensor.new_zeros(count, heads, room, depth)

        return Prefix(
            [wider(key) for key in self.keys],
            [wider(value) for value in self.values],
            self.prefix_bias.new_empty(count, *self.prefix_bias.shape[1:-1], room),
            self.window_bias.new_empty(count, *self.window_bias.shape[1:]),
        )

    def take(self, other: Prefix, row: int = 0) -> None:
        """Copy in a prefix of as many positions or fewer, from row ``row`` on; the surplus is masked, on the left."""
        rows = slice(row, row + other.prefix_bias.shape[0])
        first = self.positions - other.positions
        for fixed, given in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            fixed[rows, :, first:].copy_(given)
        self.prefix_bias[rows].fill_(MASKED)
        self.prefix_bias[rows, ..., first:].copy_(other.prefix_bias)
        self.window_bias[rows].copy_(other.window_bias)

    def for_block(self, variants: int) -> Callable[[int], dict[str, Any]]:
        """What each block is told: its own keys and values, serving ``variants`` rows of the batch."""
        first = self.keys[0]
        segments = segments_of(self.prefix_bias, first.shape[1]) if flash_serves(first, variants) else None
        shared = (self.prefix_bias, self.window_bias, variants, segments)

        def arguments(index: int) -> dict[str, Any]:
            return {"prefix": PrefixLayer(self.keys[index], self.values[index], *shared)}

        return arguments


def biases(mask: Tensor, window: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Who may attend to whom, as scores added: prefix [E, 1, 1, P] and window [E, 1, L, L].

    A real position sees the real positions up to itself; a padded one sees itself (and never matters).
    """
    prefix_mask, window_mask = mask[:, :-window], mask[:, -window:]
    causal = torch.ones(window, window, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(window, dtype=torch.bool, device=mask.device)
    seen = (causal & window_mask[:, None, :] & window_mask[:, :, None]) | itself

    def bias(allowed: Tensor) -> Tensor:
        return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, MASKED)

    return bias(prefix_mask)[:, None, None], bias(seen)[:, None]


def empty_prefix(model: Classifier, examples: int, count: int, biases: tuple[Tensor, Tensor]) -> Prefix:
    """Room for a prefix of ``count`` positions, in the precision in which the model attends."""
    heads, depth = model.key_shape
    keys, values = (
        [
            torch.zeros(examples, heads, count, depth, dtype=model.pass_dtype, device=model.device)
            for _ in range(model.layers)
        ]
        for _ in range(2)
    )
    return Prefix(keys, values, *biases)


@torch.no_grad()
def record_prefix(model: Classifier, batch: Batch, count: int, window: int) -> Prefix:
    """Run ``batch`` once and keep the keys and values of its first ``count`` positions.

    The prefix is for windows of ``window`` further positions, of which the batch may hold all or none.
    """
    missing = count + window - batch.length
    mask = torch.cat([batch.mask, batch.mask.new_ones(len(batch), missing)], dim=1) if missing else batch.mask
    accurate = torch.promote_types(model.dtype, torch.float32)
    prefix = empty_prefix(model, len(batch), count, biases(mask, window, accurate))
    with model.passing(lambda index: {"record": RecordTo(prefix.keys[index], prefix.values[index])}):
        model.logits_of_embeddings(model.embedding(batch.tokens), batch)
    return prefix
