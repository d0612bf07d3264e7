"""Pruned surrogates [Sec. 4.2]: MLP neurons are cut out of the weights, so the surrogate really is smaller."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from latreft.models.classifier import Classifier, linear_of

STEP = 64
WIDE = 1024


def room_for(kept: int, width: int) -> int:
    """Neurons that the slices of a block hold, where ``kept`` of its ``width`` stay.

    In a wide block ``kept`` is rounded up to a multiple of ``STEP``: matrix products of odd widths leave a GPU's fast
    kernels and take up to three times as long. What is added is zeros, which change nothing.
    """
    return min(width, -(-kept // STEP) * STEP) if width >= WIDE else kept


def _sliced(layer: nn.Linear, *, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Linear:
    """A linear layer with some output rows or some input columns only, zeros up to :func:`room_for` them; a bias stays
    with its rows."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if rows is not None:
        added = room_for(len(rows), layer.out_features) - len(rows)
        weight, bias = F.pad(weight[rows], (0, 0, 0, added)), None if bias is None else F.pad(bias[rows], (0, added))
    if columns is not None:
        weight = F.pad(weight[:, columns], (0, room_for(len(columns), layer.in_features) - len(columns)))

    def own(tensor: Tensor) -> nn.Parameter:
        return nn.Parameter(tensor.clone(), requires_grad=False)

    return linear_of(own(weight), None if bias is None else own(bias))


def prune(model: Classifier, kept: Sequence[Tensor]) -> Classifier:
    """A surrogate that has, in block l, the MLP neurons ``kept[l]`` (indices, ascending) and no others.

    Attention, norms, embedding and head are shared with ``model``, not copied. A block may lose all of its neurons:
    its MLP then gives its output bias, or zero.
    """
    if len(kept) != model.layers:
        raise ValueError(f"kept has {len(kept)} layers, the model has {model.layers}")
    surrogate = model.twin()
    for block, neurons in zip(model.family.block_list(surrogate.base), kept, strict=True):
        neurons = neurons.to(model.device)
        inputs, output = model.family.neuron_layers(block)
        for name, layer in zip(model.family.mlp_inputs, inputs, strict=True):
            block.set_submodule(name, _sliced(layer, rows=neurons))
        block.set_submodule(model.family.mlp_output, _sliced(output, columns=neurons))
    surrogate.kept = [neurons.cpu() for neurons in kept]
    return surrogate
