"""No job runs code that was compiled for the shapes of another one, and a resumed one runs what it ran before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from unit.defenses.arms import StopAt, checkpoint, train

from latreft.cost.measured import operators_are_watched
from latreft.engine import window
from latreft.engine.reuse import ReuseEngine

JOB = """
import json, sys
import torch
from torch._dynamo.utils import counters
engine, *counts = sys.argv[1:]
if engine == "ours":
    from latreft.engine.window import Compiler
    from unit.models.tiny import classifier
    Compiler().run_of(classifier("llama"))
compiled = torch.compile(lambda rows: torch.relu(rows).sum(0), backend="inductor")
for count in counts:
    compiled(torch.ones(int(count), 8))
print(json.dumps({name: n for group in counters.values() for name, n in group.items() if name.endswith("cache_hit")}))
"""


def hits(folder: Path, engine: str, *rows: int) -> dict[str, int]:
    """What a process, whose inputs have so many rows, found in the compiler's cache in ``folder``."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", JOB, engine, *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_engine_takes_no_code_compiled_for_another_job_s_shapes(tmp_path: Path) -> None:
    """Torch's cache knows a changing size by its name alone: code for 9 rows serves 4,000."""
    hits(tmp_path, "none", 8, 9)
    assert hits(tmp_path, "none", 3000, 4000), "torch has changed: sizes are part of its cache's keys"
    assert hits(tmp_path, "ours", 3000, 4000) == {}


Shapes = list[tuple[int, ...]]


@pytest.fixture
def compiled_for(monkeypatch: pytest.MonkeyPatch) -> list[Shapes]:
    """The shapes, in numbers, of what each piece of code was compiled for; blocks are compiled as for a GPU."""
    import torch._dynamo
    from torch._dynamo.backends.debugging import aot_eager

    made: list[Shapes] = []

    def number(size: Any) -> int:
        return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        made.append([tuple(number(size) for size in tensor.shape) for tensor in tensors])
        return aot_eager(graph, inputs)

    compile_blocks = torch.compile
    monkeypatch.setattr(window.torch, "compile", lambda run: compile_blocks(run, backend=backend, fullgraph=True))
    monkeypatch.setattr(window, "capturing_is_possible", lambda _device: not operators_are_watched())
    return made


@pytest.mark.parametrize("compiled", ["inner", True])
@pytest.mark.parametrize("method", ["lat_reft", "lat"])
def test_a_resumed_training_compiles_for_the_shapes_of_an_uninterrupted_one(
    method: str, compiled: Any, compiled_for: list[Shapes], tmp_path: Path
) -> None:
    def run(**parts: Any) -> tuple[Any, list[Shapes]]:
        torch._dynamo.reset()  # another process has compiled nothing
        compiled_for.clear()
        changes = {"batch_size": 2, "group_by_length": True}
        return train(method, changes=changes, engine=ReuseEngine(compiled=compiled), **parts), list(compiled_for)

    whole, expected = run()
    path = tmp_path / "train.pt"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint(path), progress=StopAt(6))
    before = list(compiled_for)
    resumed, found = run(checkpoint=checkpoint(path))
    assert len(before) > 0 and found == expected
    assert resumed.summary.history == whole.summary.history
