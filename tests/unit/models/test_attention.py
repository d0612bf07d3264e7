"""Attention over a stored prefix by the flash kernel, stood in for by its definition, is the plain one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from unit.models.flash import by_definition
from unit.models.tiny import FAMILIES, LAYERS, VOCABULARY, WIDTH, classifier

from latreft.cost.measured import FlopMeter
from latreft.engine import prefix
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models import attention
from latreft.models.attention import MASKED, PrefixLayer, attend, flash_serves, has_flash, segments_of

EXAMPLES, VARIANTS, HEADS, KV_HEADS, POSITIONS, WINDOW, DEPTH = 3, 4, 6, 2, 11, 5, 8


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


def keys(device: str = "cuda", dtype=torch.bfloat16, depth: int = 64):
    """Keys as far as the choice of a kernel looks at them."""
    return SimpleNamespace(is_cuda=device == "cuda", dtype=dtype, shape=(1, 1, 4, depth), device=device)


def test_the_flash_kernel_serves_candidates_where_it_can(monkeypatch):
    monkeypatch.setattr(attention, "has_flash", lambda device: True)
    with torch.no_grad():
        assert flash_serves(keys(), 2)
        assert flash_serves(keys(dtype=torch.float16), 128)
        for other in (keys("cpu"), keys(dtype=torch.float32), keys(depth=12), keys(depth=264)):
            assert not flash_serves(other, 2)
        assert not flash_serves(keys(), 1)
        with FlopMeter():
            assert not flash_serves(keys(), 2)
    assert not flash_serves(keys(), 2)
    monkeypatch.setattr(attention, "has_flash", lambda device: False)
    with torch.no_grad():
        assert not flash_serves(keys(), 2)


@pytest.mark.parametrize(
    ("hip", "built", "capability", "expected"),
    [(None, True, (8, 0), True), (None, True, (9, 0), True), (None, True, (7, 5), False), (None, False, (9, 0), False),
     ("6.0", True, (9, 0), False)],
)  # fmt: skip
def test_a_gpu_without_the_flash_kernel_takes_the_plain_path(monkeypatch, hip, built, capability, expected):
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: built)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    has_flash.cache_clear()
    assert has_flash(torch.device("cuda", 0)) is expected
    has_flash.cache_clear()


@pytest.mark.parametrize("name", FAMILIES)
def test_candidates_losses_by_the_flash_kernel_are_the_references(monkeypatch, name):
    reference, reuse = (engine.search(*attacked(name), 64) for engine in (ReferenceEngine(), ReuseEngine()))
    candidates = torch.randint(3, VOCABULARY, (7, 4), generator=torch.Generator().manual_seed(2))
    calls = []
    monkeypatch.setattr(attention, "varlen_attn", lambda *args, **more: calls.append(1) or by_definition(*args, **more))
    monkeypatch.setattr(prefix, "flash_serves", lambda keys, variants: variants > 1)
    for found, expected in zip(reuse.losses(candidates), reference.losses(candidates), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert len(calls) == LAYERS


def attacked(name: str):
    """A defended classifier in float64, a content of 13 tokens, the place of a suffix, a label."""
    reft = LoReFT(WIDTH, 8, start="random", seed=1).double().requires_grad_(False)
    return Defended(classifier(name), ReftEdit(2, reft), 20), tuple(range(3, 16)), 13, 1
