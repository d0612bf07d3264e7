"""Neuron scores on clean calibration data: ActGrad [Eq. 3] and ActDiff [Eq. 8]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.files import check_manifest
from latreft.models.batch import Example, batches_by_length, collate
from latreft.models.classifier import Classifier


@contextmanager
def activations(model: Classifier) -> Iterator[list[Tensor]]:
    """The MLP neurons' activations [B, T, neurons] of each block, in order, of the pass run inside the context."""
    caught: list[Tensor] = []

    def catch(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0])

    with ExitStack() as stack:
        for block in model.family.block_list(model.base):
            _, output = model.family.neuron_layers(block)
            stack.callback(output.register_forward_pre_hook(catch).remove)
        yield caught


class _Sums:
    """A running sum of a vector for each layer, in float64 on the CPU."""

    def __init__(self, layers: int):
        self.sums: list[Tensor | None] = [None] * layers

    def add(self, layer: int, term: Tensor) -> None:
        before = self.sums[layer]
        self.sums[layer] = term.cpu() if before is None else before + term.cpu()

    def stacked(self) -> Tensor:
        """[layers, neurons]"""
        return torch.stack([total for total in self.sums if total is not None])


def neuron_scores(
    model: Classifier, examples: Sequence[Example], batch_size: int, progress: Callable[[int], None] | None = None
) -> dict[str, Tensor]:
    """Scores [layers, neurons], float64, by rule name.

    ``act_grad``: Σ over examples and tokens of |a · ∂loss/∂a| [Eq. 3], the absolute value taken per token.
    ``act_diff``: | mean over class 1 of Σ_t |a| − mean over class 0 of Σ_t |a| | [Eq. 8].

    The loss is each example's own cross-entropy, so batching changes nothing. Raises ``ValueError`` where a class is
    missing from the calibration data.
    """
    per_class = [sum(example.label == label for example in examples) for label in (0, 1)]
    if 0 in per_class:
        raise ValueError(
            f"calibration data has {per_class[0]} examples of class 0 and {per_class[1]} of class 1; both are needed"
        )
    act_grad, act_sum = _Sums(model.layers), (_Sums(model.layers), _Sums(model.layers))
    for indices in batches_by_length(examples, batch_size):
        batch = collate([examples[i] for i in indices]).to(model.device)
        with activations(model) as caught, torch.enable_grad():
            embeddings = model.embedding(batch.tokens).detach().requires_grad_(True)
            loss = F.cross_entropy(model.logits_of_embeddings(embeddings, batch), batch.labels, reduction="sum")
            gradients = torch.autograd.grad(loss, caught)
        keep = batch.mask[..., None]
        for layer, (activation, gradient) in enumerate(zip(caught, gradients, strict=True)):
            value = activation.detach().double()
            act_grad.add(layer, (value * gradient.double()).abs().mul(keep).sum(dim=(0, 1)))
            per_example = value.abs().mul(keep).sum(dim=1)
            for label in (0, 1):
                act_sum[label].add(layer, per_example[batch.labels == label].sum(dim=0))
        if progress is not None:
            progress(len(indices))
    means = [act_sum[label].stacked() / per_class[label] for label in (0, 1)]
    return {"act_grad": act_grad.stacked(), "act_diff": (means[1] - means[0]).abs()}


def load_scores(manifest: str | Path) -> dict[str, Tensor]:
    """The scores that a scoring job's manifest lists."""
    manifest = Path(manifest)
    (name,) = check_manifest(manifest)["files"]
    return load_file(manifest.parent / name)
