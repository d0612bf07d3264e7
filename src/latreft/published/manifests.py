"""The manifests that records name by their SHA-256: which file each is, and whether what is there is that file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latreft import artefacts
from latreft.files import sha256
from latreft.records import RunRecord

PLACES = {
    "data": artefacts.DATA,
    "classifier": artefacts.CLASSIFIER,
    "scores": artefacts.SCORES_MANIFEST,
    "defense": artefacts.DEFENSE,
}
"""Key of a record's ``provenance.inputs`` → where the manifest lies."""


def named(records: Mapping[str, RunRecord]) -> dict[str, dict[str, str]]:
    """Path of each manifest below the scale's folder → each SHA-256 that ``records`` (by path) give it → the first to do so."""
    found: dict[str, dict[str, str]] = {}
    for path, record in records.items():
        results = artefacts.RESULTS.format(scale=record.scale)
        place = {"dataset": record.dataset, "model": record.model.name, "arm": record.arm, "seed": record.seed}
        for key, value in record.provenance.get("inputs", {}).items():
            if key in PLACES:
                manifest = PLACES[key].format(scale=record.scale, **place).removeprefix(f"{results}/")
                found.setdefault(manifest, {}).setdefault(value, path)
    return found


def check_manifests(place: Path, records: Mapping[str, RunRecord]) -> int:
    """How many of the manifests that ``records`` name are in ``place``, the scale's folder.

    Raises ``ValueError`` for one that is not the file that a record names: it is of another training, or of other data.
    """
    there = 0
    for path, values in named(records).items():
        if not (place / path).is_file():
            continue
        there += 1
        own = sha256(place / path)
        for value, record in values.items():
            if value != own:
                raise ValueError(
                    f"{place / path} ({own[:8]}…) is not the one that {record} was made with ({value[:8]}…); rerun that, or "
                    "bring back what it was made with"
                )
    return there
