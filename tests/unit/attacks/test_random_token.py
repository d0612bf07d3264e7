"""RandomToken: chunks equal single draws, the first flip is taken, the filter uses draws up."""

from __future__ import annotations

import pytest
import torch

from latreft.attacks import random_token
from latreft.attacks.base import allowed_tokens, example_generator

V = 5000
CONTENT = (60, 70, 80, 90)


class Scripted:
    """Losses and logits by the first token of a row: ``table[token]`` is the loss; above 0.7 the prediction is 1."""

    def __init__(self, table):
        self.table, self.ran = table, 0

    def losses(self, candidates):
        self.ran += len(candidates)
        loss = self.table[candidates[:, 0]]
        return loss, torch.stack([torch.full_like(loss, 0.7), loss], dim=1)


def run(search, label=0, survives=None, vocabulary=V, allowed=None, seed=0, **settings):
    settings = random_token.Settings(**{"tokens": 3, "draws": 40} | settings)
    return random_token.attack(
        search,
        label=label,
        allowed=torch.ones(vocabulary, dtype=torch.bool) if allowed is None else allowed,
        encode=lambda _: (),
        generator=example_generator(seed, "random_token", "x"),
        settings=settings,
        survives=survives,
    )


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_chunks_give_what_single_draws_give(seed, stop):
    table = torch.rand(V, generator=torch.Generator().manual_seed(seed)) * 0.72
    found = [run(Scripted(table), batch_size=size, stop_at_flip=stop, seed=seed) for size in (1, 7, 40, 128)]
    assert found[1:] == found[:-1]
    assert found[0].forwards == found[0].iterations


@pytest.mark.parametrize("reft", [False, True])
def test_chunks_on_a_model_give_what_single_draws_give(build, engine, tokenizer, reft):
    defended = build("llama", reft)
    allowed = allowed_tokens(tokenizer, 303)
    found = [
        run(engine.search(defended, CONTENT, 4, label, size), label, allowed=allowed, batch_size=size)
        for label in (0, 1)
        for size in (1, 16)
    ]
    for single, chunked in (found[:2], found[2:]):
        assert (single.tokens, single.iterations, single.forwards) == (
            chunked.tokens, chunked.iterations, chunked.forwards,
        )  # fmt: skip
        assert single.loss == pytest.approx(chunked.loss, rel=1e-6)
    assert any(f.iterations < 40 for f in found)


def test_first_flip_is_taken_though_a_later_draw_is_better():
    rows = drawn()
    table = torch.zeros(V)
    table[rows[3, 0]], table[rows[5, 0]] = 0.8, 0.99
    found = run(Scripted(table), batch_size=10)
    assert found.tokens == tuple(rows[3].tolist()) and found.iterations == found.forwards == 4
    assert found.loss == pytest.approx(0.8)
    on = run(Scripted(table), batch_size=10, stop_at_flip=False)
    assert on.tokens == tuple(rows[5].tolist()) and on.iterations == 40


def test_without_a_flip_the_highest_loss_is_kept():
    rows = drawn()
    table = torch.zeros(V)
    table[rows[17, 0]] = 0.5
    found = run(Scripted(table), batch_size=10)
    assert found.tokens == tuple(rows[17].tolist()) and found.iterations == 40


def drawn() -> torch.Tensor:
    """The rows that ``run`` draws; those used above start with distinct tokens."""
    rows = torch.randint(V, (40, 3), generator=example_generator(0, "random_token", "x"))
    assert all((rows[:, 0] == rows[i, 0]).sum() == 1 for i in (3, 5, 17)), "choose other rows"
    return rows


def test_draws_are_allowed_tokens_only():
    allowed = torch.zeros(V, dtype=torch.bool)
    allowed[[7, 9]] = True
    assert {
        token for seed in range(5) for token in run(Scripted(torch.zeros(V)), allowed=allowed, seed=seed).tokens
    } == {
        7,
        9,
    }


def test_draws_that_do_not_survive_are_used_up_without_a_pass():
    search = Scripted(torch.zeros(V))
    found = run(search, survives=lambda rows: rows[:, 0] % 2 == 0, batch_size=7)
    assert found.iterations == 40 and found.tokens[0] % 2 == 0
    assert found.forwards == search.ran == 40 - found.without_survivor < 40


def test_without_any_survivor_the_first_draw_is_reported():
    found = run(Scripted(torch.zeros(V)), survives=lambda rows: torch.zeros(len(rows), dtype=torch.bool))
    assert found.tokens == tuple(drawn()[0].tolist())
    assert found.without_survivor == found.iterations == 40 and found.forwards == 1


def test_nan_behind_the_first_flip_is_not_seen_but_before_it_is():
    rows = drawn()
    table = torch.zeros(V)
    table[rows[3, 0]], table[rows[5, 0]] = 0.8, float("nan")
    assert run(Scripted(table), batch_size=40).iterations == 4
    table[rows[3, 0]] = float("nan")
    with pytest.raises(FloatingPointError):
        run(Scripted(table), batch_size=40)
