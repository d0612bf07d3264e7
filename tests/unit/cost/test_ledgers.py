"""The three ledgers side by side."""

from typing import Any

import pytest

from latreft.cost.ledgers import FORMULAS, ledgers
from latreft.cost.shapes import PUBLIC_SHAPES
from latreft.settings import SettingsError

QWEN = PUBLIC_SHAPES["Qwen2.5-3B"]
OURS = {"attack_layer": 18, "reft_layer": 18, "steps": 8, "rank": 64, "pruning_ratio": 0.25}
R2D2 = {
    "rounds": 7, "attacked_per_round": 200, "gcg_start": 8, "gcg_end": 32, "gcg_r_max": 8, "candidates": 128,
    "steps_per_round": 200, "batch_size": 8,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "finetune": {},
    "lat": {"attack_layer": 8, "steps": 8},
    "cat": {"steps": 10},
    "lat_reft": OURS,
    "r2d2": R2D2,
}
FLOPS = ("paper_flops_per_example", "uniform_flops_per_example")


def run(method, settings=None, **changes):
    arguments = {"settings": SETTINGS[method] if settings is None else settings, "trainable": QWEN.reft_parameters(64)}
    return ledgers(method, QWEN, **(arguments | changes))


def test_paper_ledger_is_table_1_at_512_tokens():
    row = run("lat_reft", tokens=512)
    assert round(row["paper_flops_per_example"] / 1e12, 1) == 39.2
    assert round(row["trainable_percent"], 4) == 0.0085
    assert row["trainable_parameters"] == 2 * 64 * 2048 + 64
    assert row["measured_flops_per_example"] is None


@pytest.mark.parametrize("method", SETTINGS)
def test_formulas_are_linear_in_tokens(method):
    long, short = run(method, tokens=512), run(method, tokens=256)
    for key in FLOPS:
        assert long[key] == pytest.approx(2 * short[key])


def test_every_method_with_formulas_is_tried():
    assert set(FORMULAS) == set(SETTINGS)


def test_measured_is_handed_through():
    assert run("lat", measured_flops_per_example=1.5)["measured_flops_per_example"] == 1.5


def test_a_method_without_formulas_has_none_and_needs_no_edit():
    row = ledgers("brand_new", QWEN, settings={}, trainable=QWEN.parameters // 2)
    assert [row[key] for key in FLOPS] == [None, None]
    assert row["trainable_percent"] == 50
    assert ledgers("none", QWEN, settings={}, trainable=0)["trainable_percent"] == 0


def test_an_exact_surrogate_goes_before_the_estimate():
    kept = [QWEN.mlp_width * 3 // 4] * QWEN.layers
    exact = run("lat_reft", OURS | {"pruning_ratio": None}, surrogate_parameters=QWEN.pruned(kept))
    for key in FLOPS:
        assert exact[key] == pytest.approx(run("lat_reft")[key], rel=1e-9)
    whole = run("lat_reft", surrogate_parameters=QWEN.parameters)
    assert whole == run("lat_reft", OURS | {"pruning_ratio": 0})


def test_r2d2_rounds_are_listed_or_scheduled():
    listed = {key: value for key, value in R2D2.items() if not key.startswith("gcg")}
    listed["gcg_rounds"] = [11, 14, 17, 20, 23, 26, 29]
    assert run("r2d2", listed) == run("r2d2")
    with pytest.raises(SettingsError, match="'gcg_rounds' lists 1 rounds; 'rounds' is 7"):
        run("r2d2", listed | {"gcg_rounds": [11]})


@pytest.mark.parametrize(
    ("method", "key"), [(method, key) for method, given in SETTINGS.items() for key in given if key != "rank"]
)
def test_a_missing_setting_is_named(method, key):
    given = {name: value for name, value in SETTINGS[method].items() if name != key}
    with pytest.raises(SettingsError, match=f"cost of {method}: key '{key}' is missing"):
        run(method, given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"trainable": -1}, "trainable is -1"),
        ({"surrogate_parameters": 1}, "cannot be cut"),
        ({"settings": OURS | {"pruning_ratio": 25}}, "pruning_ratio is 25"),
        ({"settings": OURS | {"attack_layer": 40}}, "layer 40"),
    ],
)
def test_impossible_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        run("lat_reft", **changes)


PAPER = {
    "Llama-3.1-8B": {"lat": (4,), "lat_reft": (4, 8), "r2d2": (5, 4)},
    "Qwen2.5-3B": {"lat": (8,), "lat_reft": (18, 18), "r2d2": (7, 8)},
    "Pythia-1.4B": {"lat": (4,), "lat_reft": (4, 12), "r2d2": (4, 8)},
}
"""Layers [A.4, Table 4], and rounds and batch size of R2D2 [A.4]."""


def paper_settings(model: str, method: str, pruning_ratio: float) -> dict[str, Any]:
    names = {"lat": ("attack_layer",), "lat_reft": ("attack_layer", "reft_layer"), "r2d2": ("rounds", "batch_size")}
    own = dict(zip(names.get(method, ()), PAPER[model].get(method, ()), strict=True))
    return SETTINGS[method] | own | ({"pruning_ratio": pruning_ratio} if method == "lat_reft" else {})


def tflops(model: str, method: str, ledger: str, pruning_ratio: float = 0.25) -> float:
    shape = PUBLIC_SHAPES[model]
    adapters = shape.lora_parameters(16) + shape.head_parameters
    trained = {"cat": adapters, "lat_reft": shape.reft_parameters(64)}.get(method, shape.parameters)
    row = ledgers(method, shape, settings=paper_settings(model, method, pruning_ratio), trainable=trained)
    value = row[f"{ledger}_flops_per_example"]
    assert value is not None
    return value / 1e12


@pytest.mark.parametrize(
    ("model", "ledger", "lat", "cat", "whole", "cut", "r2d2"),
    [
        ("Llama-3.1-8B", "paper", 222.9, 176.8, 139.8, 118.5, 4269),
        ("Llama-3.1-8B", "uniform", 150.1, 172.6, 132.2, 110.6, 3970),
        ("Qwen2.5-3B", "paper", 91.6, 72.7, 46.5, 39.2, 1036),
        ("Qwen2.5-3B", "uniform", 57.5, 69.0, 42.6, 35.1, 932),
        ("Pythia-1.4B", "paper", 39.0, 30.9, 23.2, 20.2, 342),
        ("Pythia-1.4B", "uniform", 25.6, 30.0, 21.9, 18.8, 315),
    ],
)
def test_the_table_of_the_documentation(model, ledger, lat, cat, whole, cut, r2d2):
    ours = [tflops(model, "lat_reft", ledger, ratio) for ratio in (0, 0.25)]
    found = [tflops(model, "lat", ledger), tflops(model, "cat", ledger), *ours]
    assert [round(value, 1) for value in found] == [lat, cat, whole, cut]
    assert round(tflops(model, "r2d2", ledger)) == r2d2


@pytest.mark.parametrize(
    ("ledger", "pruning_ratio", "saved"), [("paper", 0.25, 50.7), ("uniform", 0.25, 30.5), ("uniform", 0, 17.4)]
)
def test_the_mean_saving_against_lat_depends_on_the_ledger(ledger, pruning_ratio, saved):
    savings = [
        100 * (1 - tflops(model, "lat_reft", ledger, pruning_ratio) / tflops(model, "lat", ledger)) for model in PAPER
    ]
    assert round(sum(savings) / len(savings), 1) == saved
