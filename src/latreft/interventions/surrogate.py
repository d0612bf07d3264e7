"""Pruned surrogates [Sec. 4.2]: MLP neurons are cut out of the weights, so the surrogate really is smaller."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from latreft.models.classifier import Classifier


def _sliced(layer: nn.Linear, *, rows: Tensor | None = None, columns: Tensor | None = None) -> nn.Linear:
    """A linear layer with some output rows or some input columns only; a bias stays with its rows."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    if columns is not None:
        weight = weight[:, columns]
    with torch.device("meta"):
        cut = nn.Linear(max(1, weight.shape[1]), max(1, weight.shape[0]), bias=bias is not None)
    cut.in_features, cut.out_features = weight.shape[1], weight.shape[0]
    cut.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        cut.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return cut


def prune(model: Classifier, kept: Sequence[Tensor]) -> Classifier:
    """A surrogate that has, in block l, the MLP neurons ``kept[l]`` (indices, ascending) and no others.

    Attention, norms, embedding and head are shared with ``model``, not copied. A block may lose all of its neurons:
    its MLP then gives its output bias, or zero.
    """
    if len(kept) != model.layers:
        raise ValueError(f"kept has {len(kept)} layers, the model has {model.layers}")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    surrogate = copy.deepcopy(model, memo=shared)  # type: ignore[arg-type]
    for block, neurons in zip(model.family.block_list(surrogate.base), kept, strict=True):
        neurons = neurons.to(model.device)
        inputs, output = model.family.neuron_layers(block)
        for name, layer in zip(model.family.mlp_inputs, inputs, strict=True):
            block.set_submodule(name, _sliced(layer, rows=neurons))
        block.set_submodule(model.family.mlp_output, _sliced(output, columns=neurons))
    surrogate.kept = [neurons.cpu() for neurons in kept]
    return surrogate
