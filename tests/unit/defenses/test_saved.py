"""A saved defense comes back as it was, frozen, on its own classifier and on no other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from unit.defenses.arms import SETTINGS, arm, fresh, train
from unit.models.tiny import FAMILIES, damage, relist

from latreft.defenses import base
from latreft.defenses.base import Kind, Trained
from latreft.defenses.saved import FORMS, WEIGHTS, checked, load, save
from latreft.engine.interface import Defended, predict
from latreft.engine.reference import ReferenceEngine
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models.batch import collate

ENGINE = ReferenceEngine()


def logits(defended: Defended) -> torch.Tensor:
    return predict(ENGINE, defended, collate(arm(defended.classifier, {}).examples))


def saved(method: str, folder, name: str = "llama"):
    """Train and save; the manifest, and the defense as it was in memory."""
    model, kept = fresh(name), {}
    real = base.run_training

    def spy(module, *args, **kwargs):
        if isinstance(module, LoReFT):
            kept["reft"] = module
        return real(module, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "run_training", spy)
        trained = train(method, model)
    manifest = folder / "manifest.json"
    save(trained, manifest, classifier_sha256="c" * 64)
    details = trained.details
    edit = ReftEdit(details["layer"], kept["reft"]) if kept else None
    return manifest, Defended(model.eval(), edit, details.get("window", 1))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", SETTINGS)
def test_logits_are_equal_after_loading_and_all_is_frozen(method, name, tmp_path):
    manifest, trained = saved(method, tmp_path, name)
    loaded = load(manifest, fresh(name).requires_grad_(True), classifier_sha256="c" * 64)
    torch.testing.assert_close(logits(loaded), logits(trained), rtol=1e-5, atol=1e-5)
    if method != "none":
        assert (logits(loaded) - logits(Defended(fresh(name)))).abs().max() > 1e-4
    assert not any(parameter.requires_grad for parameter in loaded.classifier.parameters())
    if loaded.reft is not None:
        assert not any(parameter.requires_grad for parameter in loaded.reft.intervention.parameters())
        assert (loaded.reft.layer, loaded.window) == (2, 5)


@pytest.mark.parametrize("method", SETTINGS)
def test_another_classifier_is_refused(method, tmp_path):
    manifest, _ = saved(method, tmp_path)
    with pytest.raises(ValueError, match="was trained on the classifier cccccccccccc, given dddddddddddd"):
        load(manifest, fresh(), classifier_sha256="d" * 64)


@pytest.mark.parametrize("method", ["lat", "cat", "lat_reft"])
def test_tensors_that_do_not_fit_are_refused_by_name(method, tmp_path):
    manifest, _ = saved(method, tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    name = "bias" if method == "lat_reft" else "head.weight"
    faults = {
        "missing": {key: value for key, value in weights.items() if key != name},
        "unexpected": weights | {"stray": torch.zeros(1)},
        "renamed": {("stray" if key == name else key): value for key, value in weights.items()},
        "misshapen": weights | {name: weights[name][:1]},
    }
    for fault, tensors in faults.items():
        save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / WEIGHTS)
        relist(manifest)
        model = fresh()
        with pytest.raises(ValueError) as error:
            load(manifest, model, classifier_sha256="c" * 64)
        assert ("stray" if fault == "unexpected" else name) in str(error.value), fault


def test_an_edit_for_a_wider_model_or_a_layer_that_is_not_there_is_refused(tmp_path):
    manifest, _ = saved("lat_reft", tmp_path)
    content = json.loads(manifest.read_text())
    content["details"]["layer"] = 9
    manifest.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="layer 9 does not exist"):
        load(manifest, fresh(), classifier_sha256="c" * 64)
    from latreft.interventions.reft import LoReFT

    save_file(LoReFT(32, 4).weights(), tmp_path / WEIGHTS)
    relist(manifest)
    with pytest.raises(ValueError, match="the saved ReFT is of width 32, the classifier of 16"):
        load(manifest, fresh(), classifier_sha256="c" * 64)


def test_a_missing_file_is_named(tmp_path):
    manifest, _ = saved("lat_reft", tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=f"{WEIGHTS} is listed in .*manifest.json but missing"):
        load(manifest, fresh(), classifier_sha256="c" * 64)


@pytest.mark.parametrize("method", SETTINGS)
def test_weights_that_are_not_those_of_the_manifest_are_refused(method, tmp_path):
    """One damaged byte, and the weights of another seed's training, which fit."""
    manifest, _ = saved(method, tmp_path)
    damage(tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=f"{WEIGHTS} is not the file that .*manifest.json lists"):
        load(manifest, fresh(), classifier_sha256="c" * 64)
    if method == "lat_reft":
        save_file(LoReFT(16, 4, seed=9).weights(), tmp_path / WEIGHTS)
        with pytest.raises(ValueError, match=f"{WEIGHTS} is not the file that .*manifest.json lists"):
            load(manifest, fresh(), classifier_sha256="c" * 64)


