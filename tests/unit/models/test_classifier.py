"""The classifier itself: its head, its layers, its hooks."""

from __future__ import annotations

import sys

import pytest
import torch
from unit.models.tiny import FAMILIES, LAYERS, VOCABULARY, WIDTH, classifier, examples

from latreft.models import families
from latreft.models.batch import collate
from latreft.models.classifier import load_parameters, parameter_count
from latreft.models.families import family, names
from latreft.settings import SettingsError


def hooks(model) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_names_fit_its_model(name):
    model = classifier(name)
    assert (model.layers, model.width, model.vocabulary) == (LAYERS, WIDTH, VOCABULARY)
    assert model.family is family(name)
    for block in model.family.block_list(model.base):
        inputs, output = model.family.neuron_layers(block)
        assert {layer.out_features for layer in inputs} == {output.in_features}
        assert output.out_features == WIDTH


def test_an_unknown_family_lists_the_known_ones():
    with pytest.raises(SettingsError, match="unknown model family 'bert'; known families: gpt_neox, llama, qwen2"):
        family("bert")


def test_the_tests_run_on_every_family_there_is():
    assert names() == sorted(FAMILIES)
    assert [family(name).name for name in names()] == names()


@pytest.mark.parametrize("text", ["", "FAMILY = 'llama'", "from latreft.models.families.llama import FAMILY"])
def test_a_module_that_defines_no_family_of_its_name_says_what_is_right(text, tmp_path, monkeypatch):
    (tmp_path / "stray.py").write_text(text)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    try:
        with pytest.raises(SettingsError, match="stray.py: FAMILY is .*; right is a Family with the name 'stray'"):
            family("stray")
    finally:
        sys.modules.pop("latreft.models.families.stray", None)


def test_the_head_is_the_seeds():
    one, other = classifier(), classifier()
    one.initialise_head(4)
    torch.manual_seed(99)
    other.initialise_head(4)
    assert torch.equal(one.head.weight, other.head.weight)
    other.initialise_head(5)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert one.head.bias is None


@pytest.mark.parametrize("layer", [-1, LAYERS + 1])
def test_a_layer_that_does_not_exist_is_an_error_and_leaves_no_hook(layer):
    model = classifier()
    message = f"layer {layer} does not exist: this model has layers 0 .* to {LAYERS}"
    with pytest.raises(ValueError, match=message), model.edited({1: lambda h: h, layer: lambda h: h}):
        pass
    assert hooks(model) == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_hooks_are_gone_after_an_exception(name):
    model = classifier(name)
    batch = collate(examples([5, 2]))
    logits = model(batch)

    def fault(_state):
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), model.edited({0: torch.zeros_like, 2: fault}):
        model(batch)
    assert hooks(model) == 0
    assert torch.equal(model(batch), logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_are_counted_from_one_and_zero_is_the_embedding(name):
    model = classifier(name)
    batch = collate(examples([5]))
    caught = {}
    keep = lambda layer: lambda h: caught.setdefault(layer, h)  # noqa: E731
    with model.edited({layer: keep(layer) for layer in range(LAYERS + 1)}):
        model(batch)
    states = model.base(input_ids=batch.tokens, output_hidden_states=True, use_cache=False).hidden_states
    for layer in range(LAYERS):  # the library's last state is behind the final norm
        torch.testing.assert_close(caught[layer], states[layer], rtol=1e-12, atol=1e-12)
    norm = model.base.final_layer_norm if name == "gpt_neox" else model.base.norm
    torch.testing.assert_close(norm(caught[LAYERS]), states[LAYERS], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_the_library_on_a_text_without_padding(name):
    model = classifier(name)
    batch = collate(examples([9]))
    state = model.base(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, -1]
    torch.testing.assert_close(model(batch), model.head(state), rtol=1e-12, atol=1e-12)


def test_loading_parameters_names_what_does_not_fit():
    model = classifier()
    weights = {key: p.clone() + 1 for key, p in model.named_parameters()}
    load_parameters(model, weights, "the tensors")
    assert all(torch.equal(p, weights[key]) for key, p in model.named_parameters())
    without = {key: value for key, value in weights.items() if key != "head.weight"}
    with pytest.raises(ValueError, match="the tensors do not fit the classifier: missing \\['head.weight'\\]"):
        load_parameters(model, without, "the tensors")
    with pytest.raises(ValueError, match="missing \\['head.weight'\\], unexpected \\['score.weight'\\]"):
        load_parameters(model, without | {"score.weight": weights["head.weight"]}, "the tensors")
    before = model.head.weight.clone()
    with pytest.raises(ValueError, match=f"head.weight is \\[1, {WIDTH}\\], the classifier's is \\[2, {WIDTH}\\]"):
        load_parameters(model, weights | {"head.weight": torch.zeros(1, WIDTH)}, "the tensors")
    assert torch.equal(model.head.weight, before)


def test_a_shared_parameter_counts_once():
    model = classifier()
    count = parameter_count(model)
    model.head.weight = model.embedding.weight
    assert parameter_count(model) == count - 2 * WIDTH
    assert parameter_count(model, trainable_only=True) == 0
