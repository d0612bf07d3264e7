"""The meters count what they claim."""

import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from latreft.cost.measured import FlopMeter, Stopwatch, _fused_attention, peak_memory, reset_peak_memory

HEADS, QUERIES, KEYS, WIDTH = 4, 6, 9, 8
PRODUCT = 2 * HEADS * QUERIES * KEYS * WIDTH


def attend(kv_heads: int, masked: bool, dtype: torch.dtype, backward: bool) -> None:
    query = torch.randn(1, HEADS, QUERIES, WIDTH, dtype=dtype, requires_grad=backward)
    key, value = (torch.randn(1, kv_heads, KEYS, WIDTH, dtype=dtype, requires_grad=backward) for _ in "kv")
    mask = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool).tril() if masked else None
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=kv_heads < HEADS)
    if backward:
        output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fused_attention_on_the_cpu_is_counted(dtype, masked, kv_heads):
    with FlopMeter() as forward:
        attend(kv_heads, masked, dtype, backward=False)
    assert forward.flops == 2 * PRODUCT
    with FlopMeter() as both:
        attend(kv_heads, masked, dtype, backward=True)
    assert both.flops == (2 + 5) * PRODUCT


def test_torch_alone_takes_cpu_attention_for_free():
    with FlopCounterMode(display=False) as counter:
        attend(4, True, torch.float32, backward=True)
    if counter.get_total_flops():
        pytest.fail("torch counts the CPU's attention itself now: drop CPU_ATTENTION and this test")


def test_products_count_two_a_multiply_add_forward_and_backward():
    left, right = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    with FlopMeter() as meter:
        (left @ right).sum().backward()
    assert meter.flops == 3 * 2 * 3 * 5 * 7
    assert meter.by_operator == {"aten.mm": meter.flops}


def test_counts_are_those_of_torchs_own_counter():
    """Forward and backward of a block's operators, also under autocast."""
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    inputs = torch.randn(3, 5, 16, requires_grad=True)
    for precision in (nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        counts = []
        for meter in (FlopMeter(), FlopCounterMode(display=False, custom_mapping=_fused_attention())):
            with meter, precision:
                block(inputs).sum().backward()
            counts.append(meter.flops if isinstance(meter, FlopMeter) else meter.get_total_flops())
        assert counts[0] == counts[1] > 0


def test_inference_mode_is_counted():
    with torch.inference_mode(), FlopMeter() as meter:
        F.linear(torch.randn(3, 5), torch.randn(7, 5))
        attend(4, True, torch.float32, backward=False)
    assert meter.flops == 2 * 3 * 5 * 7 + 2 * PRODUCT


def test_nothing_run_counts_nothing():
    with FlopMeter() as meter:
        torch.ones(3) + 1
    assert meter.flops == 0
    assert meter.by_operator == {}


def test_counting_stops_with_the_block_even_after_an_error():
    meter = FlopMeter()
    with pytest.raises(RuntimeError), meter:
        torch.ones(2, 3) @ torch.ones(3, 2)
        raise RuntimeError
    torch.ones(2, 3) @ torch.ones(3, 2)
    assert meter.flops == 2 * 2 * 3 * 2


def test_stopwatch_reads_seconds():
    with Stopwatch("cpu") as watch:
        time.sleep(0.02)
    assert 0.02 <= watch.seconds < 5


def test_cpu_peak_is_the_process_and_says_so():
    reset_peak_memory("cpu")
    peak = peak_memory("cpu")
    assert peak.measure == "process_resident"
    assert 2**20 < peak.bytes < 2**40
    block = torch.ones(2**27)
    assert peak_memory("cpu").bytes >= block.nbytes


def test_formulas_need_no_torch():
    code = "import sys, latreft.cost.ledgers; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
