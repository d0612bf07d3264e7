"""GCG against brute force, its gradient, its start, its filter."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from latreft.attacks import gcg
from latreft.attacks.base import allowed_tokens, example_generator
from latreft.settings import SettingsError

CONTENT = (60, 70, 80, 90, 100, 110)


@pytest.fixture
def searching(build, engine, tokenizer):
    """``searching(defended, **settings)`` runs GCG on CONTENT with a seeded generator."""

    def search(defended, *, at=6, label=0, survives=None, seed=0, **settings):
        settings = gcg.Settings(**{"tokens": 3, "rounds": 1, "top_k": 8, "candidates": 12} | settings)
        return gcg.attack(
            engine.search(defended, CONTENT, at, label, settings.batch_size),
            label=label,
            allowed=allowed_tokens(tokenizer, defended.classifier.vocabulary),
            encode=tokenizer.encode,
            generator=example_generator(seed, "gcg", "x"),
            settings=settings,
            survives=survives,
        )

    return search


def one_hot_gradient(defended, engine, attack, at, label):
    """Autograd through one-hot rows [N, V] @ embedding, in float64, with hooks on the model's own embedding."""
    model = defended.classifier
    one_hot = F.one_hot(attack, model.vocabulary).double().requires_grad_(True)
    tokens = torch.cat([torch.tensor(CONTENT[:at]), attack, torch.tensor(CONTENT[at:])])[None].long()

    def edit(state):
        return torch.cat([state[:, :at], (one_hot @ model.embedding.weight)[None], state[:, at + len(attack) :]], 1)

    search = engine.search(defended, CONTENT, at, label, 1)
    with model.edited({0: edit}):
        logits = search._prepared(tokens).logits(defended.edits)
    return torch.autograd.grad(F.cross_entropy(logits, torch.tensor([label])), one_hot)[0]


