"""Heads in two runs: their definition, the constant of their weights, and the heads of real models."""

from __future__ import annotations

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from unit.models.tiny import FAMILIES, LAYERS, VOCABULARY, WIDTH, classifier, examples

from latreft.models.attention import NAME, attention
from latreft.models.batch import collate
from latreft.theory.heads import TOKENS, Heads, Run, last, random_change, random_heads
from latreft.theory.real_heads import real_heads, replaced


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some(trials: int = 50, moved: int = 6):
    heads = random_heads(trials, generator())
    return heads, random_change(heads, last(TOKENS, moved), generator(1))


def test_the_run_is_softmax_attention_at_the_last_token():
    heads, _ = some(3)
    run = heads.run(heads.hidden)
    for n in range(3):
        query = heads.query[n] @ heads.hidden[n, -1]
        scores = torch.stack([query @ heads.key[n] @ state for state in heads.hidden[n]]) / len(query) ** 0.5
        slow = sum(w * heads.value[n] @ state for w, state in zip(scores.softmax(0), heads.hidden[n], strict=True))
        torch.testing.assert_close(run.output()[n], slow)


def test_what_is_undone_in_part_is_the_run_of_states_moved_less():
    heads, change = some()
    kept = torch.linspace(0, 1, TOKENS).double()
    partly, direct = heads.heads(change).undone(kept), heads.heads(change * kept[:, None])
    for name in ("query", "keys", "values"):
        torch.testing.assert_close(getattr(partly.changed, name), getattr(direct.changed, name))
    torch.testing.assert_close(partly.moved, direct.moved)


def test_the_constant_bounds_every_change_of_the_weights_and_is_no_larger_than_a_key_needs():
    heads, change = some(200)
    both = heads.heads(change)
    steps = (both.changed.query - both.clean.query).norm(dim=-1)
    steps = steps + (both.changed.keys - both.clean.keys).norm(dim=-1).sum(dim=-1)
    assert (both.weight_change().sum(dim=-1) <= both.weight_constant() * steps * (1 + 1e-9)).all()

    run = Run(torch.tensor([[3.0, 0.0]]).double(), torch.zeros(1, 2, 2).double(), torch.zeros(1, 2, 1).double())
    moved = Run(run.query, run.keys + torch.tensor([[[1e-6, 0.0], [0, 0]]]), run.values)
    one = torch.ones(1, 1).double()
    pair = Heads(run, moved, one, one[0], one[0], one[0])
    needed = pair.weight_change().sum(dim=-1) / 1e-6
    torch.testing.assert_close(pair.weight_constant(), needed, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_real_heads_move_as_their_matrices_say(name):
    model, batch = classifier(name), collate(examples([12, 12, 12]))
    changed = replaced(batch, 4, VOCABULARY, generator())
    heads = real_heads(model, batch, changed, 1000, generator())
    assert len(heads.moved) == LAYERS * 3 * 2
    assert (heads.moved[:, :-4] < 1e-12).all() and (heads.moved[:, -4:] > 0).all()
    for part, norm in (("keys", heads.key_norm), ("values", heads.value_norm)):
        length = (getattr(heads.changed, part) - getattr(heads.clean, part)).norm(dim=-1)
        assert (length <= norm[:, None] * heads.moved + 1e-9).all()
        assert (length[:, -4:] > 0.02 * (norm[:, None] * heads.moved)[:, -4:]).any()
    assert ALL_ATTENTION_FUNCTIONS[NAME] is attention


def test_real_norms_are_those_of_the_projections():
    model, batch = classifier("llama"), collate(examples([9, 9]))
    heads = real_heads(model, batch, replaced(batch, 3, VOCABULARY, generator()), 1000, generator())
    blocks = model.family.block_list(model.base)
    weights = [block.self_attn.q_proj.weight.view(2, WIDTH // 2, WIDTH) for block in blocks]
    wanted = torch.linalg.matrix_norm(torch.cat(weights), ord=2).sort().values
    torch.testing.assert_close(heads.query_norm.unique(), wanted)


def test_a_real_head_s_output_is_the_model_s():
    """Each output of the first block's heads, as its output projection reads them, is among those found."""
    model, batch = classifier("llama"), collate(examples([8, 8]))
    caught = []
    block = model.family.block_list(model.base)[0]
    handle = block.self_attn.o_proj.register_forward_pre_hook(lambda _m, inputs: caught.append(inputs[0][:, -1]))
    heads = real_heads(model, batch, replaced(batch, 2, VOCABULARY, generator()), 1000, generator())
    handle.remove()
    outputs = caught[0].reshape(2 * 2, -1)
    nearest = (heads.clean.output()[:, None] - outputs).norm(dim=-1).amin(dim=0)
    assert (nearest < 1e-9).all()
