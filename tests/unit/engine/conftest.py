"""Compiled blocks, traced and differentiated as for a GPU."""

from __future__ import annotations

import pytest

from latreft.engine.reuse import ReuseEngine


@pytest.fixture
def traced_inner(monkeypatch):
    """An engine whose inner passes alone are compiled, as on a GPU, but run by the eager kernels."""
    import torch._dynamo

    from latreft.engine import window

    compile_blocks = torch.compile
    monkeypatch.setattr(window.torch, "compile", lambda run: compile_blocks(run, backend="aot_eager", fullgraph=True))
    monkeypatch.setattr(window, "capturing_is_possible", lambda device: True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield ReuseEngine(compiled="inner"), lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
