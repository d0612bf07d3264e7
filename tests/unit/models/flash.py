"""What torch's flash kernel computes, on a CPU and in any precision."""

from __future__ import annotations

import torch


def by_definition(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux):
    """What torch says of ``varlen_attn``, sequence by sequence; a sequence without keys has an infinite sum, as there."""
    output, mass = torch.zeros_like(query), query.new_zeros(query.shape[1], query.shape[0])
    assert return_aux.lse and cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert cu_seq_q[-1] == len(query) and cu_seq_k[-1] == len(key)
    for i in range(len(cu_seq_q) - 1):
        rows, places = slice(*cu_seq_q[i : i + 2].tolist()), slice(*cu_seq_k[i : i + 2].tolist())
        assert rows.stop - rows.start <= max_q and places.stop - places.start <= max_k
        scores = torch.einsum("qhd,khd->hqk", query[rows], key[places]) * query.shape[-1] ** -0.5
        output[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[places])
        mass[:, rows] = scores.logsumexp(-1) if places.stop > places.start else float("inf")
    return output, mass
