"""Whole trainings in float64 end in the same place with either engine: what parts them in float32 is rounding."""

from __future__ import annotations

import pytest
import torch
from unit.defenses.arms import TRAINED, fresh, tokenizer, train
from unit.models.tiny import FAMILIES

from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.models.classifier import Classifier
from latreft.models.loading import load_classifier, save_classifier

LONG = {"epochs": 15, "steps": 8}
ARMS = [
    *[(method, {} if method == "r2d2" else LONG) for method in TRAINED if method != "lat_reft"],
    ("lat_reft", LONG | {"pruning_ratio": 0.0}),
    ("lat_reft", LONG | {"surrogate": "exact"}),
    ("lat_reft", LONG | {"surrogate": "window"}),
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("method", "changes"), ARMS)
def test_both_engines_train_the_same_weights(method, changes, name):
    trained = [
        train(method, fresh(name, torch.float64), changes, engine=engine)
        for engine in (ReferenceEngine(), ReuseEngine())
    ]
    theirs, ours = (run.weights for run in trained)
    assert theirs.keys() == ours.keys() and theirs
    for key, tensor in theirs.items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(ours[key], tensor, rtol=1e-9, atol=1e-9)
    before = dict(fresh(name, torch.float64).named_parameters())
    assert any(key not in before or (tensor - before[key]).abs().max() > 1e-3 for key, tensor in theirs.items())


@pytest.mark.parametrize("name", FAMILIES)
def test_so_they_do_on_a_classifier_that_a_job_loads_in_float64(name, tmp_path):
    """What ``dtype: float64`` of a model gives the jobs: no step of loading leaves float32 behind."""
    manifest = tmp_path / "manifest.json"
    save_classifier(fresh(name, torch.float64), tokenizer().tokenizer, manifest, name="tiny", revision="r")

    def loaded() -> Classifier:
        return load_classifier(manifest, torch.device("cpu"), "float64")[0]

    theirs, ours = (
        train("lat_reft", loaded(), LONG, engine=engine()).weights for engine in (ReferenceEngine, ReuseEngine)
    )
    for key, tensor in theirs.items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(ours[key], tensor, rtol=1e-9, atol=1e-9)
