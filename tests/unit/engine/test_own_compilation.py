"""No job runs code that was compiled for the shapes of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from latreft.plans import OWN_COMPILATION

JOB = """
import json, sys
import torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda rows: torch.relu(rows).sum(0), backend="inductor")
for count in sys.argv[1:]:
    compiled(torch.ones(int(count), 8))
print(json.dumps({name: n for group in counters.values() for name, n in group.items() if name.endswith("cache_hit")}))
"""


def hits(folder: Path, environment: Mapping[str, str], *rows: int) -> dict[str, int]:
    """What a process, whose inputs have so many rows, found in the compiler's cache in ``folder``."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    clean = {name: value for name, value in os.environ.items() if name not in OWN_COMPILATION}
    done = subprocess.run(
        [sys.executable, "-c", JOB, *map(str, rows)], env=clean | own | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_job_takes_no_code_compiled_for_another_job_s_shapes(tmp_path: Path) -> None:
    """Torch's cache knows a changing size by its name alone: code for 9 rows serves 4,000."""
    hits(tmp_path, {}, 8, 9)
    assert hits(tmp_path, {}, 3000, 4000), "torch has changed: sizes are part of its cache's keys"
    assert hits(tmp_path, OWN_COMPILATION, 3000, 4000) == {}
