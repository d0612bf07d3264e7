"""An example's logits are its own: padding, batch size, neighbours and the padding id change nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from unit.models.tiny import FAMILIES, classifier, examples

from latreft.models.batch import Example, batches_by_length, causal_mask, collate, positions

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-4, torch.bfloat16: 0.25}
EOS = 2


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_batch_and_single_agree(name, dtype):
    model = classifier(name, dtype=dtype, head=3.0)
    some = examples([11, 3, 1, 40, 7])
    together = model(collate(some))
    assert together.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, example in enumerate(some):
        torch.testing.assert_close(together[row : row + 1], model(collate([example])), rtol=0, atol=TOLERANCE[dtype])
    reversed_ = model(collate(some[::-1])).flip(0)
    torch.testing.assert_close(together, reversed_, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_padding_id_is_never_read_even_where_it_is_eos_and_the_text_holds_it(name):
    model = classifier(name)
    some = [
        Example("inside", (5, EOS, 7, EOS, 9, 11), 0),
        Example("at the end", (5, 6, EOS), 1),
        Example("only eos", (EOS,), 0),
        Example("starts with it", (EOS, EOS, 8, 9), 1),
        *examples([20]),
    ]
    alone = torch.cat([model(collate([example])) for example in some])
    for pad in (0, EOS, 39):
        torch.testing.assert_close(model(collate(some, pad)), alone, rtol=0, atol=1e-12)
    different = [Example("", (*some[1].tokens[:-1], 4), 1)]
    assert (model(collate(different)) - alone[1:2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_token_is_read(name):
    model = classifier(name)
    for length in (1, 2, 9):
        tokens = examples([length])[0].tokens
        changed = (*tokens[:-1], (tokens[-1] + 1) % 40)
        assert (
            model(collate([Example("a", tokens, 0)])) - model(collate([Example("b", changed, 0)]))
        ).abs().max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_heavily_padded_batches_are_finite_and_the_singles(name, dtype):
    model = classifier(name, dtype=dtype, head=3.0).requires_grad_(True)
    some = examples([60, 1, 2])
    F.cross_entropy(model(collate(some)), torch.tensor([0, 1, 0]), reduction="sum").backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    if dtype == torch.float32:
        model.zero_grad()
        for row, example in enumerate(some):
            F.cross_entropy(model(collate([example])), torch.tensor([[0, 1, 0][row]])).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(
                gradients[key], parameter.grad, rtol=1e-3, atol=2e-3 * parameter.grad.abs().max()
            )


def test_padded_queries_see_themselves_and_real_ones_see_no_padding():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    seen = causal_mask(mask)
    assert seen.shape == (2, 1, 4, 4)
    assert seen.any(dim=-1).all()
    expected = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
    assert torch.equal(seen[0, 0], expected)
    assert torch.equal(seen[1, 0], torch.ones(4, 4, dtype=torch.bool).tril())
    assert positions(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_collate_pads_on_the_left_and_names_what_it_cannot_take():
    batch = collate([Example("a", (5, 6), 1), Example("b", (7,), 0)], pad=9)
    assert batch.tokens.tolist() == [[5, 6], [9, 7]]
    assert batch.mask.tolist() == [[True, True], [False, True]]
    assert batch.labels.tolist() == [1, 0]
    assert (len(batch), batch.length) == (2, 2)
    with pytest.raises(ValueError, match="no examples"):
        collate([])
    with pytest.raises(ValueError, match="example empty-7 has no tokens"):
        collate([Example("a", (1,), 0), Example("empty-7", (), 1)])


def test_batches_by_length_hold_each_example_once_whatever_the_order():
    some = examples([3, 9, 3, 1, 9, 4])
    parts = batches_by_length(some, 4)
    assert sorted(i for part in parts for i in part) == list(range(6))
    assert [len(part) for part in parts] == [4, 2]
    shuffled = [some[i] for i in (4, 2, 0, 5, 1, 3)]
    again = batches_by_length(shuffled, 4)
    assert [[some[i].id for i in part] for part in parts] == [[shuffled[i].id for i in part] for part in again]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_bfloat16_weights_are_not_rounded_to_bfloat16(name):
    model = classifier(name, dtype=torch.bfloat16)
    hidden = torch.randn(64, model.width).to(torch.bfloat16)
    logits = model.classify(hidden)
    assert logits.dtype == torch.float32
    expected = hidden.double() @ model.head.weight.double().T
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-4)
    assert not torch.equal(logits, logits.to(torch.bfloat16).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model.classify(hidden), logits)


def test_autocast_of_float32_weights_gives_finite_float32_logits():
    model = classifier(dtype=torch.float32, head=3.0)
    batch = collate(examples([12, 2]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(batch), rtol=0, atol=0.3)
