"""LoRA goes on every linear layer of the blocks, starts as nothing, and is saved with the head."""

from __future__ import annotations

import pytest
import torch
from unit.models.tiny import FAMILIES, LAYERS, classifier, examples

from latreft.models.adapter import add_lora, load_lora, lora_weights, merged_adapters
from latreft.models.batch import collate
from latreft.models.classifier import Classifier
from latreft.models.precision import settle
from latreft.models.quantisation import wants_four_bits
from latreft.settings import SettingsError

LINEARS = {"llama": 7, "qwen2": 7, "gpt_neox": 4}


def with_lora(name: str, seed: int = 0):
    model = classifier(name)
    add_lora(model, rank=2, alpha=4, seed=seed)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_covers_all_linear_layers_of_the_blocks_and_trains_the_head(name):
    model = classifier(name)
    linear = {key for key, module in model.base.named_modules() if isinstance(module, torch.nn.Linear)}
    assert len(linear) == LINEARS[name] * LAYERS
    add_lora(model, rank=2, alpha=4, seed=0)
    covered = {key.rsplit(".lora_A", 1)[0] for key, _ in model.base.named_parameters() if "lora_A" in key}
    assert covered == linear
    trainable = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {key for key, _ in model.named_parameters() if "lora_" in key} | {"head.weight"}


@pytest.mark.parametrize("name", FAMILIES)
def test_changes_nothing_before_training(name):
    batch = collate(examples([6, 3]))
    torch.testing.assert_close(with_lora(name)(batch), classifier(name)(batch), rtol=1e-12, atol=1e-12)


def test_the_seed_decides_the_adapter_whatever_was_drawn_before():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = lora_weights(with_lora("llama", 5))
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    again, other = lora_weights(with_lora("llama", 5)), lora_weights(with_lora("llama", 6))
    assert all(torch.equal(one[key], again[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", FAMILIES)
def test_comes_back_with_its_head(name):
    model, batch = with_lora(name), collate(examples([6, 3]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    loaded = classifier(name)
    load_lora(loaded, lora_weights(model), rank=2, alpha=4)
    assert torch.equal(loaded(batch), model(batch))
    assert torch.equal(loaded.head.weight, model.head.weight)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert (loaded(batch) - classifier(name)(batch)).abs().max() > 1e-3


def test_an_adapter_of_another_rank_or_without_its_head_is_refused():
    weights = lora_weights(with_lora("llama"))
    with pytest.raises(ValueError, match="the saved adapter's tensors do not fit the classifier: .*lora_A.* is \\[2, "):
        load_lora(classifier(), weights, rank=3, alpha=4)
    with pytest.raises(ValueError, match="missing \\['head.weight'\\]"):
        load_lora(classifier(), {k: v for k, v in weights.items() if k != "head.weight"}, rank=2, alpha=4)


def test_four_bits_only_where_they_can_be():
    cpu = torch.device("cpu")
    assert wants_four_bits("auto", cpu) is False
    assert wants_four_bits("never", cpu) is False
    with pytest.raises(
        SettingsError, match="four_bit is 'always', but the device is cpu .* set four_bit to 'auto' or 'never'"
    ):
        wants_four_bits("always", cpu)


@pytest.mark.parametrize("name", FAMILIES)
def test_multiplied_out_adapters_give_the_same_until_refreshed(name):
    """Logits and gradients of the embeddings; the head is the model's own."""
    model, batch = with_lora(name), collate(examples([6, 3]))
    merged = merged_adapters(model)

    def train() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))

    def run(one: Classifier) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = one.embedding(batch.tokens).detach().requires_grad_(True)
        logits = one.logits_of_embeddings(embedded, batch)
        return logits, torch.autograd.grad(logits[:, 0].sum(), embedded)[0]

    train()
    merged.refresh()
    expected = run(model)
    for one, other in zip(run(merged.classifier), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    train()
    assert (run(merged.classifier)[0] - expected[0]).abs().max() > 0  # the head was trained, too
    stale = run(merged.classifier)[1]
    merged.refresh()
    fresh = run(merged.classifier)[1]
    torch.testing.assert_close(fresh, run(model)[1], rtol=0, atol=1e-10)
    assert (stale - fresh).abs().max() > 1e-6


@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_with_multiplied_out_adapters_shares_what_has_none(name):
    """Of its own are the adapted weights alone, plain ones that no adapter and no gradient knows of."""
    model = with_lora(name)
    state = torch.random.get_rng_state()
    twin = merged_adapters(model).classifier
    assert torch.equal(torch.random.get_rng_state(), state)
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    own = {key for key, parameter in twin.named_parameters() if parameter.data_ptr() not in theirs}
    adapted = {key.replace(".base_layer", "") for key, _ in model.named_parameters() if "base_layer.weight" in key}
    assert own == adapted and not any("lora" in key for key, _ in twin.named_modules())
    assert [key for key, parameter in twin.named_parameters() if parameter.requires_grad] == ["head.weight"]


def test_multiplied_out_adapters_need_no_gradient_of_theirs():
    model, batch = with_lora("llama"), collate(examples([6, 3]))
    merged_adapters(model).classifier(batch).sum().backward()
    assert all(p.grad is None for key, p in model.named_parameters() if "lora_" in key)


def test_a_small_adapter_is_not_lost_in_the_rounding_of_the_weights_that_it_is_added_to():
    """Added to W as rounded, all of this one would be."""
    model = classifier("llama").float().requires_grad_(False)
    add_lora(model, rank=2, alpha=4, seed=0)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.constant_(parameter, 1e-3)
    layer = model.base.layers[0].self_attn.q_proj
    torch.nn.init.uniform_(layer.base_layer.weight, 1, 2)  # a rounding step is 1/128 there
    own = layer.base_layer.weight.detach().clone()
    added = layer.scaling["default"] * (layer.lora_B["default"].weight @ layer.lora_A["default"].weight).detach()
    probe = torch.eye(own.shape[1])
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        merged = merged_adapters(model)
        settle(model)
        merged.refresh()
        found = merged.classifier.base.layers[0].self_attn.q_proj(probe).float().T
    assert found.dtype == torch.float32 and layer.base_layer.weight.dtype == torch.bfloat16
    assert torch.equal(found, (own + added).bfloat16().float())
    rounded = own.bfloat16()
    assert torch.equal(rounded + added.bfloat16(), rounded)
    assert (found != rounded.float()).float().mean() > 0.05


def test_adapters_of_rounded_weights_are_not_multiplied_out():
    model = classifier("llama").bfloat16()
    add_lora(model, rank=2, alpha=4, seed=0)
    assert merged_adapters(model) is None
