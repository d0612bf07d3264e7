"""Norms and weights in the precision in which passes read them give the numbers of the library's own."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from latreft.models.adapter import add_lora
from latreft.models.batch import Example, collate
from latreft.models.classifier import Classifier
from latreft.models.families import family, names
from latreft.models.norms import MixedPrecisionNorm
from latreft.models.precision import settle

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"vocab_size": 50, "max_position_embeddings": 64}
BATCH = collate([Example("a", (3, 4, 5, 6), 0), Example("b", (7, 8), 1)])


def classifier(name: str) -> Classifier:
    fam = family(name)
    torch.manual_seed(0)
    heads = {} if name == "gpt_neox" else {"num_key_value_heads": 2}
    base = fam.build(fam.config(**SHAPE, **heads), dtype=torch.float32)
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.3)
    model = Classifier(base, fam)
    model.initialise_head(0)
    return model.requires_grad_(False).eval()


def mixed():
    return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)


def logits(model: Classifier) -> torch.Tensor:
    return model(BATCH)


@pytest.mark.parametrize("name", names())
def test_settled_weights_change_no_bit_of_a_pass_under_autocast(name):
    model = classifier(name)
    with mixed():
        expected = logits(model)
        settle(model)
        assert torch.equal(logits(model), expected)
    linear = [layer for layer in model.base.modules() if type(layer) is nn.Linear]
    assert {layer.weight.dtype for layer in linear} == {torch.bfloat16}
    assert model.head.weight.dtype == model.embedding.weight.dtype == torch.float32


def test_settled_weights_under_an_adapter_change_no_bit_of_logits_and_gradients():
    found = []
    for settled in (False, True):
        model = classifier("llama")
        add_lora(model, rank=2, alpha=4, seed=0)
        for module_name, parameter in model.named_parameters():
            if "lora_B" in module_name:
                nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
        with mixed():
            if settled:
                settle(model)
            loss = F.cross_entropy(logits(model), BATCH.labels)
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters() if p.requires_grad)])
    assert len(found[0]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_only_frozen_weights_settle_and_only_under_autocast():
    model = classifier("llama")
    settle(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    model.requires_grad_(True)
    with mixed():
        settle(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", [name for name in names() if family(name).rms_norm])
def test_norms_are_the_familys_own_and_under_autocast_the_same_up_to_rounding(name):
    """Forward and backward; under autocast rounded once, for all linear layers that read them."""
    model = classifier(name)
    blocks = model.family.block_list(model.base)
    mixed_norms = [module for block in blocks for module in block.modules() if isinstance(module, MixedPrecisionNorm)]
    assert len(mixed_norms) == 2 * SHAPE["num_hidden_layers"]
    norm = mixed_norms[0].requires_grad_(True)
    own = type(norm).__mro__[2](SHAPE["hidden_size"], eps=model.base.config.rms_norm_eps)
    own.load_state_dict(norm.state_dict())
    given = torch.randn(3, 5, SHAPE["hidden_size"], generator=torch.Generator().manual_seed(0))

    def run(module, precision):
        hidden = given.clone().requires_grad_(True)
        module.zero_grad()
        with precision:
            output = module(hidden)
            output.float().sin().sum().backward()
        return output, hidden.grad, module.weight.grad

    for one, other in zip(run(norm, nullcontext()), run(own, nullcontext()), strict=True):
        assert torch.equal(one, other)
    under = run(norm, mixed())
    assert under[0].dtype == torch.bfloat16
    for one, other in zip(under, run(own, nullcontext()), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(under[0], own(given).bfloat16(), rtol=8e-3, atol=1e-6)  # a rounding apart at most


def test_the_last_norm_is_not_rounded():
    """The head reads it, in float32."""
    model = classifier("llama")
    with mixed():
        assert model.base.norm(torch.randn(2, 3, SHAPE["hidden_size"])).dtype == torch.float32


def test_norms_survive_copying():
    model = classifier("llama")
    with mixed():
        assert torch.equal(logits(copy.deepcopy(model)), logits(model))
