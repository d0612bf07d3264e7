"""Attention over a stored prefix, registered with transformers, so that every family gets it.

``softmax(q [K_prefix, K_window]ᵀ) [V_prefix, V_window]`` is computed without ever joining or copying the prefix's keys
and values: two matrix products for the scores, one softmax over both parts, two products for the output. The prefix's
rows serve ``variants`` rows of the batch each: the candidates of a discrete attack, or the clean and the attacked pass
of one training example. Plain matrix products make it deterministic, forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "latreft"
MASKED = -1e9
"""Added to the score of a pair that must not attend; finite, so that no row is without a maximum."""


class Record:
    """Collects each layer's keys and values [E, H, T, d] (after rotary embedding) of a full pass."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        self.keys[layer], self.values[layer] = key, value


@dataclass(frozen=True)
class Prefix:
    """Stored keys and values of E prefixes of P positions, and who may attend to whom.

    ``keys``, ``values``: one [E, H_kv, P, d] a layer, by the layer's index. ``prefix_bias`` [E, 1, 1, P] and
    ``window_bias`` [E, 1, L, L] are added to the scores (0 or ``MASKED``). Batches that attend to it have
    E · ``variants`` rows, those of one prefix next to each other.
    """

    keys: dict[int, Tensor]
    values: dict[int, Tensor]
    prefix_bias: Tensor
    window_bias: Tensor
    variants: int = 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Outputs [E·V, L, H, d] of queries [E·V, H, L, d] and window keys and values [E·V, H_kv, L, d]."""
        rows, heads, length, depth = query.shape
        kv_heads, variants = key.shape[1], self.variants
        examples, groups = rows // variants, heads // kv_heads
        prefix_key, prefix_value = self.keys[layer], self.values[layer]
        positions = prefix_key.shape[2]
        accurate = torch.promote_types(query.dtype, torch.float32)

        grouped = query.reshape(examples, variants, kv_heads, groups * length, depth)
        shared = grouped.transpose(1, 2).reshape(examples, kv_heads, variants * groups * length, depth)
        to_prefix = (shared @ prefix_key.transpose(2, 3)).to(accurate) * scale + self.prefix_bias
        to_prefix = to_prefix.view(examples, kv_heads, variants, groups, length, positions)

        own = query.reshape(examples, variants, kv_heads, groups * length, depth)
        own_key = key.view(examples, variants, kv_heads, length, depth)
        to_window = (own @ own_key.transpose(3, 4)).to(accurate) * scale
        to_window = to_window.view(examples, variants, kv_heads, groups, length, length)
        to_window = (to_window + self.window_bias[:, :, None, None]).transpose(1, 2)

        weights = torch.cat([to_prefix, to_window], dim=-1).softmax(dim=-1).to(query.dtype)
        on_prefix, on_window = weights.split([positions, length], dim=-1)
        from_prefix = on_prefix.reshape(examples, kv_heads, variants * groups * length, positions) @ prefix_value
        from_prefix = from_prefix.view(examples, kv_heads, variants, groups * length, depth).transpose(1, 2)
        on_window = on_window.transpose(1, 2).reshape(examples, variants, kv_heads, groups * length, length)
        from_window = on_window @ value.view(examples, variants, kv_heads, length, depth)
        output = (from_prefix + from_window).reshape(rows, kv_heads * groups, length, depth)
        return output.transpose(1, 2).contiguous()


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    prefix: Prefix | None = None,
    record: Record | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: over ``prefix`` where one is given, else torch's own, kept in ``record``."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    if prefix is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return prefix.attend(layer, query, key, value, scale), None
    if record is not None:
        record.keep(layer, key, value)
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
