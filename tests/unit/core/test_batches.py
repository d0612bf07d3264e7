"""Batches: each epoch holds every example once, in an order that seed and step decide."""

from __future__ import annotations

import itertools

import pytest
import torch

from latreft.batches import Batches, batch_indices, steps_of
from latreft.models.batch import Example


def test_the_batch_order_is_a_function_of_seed_and_step():
    for step in (0, 3, 50):
        torch.manual_seed(step)
        assert batch_indices(10, 4, 7, step) == batch_indices(10, 4, 7, step)
    assert batch_indices(10, 4, 7, 3) != batch_indices(10, 4, 8, 3)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("count", "size"), [(10, 4), (10, 5), (3, 8), (1, 1), (7, 7), (130, 2)])
def test_each_epoch_holds_every_example_once(count, size, grouped):
    lengths = tuple(range(1, count + 1)) if grouped else None
    endless = [i for step in range(3 * count) for i in batch_indices(count, size, 1, step, lengths)]
    for epoch in range(3 * count * size // count - 1):
        assert sorted(endless[epoch * count : (epoch + 1) * count]) == list(range(count))
    if count > 5 and (count > size or not grouped):  # fewer may fall alike by chance; one sorted batch does
        assert endless[:count] != endless[count : 2 * count]
    assert all(len(batch_indices(count, size, 1, step)) == size for step in range(4))


@pytest.mark.parametrize("count", [200, 203])
def test_grouped_batches_are_of_like_length_and_come_in_any_order(count):
    lengths = tuple(torch.randint(10, 500, (count,), generator=torch.Generator().manual_seed(0)).tolist())

    def spread(group) -> float:
        taken = [[lengths[i] for i in batch_indices(count, 4, 1, step, group)] for step in range(3 * count // 4)]
        return sum(max(batch) - min(batch) for batch in taken) / len(taken)

    assert spread(lengths) < spread(None) / 5
    steps = [max(lengths[i] for i in batch_indices(count, 4, 1, step, lengths)) for step in range(count // 4)]
    assert steps[0] == max(lengths)
    falling = sum(one > other for one, other in itertools.pairwise(steps))
    assert 0.3 < falling / len(steps) < 0.7
    assert steps != [max(lengths[i] for i in batch_indices(count, 4, 2, step, lengths)) for step in range(count // 4)]


def test_names_are_those_of_the_batch():
    examples = [Example(f"e{i}", (i + 3,) * (1 + i), i % 2) for i in range(5)]
    for batches in (Batches(examples, 2, 0, "cpu"), Batches(examples, 2, 0, "cpu", group_by_length=True)):
        for step in range(4):
            assert [f"e{token - 3}" for token in batches.at(step).tokens[:, -1].tolist()] == batches.names(step)


@pytest.mark.parametrize(
    ("examples", "size", "epochs", "steps"), [(10, 4, 1, 3), (10, 5, 2, 4), (1, 32, 0.1, 1), (100, 10, 0.5, 5)]
)
def test_the_number_of_steps_covers_the_epochs(examples, size, epochs, steps):
    assert steps_of(examples, size, epochs) == steps
