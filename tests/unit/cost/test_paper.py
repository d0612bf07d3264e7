"""Appendix E's formulas against Table 1, where they agree and where they do not."""

import pytest

from latreft.cost import paper
from latreft.cost.shapes import PUBLIC_SHAPES

LLAMA, QWEN, PYTHIA = (PUBLIC_SHAPES[name] for name in ("Llama-3.1-8B", "Qwen2.5-3B", "Pythia-1.4B"))
PLACES = {LLAMA: (4, 8), QWEN: (18, 18), PYTHIA: (4, 12)}
"""Attack and ReFT layer of Table 4."""


def tflops(value: float) -> float:
    return round(value / 1e12, 1)


def surrogate_of(shape, pruning_ratio: float) -> float:
    return paper.estimated_surrogate(shape.parameters, shape.mlp_share, pruning_ratio)


def ours(shape, pruning_ratio: float) -> float:
    attack_layer, reft_layer = PLACES[shape]
    return paper.lat_reft(
        shape.parameters, surrogate_of(shape, pruning_ratio), shape.reft_parameters(64),
        layers=shape.layers, attack_layer=attack_layer, reft_layer=reft_layer, steps=8,
    )  # fmt: skip


@pytest.mark.parametrize(("shape", "printed"), [(LLAMA, 222.9), (QWEN, 91.6), (PYTHIA, 39.0)])
def test_lat_is_table_1(shape, printed):
    assert paper.lat(shape.parameters, steps=8) == 58 * shape.parameters * 512
    assert tflops(paper.lat(shape.parameters, steps=8)) == printed


@pytest.mark.parametrize(("shape", "printed"), [(LLAMA, 176.8), (QWEN, 72.7), (PYTHIA, 30.9)])
def test_cat_is_table_1(shape, printed):
    lora = shape.lora_parameters(16) + shape.head_parameters
    assert tflops(paper.cat(shape.parameters, lora, steps=10)) == printed


def test_qwen_ours_is_table_1():
    assert tflops(ours(QWEN, 0.25)) == 39.2


def test_llama_ours_is_printed_without_pruning():
    assert tflops(ours(LLAMA, 0)) == 139.8
    assert tflops(ours(LLAMA, 0.25)) == 118.5


def test_pythia_ours_needs_the_surrogate_in_the_target_term():
    assert tflops(ours(PYTHIA, 0.25)) == 20.2
    small = surrogate_of(PYTHIA, 0.25)
    replaced = paper.lat_reft(
        small, small, PYTHIA.reft_parameters(64), layers=24, attack_layer=4, reft_layer=12, steps=8
    )
    assert tflops(replaced) == 19.6


@pytest.mark.parametrize(
    ("shape", "rounds", "batch_size", "multiple"), [(LLAMA, 5, 4, 1111), (QWEN, 7, 8, 656), (PYTHIA, 4, 8, 509.75)]
)
def test_r2d2_of_the_stated_settings_is_not_table_1(shape, rounds, batch_size, multiple):
    searched = 200 * sum(paper.gcg_rounds(r) for r in range(1, rounds + 1))
    flops = paper.r2d2(shape.parameters, searched=searched, trained=rounds * 200 * batch_size)
    assert flops / (shape.parameters * 512) == pytest.approx(multiple)
    assert 6 / multiple < 0.03


@pytest.mark.parametrize(("shape", "printed"), [(LLAMA, 0.5559), (QWEN, 0.9608), (PYTHIA, 0.9505)])
def test_cat_trainable_share_is_of_the_model_with_adapters(shape, printed):
    trained = shape.lora_parameters(16) + shape.head_parameters
    assert round(100 * trained / (shape.parameters + trained), 4) == printed


@pytest.mark.parametrize(
    ("trained", "of", "printed"),
    [
        (LLAMA.reft_parameters(64) + LLAMA.head_parameters, 8.03e9, 0.0066),
        (QWEN.reft_parameters(64), QWEN.parameters, 0.0085),
        (PYTHIA.reft_parameters(64) + PYTHIA.head_parameters, PYTHIA.parameters, 0.0203),
    ],
)
def test_ours_trainable_share_takes_three_denominators(trained, of, printed):
    assert round(100 * trained / of, 4) == printed


def test_gcg_schedule_is_the_printed_one():
    assert [paper.gcg_rounds(r) for r in range(1, 9)] == [11, 14, 17, 20, 23, 26, 29, 32]


def test_share_above_is_printed_and_never_negative():
    assert paper.share_above(8, 32) == 23 / 32
    assert paper.share_above(32, 32) == 0


def test_no_steps_and_no_edit_cost_the_forward_passes():
    assert paper.lat_reft(10, 10, 0, layers=4, attack_layer=1, reft_layer=4, steps=0, tokens=3) == 4 * 10 * 3
    assert paper.cat(10, 0, steps=0, tokens=3) == paper.finetune(10, tokens=3)


def test_attacks_are_built_from_passes():
    assert paper.gcg_round(10, candidates=3, tokens=2) == 2 * 10 * 2 * 5
    assert paper.random_token_attack(10, draws=7, tokens=2) == 7 * paper.forward(10, tokens=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper.share_above(33, 32), "layer 33"),
        (lambda: paper.estimated_surrogate(1, 0.5, 25), "pruning_ratio is 25"),
        (lambda: paper.r2d2(1, searched=1, trained=0), "trained is 0"),
    ],
)
def test_impossible_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
