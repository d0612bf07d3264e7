"""Saving a trained defense and putting it back on its classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from latreft.defenses.base import Trained
from latreft.engine.interface import Defended
from latreft.files import atomic, check_manifest, sha256, write_json
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models.adapter import load_lora
from latreft.models.classifier import Classifier, load_parameters
from latreft.models.quantisation import quantise_backbone

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


def _reft(model: Classifier, weights: dict[str, Tensor], details: dict[str, Any]) -> Defended:
    reft = LoReFT.from_weights(weights).to(model.device).requires_grad_(False)
    if reft.source.in_features != model.width:
        raise ValueError(f"the saved ReFT is of width {reft.source.in_features}, the classifier of {model.width}")
    model.layer_module(details["layer"])  # raises where there is no such layer
    return Defended(model, ReftEdit(details["layer"], reft), details["window"])


def _lora(model: Classifier, weights: dict[str, Tensor], details: dict[str, Any]) -> Defended:
    if details["four_bit"]:
        quantise_backbone(model)
    load_lora(model, weights, rank=details["rank"], alpha=details["alpha"])
    return Defended(model)


LOADERS: dict[str, Callable[[Classifier, dict[str, Tensor], dict[str, Any]], Defended]] = {
    "none": lambda model, _weights, _details: Defended(model),
    "full": _full,
    "reft": _reft,
    "lora": _lora,
}


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
    weights = load_file(manifest.parent / WEIGHTS)
    defended = LOADERS[content["kind"]](classifier, weights, content["details"])
    classifier.requires_grad_(False)
    return defended
