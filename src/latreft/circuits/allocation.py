"""From scores to the neurons kept in each layer: the paper's three rules and two controls."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rule = Literal["act_grad", "act_diff", "random", "random_matched", "act_grad_uniform"]
RULES: tuple[Rule, ...] = ("act_grad", "act_diff", "random", "random_matched", "act_grad_uniform")


def kept_count(neurons: int, ratio: float) -> int:
    """How many of ``neurons`` stay when the share ``ratio`` is pruned."""
    return neurons - round(neurons * ratio)


def _global_top(scores: Tensor, ratio: float) -> Tensor:
    """Keep mask [layers, neurons]: the best ``1 − ratio`` of all neurons of all layers ranked together [Sec. 4.2].

    Ties go to the earlier layer, then the lower index.
    """
    order = torch.argsort(scores.flatten(), descending=True, stable=True)
    keep = torch.zeros(scores.numel(), dtype=torch.bool)
    keep[order[: kept_count(scores.numel(), ratio)]] = True
    return keep.view_as(scores)


def _per_layer_top(scores: Tensor, counts: list[int]) -> Tensor:
    """Keep mask with the best ``counts[l]`` neurons of each layer."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for layer, count in enumerate(counts):
        keep[layer, torch.argsort(scores[layer], descending=True, stable=True)[:count]] = True
    return keep


def keep_mask(rule: Rule, scores: dict[str, Tensor], ratio: float, seed: int) -> Tensor:
    """Boolean keep mask [layers, neurons] at pruning ``ratio`` (0 keeps all, 1 none).

    ``act_grad``, ``act_diff``, ``random``: one ranking over all layers. ``random_matched``: random neurons with
    ActGrad's number per layer. ``act_grad_uniform``: ActGrad's best, the same number in each layer. The two controls
    separate which neurons from which layers.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"pruning ratio must be between 0 and 1, got {ratio}")
    act_grad = scores["act_grad"]
    noise = torch.rand(act_grad.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if rule in ("act_grad", "act_diff"):
        return _global_top(scores[rule], ratio)
    if rule == "random":
        return _global_top(noise, ratio)
    if rule == "random_matched":
        return _per_layer_top(noise, _global_top(act_grad, ratio).sum(dim=1).tolist())
    if rule == "act_grad_uniform":
        return _per_layer_top(act_grad, [kept_count(act_grad.shape[1], ratio)] * act_grad.shape[0])
    raise ValueError(f"unknown pruning rule {rule!r}; rules are {', '.join(RULES)}")


def kept_neurons(mask: Tensor) -> list[Tensor]:
    """Indices of the kept neurons of each layer, ascending."""
    return [row.nonzero().flatten() for row in mask]
