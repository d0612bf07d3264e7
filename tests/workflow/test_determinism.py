"""Equal settings give equal bytes, in whatever folder and however the jobs are run."""

from __future__ import annotations

import pytest
from workflow.project import RUN, Project, Server, new_project

from latreft.files import sha256
from latreft.records import read_record
from latreft.warm import address

ARM = f"{RUN}/mini-neox/r2d2/seed0"


def digests(project: Project) -> dict[str, str]:
    """The digest of every record."""
    records = [path for path in project.path(RUN).rglob("*.json") if "schema_version" in path.read_text()]
    assert records
    return {str(path.relative_to(project.folder)): read_record(path).digest() for path in records}


def checksums(project: Project, *patterns: str) -> dict[str, str]:
    """The SHA-256 of files."""
    found = [path for pattern in patterns for path in sorted(project.folder.glob(pattern))]
    return {str(path.relative_to(project.folder)): sha256(path) for path in found if path.is_file()}


PUBLISHED = (
    "results/mini/records.csv",
    "results/mini/tables/*",
    "figures/mini/*",
    "results/mini/data/**/*",
    f"{RUN}/**/*.safetensors",
    f"{RUN}/**/*.parquet",
    f"{RUN}/**/manifest.json",
)


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Project:
    """Everything built a second time: in another folder, one job at a time."""
    project = new_project(tmp_path_factory.mktemp("again") / "elsewhere", server)
    said = project.run("--cores", "1", "--config", "scale=mini", "--", "all")
    assert said.code == 0, said.text
    return project


def test_two_folders_and_numbers_of_cores_give_equal_records(finished: Project, again: Project) -> None:
    assert digests(again) == digests(finished)


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_two_folders_and_numbers_of_cores_give_equal_bytes(finished: Project, again: Project, pattern: str) -> None:
    found = checksums(finished, pattern)
    assert found and checksums(again, pattern) == found


def test_jobs_started_cold_give_what_warm_ones_give(project: Project) -> None:
    names = [f"{ARM}/train.json", f"{ARM}/accuracy.json", f"{ARM}/attack_gcg.json"]
    patterns = (f"{ARM}/**/*.safetensors", f"{ARM}/*.parquet")
    warm = digests(project), checksums(project, *patterns)
    project.change(lambda scale: scale.update(warm_start=False))
    said = project.run("-R", "train_defense", "--config", "scale=mini", "--", *names)
    assert said.code == 0 and len(said.names) >= 3, said.text
    assert (digests(project), checksums(project, *patterns)) == warm


def test_a_job_runs_the_code_of_its_own_folder(project: Project, again: Project) -> None:
    """A warm server started by another copy of the project must not lend its modules."""
    manifest = f"{ARM}/defense/manifest.json"
    assert again.run("-R", "train_defense", "--", manifest).code == 0  # so that there is a server
    own = '\n\n_train = train\n\n\ndef train(*given):\n    print(f"trained by {__file__}")\n    return _train(*given)\n'
    project.append("src/latreft/defenses/r2d2.py", own)
    said = project.run("--config", "scale=mini", "--", manifest)
    assert said.code == 0 and f"trained by {project.folder}/src/latreft/defenses/r2d2.py" in said.text


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_FX_GRAPH_CACHE", "HF_HUB_OFFLINE", "HOME", "XDG_CACHE_HOME"])
def test_a_warm_server_serves_jobs_of_the_environment_that_its_packages_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for value in ("0", "1"):
        monkeypatch.setenv(name, value)
        found.add(address())
    assert len(found) == 2
