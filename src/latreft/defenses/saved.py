"""Saving a trained defense and putting it back on its classifier."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from latreft.defenses.base import Trained
from latreft.engine.interface import Defended
from latreft.files import atomic, check_manifest, sha256, write_json
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models.adapter import load_lora, lora_shapes
from latreft.models.classifier import Classifier, check_fit, load_parameters
from latreft.models.quantisation import quantise_backbone
from latreft.training import Summary

WEIGHTS = "weights.safetensors"


def save(trained: Trained, manifest: str | Path, *, classifier_sha256: str) -> None:
    """Write ``weights.safetensors`` and then the manifest beside it, which says what they are and what they go on."""
    manifest = Path(manifest)
    weights = manifest.parent / WEIGHTS
    with atomic(weights) as temporary:
        save_file(trained.weights, temporary)
    write_json(
        manifest,
        {
            "kind": trained.kind,
            "details": trained.details,
            "classifier": classifier_sha256,
            "trainable": trained.trainable,
            "files": {WEIGHTS: sha256(weights)},
        },
    )


def _full(model: Classifier, weights: dict[str, Tensor], _details: dict[str, Any]) -> Defended:
    load_parameters(model, weights, "the saved weights")
    return Defended(model)


def _edit(model: Classifier, weights: dict[str, Tensor], details: dict[str, Any]) -> LoReFT:
    """The saved edit; ``ValueError`` where it is none, or has no place in the classifier."""
    reft = LoReFT.from_weights(weights)
    if reft.source.in_features != model.width:
        raise ValueError(f"the saved ReFT is of width {reft.source.in_features}, the classifier of {model.width}")
    if details["window"] < 1:
        raise ValueError(f"the saved ReFT has the window {details['window']}; right is 1 or more")
    model.layer_module(details["layer"])  # raises where there is no such layer
    return reft


def _reft(model: Classifier, weights: dict[str, Tensor], details: dict[str, Any]) -> Defended:
    reft = _edit(model, weights, details).to(model.device).requires_grad_(False)
    return Defended(model, ReftEdit(details["layer"], reft), details["window"])


def _lora(model: Classifier, weights: dict[str, Tensor], details: dict[str, Any]) -> Defended:
    if details["four_bit"]:
        quantise_backbone(model)
    load_lora(model, weights, rank=details["rank"], alpha=details["alpha"])
    return Defended(model)


class Form(NamedTuple):
    """A kind of defense: how it is put on a classifier, and the details, with their types, that this needs."""

    load: Callable[[Classifier, dict[str, Tensor], dict[str, Any]], Defended]
    details: Mapping[str, type]


FORMS = {
    "none": Form(lambda model, _weights, _details: Defended(model), {}),
    "full": Form(_full, {}),
    "reft": Form(_reft, {"layer": int, "window": int}),
    "lora": Form(_lora, {"rank": int, "alpha": int, "four_bit": bool}),
}


def _form_fault(kind: object, details: object) -> str | None:
    """What keeps a defense of this kind, with these details, from being loaded."""
    if not isinstance(kind, str) or kind not in FORMS:
        return f"kind is {kind!r}; kinds are {', '.join(sorted(FORMS))}"
    needed = FORMS[kind].details
    if not isinstance(details, dict):
        return f"details are {details!r:.200}; right is a dictionary"
    for name, wanted in needed.items():
        if name not in details:
            return (
                f"details have no {name!r}, only {sorted(map(str, details))}; kind {kind!r} needs {', '.join(needed)}"
            )
        if type(details[name]) is not wanted:
            return f"details have {name} {details[name]!r:.200}; right is a value of type {wanted.__name__}"
    return None


def _check_weights(
    kind: str, weights: dict[str, Tensor], details: dict[str, Any], model: Classifier, shapes: Mapping[str, torch.Size]
) -> None:
    """``ValueError`` where a form of this module could not be put on the classifier; ``shapes`` are its parameters'."""
    if kind == "full":
        check_fit(shapes, weights, "the weights")
    if kind == "reft":
        _edit(model, {name: tensor.cpu() for name, tensor in weights.items()}, details)
    if kind == "lora":
        if details["rank"] < 1:
            raise ValueError(f"details have the rank {details['rank']}; right is 1 or more")
        check_fit(lora_shapes(model, details["rank"]), weights, "the adapter's tensors")


def checked(returned: object, model: Classifier, shapes: Mapping[str, torch.Size], where: str) -> Trained:
    """What a defense's ``train`` returned, once it is sure that it can be saved and loaded again.

    Else ``ValueError`` at once, which names ``where`` it comes from: the jobs that load it start when the training is
    long over. ``model`` is what was trained on, ``shapes`` are those of its parameters before.
    """
    if not isinstance(returned, Trained):
        raise ValueError(f"{where} returned {returned!r:.200}; right is a Trained")
    weights, fault = returned.weights, _form_fault(returned.kind, returned.details)
    if fault is None and not (isinstance(weights, dict) and all(isinstance(w, Tensor) for w in weights.values())):
        fault = f"weights are {weights!r:.200}; right is a dictionary of tensors"
    if fault is None and type(returned.trainable) is not int:
        fault = f"trainable is {returned.trainable!r:.200}; right is a number of type int"
    if fault is None and not (returned.summary is None or isinstance(returned.summary, Summary)):
        fault = f"summary is {returned.summary!r:.200}; right is what run.fit returned, or None"
    if fault is None:
        odd = [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]
        fault = f"{odd[0]} holds values that are not finite" if odd else None
    if fault is None:
        try:
            json.dumps(returned.details, allow_nan=False)
        except (TypeError, ValueError) as error:
            fault = f"details cannot be written as JSON ({error})"
    if fault is None:
        try:
            _check_weights(returned.kind, weights, returned.details, model, shapes)
        except ValueError as error:
            fault = str(error)
    if fault is not None:
        raise ValueError(f"{where} returned a Trained that could not be loaded: {fault}")
    return returned


def load(manifest: str | Path, classifier: Classifier, *, classifier_sha256: str) -> Defended:
    """Put a saved defense on ``classifier`` (changed in place), frozen.

    Raises ``ValueError`` where the defense was trained on another classifier or its tensors do not fit.
    """
    manifest = Path(manifest)
    content = check_manifest(manifest)
    if content["classifier"] != classifier_sha256:
        raise ValueError(
            f"{manifest} was trained on the classifier {content['classifier'][:12]}, given {classifier_sha256[:12]}; "
            "train the defense again"
        )
    fault = _form_fault(content.get("kind"), content.get("details"))
    if fault is not None:
        raise ValueError(f"{manifest}: {fault}; train the defense again")
    weights = load_file(manifest.parent / WEIGHTS)
    defended = FORMS[content["kind"]].load(classifier, weights, content["details"])
    classifier.requires_grad_(False)
    return defended
