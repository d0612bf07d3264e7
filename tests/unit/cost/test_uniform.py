"""The uniform rule against the operators that torch counts, and one rule for every method."""

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from latreft.cost import uniform
from latreft.cost.measured import FlopMeter
from latreft.cost.shapes import PUBLIC_SHAPES, from_config
from latreft.cost.uniform import Pass, blocks, total

BATCH, TOKENS, WINDOW = 2, 8, 3
LLAMA = PUBLIC_SHAPES["Llama-3.1-8B"]


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return LlamaModel(config)


def measured(model: LlamaModel, layer: int | None) -> int:
    """FLOPs of a pass with its backward: to all weights, or only to a window's perturbation after ``layer``."""
    tokens = torch.randint(0, 40, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))
    model.requires_grad_(layer is None)
    delta = torch.zeros(BATCH, WINDOW, 256, requires_grad=True)

    def perturb(_module, _inputs, state):
        return torch.cat([state[:, :-WINDOW], state[:, -WINDOW:] + delta], dim=1)

    place = None if layer is None else model.layers[layer - 1] if layer else model.embed_tokens
    hook = None if place is None else place.register_forward_hook(perturb)
    mask = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    with FlopMeter() as meter:
        loss = model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state[:, -1].square().sum()
        loss.backward()
    if hook is not None:
        hook.remove()
    model.zero_grad()
    return meter.flops


def ignored(layers_backward: int) -> int:
    """Attention scores, fused: two products forward in all four layers, five backward in those crossed."""
    product = 2 * BATCH * TOKENS * TOKENS * 256
    return (2 * 4 + 5 * layers_backward) * product


# With 8 tokens against a width of 256 the attention scores, which the rule ignores, are under 1% of a pass: per block
# and token at most (4 + 10)·T·D against 4 to 6 times 983,040 weights, 0.7%. What remains must be explained exactly.
TOLERANCE = 0.01


def test_a_finetuning_step_costs_what_torch_counts(model):
    counted = measured(model, layer=None)
    rule = total(uniform.finetune(from_config(model.config), tokens=BATCH * TOKENS))
    assert rule == pytest.approx(counted, rel=TOLERANCE)
    assert counted - rule == ignored(layers_backward=4)


@pytest.mark.parametrize("layer", [0, 1, 3, 4])
def test_an_input_gradient_costs_the_blocks_it_crosses(model, layer):
    shape = from_config(model.config)
    counted = measured(model, layer=layer)
    rule = Pass(BATCH * TOKENS, blocks(shape), blocks(shape, above=layer)).flops
    assert rule == pytest.approx(counted, rel=TOLERANCE)
    assert counted - rule == ignored(layers_backward=4 - layer)


def test_every_outer_loss_and_every_pgd_step_is_charged_alike():
    lat = uniform.lat(LLAMA, tokens=512, attack_layer=0, steps=8)
    cat = uniform.cat(LLAMA, tokens=512, steps=8, lora_parameters=0)
    ours = uniform.lat_reft(LLAMA, tokens=512, attack_layer=0, reft_layer=0, steps=8, trainable=0)
    assert lat[:8] == cat[:8] == ours[:8]
    weights = blocks(LLAMA)
    assert total(lat) == (8 * 4 + 2 * 6) * weights * 512
    assert total(cat) == total(ours) == (8 * 4 + 2 * 4) * weights * 512


def test_an_edit_below_the_attack_is_not_crossed_by_pgd():
    def inner(reft_layer):
        return uniform.lat_reft(LLAMA, tokens=1, attack_layer=5, reft_layer=reft_layer, steps=1, trainable=10)[0]

    assert inner(5).backward_parameters - inner(4).backward_parameters == 10


def test_a_cut_surrogate_saves_its_neurons_in_the_inner_loop_only():
    arguments = {"tokens": 512, "attack_layer": 4, "reft_layer": 8, "steps": 8, "trainable": LLAMA.reft_parameters(64)}
    full, cut = uniform.lat_reft(LLAMA, **arguments), uniform.lat_reft(LLAMA, **arguments, kept_share=0.75)
    assert full[8:] == cut[8:]
    saved = 0.25 * 3 * LLAMA.width * LLAMA.mlp_width * (32 + 28)
    assert full[0].flops - cut[0].flops == pytest.approx(2 * 512 * saved)


def test_the_edit_on_every_token_adds_under_a_thousandth():
    arguments = {"tokens": 512, "attack_layer": 4, "reft_layer": 12, "steps": 8}
    shape = PUBLIC_SHAPES["Pythia-1.4B"]
    with_edit = total(uniform.lat_reft(shape, **arguments, trainable=shape.reft_parameters(64)))
    assert with_edit / total(uniform.lat_reft(shape, **arguments, trainable=0)) - 1 < 1e-3


def test_r2d2_spreads_its_search_over_the_training_examples():
    weights = blocks(LLAMA)
    passes = uniform.r2d2(LLAMA, tokens=512, searched=17_000, trained=4_000, candidates=128)
    assert total(passes) == pytest.approx((17_000 / 4_000 * (4 + 2 * 128) + 6) * weights * 512)
    assert total(uniform.r2d2(LLAMA, tokens=512, searched=0, trained=1, candidates=128)) == 6 * weights * 512


def test_no_passes_cost_nothing():
    assert total([]) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniform.lat(LLAMA, tokens=1, attack_layer=33, steps=1), "layer 33"),
        (lambda: blocks(LLAMA, above=-1), "layer -1"),
        (lambda: blocks(LLAMA, kept_share=1.5), "kept_share is 1.5"),
        (lambda: uniform.r2d2(LLAMA, tokens=1, searched=1, trained=0, candidates=1), "trained is 0"),
    ],
)
def test_impossible_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
