"""LoRA through peft, put into a classifier in place; the head is trained and saved beside it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from latreft.models.classifier import Classifier, load_parameters

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


def lora_weights(model: Classifier) -> dict[str, Tensor]:
    """Adapter and head tensors, on the CPU."""
    return {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}


def load_lora(model: Classifier, weights: Mapping[str, Tensor], *, rank: int, alpha: int) -> None:
    """Put saved adapters into a fresh classifier; a missing, unexpected or misshapen tensor is an error."""
    add_lora(model, rank=rank, alpha=alpha, seed=0)
    load_parameters(model, weights, "the saved adapter's tensors", trainable_only=True)
    model.requires_grad_(False)
