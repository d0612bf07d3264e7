"""Going on with a scale from what of it is published: its records beside those of new runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from latreft.plans import Plans
from latreft.published.folder import MANIFESTS, contents
from latreft.published.restore import restore


def bring_back(published: Path, results: Path) -> int:
    """Put records, outcomes and scores of ``published`` (a scale's folder) beside what is in ``results``; how many were new.

    Manifests stay out: what they list, texts and weights, is not published, and Snakemake would take it to be there.
    Raises ``ValueError`` for a file that is there with other content, and changes nothing then; outcomes are not compared,
    for their bytes depend on who wrote them, and their records name them.
    """
    with tempfile.TemporaryDirectory() as temporary:
        restored = Path(temporary) / "results"
        restore(published, restored)
        manifests = {path.relative_to(published / MANIFESTS) for path in (published / MANIFESTS).rglob("*.json")}
        files = {path.relative_to(restored) for path in restored.rglob("*") if path.is_file()} - manifests
        new = {path for path in files if not (results / path).exists()}
        for path in sorted(files - new):
            if path.suffix != ".parquet" and (results / path).read_bytes() != (restored / path).read_bytes():
                raise ValueError(
                    f"{results / path} is not the published one; move it away, or publish the scale anew from your results"
                )
        for path in sorted(new):
            (results / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(restored / path, results / path)
    return len(new)


def missing(plans: Plans, scale: str, results: Path) -> list[str]:
    """Records that the scale's targets want and ``results`` (its folder) lacks, with their outcomes; by seed, then path."""
    wanted = contents(plans, scale)
    there = set(wanted.present(results).records)
    lacking = [path for path in wanted.records if path not in there]
    return sorted(lacking, key=lambda path: (_seed(path), path))


def _seed(path: str) -> int:
    """The seed in a record's path; what has none comes first."""
    named = [part for part in Path(path).parts if part.startswith("seed") and part[4:].isdigit()]
    return int(named[0][4:]) if named else -1
