"""The manifests that records name by their SHA-256: which file each is, and whether what is there is that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from latreft import artefacts
from latreft.files import read_json, sha256
from latreft.records import RunRecord
from latreft.tables.contradictions import manifests, place_of


@dataclass(frozen=True)
class Found:
    """How many manifests are those that records name; ``unnamed``: how many defenses nothing was evaluated with."""

    named: int
    unnamed: int

    def __str__(self) -> str:
        more = f"; {self.unnamed} of defenses that were not evaluated fit their training" if self.unnamed else ""
        return f"{self.named} manifests are those that the records name{more}"


def named(records: Mapping[str, RunRecord]) -> dict[str, dict[str, str]]:
    """Path of each manifest below the scale's folder → each SHA-256 that ``records`` (by path) give it → the first to do so."""
    found: dict[str, dict[str, str]] = {}
    for path, record in records.items():
        for manifest, (_, value) in manifests(record).items():
            found.setdefault(manifest, {}).setdefault(value, path)
    return found


def check_manifests(place: Path, scores: Path, records: Mapping[str, RunRecord]) -> Found:
    """Whether the manifests below ``place`` are those that ``records`` name, as far as they are there.

    A defense that nothing was evaluated with is named by no record: its classifier and the number of its trained parameters
    must be those of its training. Neuron scores, below ``scores``, must be the file that their manifest lists. Raises
    ``ValueError`` for the first of another training, or of other data.
    """
    by_path = named(records)
    there = {path: sha256(place / path) for path in by_path if (place / path).is_file()}
    for path, own in there.items():
        for value, record in by_path[path].items():
            if value != own:
                raise ValueError(
                    f"{path} ({own[:8]}…) is not the one that {record} was made with ({value[:8]}…); rerun that, or bring back "
                    "what it was made with"
                )
    unnamed = {place_of(artefacts.DEFENSE, record): path for path, record in records.items() if record.kind == "train"}
    unnamed = {path: record for path, record in unnamed.items() if path not in there and (place / path).is_file()}
    for path, record in unnamed.items():
        _check_defense(place / path, path, record, records[record])
    for path in there:
        if Path(path).match("scores/manifest.json"):
            _check_scores(place / path, path, scores / path)
    return Found(len(there), len(unnamed))


def _check_defense(file: Path, path: str, name: str, training: RunRecord) -> None:
    manifest = read_json(file)
    told = {
        "classifier": training.provenance.get("inputs", {}).get("classifier"),
        "trainable": training.cost.get("trainable_parameters"),
    }
    for key, value in told.items():
        if value is not None and manifest.get(key) != value:
            raise ValueError(f"{path} has {key} {manifest.get(key)!r}, its training {name} {value!r}; rerun that")


def _check_scores(file: Path, path: str, beside: Path) -> None:
    for name, value in read_json(file)["files"].items():
        scores = beside.with_name(name)
        if scores.is_file() and sha256(scores) != value:
            raise ValueError(
                f"{scores.name} beside {path} is not the file that this lists ({value[:8]}…); rerun the scores"
            )
