"""LoRA through peft, put into a classifier in place; the head is trained and saved beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from latreft.models.classifier import Classifier, linear_of, load_parameters

_NAME = "default"


def _linear_layers(model: Classifier) -> list[str]:
    """Names of every linear layer inside the decoder blocks."""
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.family.block_list(model.base).named_modules()
            if isinstance(module, torch.nn.Linear)
        }
    )


def add_lora(model: Classifier, *, rank: int, alpha: int, seed: int) -> None:
    """Freeze the model, put adapters on all linear layers of the blocks, and leave adapters and head trainable."""
    from peft import LoraConfig, inject_adapter_in_model

    model.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=_linear_layers(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model.base, adapter_name=_NAME)
    for name, parameter in model.base.named_parameters():
        parameter.requires_grad_("lora_" in name)
    model.head.requires_grad_(True)
    model.adapted = True


def _adapted_layers(base: nn.Module) -> dict[str, Any]:
    """The layers that have adapters, by name."""
    return {name: layer for name, layer in base.named_modules() if _NAME in getattr(layer, "lora_A", ())}


class MergedAdapters:
    """A classifier with the adapters of another multiplied out, W + s·BA, for passes that do not train them.

    Its passes cost what they cost without adapters, and give the same up to one rounding of W + s·BA to ``dtype``. It
    has memory of its own for those weights, and shares all others. W is taken as it is now: to be made before W is
    rounded, for on rounded weights a small s·BA is lost whole.
    """

    def __init__(self, model: Classifier, dtype: torch.dtype):
        self.classifier = model.twin()
        self.classifier.adapted = False
        self._adapted = _adapted_layers(model.base)
        self._own = [layer.base_layer.weight.detach() for layer in self._adapted.values()]
        self._merged = [weight.to(dtype, copy=True) for weight in self._own]
        for (name, layer), merged in zip(self._adapted.items(), self._merged, strict=True):
            plain = linear_of(nn.Parameter(merged, requires_grad=False), layer.base_layer.bias)
            self.classifier.base.set_submodule(name, plain)

    @torch.no_grad()
    def refresh(self) -> None:
        """Multiply out the adapters as they are now."""
        with torch.autocast(self.classifier.device.type, enabled=False):
            for layer, own, merged in zip(self._adapted.values(), self._own, self._merged, strict=True):
                down, up = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight
                merged.copy_(torch.addmm(own, up, down, alpha=layer.scaling[_NAME]))


def merged_adapters(model: Classifier) -> MergedAdapters | None:
    """The adapters of a model just given some, to be multiplied out in the precision of its passes. None where its
    weights are less precise than float32: there is nothing to add a small adapter to."""
    exact = (torch.float32, torch.float64)
    if any(layer.base_layer.weight.dtype not in exact for layer in _adapted_layers(model.base).values()):
        return None
    return MergedAdapters(model, model.pass_dtype)


def lora_weights(model: Classifier) -> dict[str, Tensor]:
    """Adapter and head tensors, on the CPU."""
    return {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}


def lora_shapes(model: Classifier, rank: int) -> dict[str, torch.Size]:
    """Shapes of what :func:`load_lora` puts into such a classifier, which may have adapters by now."""
    layers = _adapted_layers(model.base)
    if not layers:
        wanted = set(_linear_layers(model))
        layers = {n: m for n, m in model.base.named_modules() if n.rsplit(".", 1)[-1] in wanted}
    shapes = {f"head.{name}": parameter.shape for name, parameter in model.head.named_parameters()}
    for name, layer in layers.items():
        shapes[f"base.{name}.lora_A.{_NAME}.weight"] = torch.Size((rank, layer.in_features))
        shapes[f"base.{name}.lora_B.{_NAME}.weight"] = torch.Size((layer.out_features, rank))
    return shapes


def load_lora(model: Classifier, weights: Mapping[str, Tensor], *, rank: int, alpha: int) -> None:
    """Put saved adapters into a fresh classifier; a missing, unexpected or misshapen tensor is an error."""
    add_lora(model, rank=rank, alpha=alpha, seed=0)
    load_parameters(model, weights, "the saved adapter's tensors", trainable_only=True)
    model.requires_grad_(False)
