"""4-bit backbones (NF4) through bitsandbytes, where a GPU and the package are there."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
from torch import nn

from latreft.models.classifier import Classifier
from latreft.settings import SettingsError


def wants_four_bits(choice: Literal["auto", "always", "never"], device: torch.device) -> bool:
    """Whether to quantise: ``auto`` does where it can, ``always`` is an error where it cannot."""
    able = device.type == "cuda" and importlib.util.find_spec("bitsandbytes") is not None
    if choice == "always" and not able:
        raise SettingsError(
            f"four_bit is 'always', but the device is {device.type} and bitsandbytes is "
            f"{'installed' if importlib.util.find_spec('bitsandbytes') else 'missing'}; "
            "install bitsandbytes and use a GPU, or set four_bit to 'auto' or 'never'"
        )
    return able and choice != "never"


def quantise_backbone(model: Classifier) -> None:
    """Replace every linear layer of the decoder blocks by a frozen NF4 one. Embedding, norms and head stay."""
    import bitsandbytes as bnb

    for block in model.family.block_list(model.base):
        for name, layer in [(n, m) for n, m in block.named_modules() if isinstance(m, nn.Linear)]:
            small = bnb.nn.Linear4bit(
                layer.in_features,
                layer.out_features,
                bias=layer.bias is not None,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
            )
            small.weight = bnb.nn.Params4bit(layer.weight.detach().cpu(), requires_grad=False, quant_type="nf4")
            small.bias = layer.bias
            block.set_submodule(name, small.to(model.device))
