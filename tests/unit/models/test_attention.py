"""Attention over a stored prefix by the flash kernel, stood in for by its definition, is the plain one."""

from __future__ import annotations

import pytest
import torch

from latreft.engine import prefix
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models import attention
from latreft.models.attention import MASKED, PrefixLayer, attend, flash_serves, segments_of
from latreft.models.classifier import Classifier
from latreft.models.families import family

EXAMPLES, VARIANTS, HEADS, KV_HEADS, POSITIONS, WINDOW, DEPTH = 3, 4, 6, 2, 11, 5, 8


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


def tensors(masked: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    rows = EXAMPLES * VARIANTS
    query = draw(rows, HEADS, WINDOW, DEPTH)
    key, value = (draw(rows, KV_HEADS, WINDOW, DEPTH) for _ in range(2))
    keys, values = (draw(EXAMPLES, KV_HEADS, POSITIONS, DEPTH) for _ in range(2))
    prefix_bias = torch.zeros(EXAMPLES, 1, 1, POSITIONS, dtype=torch.float64)
    for row, count in enumerate(masked):
        prefix_bias[row, ..., :count] = MASKED
    window_bias = torch.full((WINDOW, WINDOW), MASKED, dtype=torch.float64).triu(1).expand(EXAMPLES, 1, -1, -1)
    return query, key, value, PrefixLayer(keys, values, prefix_bias, window_bias, VARIANTS)


@pytest.mark.parametrize("masked", [(0, 0, 0), (3, 0, 7), (POSITIONS, 2, 0), (POSITIONS, POSITIONS, POSITIONS)])
def test_the_flash_kernels_share_and_the_windows_make_the_plain_attention(monkeypatch, masked):
    monkeypatch.setattr(attention, "varlen_attn", by_definition)
    query, key, value, layer = tensors(masked)
    expected = attend(query, key, value, layer, DEPTH**-0.5)
    segmented = layer._replace(segments=segments_of(layer.prefix_bias, KV_HEADS))
    found = attend(query, key, value, segmented, DEPTH**-0.5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_another_scale_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(attention, "varlen_attn", None)
    query, key, value, layer = tensors((3, 0, 7))
    segmented = layer._replace(segments=segments_of(layer.prefix_bias, KV_HEADS))
    torch.testing.assert_close(
        attend(query, key, value, segmented, 0.1), attend(query, key, value, layer, 0.1), rtol=0, atol=0
    )


def test_the_plain_path_is_taken_on_a_cpu():
    with torch.no_grad():
        assert not flash_serves(torch.zeros(1, 1, 4, 8, dtype=torch.bfloat16), 2)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_candidates_losses_by_the_flash_kernel_are_the_references(monkeypatch, name):
    reference, reuse = (engine.search(*attacked(name), 64) for engine in (ReferenceEngine(), ReuseEngine()))
    candidates = torch.randint(3, 90, (7, 4), generator=torch.Generator().manual_seed(2))
    calls = []
    monkeypatch.setattr(attention, "varlen_attn", lambda *args, **more: calls.append(1) or by_definition(*args, **more))
    monkeypatch.setattr(prefix, "flash_serves", lambda keys, variants: variants > 1)
    for found, expected in zip(reuse.losses(candidates), reference.losses(candidates), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert len(calls) == 3


def attacked(name: str):
    """A defended classifier in float64, a content of 13 tokens, the place of a suffix, a label."""
    fam = family(name)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
    shape |= {"vocab_size": 90, "max_position_embeddings": 64} | (
        {} if name == "gpt_neox" else {"num_key_value_heads": 2}
    )
    torch.manual_seed(0)
    model = Classifier(fam.build(fam.config(**shape), dtype=torch.float64), fam).requires_grad_(False).eval()
    model.initialise_head(0)
    reft = LoReFT(32, 8, start="random", seed=1).double().requires_grad_(False)
    return Defended(model, ReftEdit(2, reft), 20), tuple(range(3, 16)), 13, 1
