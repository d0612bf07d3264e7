"""Weights in the precision in which passes read them."""

from __future__ import annotations

import torch
from torch import nn

from latreft.models.classifier import Classifier


def settle(model: Classifier) -> None:
    """Under autocast, round the frozen linear layers of the base model for good, as each pass would anew.

    No result changes: the head, which is applied in float32, stays as it is. Layers that are still to be trained must
    require a gradient by now.
    """
    if not torch.is_autocast_enabled(model.device.type):
        return
    for layer in model.base.modules():
        if type(layer) is nn.Linear and not any(parameter.requires_grad for parameter in layer.parameters()):
            layer.to(model.pass_dtype)
