"""All checks of one classifier: every number that is promised, the same each time."""

from __future__ import annotations

import math

import pytest
import torch
from unit.models.tiny import FAMILIES, NEURONS, classifier, examples

from latreft.theory.checks import attacked_layer, check_all, unpadded

SETTINGS = {"trials": 30, "tokens": 16, "steps": 2, "seed": 0}
PROMISED = {
    "thm1_violations", "thm1_vacuous_share", "thm2_violations", "thm2_slack_median", "thm3_violations",
    "thm3_rank_correlation", "thm3_random_relative_error", "thm3_act_grad_share", "prop1_relative_error",
}  # fmt: skip


def found(name: str, layers: int = 3, **settings):
    scores = {
        rule: torch.rand(layers, NEURONS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed, rule in enumerate(("act_grad", "act_diff"))
    }
    return check_all(classifier(name, layers=layers), examples([18, 14, 20]), scores, SETTINGS | settings)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_promised_number_is_there_and_finite(name):
    metrics = found(name)
    assert set(metrics) >= PROMISED
    assert all(math.isfinite(metric.value) for metric in metrics.values())
    for theorem in ("thm1", "thm2", "thm3"):
        assert metrics[f"{theorem}_violations"].value == 0 and metrics[f"{theorem}_violations"].n > 30


def test_the_seed_decides_every_number():
    assert found("llama") == found("llama")
    assert found("llama") != found("llama", seed=1)


def test_a_model_of_one_layer_and_very_short_texts_are_checked_too():
    assert set(found("llama", layers=1, tokens=3)) >= PROMISED


def test_the_attacked_layer_has_a_block_behind_it():
    assert [attacked_layer(layers) for layers in (1, 2, 4, 24, 30, 36)] == [0, 1, 1, 4, 5, 6]


def test_texts_are_cut_to_the_shortest():
    batch = unpadded(examples([18, 14, 20]), 16)
    assert batch.tokens.shape == (3, 14) and not batch.padded
    assert unpadded(examples([18, 14, 20]), 5).length == 5
