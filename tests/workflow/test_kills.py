"""Whatever kills a job: nothing half-written counts, the next run goes on from what was saved, the numbers are the same."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from workflow.project import RUN, Project, Run, copy_project, wait_for, working_in

from latreft.files import sha256
from latreft.records import read_record

ARM = f"{RUN}/mini-neox/lat_reft/seed0"
OUTPUTS = [f"{ARM}/defense/manifest.json", f"{ARM}/defense/weights.safetensors", f"{ARM}/train.json"]
TRAIN = ("--config", "scale=mini", "--", OUTPUTS[2])
CHECKPOINT = "results/mini/checkpoints/imdb/mini-neox/lat_reft/0/train.pt"
LOG = "logs/mini/train_defense/imdb_mini-neox_lat_reft_0.log"


def lengthen(project: Project, *, warm: bool) -> Project:
    """Make the training of the arm long enough to be killed in the middle, and its outputs missing."""

    def change(scale):
        scale["methods"]["lat_reft"]["epochs"] = 60  # 120 steps
        scale["warm_start"] = warm

    project.change(change)
    for name in OUTPUTS:
        project.path(name).unlink()
    return project


def results(project: Project) -> tuple[str, str]:
    """What a training is to come to: its record's digest and its weights."""
    return read_record(project.path(OUTPUTS[2])).digest(), sha256(project.path(OUTPUTS[1]))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, finished: Project) -> tuple[str, str]:
    project = lengthen(copy_project(finished, tmp_path_factory.mktemp("whole") / "the project"), warm=True)
    said = project.run(*TRAIN)
    assert said.code == 0, said.text
    return results(project)


def training_begun(project: Project) -> Run:
    """A run of Snakemake that is some steps into the training."""
    run = project.start(*TRAIN)
    wait_for(project.path(CHECKPOINT).is_file)
    return run


def jobs_of(project: Project) -> tuple[list[int], list[int]]:
    """The script's processes in the copy, and the forked ones that work for them (of the same folder)."""
    found = working_in(project.folder)
    scripts = [pid for pid, command in found.items() if ".snakemake/scripts/" in command]
    forked = [pid for pid, command in found.items() if "latreft/warm.py" in command]
    return scripts, forked


def assert_nothing_published(project: Project) -> None:
    assert not [name for name in OUTPUTS if project.path(name).exists()]


def assert_resumes(project: Project, uninterrupted: tuple[str, str]) -> int:
    """The next run goes on from the checkpoint and comes to what an uninterrupted run comes to; the step it went on at.

    It is a warm one, whatever the first was.
    """
    project.change(lambda scale: scale.update(warm_start=True))
    said = project.run(*TRAIN)
    assert said.code == 0, said.text
    log = project.path(LOG).read_text()
    assert "resuming at step " in log and CHECKPOINT in log
    step = int(log.split("resuming at step ")[1].split()[0])
    assert 1 <= step < 120
    assert results(project) == uninterrupted
    assert not project.path(CHECKPOINT).exists()
    assert not working_in(project.folder)
    return step


@pytest.mark.parametrize("victim", ["script", "fork", "cold script"])
def test_a_killed_training_resumes(project: Project, uninterrupted: tuple[str, str], victim: str) -> None:
    lengthen(project, warm=victim != "cold script")
    run = training_begun(project)
    scripts, forked = jobs_of(project)
    assert len(scripts) == 1 and len(forked) == (0 if victim == "cold script" else 1)
    os.kill(forked[0] if victim == "fork" else scripts[0], signal.SIGKILL)
    assert run.end().code == 1
    wait_for(lambda: not working_in(project.folder), 5)
    assert_nothing_published(project)
    assert_resumes(project, uninterrupted)


@pytest.mark.parametrize("killed", ["Snakemake and all of its group", "Snakemake alone"])
def test_a_killed_snakemake_leaves_no_job_behind_and_can_go_on(
    project: Project, uninterrupted: tuple[str, str], killed: str
) -> None:
    run = training_begun(lengthen(project, warm=True))
    if killed == "Snakemake alone":
        os.kill(run.pid, signal.SIGKILL)
        run.end()
    else:
        run.kill()
    wait_for(lambda: not working_in(project.folder), 5)
    locked = project.run(*TRAIN)
    assert locked.code == 1 and "--unlock" in locked.text
    assert project.run("--unlock", *TRAIN).code == 0
    assert_resumes(project, uninterrupted)


def test_a_terminated_training_saves_its_state(project: Project, uninterrupted: tuple[str, str]) -> None:
    run = training_begun(lengthen(project, warm=True))
    scripts, _ = jobs_of(project)
    os.kill(scripts[0], signal.SIGTERM)
    said = run.end()
    stopped = re.search(r"stopped by SIGTERM after step (\d+) of 120", said.text)
    assert said.code == 1 and stopped, said.text
    assert_nothing_published(project)
    assert assert_resumes(project, uninterrupted) == int(stopped[1])


