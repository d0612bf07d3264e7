"""Attention over a stored prefix, registered with transformers, so that every family gets it.

``softmax(q [K_prefix, K_window]ᵀ) [V_prefix, V_window]`` is computed without ever joining or copying the prefix's keys
and values: two matrix products for the scores, one softmax over both parts, two products for the output. A prefix
serves ``variants`` rows of the batch: the candidates of a discrete attack, or the clean and the attacked pass of one
training example. Plain matrix products make it deterministic, forward and backward.

Without gradient, on a GPU and in half precision, torch's flash kernel attends to the prefix instead: the scores of many
candidates are then never written to memory. Its output and the window's are joined by the weight that the softmax over
both gives to each.

A block is told of a prefix, or asked to record its keys and values, by a keyword argument that transformers hands down
to its attention; see :meth:`latreft.models.classifier.Classifier.passing`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import AuxRequest, varlen_attn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from latreft.cost.measured import operators_are_watched

NAME = "latreft"
MASKED = -1e9
"""Added to the score of a pair that must not attend; finite, so that no row is without a maximum."""


class RecordTo(NamedTuple):
    """Where a block's keys and values [E, H_kv, P, d] (after rotary embedding) of the first P positions go."""

    keys: Tensor
    values: Tensor


class Segments(NamedTuple):
    """The real positions of E · H_kv prefixes, laid end to end, as a kernel for sequences of many lengths wants them.

    Each prefix is two sequences: its masked positions, which nobody attends to, and the real ones behind them.
    ``keys`` [2·E·H_kv + 1] are their ends in positions, ``rows`` those in units of one prefix's queries; ``empty``
    [E, H_kv, 1] says which prefixes have no real position.
    """

    keys: Tensor
    rows: Tensor
    empty: Tensor


def segments_of(prefix_bias: Tensor, kv_heads: int) -> Segments:
    """Of prefixes whose masked positions, if any, are on the left; ``prefix_bias`` [E, 1, 1, P]."""
    examples, positions = prefix_bias.shape[0], prefix_bias.shape[-1]
    count, device = examples * kv_heads, prefix_bias.device
    real = (prefix_bias > MASKED / 2).sum(dim=-1).view(examples, 1).expand(-1, kv_heads)
    ends = positions * torch.arange(count + 1, device=device)
    keys = torch.stack([ends[:-1], ends[1:] - real.reshape(-1)], dim=1).flatten()
    rows = torch.arange(count + 1, device=device).repeat_interleave(2, output_size=2 * count + 2)[:-1]
    return Segments(torch.cat([keys, ends[-1:]]).int(), rows.int(), (real == 0)[..., None])


class PrefixLayer(NamedTuple):
    """One block's stored prefix: keys and values [E, H_kv, P, d], and who may attend to whom.

    ``prefix_bias`` [E, 1, 1, P] and ``window_bias`` [E, 1, L, L] are added to the scores (0 or ``MASKED``). The batch
    that attends has E · ``variants`` rows, those of one prefix next to each other. With ``segments`` the flash kernel
    attends to the prefix.
    """

    keys: Tensor
    values: Tensor
    prefix_bias: Tensor
    window_bias: Tensor
    variants: int
    segments: Segments | None = None


def flash_serves(keys: Tensor, variants: int) -> bool:
    """Whether the flash kernel can and should attend to a prefix of these keys now: not while FLOPs are counted, which
    some versions of torch do not do for it."""
    fits = keys.dtype in (torch.bfloat16, torch.float16) and keys.shape[-1] % 8 == 0 and keys.shape[-1] <= 256
    wanted = variants > 1 and not torch.is_grad_enabled() and not operators_are_watched()
    return keys.is_cuda and fits and wanted and has_flash(keys.device)


@cache
def has_flash(device: torch.device) -> bool:
    """Whether torch has the kernel for this GPU: NVIDIA's, Ampere or newer."""
    built = torch.version.hip is None and torch.backends.cuda.is_flash_attention_available()
    return built and torch.cuda.get_device_capability(device) >= (8, 0)


def flash(queries: Tensor, prefix: PrefixLayer, segments: Segments) -> tuple[Tensor, Tensor]:
    """Attention of queries [E, H_kv, R, d] to the real positions of a prefix, scores times 1/√d: outputs like the
    queries, and the logarithm of the sum of exponentials [E, H_kv, R], −∞ for a prefix without real positions."""
    examples, kv_heads, rows, depth = queries.shape
    flat, keys, values = (one.reshape(-1, 1, depth) for one in (queries, prefix.keys, prefix.values))
    ends, longest = segments.rows * rows, prefix.keys.shape[2]
    output, mass = varlen_attn(flat, keys, values, ends, segments.keys, rows, longest, return_aux=AuxRequest(lse=True))
    mass = mass.view(examples, kv_heads, rows).masked_fill(segments.empty, float("-inf"))
    return output.view_as(queries), mass


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
    own_key = key.view(examples, variants, kv_heads, length, depth)
    to_window = (own @ own_key.transpose(3, 4)).view(examples, variants, kv_heads, groups, length, length)
    to_window = torch.add(prefix.window_bias[:, :, None, None], to_window, alpha=scale).transpose(1, 2)

    if prefix.segments is not None and scale == depth**-0.5:
        from_prefix, mass = flash(shared, prefix, prefix.segments)
        mass = mass.view(examples, kv_heads, variants, groups, length, 1)
        share, on_window = torch.cat([mass, to_window], dim=-1).softmax(dim=-1).split([1, length], dim=-1)
        from_prefix = (from_prefix * share.reshape(*shared.shape[:-1], 1)).to(query.dtype)
        on_window = on_window.to(query.dtype)
    else:
        to_prefix = torch.add(prefix.prefix_bias, shared @ prefix.keys.transpose(2, 3), alpha=scale)
        to_prefix = to_prefix.view(examples, kv_heads, variants, groups, length, positions)
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
