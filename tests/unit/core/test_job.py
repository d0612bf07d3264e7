"""What a job sets up for the code that it runs."""

from __future__ import annotations

import pytest
import torch

from latreft.job import start


def test_mixed_precision_sees_the_weights_of_the_latest_step():
    """One context around a whole training: autocast's own cache would answer with the first step's weights."""
    layer = torch.nn.Linear(4, 1)
    inputs = torch.ones(2, 4)
    runtime = {"device": "cpu", "engine": "reference", "compiled": False, "autocast": "bfloat16", "threads": 1}
    with start(runtime) as job, job.precision():
        before = layer(inputs)
        before.sum().backward()
        with torch.no_grad():
            layer.weight -= layer.weight.grad
        after = layer(inputs)
    assert before.dtype == torch.bfloat16
    torch.testing.assert_close(after.float(), before.float() - 8.0, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("compiled", [False, True, "inner"])
def test_records_say_how_a_job_was_to_run_and_the_log_what_was_of_no_use(tmp_path, compiled):
    runtime = {"device": "cpu", "engine": "reuse", "compiled": compiled, "autocast": None, "threads": 1}
    runtime["deterministic"] = True
    log = tmp_path / "job.log"
    with start(runtime, str(log)) as job:
        assert job.provenance("code", {"data": "sum"})["runtime"] == runtime
    assert ("does nothing here" in log.read_text()) == bool(compiled)
