"""Norms and weights in the precision in which passes read them give the numbers of the library's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from latreft.models.adapter import add_lora
from latreft.models.batch import Example, collate
from latreft.models.classifier import Classifier
from latreft.models.families import FAMILIES, family
from latreft.models.norms import BlockRMSNorm
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


@pytest.mark.parametrize("name", FAMILIES)
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


@pytest.mark.parametrize("name", [name for name, fam in FAMILIES.items() if fam.rms_norm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_norms_are_the_familys(name, dtype):
    """In place, under the same names; the family's own class gives the same up to rounding, forward and backward."""
    fam = family(name)
    base = fam.build(fam.config(**SHAPE), dtype=dtype)
    own = getattr(__import__(fam._model().__module__, fromlist=["_"]), fam.rms_norm)
    replaced = [module for block in fam.block_list(base) for module in block.modules() if type(module) is BlockRMSNorm]
    assert len(replaced) == 2 * SHAPE["num_hidden_layers"]
    assert not any(isinstance(module, own) for block in fam.block_list(base) for module in block.modules())
    assert set(base.state_dict()) == set(fam._model()(fam.config(**SHAPE)).state_dict())
    norm, reference = replaced[0], own(SHAPE["hidden_size"], eps=base.config.rms_norm_eps).to(dtype)
    with torch.no_grad():
        reference.weight.copy_(torch.randn(SHAPE["hidden_size"]))
        norm.weight.copy_(reference.weight)
    given = torch.randn(3, 5, SHAPE["hidden_size"], dtype=dtype)
    results = []
    for module in (norm, reference):
        hidden = given.clone().requires_grad_(True)
        output = module(hidden)
        output.sin().sum().backward()
        results.append((output, hidden.grad, module.weight.grad))
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_a_blocks_norm_rounds_once_under_autocast_and_the_last_norm_does_not():
    model = classifier("llama")
    norm = model.family.block_list(model.base)[0].input_layernorm
    hidden = torch.randn(2, 3, SHAPE["hidden_size"])
    with mixed():
        rounded = norm(hidden)
        assert model.base.norm(hidden).dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, norm(hidden).to(torch.bfloat16))
