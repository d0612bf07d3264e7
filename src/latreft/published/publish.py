"""Make ``published/SCALE`` from the results of a finished sweep: checked, compact, and whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from latreft import artefacts
from latreft.config import scale_files
from latreft.files import sha256
from latreft.per_example import run_of
from latreft.plans import Plans, load_plans
from latreft.published import folder, redraw
from latreft.published.configured import other_setting
from latreft.published.manifests import check_manifests, named
from latreft.published.outcomes import pack
from latreft.published.rates import Checked, check_rates
from latreft.published.restore import write_lines
from latreft.published.results import Results, describe, page_of
from latreft.records import read_record

SHARED_CONFIG = ("experiments.yaml", "models.yaml", "claims.yaml", "config.yaml")
"""What every scale's targets read; ``config.yaml``, the paper scale's, because claims about costs do."""


def publish(root: Path, scale: str, results: Path, out: Path, partial: bool = False) -> list[str]:
    """Publish ``results/SCALE`` as ``out/SCALE``, in one rename; what is missing there, as paths below it.

    Tables and figures are built from what is published, not copied, so that :mod:`latreft.published.redraw` makes the
    same ones. Raises ``ValueError`` where files are missing (unless ``partial``), a rate is not that of its examples,
    a run was not made with the configured settings, or records do not belong together, or not with a manifest.
    """
    source = Results(Plans(root, load_plans(root, {"scale": scale})), scale, results / scale)
    kept = kept_manifests(source, out / scale / folder.MANIFESTS)
    lacking = sorted(path for path in source.wanted.all() if path not in kept and not (source.place / path).is_file())
    if lacking and not partial:
        raise ValueError(
            f"{source.place} lacks {len(lacking)} of {len(source.wanted.all())} files that the targets of {scale} want, the "
            f"first is {lacking[0]}; finish the sweep, or publish what is there with --partial"
        )
    other = other_setting(source.plans, source.records)
    if other is not None:
        raise ValueError(f"{other}; rerun it, or put the configuration back")
    checked = check_rates(source.place, source.found.records)
    check_manifests(source.place, source.place, source.records)
    with replaced(out / scale) as stage:
        write_evidence(source, kept, stage)
        write_config(root, scale, stage / folder.CONFIG)
        write_made(root, source, checked, page_of(out / scale), stage)
    return sorted(set(source.missing) - set(kept))


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target``; on success it takes the target's place, on failure it is removed.

    Files of the old folder that are not ours (see ``folder.OWN``) move along.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        stage, old = Path(temporary) / target.name, Path(temporary) / "old"
        stage.mkdir()
        yield stage
        if target.is_dir():
            for path in sorted(target.iterdir()):
                if path.name not in folder.OWN:
                    copied = shutil.copytree if path.is_dir() else shutil.copy2
                    copied(path, stage / path.name)  # type: ignore[operator]
            target.rename(old)
        stage.rename(target)


def write_evidence(results: Results, kept: Mapping[str, Path], stage: Path) -> None:
    """Records, outcomes, manifests (those ``kept`` too) and scores."""
    source, found = results.place, results.found
    write_lines(source, found.records, stage / folder.RECORDS)
    for name, attacks in ((folder.ACCURACY_OUTCOMES, False), (folder.ATTACK_OUTCOMES, True)):
        files = [source / path for path in found.outcomes if Path(path).name.startswith("attack_") == attacks]
        pack(((run_of(read_record(file.with_suffix(".json"))), file) for file in files), stage / name)
    manifests = {path: source / path for path in [*found.manifests, *found.trained]} | dict(kept)
    scores = {path: source / path for path in found.scores}
    for name, copied in ((folder.MANIFESTS, manifests), (folder.SCORES, scores)):
        for path, file in copied.items():
            (stage / name / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, stage / name / path)


def kept_manifests(results: Results, before: Path) -> dict[str, Path]:
    """Manifests that results lack, and where they were published ``before`` as the records name them."""
    values = named(results.records)
    wanted = {*results.wanted.manifests, *results.wanted.trained} & values.keys()
    lacking = [path for path in sorted(wanted) if not (results.place / path).is_file() and (before / path).is_file()]
    return {path: before / path for path in lacking if set(values[path]) == {sha256(before / path)}}


def write_config(root: Path, scale: str, target: Path) -> None:
    """The configuration as it is."""
    target.mkdir()
    own = scale_files(root / "config")[scale]
    for path in (own, *(root / "config" / name for name in SHARED_CONFIG)):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def write_made(root: Path, results: Results, checked: Checked, before: str | None, stage: Path) -> None:
    """All that is made from the evidence in ``stage``: what the workflow shows of it, and what ``describe`` says.

    Raises ``ValueError`` where what comes back from ``stage`` is not what went in.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        redraw.working_copy(root, stage, copy)
        check_restored(results.place, copy / artefacts.RESULTS.format(scale=results.scale), results.found)
        describe(redraw.build(copy, results.scale), copy, checked, before)
        for entry, place in folder.built(results.scale).items():
            if (copy / place).is_file():
                shutil.copyfile(copy / place, stage / entry)
            elif (copy / place).is_dir():
                shutil.copytree(copy / place, stage / entry)


def check_restored(source: Path, restored: Path, found: folder.Contents) -> None:
    """Raise ``ValueError`` where a restored file is not the source's: outcomes by content, all others by their bytes."""
    for path in found.outcomes:
        if not pq.read_table(source / path).equals(pq.read_table(restored / path)):
            raise ValueError(f"{path} would not come back as it is: it was not written by this project's jobs")
    for path in [*found.records, *found.manifests, *found.scores, *found.trained]:
        if (source / path).read_bytes() != (restored / path).read_bytes():
            raise ValueError(f"{path} would not come back byte for byte: it was not written by this project's jobs")
