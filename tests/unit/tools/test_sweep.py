"""A sweep runs in the background on all cards, and what it made comes home without weights, each file once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools/sweep.sh"
RUN = "results/s/runs/imdb/m/none/seed0"
SNAKEMAKE = f"""#!/usr/bin/env bash
printf '%s\\n' "$@" > arguments
echo "$PYTHONPATH $HF_HUB_OFFLINE" > environment
mkdir -p {RUN}/defense results/s/models/m results/s/checkpoints logs/s
touch {RUN}/train.json {RUN}/defense/weights.safetensors results/s/models/m/config.json results/s/checkpoints/a.pt logs/s/a.log
printf 'Error in rule attack:\\n    log: logs/s/attack.log\\n' >&2
exit 3
"""


@pytest.fixture
def sweep(tmp_path: Path):
    """The tool in a project of its own, with commands that stand in for Snakemake and for two cards."""
    (tmp_path / "project/tools").mkdir(parents=True)
    shutil.copy2(TOOL, tmp_path / "project/tools")
    commands = {"nvidia-smi": "#!/bin/sh\necho one card\necho another\n", "nvidia-cuda-mps-control": "#!/bin/sh\n"}
    (tmp_path / "bin").mkdir()
    for name, text in (commands | {"python3": SNAKEMAKE}).items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        command = [str(tmp_path / "project/tools/sweep.sh"), *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_targets_and_options_reach_snakemake_with_a_place_for_each_job(sweep, tmp_path):
    done = sweep("start", "s", "3", "--prioritize", "a", "--", "a", "b")
    assert done.stdout == "2 targets on 2 cards, 3 jobs each\n", done.stderr
    sweep("collect", "s", "one.tgz", "20")
    assert (tmp_path / "one.tgz").is_file()  # a path is the caller's
    given = (tmp_path / "project/arguments").read_text().split()
    assert given[-5:] == ["--prioritize", "a", "--", "a", "b"]
    packages, offline = (tmp_path / "project/environment").read_text().split()
    assert packages.split(":")[0] == f"{tmp_path / 'project'}/../packages" and offline == "1"
    assert given[given.index("--resources") + 1] == "gpu=6" and "jobs_per_gpu=3" in given


def test_what_is_new_is_collected_once_and_without_weights(sweep, tmp_path):
    sweep("start", "s", "1", "--", f"{RUN}/train.json", f"{RUN}/attack_gcg.json")
    done = sweep("collect", "s", str(tmp_path / "one.tgz"), "20")
    assert "1 of 2 targets are made, 2 files are new; ended with 3" in done.stdout, done.stderr
    assert "log: logs/s/attack.log" in done.stdout
    with tarfile.open(tmp_path / "one.tgz") as archive:
        assert sorted(archive.getnames()) == ["logs/s/a.log", f"{RUN}/train.json"]
    done = sweep("collect", "s", str(tmp_path / "two.tgz"))
    assert "0 files are new" in done.stdout
    with tarfile.open(tmp_path / "two.tgz") as archive:
        assert archive.getnames() == []


def test_a_running_sweep_is_not_disturbed_by_another(sweep, tmp_path):
    (tmp_path / "project/results/s/.sweep").mkdir(parents=True)
    (tmp_path / "project/results/s/.sweep/running").write_text(str(os.getpid()))
    done = sweep("start", "s", "1", "--", "a")
    assert done.returncode == 1 and done.stderr == f"error: a sweep is running here, process {os.getpid()}\n"


@pytest.mark.parametrize(
    "words",
    [
        [], ["start", "s"], ["start", "s", "2"], ["start", "s", "2", "a"], ["start", "s", "2", "--"],
        ["start", "s", "x", "--", "a"], ["collect"], ["collect", "s", "nothing_started.tgz"], ["stop", "s", "1"],
    ],
)  # fmt: skip
def test_a_wrong_call_tells_the_right_ones(sweep, words):
    done = sweep(*words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("tools/sweep.sh start SCALE JOBS [OPTIONS] -- TARGETS...")
