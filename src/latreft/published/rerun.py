"""An arm that was run again beside its published runs: whether they are the same, and if not, how far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from latreft.artefacts import RESULTS
from latreft.paired import paired_difference
from latreft.per_example import outcomes_of
from latreft.published import folder
from latreft.published.rates import agree, read_outcomes
from latreft.published.restore import read_lines
from latreft.records import Metric, RunRecord, read_record

if TYPE_CHECKING:
    import pandas as pd

HASHED = ("data", "base", "classifier", "scores", "defense")
"""Inputs of a run that say what it was made from; a record's own outcomes and a cost's record are not such."""


@dataclass(frozen=True)
class Comparison:
    """What one run, at ``path`` below the scale's results, has otherwise than the published run."""

    path: str
    examples: int
    """Examples that were compared, 0 for a run that has none."""
    different: int
    """Of these, how many have another prediction, outcome or attack."""
    words: tuple[str, ...]
    """Every input and metric that differs, in words; or why nothing was compared."""

    @property
    def same(self) -> bool:
        return not self.words and not self.different

    def __str__(self) -> str:
        counted = f"{self.different:,} of {self.examples:,} examples differ" if self.examples else ""
        return f"{self.path}: " + ("; ".join(filter(None, [counted, *self.words])) or "equal")


def records_of(published: Path, arm: str) -> dict[str, RunRecord]:
    """The published records of ``arm`` (``DATASET/MODEL/ARM/seedN``, below the scale's ``runs``) by their paths.

    Raises ``ValueError`` where there is none, and names the likest arms.
    """
    lines = read_lines(published / folder.RECORDS)
    found = {path: record for path, record in lines.items() if str(Path(path).parent) == f"runs/{arm}"}
    if not found:
        known = sorted({str(Path(path).parent).removeprefix("runs/") for path in lines if "/seed" in path})
        near = ", ".join(get_close_matches(arm, known, n=3, cutoff=0))
        raise ValueError(f"{published} has no records of an arm {arm!r}; the likest of its {len(known)} are {near}")
    return {path: RunRecord.model_validate(record) for path, record in sorted(found.items())}


def targets(scale: str, records: Mapping[str, RunRecord]) -> list[str]:
    """What to ask Snakemake for: the records of one arm."""
    return [f"{RESULTS.format(scale=scale)}/{path}" for path in records]


def compare_runs(published: Path, results: Path, records: Mapping[str, RunRecord]) -> list[Comparison]:
    """Compare the runs of ``results`` with ``records``, those of an arm in ``published``; both are scale's results.

    A run that is missing is not the same, nor is the published one itself, brought back by ``tools/resume.py``. Raises
    ``ValueError`` where a run was made with other settings or of other examples, or has another rate than its examples.
    """
    return [_compare(path, record, published, results) for path, record in records.items()]


def _compare(path: str, record: RunRecord, published: Path, results: Path) -> Comparison:
    if not (results / path).is_file():
        return Comparison(path, 0, 0, ("not run again",))
    again = read_record(results / path)
    _check_settings(path, record, again)
    if "seconds" in record.cost and again == record:
        return Comparison(path, 0, 0, ("the published run itself, to the millisecond, and no rerun",))
    words = [*_inputs(record, again), *_metrics(record, again)]
    if not folder.has_outcomes(path):
        return Comparison(path, 0, 0, tuple(words))
    places = [(results / folder.outcomes(path), again), (published / folder.outcomes(path), record)]
    after, before = (read_outcomes(place) for place, _ in places)
    different = _different(path, before, after)
    if different:
        rate = "asr" if record.kind == "attack" else "accuracy"
        found = paired_difference(*(outcomes_of(of, place, rate) for place, of in places))
        words.append(f"{rate} differs by {found.estimate:+.4f} [{found.low:.4f}, {found.high:.4f}]")
    return Comparison(path, len(before), different, tuple(words))


def _check_settings(path: str, record: RunRecord, again: RunRecord) -> None:
    for key in sorted(record.settings.keys() | again.settings.keys()):
        before, after = record.settings.get(key), again.settings.get(key)
        if before != after:
            raise ValueError(f"{path} is no rerun of the published run: {key} was {before!r}, is {after!r}")


def _inputs(record: RunRecord, again: RunRecord) -> list[str]:
    """Another classifier, defense or data set that the run was made of, by the SHA-256 of its manifest."""
    before, after = (r.provenance.get("inputs", {}) for r in (record, again))
    return [
        f"{name} {str(before.get(name))[:8]}, now {str(after.get(name))[:8]}"
        for name in HASHED
        if before.get(name) != after.get(name)
    ]


def _metrics(record: RunRecord, again: RunRecord) -> list[str]:
    said = []
    for name in sorted(record.metrics.keys() | again.metrics.keys()):
        before, after = record.metrics.get(name), again.metrics.get(name)
        if before is None or after is None or not agree(before, after):
            said.append(f"{name} {_value(before)}, now {_value(after)}")
    return said


def _value(metric: Metric | None) -> str:
    return "none" if metric is None or metric.value is None else f"{metric.value:.6g}"


def _different(path: str, before: pd.DataFrame, after: pd.DataFrame) -> int:
    """How many examples have another prediction, outcome or attack; losses may differ by rounding."""
    if list(before["id"]) != list(after["id"]):
        raise ValueError(f"{path} is of other examples than the published run")
    compared = [name for name in before.columns if not name.startswith("loss")]
    if compared != [name for name in after.columns if not name.startswith("loss")]:
        raise ValueError(f"{path} has outcomes in other columns than the published run")
    differs = [
        [str(list(a)) != str(list(b)) for a, b in zip(before[name], after[name], strict=True)]
        if name == "attack_tokens"
        else (before[name].to_numpy() != after[name].to_numpy()).tolist()
        for name in compared
    ]
    return sum(map(any, zip(*differs, strict=True)))