def test_a_terminated_snakemake_saves_the_state_of_its_jobs(project: Project, uninterrupted: tuple[str, str]) -> None:
    run = training_begun(lengthen(project, warm=True))
    os.killpg(run.pid, signal.SIGTERM)
    said = run.end()
    assert said.code != 0 and "stopped by SIGTERM after step" in said.text, said.text
    wait_for(lambda: not working_in(project.folder), 5)
    assert_nothing_published(project)
    assert_resumes(project, uninterrupted)


def test_a_truncated_checkpoint_is_not_used(project: Project, uninterrupted: tuple[str, str]) -> None:
    training_begun(lengthen(project, warm=True)).kill()
    wait_for(lambda: not working_in(project.folder), 5)
    checkpoint = project.path(CHECKPOINT)
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    assert project.run("--unlock", *TRAIN).code == 0
    said = project.run(*TRAIN)
    assert said.code == 0, said.text
    assert "train.pt cannot be read" in project.path(LOG).read_text()
    assert results(project) == uninterrupted


# --- attacks ---

ATTACK = f"{RUN}/mini-neox/none/seed0/attack_gcg"
JOURNAL = "results/mini/checkpoints/imdb/mini-neox/none/0/gcg/journal.jsonl"
ATTACKING = ("--config", "scale=mini", "--", f"{ATTACK}.json")


def test_a_killed_attack_goes_on_with_the_examples_that_are_left(project: Project) -> None:
    project.change(lambda scale: scale["attacks"]["gcg"].update(rounds=40, candidates=16))
    run = project.start(*ATTACKING)
    journal = project.path(JOURNAL)
    wait_for(lambda: journal.is_file() and journal.read_text().count("\n") >= 3)
    scripts, _ = jobs_of(project)
    os.kill(scripts[0], signal.SIGKILL)
    assert run.end().code == 1
    wait_for(lambda: not working_in(project.folder), 5)
    kept = journal.read_text().splitlines()[1:]
    assert 2 <= len(kept) < 4 and not project.path(f"{ATTACK}.json").exists()
    journal.write_text("\n".join(journal.read_text().splitlines()[:-1]) + "\n" + kept[-1][:40])  # died while writing

    assert project.run(*ATTACKING).code == 0
    assert not journal.exists()
    resumed = read_record(project.path(f"{ATTACK}.json")).digest(), sha256(project.path(f"{ATTACK}.parquet"))
    project.path(f"{ATTACK}.json").unlink()
    assert project.run(*ATTACKING).code == 0
    assert resumed == (read_record(project.path(f"{ATTACK}.json")).digest(), sha256(project.path(f"{ATTACK}.parquet")))


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB; needs the right to mount one."""
    disk = tmp_path / "small disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=30)


def fill(disk: Path) -> Path:
    """Fill the disk with one file."""
    filler = disk / "filler"
    room = os.statvfs(disk)
    filler.write_bytes(bytes(room.f_bavail * room.f_frsize))
    return filler


@pytest.mark.parametrize(
    ("target", "others"),
    [
        ("results/mini/data/imdb/manifest.json", "results/mini/data/imdb/*"),
        (f"{RUN}/mini-neox/classifier/manifest.json", f"{RUN}/mini-neox/classifier/*"),
        (f"{RUN}/mini-neox/scores/manifest.json", f"{RUN}/mini-neox/scores/*"),
        (f"{ARM}/defense/manifest.json", f"{ARM}/defense/*"),
        (f"{ARM}/attack_gcg.json", f"{ARM}/attack_gcg.*"),
        ("figures/mini/placement.pdf", "figures/mini/placement.*"),
    ],
)
def test_a_full_disk_is_one_clear_line_and_leaves_nothing_half_written(
    project: Project, small_disk: Path, target: str, others: str
) -> None:
    for part in ("results", "figures"):
        subprocess.run(["cp", "-a", str(project.path(part)), str(small_disk / part)], check=True, timeout=30)
        shutil.rmtree(project.path(part))
        project.path(part).symlink_to(small_disk / part)
    assert project.plan().names == set()
    for path in project.folder.glob(others):
        path.unlink()
    filler = fill(small_disk)
    said = project.run("--", target)
    assert said.code == 1
    assert len(said.errors()) == 1 and "No space left on device" in said.errors()[0], said.text
    assert not list(project.folder.glob(others)) and not list(small_disk.rglob(".*"))
    filler.unlink()
    assert project.run("--", target).code == 0