def test_saving_over_an_older_defense_leaves_nothing_of_it(tmp_path):
    saved("lat", tmp_path)
    manifest, trained = saved("lat_reft", tmp_path)
    assert set(load_file(tmp_path / WEIGHTS)) == {"rotation", "weight", "bias"}
    loaded = load(manifest, fresh(), classifier_sha256="c" * 64)
    torch.testing.assert_close(logits(loaded), logits(trained), rtol=1e-5, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", WEIGHTS]


def test_what_is_saved_is_what_was_trained_and_no_copy_of_the_backbone(tmp_path):
    saved("lat_reft", tmp_path / "reft")
    saved("cat", tmp_path / "lora")
    backbone = sum(p.numel() for p in fresh().base.parameters())
    assert sum(t.numel() for t in load_file(tmp_path / "reft" / WEIGHTS).values()) == 2 * 4 * 16 + 4
    lora = load_file(tmp_path / "lora" / WEIGHTS)
    assert sum(t.numel() for t in lora.values()) < backbone / 2
    assert "head.weight" in lora


def test_a_trained_edit_loads_in_pyreft_with_equal_outputs(tmp_path):
    from latreft.interventions.pyreft_format import pyreft_intervention

    manifest, trained = saved("lat_reft", tmp_path)
    edit = load(manifest, fresh(), classifier_sha256="c" * 64).reft.intervention
    hidden = torch.randn(4, 16)
    torch.testing.assert_close(
        pyreft_intervention(edit)(hidden), trained.reft.intervention(hidden), rtol=1e-5, atol=1e-5
    )


# --- what a training returned ---


def shapes_of(model):
    return {name: parameter.shape for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("method", SETTINGS)
def test_what_every_method_returns_passes(method):
    model = fresh()
    shapes = shapes_of(model)
    trained = train(method, model)
    for classifier in (model, fresh()):  # as it was trained on, and as it will be loaded on
        assert checked(trained, classifier, shapes, "x.py: train") is trained


@pytest.mark.parametrize("trained_on", [True, False])
def test_an_adapter_of_another_rank_is_refused(trained_on):
    model = fresh()
    trained = train("cat", model)
    other = replace(trained, details=trained.details | {"rank": 2 * trained.details["rank"]})
    with pytest.raises(
        ValueError, match=r"the adapter's tensors do not fit the classifier: .*lora_A.default.weight is"
    ):
        checked(other, model if trained_on else fresh(), shapes_of(fresh()), "x.py: train")


def test_every_kind_has_a_form():
    assert set(FORMS) == set(get_args(Kind))


NOTHING = Trained("none", {}, {}, None, 0)
REFT = Trained("reft", LoReFT(16, 4).weights(), {"layer": 2, "window": 5}, None, 4)
LORA = Trained("lora", {}, {"rank": 2, "alpha": 4, "four_bit": False}, None, 4)
FULL = Trained("full", {}, {}, None, 4)
FAULTS = [
    (None, "x.py: train returned None; right is a Trained"),
    ({"kind": "none"}, "x.py: train returned {'kind': 'none'}; right is a Trained"),
    (Trained, "right is a Trained"),
    (replace(NOTHING, kind="prefix"), "kind is 'prefix'; kinds are full, lora, none, reft"),
    (replace(NOTHING, kind=None), "kind is None; kinds are"),
    (replace(NOTHING, details=None), "details are None; right is a dictionary"),
    (replace(NOTHING, details={"scale": torch.ones(1)}), "details cannot be written as JSON"),
    (replace(NOTHING, weights=None), "weights are None; right is a dictionary of tensors"),
    (replace(NOTHING, weights={"a": [1.0]}), "right is a dictionary of tensors"),
    (replace(NOTHING, trainable=torch.tensor(3)), "trainable is tensor.*; right is a number of type int"),
    (replace(NOTHING, summary={"steps": 3}), "summary is .*; right is what run.fit returned"),
    (replace(REFT, details=REFT.details | {"layer": "middle"}), "details have layer 'middle'; right is .* type int"),
    (replace(REFT, details=REFT.details | {"layer": True}), "details have layer True; right is a value of type int"),
    (replace(REFT, details=REFT.details | {"layer": 9}), "layer 9 does not exist"),
    (replace(REFT, details=REFT.details | {"window": 0}), "window 0; right is 1 or more"),
    (replace(REFT, weights={"rotation": torch.eye(16)}), "a saved ReFT has tensors"),
    (replace(REFT, weights=LoReFT(32, 4).weights()), "width 32, the classifier of 16"),
    (replace(FULL, weights={"head.weight": torch.zeros(2, 16)}), "the weights do not fit the classifier: missing"),
    (replace(REFT, weights=LoReFT(16, 4).weights() | {"rotation": torch.ones(16)}), r"the shape \[16\]; right is \[width"),
    (replace(REFT, weights=LoReFT(16, 4).weights() | {"bias": torch.full((4,), torch.nan)}), "bias holds values that are"),
    (replace(REFT, details=REFT.details | {"share": torch.nan}), "details cannot be written as JSON"),
    (replace(REFT, details={"layer": 2, 3: 4}), "details have no 'window', only"),
    (LORA, "the adapter's tensors do not fit the classifier: missing"),
    (replace(LORA, details=LORA.details | {"rank": 0}), "details have the rank 0; right is 1 or more"),
    *[
        (replace(whole, details={key: value for key, value in whole.details.items() if key != lost}),
         f"details have no '{lost}', only .*; kind '{whole.kind}' needs {', '.join(FORMS[whole.kind].details)}")
        for whole in (REFT, LORA)
        for lost in FORMS[whole.kind].details
    ],
]  # fmt: skip


@pytest.mark.parametrize(("returned", "message"), FAULTS)
def test_what_could_not_be_loaded_is_refused_when_the_training_ends(returned, message):
    with pytest.raises(ValueError, match=message) as error:
        checked(returned, fresh(), shapes_of(fresh()), "x.py: train")
    assert str(error.value).startswith("x.py: train returned ")


@pytest.mark.parametrize(
    ("change", "message"), [({"kind": "prefix"}, "kind is 'prefix'"), ({"details": {}}, "no 'layer'")]
)
def test_a_manifest_of_no_form_is_one_line(change, message, tmp_path):
    manifest, _ = saved("lat_reft", tmp_path)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(ValueError, match=f"manifest.json: .*{message}.*; train the defense again"):
        load(manifest, fresh(), classifier_sha256="c" * 64)
