"""Attention over a stored prefix, registered with transformers, so that every family gets it.

``softmax(q [K_prefix, K_window]ᵀ) [V_prefix, V_window]`` is computed without ever joining or copying the prefix's keys
and values: two matrix products for the scores, one softmax over both parts, two products for the output. A prefix
serves ``variants`` rows of the batch: the candidates of a discrete attack, or the clean and the attacked pass of one
training example. Plain matrix products make it deterministic, forward and backward.

A block is told of a prefix, or asked to record its keys and values, by a keyword argument that transformers hands down
to its attention; see :meth:`latreft.models.classifier.Classifier.passing`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "latreft"
MASKED = -1e9
"""Added to the score of a pair that must not attend; finite, so that no row is without a maximum."""


class RecordTo(NamedTuple):
    """Where a block's keys and values [E, H_kv, P, d] (after rotary embedding) of the first P positions go."""

    keys: Tensor
    values: Tensor


class PrefixLayer(NamedTuple):
    """One block's stored prefix: keys and values [E, H_kv, P, d], and who may attend to whom.

    ``prefix_bias`` [E, 1, 1, P] and ``window_bias`` [E, 1, L, L] are added to the scores (0 or ``MASKED``). The batch
    that attends has E · ``variants`` rows, those of one prefix next to each other.
    """

    keys: Tensor
    values: Tensor
    prefix_bias: Tensor
    window_bias: Tensor
    variants: int


def attend(query: Tensor, key: Tensor, value: Tensor, prefix: PrefixLayer, scale: float) -> Tensor:
    """Outputs [E·V, L, H, d] of queries [E·V, H, L, d] and window keys and values [E·V, H_kv, L, d]."""
    rows, heads, length, depth = query.shape
    kv_heads, variants, positions = key.shape[1], prefix.variants, prefix.keys.shape[2]
    examples, groups = rows // variants, heads // kv_heads

    # Once, not in each product that autocast would round them for.
    query, key = query.to(prefix.keys.dtype), key.to(prefix.keys.dtype)
    own = query.reshape(examples, variants, kv_heads, groups * length, depth)
    shared = own.transpose(1, 2).reshape(examples, kv_heads, variants * groups * length, depth)
    # bias + scale · scores, by one kernel that also widens the scores.
    to_prefix = torch.add(prefix.prefix_bias, shared @ prefix.keys.transpose(2, 3), alpha=scale)
    to_prefix = to_prefix.view(examples, kv_heads, variants, groups, length, positions)
    own_key = key.view(examples, variants, kv_heads, length, depth)
    to_window = (own @ own_key.transpose(3, 4)).view(examples, variants, kv_heads, groups, length, length)
    to_window = torch.add(prefix.window_bias[:, :, None, None], to_window, alpha=scale).transpose(1, 2)

    weights = torch.cat([to_prefix, to_window], dim=-1).softmax(dim=-1).to(query.dtype)
    on_prefix, on_window = weights.split([positions, length], dim=-1)
    from_prefix = on_prefix.reshape(examples, kv_heads, variants * groups * length, positions) @ prefix.values
    from_prefix = from_prefix.view(examples, kv_heads, variants, groups * length, depth).transpose(1, 2)
    on_window = on_window.transpose(1, 2).reshape(examples, variants, kv_heads, groups * length, length)
    from_window = on_window @ value.view(examples, variants, kv_heads, length, depth)
    output = (from_prefix + from_window).reshape(rows, heads, length, depth)
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
    prefix: PrefixLayer | None = None,
    record: RecordTo | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: over ``prefix`` where one is given, else torch's own, recorded if asked."""
    if prefix is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, prefix, scale), None
    if record is not None:
        positions = record.keys.shape[2]
        record.keys.copy_(key[:, :, :positions])
        record.values.copy_(value[:, :, :positions])
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
