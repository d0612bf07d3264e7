"""No job runs code that was compiled for the shapes of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

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
