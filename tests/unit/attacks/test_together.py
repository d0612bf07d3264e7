"""Searches in lock-step: who asks is answered by one pass, whoever ends early holds up nobody, an error ends all."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from latreft.attacks.together import run_together


class Group:
    """Answers with twice what it is asked, and keeps who asked together."""

    def __init__(self):
        self.passes = []

    def gradients(self, attacks):
        self.passes.append(("gradients", tuple(attacks)))
        return {member: 2 * rows for member, rows in attacks.items()}

    def losses(self, candidates):
        self.passes.append(("losses", tuple(candidates)))
        return {member: (rows.sum(dim=1), rows) for member, rows in candidates.items()}


def walker(steps, start, delay=0.0):
    def attack(search):
        total = torch.tensor([start])
        for _ in range(steps):
            time.sleep(delay)
            total = search.gradient(total)
        losses, _ = search.losses(total[None])
        return int(losses[0])

    return attack


def test_all_searches_share_their_passes_and_get_their_own_answers():
    group = Group()
    assert run_together(group, [walker(3, 1), walker(3, 10, 0.01), walker(3, 100)]) == [8, 80, 800]
    assert group.passes == [("gradients", (0, 1, 2))] * 3 + [("losses", (0, 1, 2))]


def test_searches_of_other_lengths_go_on_alone():
    group = Group()
    assert run_together(group, [walker(1, 1), walker(3, 1)]) == [2, 8]
    assert group.passes == [
        ("gradients", (0, 1)), ("gradients", (1,)), ("losses", (0,)), ("gradients", (1,)), ("losses", (1,)),
    ]  # fmt: skip


def test_the_passes_do_not_depend_on_how_threads_run():
    found = []
    for delays in ((0, 0.02, 0), (0.02, 0, 0.01)):
        group = Group()
        run_together(group, [walker(2 + i, i, delay) for i, delay in enumerate(delays)])
        found.append(group.passes)
    assert found[0] == found[1]


def test_nobody_is_answered_before_all_passes_are_done():
    """A search that went on would use the device while the next pass is captured on it."""
    idle = []

    class Watching(Group):
        def losses(self, candidates):
            idle.append(moving.wait(0.05))
            return super().losses(candidates)

    moving = threading.Event()

    def stepping(search):
        search.gradient(torch.tensor([1]))
        moving.set()
        return 0

    run_together(Watching(), [stepping, walker(0, 1)])
    assert idle == [False]


def broken(_search):
    raise FloatingPointError("the loss is not a number")


def test_an_error_of_one_search_ends_all_and_is_the_one_raised():
    before = threading.active_count()
    with pytest.raises(FloatingPointError, match="not a number"):
        run_together(Group(), [walker(50, 1), broken, walker(50, 1)])
    assert threading.active_count() == before


def test_an_error_of_a_pass_is_raised_and_nobody_waits_for_ever():
    class Failing(Group):
        def losses(self, candidates):
            raise ValueError("no such pass")

    with pytest.raises(ValueError, match="no such pass"):
        run_together(Failing(), [walker(1, 1), walker(1, 1)])
