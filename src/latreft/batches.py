"""Which examples a training step sees: a function of the seed and the step alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import torch

from latreft.models.batch import Batch, Example, collate

MEGABATCH = 50
"""Batches whose examples are sorted together, where batches are to be of like length."""


def steps_of(examples: int, batch_size: int, epochs: float) -> int:
    """Optimiser steps in ``epochs`` passes over ``examples``."""
    return max(1, math.ceil(examples * epochs / batch_size))


@lru_cache(maxsize=4)
def epoch_order(count: int, batch_size: int, seed: int, epoch: int, lengths: tuple[int, ...] | None) -> list[int]:
    """The order in which an epoch goes through its examples, shuffled by (seed, epoch).

    With ``lengths``, its batches are of like length: groups of ``MEGABATCH`` batches are sorted, cut into batches, and
    these shuffled. The first examples complete the last batch of the epoch before. The first epoch begins with its
    longest full batch: what fits then fits later, but for a longer text in a mixed batch between two epochs.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    if lengths is None:
        return order
    lead = min(-epoch * count % batch_size, count)
    full = (count - lead) // batch_size * batch_size
    body, batches = order[lead : lead + full], []
    for start in range(0, full, MEGABATCH * batch_size):
        part = sorted(body[start : start + MEGABATCH * batch_size], key=lambda i: -lengths[i])
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    batches = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
    if epoch == 0 and batches:
        longest = max(range(len(batches)), key=lambda i: max(lengths[j] for j in batches[i]))
        batches.insert(0, batches.pop(longest))
    return [*order[:lead], *chain.from_iterable(batches), *order[lead + full :]]


def batch_indices(
    count: int, batch_size: int, seed: int, step: int, lengths: tuple[int, ...] | None = None
) -> list[int]:
    """Which examples step ``step`` sees: endless epochs, each in :func:`epoch_order`, cut into full batches.

    A function of the step alone, so a resumed run sees what an uninterrupted one sees.
    """
    chosen: list[int] = []
    position = step * batch_size
    while len(chosen) < batch_size:
        epoch, offset = divmod(position, count)
        order = epoch_order(count, batch_size, seed, epoch, lengths)
        part = order[offset : offset + batch_size - len(chosen)]
        chosen.extend(part)
        position += len(part)
    return chosen


@dataclass(frozen=True)
class Batches:
    """Batches of ``examples`` by step; of like length, if ``group_by_length``."""

    examples: Sequence[Example]
    batch_size: int
    seed: int
    device: torch.device | str
    group_by_length: bool = False

    @cached_property
    def _lengths(self) -> tuple[int, ...] | None:
        return tuple(len(example.tokens) for example in self.examples) if self.group_by_length else None

    def _indices(self, step: int) -> list[int]:
        return batch_indices(len(self.examples), self.batch_size, self.seed, step, self._lengths)

    def at(self, step: int) -> Batch:
        return collate([self.examples[i] for i in self._indices(step)]).to(self.device)

    def names(self, step: int) -> list[str]:
        return [self.examples[i].id for i in self._indices(step)]