@pytest.mark.parametrize("at", [0, 1, len(CONTENT)])
@pytest.mark.parametrize("reft", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_gradient_is_that_of_the_one_hot_tokens(build, engine, name, reft, at):
    defended, attack = build(name, reft), torch.tensor([5, 6, 7])
    gradient = engine.search(defended, CONTENT, at, 1, 4).gradient(attack)
    expected = one_hot_gradient(defended, engine, attack, at, 1)
    assert gradient.dtype == torch.float32
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("at", [1, len(CONTENT)])
@pytest.mark.parametrize("reft", [False, True])
def test_first_step_with_all_substitutions_is_the_true_argmax(build, engine, tokenizer, searching, reft, at):
    defended = build("llama", reft)
    allowed = allowed_tokens(tokenizer, 303)
    vocabulary = allowed.nonzero().flatten()
    start = torch.tensor(tokenizer.encode("!") * 3)
    candidates = start.repeat(3 * len(vocabulary), 1)
    for position in range(3):
        candidates[position * len(vocabulary) : (position + 1) * len(vocabulary), position] = vocabulary
    losses = engine.search(defended, CONTENT, at, 0, 512).losses(candidates)[0]
    found = searching(defended, at=at, top_k=303, candidates=3 * 303, batch_size=512)
    assert found.tokens == tuple(candidates[losses.argmax()].tolist())
    assert found.loss == pytest.approx(losses.max().item(), rel=1e-6)
    assert found.forwards == 2 + 3 * len(vocabulary) and found.backwards == 1


def test_best_so_far_never_decreases_and_starts_at_the_start(build, engine, tokenizer, searching):
    defended = build("llama", True)
    start = torch.tensor([tokenizer.encode("!") * 3])
    first = engine.search(defended, CONTENT, len(CONTENT), 0, 1).losses(start)[0].item()
    losses = [first] + [searching(defended, rounds=rounds, candidates=2, top_k=4).loss for rounds in range(1, 8)]
    assert all(after >= before - 1e-6 for before, after in pairwise(losses))
    assert losses[-1] > losses[0]


def test_the_best_candidate_is_taken_though_it_is_worse(build, searching):
    """With one candidate a round the walk goes on from it: later gradients are asked at other tokens."""
    asked = []

    class Downhill:
        def gradient(self, attack):
            asked.append(attack.tolist())
            return torch.zeros(3, 303)

        def losses(self, candidates):
            loss = torch.full((len(candidates),), 1.0 if not asked else 1.0 - 0.1 * len(asked))
            return loss, torch.zeros(len(candidates), 2)

    allowed = torch.ones(303, dtype=torch.bool)
    settings = gcg.Settings(tokens=3, rounds=4, top_k=50, candidates=1)
    generator = example_generator(0, "gcg", "x")
    found = gcg.attack(
        Downhill(), label=0, allowed=allowed, encode=lambda _: (9,), generator=generator, settings=settings
    )
    assert found.tokens == (9, 9, 9) and found.loss == 1.0
    assert len({tuple(tokens) for tokens in asked}) > 1


def test_promising_tokens_raise_the_loss_and_are_allowed():
    gradient = torch.tensor([[0.1, 9.0, 0.5, 0.5, -1.0]])
    allowed = torch.tensor([True, False, True, True, True])
    assert gcg.promising(gradient, allowed, 3).tolist() == [[2, 3, 0]]
    assert gcg.promising(gradient, allowed, 99).tolist() == [[2, 3, 0, 4]]


def test_substitutions_are_single_distinct_and_from_the_pool():
    current, pool = torch.tensor([1, 2, 3]), torch.arange(10, 40).reshape(3, 10)
    drawn = gcg.substitutions(current, pool, 12, torch.Generator().manual_seed(0))
    assert len({tuple(row) for row in drawn.tolist()}) == 12
    for row in drawn.tolist():
        ((position, token),) = [(i, t) for i, t in enumerate(row) if t != current[i]]
        assert token in pool[position]
    assert len(gcg.substitutions(current, pool, 1000, torch.Generator())) == 30


def test_special_and_unreal_ids_are_never_chosen(build, searching):
    for seed in range(4):
        found = searching(build("qwen2"), rounds=5, top_k=300, candidates=30, start="random", seed=seed)
        assert all(2 <= token < 300 for token in found.tokens)


def test_start_that_is_not_one_token_is_an_error_with_a_remedy(build, searching):
    with pytest.raises(SettingsError, match="'start'.*'! !'.*one non-special token.*start: random"):
        searching(build(), start="! !")
    with pytest.raises(SettingsError, match="'</s>'"):
        searching(build(), start="</s>")


def test_stop_at_flip_stops_at_the_first(build, searching):
    defended = build("llama")
    whole = [searching(defended, rounds=8, label=label) for label in (0, 1)]
    stopped = [searching(defended, rounds=8, label=label, stop_at_flip=True) for label in (0, 1)]
    threshold = torch.tensor(2.0).log().item()
    assert [found.iterations for found in whole] == [8, 8]
    assert any(found.iterations < 8 for found in stopped)
    for found in stopped:
        assert (found.loss > threshold) == (found.iterations < 8)


def test_without_any_survivor_the_start_is_kept_and_the_rounds_are_counted(build, tokenizer, searching):
    found = searching(build(), rounds=4, survives=lambda rows: torch.zeros(len(rows), dtype=torch.bool))
    assert found.tokens == tokenizer.encode("!") * 3
    assert found.iterations == found.without_survivor == 4 and found.forwards == 1 + 4
    flip = [searching(build(), label=label, rounds=2, stop_at_flip=True, survives=lambda rows: rows[:, 0] < 0)
            for label in (0, 1)]  # fmt: skip
    assert [found.without_survivor for found in flip] == [2, 2], "a start that does not survive is no reason to stop"


def test_with_a_filter_only_survivors_are_reported(build, searching):
    def even(rows):
        return (rows[:, 0] % 2 == 0) & (rows != 2).all(dim=1)

    found = searching(build("gpt_neox"), rounds=6, start="random", top_k=60, candidates=30, survives=even)
    assert even(torch.tensor([found.tokens]))[0]


def test_a_weaker_survivor_is_reported_rather_than_a_start_that_does_not_survive():
    class StartIsBest:
        def gradient(self, attack):
            return torch.zeros(len(attack), 20)

        def losses(self, candidates):
            return (candidates == 9).all(dim=1).float(), torch.zeros(len(candidates), 2)

    def found(survives):
        return gcg.attack(
            StartIsBest(),
            label=0,
            allowed=torch.ones(20, dtype=torch.bool),
            encode=lambda _: (9,),
            generator=torch.Generator().manual_seed(0),
            settings=gcg.Settings(tokens=3, rounds=1),
            survives=survives,
        )

    assert found(None).tokens == (9, 9, 9) and found(None).loss == 1
    filtered = found(lambda rows: (rows != 9).any(dim=1))
    assert filtered.tokens != (9, 9, 9) and filtered.loss == 0


def test_nan_stops_the_search():
    class Broken:
        def losses(self, candidates):
            return torch.full((len(candidates),), float("nan")), torch.zeros(len(candidates), 2)

    with pytest.raises(FloatingPointError):
        gcg.attack(
            Broken(),
            label=0,
            allowed=torch.ones(20, dtype=torch.bool),
            encode=lambda _: (9,),
            generator=torch.Generator(),
            settings=gcg.Settings(),
        )


def test_restarts_report_the_best_of_all_searches_and_what_all_cost(build, searching):
    defended = build("llama", True)
    alone = searching(defended, start="x", rounds=2)
    more = searching(defended, start="x", rounds=2, restarts=3)
    assert more.loss >= alone.loss
    assert (more.iterations, more.forwards, more.backwards) == (8, 4 * alone.forwards, 8)
    assert searching(defended, start="x", rounds=2, restarts=0) == alone
    losses = {searching(defended, start="random", rounds=2, seed=seed).loss for seed in range(4)}
    assert len(losses) == 4  # searches from other starts end elsewhere, so a restart can win


def test_no_restart_after_a_flip_where_the_search_stops_at_one(build, searching):
    defended = build("llama")
    label = next(y for y in (0, 1) if searching(defended, label=y, stop_at_flip=True, rounds=5).iterations < 5)
    once = searching(defended, label=label, stop_at_flip=True, rounds=5)
    assert searching(defended, label=label, stop_at_flip=True, rounds=5, restarts=3) == once


def test_a_random_start_survives_where_one_of_those_drawn_does(build, searching):
    """Only rows that begin with an even token survive: about one random start in two, and one substitution in three."""
    found = searching(build("llama"), start="random", rounds=1, survives=lambda rows: rows[:, 0] % 2 == 0)
    assert found.tokens[0] % 2 == 0
    assert found.without_survivor == 0
