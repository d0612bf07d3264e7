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
from unit.engine.test_fixed_places import Replayed
from unit.models.tiny import examples

from latreft.cost.measured import operators_are_watched
from latreft.engine import flight, graphs, prepared, search, whole, window
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
names = {"unique_graphs"}
print(json.dumps({
    name: n for group in counters.values() for name, n in group.items() if name in names or name.endswith("cache_hit")
}))
"""


def counted(folder: Path, engine: str, *rows: int) -> dict[str, int]:
    """What a process, whose inputs have so many rows, found in the compiler's cache in ``folder``, and what it compiled."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCH_COMPILE_JOB_ID": "one",  # torch then keeps, too, which sizes changed
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", JOB, engine, *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_engine_takes_nothing_from_jobs_of_other_shapes(tmp_path: Path) -> None:
    """Torch's cache knows a changing size by its name alone: code for 9 rows serves 4,000. And it keeps which sizes
    changed: then the first compilation is already for any."""
    counted(tmp_path, "none", 8, 9)
    torch_alone = counted(tmp_path, "none", 3000, 4000)
    assert torch_alone.pop("unique_graphs") == 1, "torch has changed: it keeps no profile of sizes"
    assert torch_alone, "torch has changed: sizes are part of its cache's keys"
    assert counted(tmp_path, "ours", 3000, 4000) == {"unique_graphs": 2}


@pytest.mark.parametrize(
    "variable",
    ["TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"],
)
def test_a_variable_that_forces_torch_s_cache_on_is_an_error(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(AssertionError, match=f"{variable} is '1'; unset it, or set it to 0"):
        counted(tmp_path, "ours", 8, 9)


# --- resumed ---

Made = tuple[str, list[tuple[int, ...]]]
"""What was made, compiled code or a captured graph, and the shapes of its inputs in numbers."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    """What a training makes, as on a GPU; graphs are replayed eagerly."""
    import torch._dynamo
    from torch._dynamo.backends.debugging import aot_eager

    found: list[Made] = []

    def number(size: Any) -> int:
        return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)

    def note(kind: str, inputs: Any) -> None:
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        found.append((kind, [tuple(number(size) for size in tensor.shape) for tensor in tensors]))

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        note("compiled", inputs)
        return aot_eager(graph, inputs)

    def capture(function: Any, inputs: Any, _pool: Any) -> Replayed:
        note("captured", inputs)
        return Replayed(function, [tensor.detach().clone() for tensor in inputs])

    def graphed(function: Any, inputs: Any, _pool: Any) -> Any:
        note("captured", inputs)
        return function

    compile_blocks = torch.compile
    monkeypatch.setattr(window.torch, "compile", lambda run: compile_blocks(run, backend=backend, fullgraph=True))
    stand_ins = {
        "capture": capture,
        "graphed_callable": graphed,
        "capturing_is_possible": lambda _device: not operators_are_watched(),
    }
    for module in (flight, graphs, prepared, search, whole, window):
        for name, stand_in in stand_ins.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return found


@pytest.mark.parametrize(
    ("method", "compiled", "captured"),
    [(method, compiled, True) for method in ("lat_reft", "lat", "cat") for compiled in ("inner", True, False)]
    + [("lat", "inner", False)],
)
def test_a_resumed_training_makes_what_an_uninterrupted_one_makes_in_the_same_order(
    method: str, compiled: Any, captured: bool, made: list[Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph keeps the code that was there when it was captured, so what is captured counts as what is compiled."""
    if not captured:  # as of a model whose full passes are too large for it
        monkeypatch.setattr(whole, "LAUNCH_BOUND", 0)
        monkeypatch.setattr(whole, "PREDICTING", 0)
    given = {"examples": examples((60, 60, 120, 180, 3, 120, 180, 60)), "max_length": 256}
    changes = {"batch_size": 2, "epochs": 2, "group_by_length": True}

    def run(**parts: Any) -> tuple[Any, list[Made]]:
        torch._dynamo.reset()  # another process has compiled nothing
        made.clear()
        return train(method, changes=changes, engine=ReuseEngine(compiled=compiled), **given, **parts), list(made)

    whole_run, expected = run()
    path = tmp_path / "train.pt"
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=checkpoint(path), progress=StopAt(6))
    assert {kind for kind, _ in made} == ({"captured", "compiled"} if compiled else {"captured"})
    resumed, found = run(checkpoint=checkpoint(path))
    assert found == expected
    assert resumed.summary.history == whole_run.summary.history
