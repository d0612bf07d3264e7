"""Parameter counts are exact: against published figures, built models and hand-cut ones."""

import pytest
import torch
from torch import nn
from transformers import (
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    PretrainedConfig,
    Qwen2Config,
    Qwen2Model,
)

from latreft.cost.shapes import PUBLIC_SHAPES, Biases, ModelShape, from_config

MODELS = {
    "llama": (LlamaConfig, LlamaModel),
    "qwen2": (Qwen2Config, Qwen2Model),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXModel),
}


def config_of(shape: ModelShape, **changes):
    config = MODELS[shape.family][0](
        num_hidden_layers=shape.layers, hidden_size=shape.width, intermediate_size=shape.mlp_width,
        num_attention_heads=shape.heads, vocab_size=shape.vocabulary, **changes,
    )  # fmt: skip
    if shape.family != "gpt_neox":
        config.num_key_value_heads = shape.kv_heads
        config.head_dim = shape.head_width
    return config


def built(shape: ModelShape, device: str = "meta", **changes) -> nn.ModuleDict:
    with torch.device(device):
        base = MODELS[shape.family][1](config_of(shape, **changes))
        return nn.ModuleDict({"base": base, "head": nn.Linear(shape.width, shape.classes, bias=False)})


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def tiny(family: str) -> ModelShape:
    kv_heads = 4 if family == "gpt_neox" else 2
    return ModelShape(family, 3, 32, 24, heads=4, kv_heads=kv_heads, head_width=8, vocabulary=50)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama-3.1-8B", 7_504_932_864),
        ("Qwen2.5-3B", 3_085_942_784),
        ("Pythia-1.4B", 1_311_629_312),
        ("SmolLM2-135M", 134_515_008 + 2 * 576),
    ],
)
def test_public_shapes_have_the_published_counts(name, parameters):
    assert PUBLIC_SHAPES[name].parameters == parameters


@pytest.mark.parametrize("name", PUBLIC_SHAPES)
def test_public_shapes_count_what_transformers_builds(name):
    shape = PUBLIC_SHAPES[name]
    model = built(shape)
    assert count(model) == shape.parameters
    layers = model["base"].layers
    assert count(layers[0]) == shape.block_parameters
    assert sum(count(layer.mlp) for layer in layers) == shape.mlp_parameters
    assert count(model["base"].get_input_embeddings()) == shape.embedding_parameters


@pytest.mark.parametrize("name", PUBLIC_SHAPES)
def test_config_gives_the_shape_back(name):
    assert from_config(config_of(PUBLIC_SHAPES[name])) == PUBLIC_SHAPES[name]


@pytest.mark.parametrize(
    ("family", "switches", "biases"),
    [
        ("llama", {"attention_bias": True}, Biases(qkv=True, output=True)),
        ("llama", {"mlp_bias": True}, Biases(mlp=True)),
        ("gpt_neox", {"attention_bias": False}, Biases(mlp=True)),
    ],
)
def test_bias_switches_of_a_config_are_counted(family, switches, biases):
    shape = from_config(config_of(tiny(family), **switches))
    assert shape.biases == biases
    assert shape.parameters == count(built(tiny(family), **switches))


def cut(linear: nn.Linear, rows: int | None = None, columns: int | None = None) -> nn.Linear:
    outputs, inputs = linear.weight[:rows, :columns].shape
    return nn.utils.skip_init(nn.Linear, inputs, outputs, bias=linear.bias is not None)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("family", MODELS)
def test_pruned_counts_a_really_cut_ragged_model(family):
    shape, kept = tiny(family), [24, 0, 7]
    model = built(shape, device="cpu")
    for layer, neurons in zip(model["base"].layers, kept, strict=True):
        into = ["dense_h_to_4h"] if family == "gpt_neox" else ["gate_proj", "up_proj"]
        out = "dense_4h_to_h" if family == "gpt_neox" else "down_proj"
        for name in into:
            setattr(layer.mlp, name, cut(getattr(layer.mlp, name), rows=neurons))
        setattr(layer.mlp, out, cut(getattr(layer.mlp, out), columns=neurons))
    assert shape.pruned(kept) == count(model)
    assert shape.kept_share(shape.pruned(kept)) == pytest.approx(31 / 72)


@pytest.mark.parametrize("family", MODELS)
def test_pruning_nothing_changes_nothing(family):
    shape = tiny(family)
    assert shape.pruned([shape.mlp_width] * shape.layers) == shape.parameters
    assert shape.kept_share(shape.parameters) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tiny("llama").pruned([24, 24]), "2 layers"),
        (lambda: tiny("llama").pruned([24, 25, 24]), "layer 2 keeps 25"),
        (lambda: tiny("llama").pruned([24, 24, -1]), "layer 3 keeps -1"),
        (lambda: tiny("llama").parameters_per_neuron(4), "layer 4"),
        (lambda: tiny("llama").parameters_per_neuron(0), "layer 0"),
        (lambda: tiny("llama").kept_share(10**9), "cannot be cut"),
        (lambda: tiny("gpt2"), "unknown model family 'gpt2'; known: gpt_neox, llama, qwen2"),
        (lambda: ModelShape("llama", 0, 8, 8, 1, 1, 8, 9), "layers is 0"),
        (lambda: from_config(PretrainedConfig()), "num_attention_heads"),
    ],
)
def test_impossible_shapes_name_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_model_type_is_named():
    from transformers import MistralConfig

    with pytest.raises(ValueError, match="unknown model family 'mistral'"):
        from_config(MistralConfig())
