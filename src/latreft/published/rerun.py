"""An arm that was run again beside its published runs: whether they are the same, and if not, how far apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latreft import artefacts
from latreft.files import read_json
from latreft.paired import paired_difference
from latreft.per_example import ATTACK_COLUMNS, outcomes_of
from latreft.published import folder, rates
from latreft.published.restore import read_lines
from latreft.records import Metric, RunRecord, lasting_cost, read_record
from latreft.tables import contradictions

if TYPE_CHECKING:
    import pandas as pd

WEIGHTS = {"train": artefacts.DEFENSE, "finetune": artefacts.CLASSIFIER}
"""Kind of a record → the manifest of what it trained."""
OUTCOME = ("label", "prediction", "success")
"""How columns begin that say what came out; losses are rounded, and the others say what the attack did and found."""


@dataclass(frozen=True)
class Comparison:
    """What one run, at ``path`` below the scale's results, has otherwise than the published run."""

    path: str
    words: tuple[str, ...]
    """Every result that differs, in words; or why nothing was compared."""
    made: tuple[str, ...] = ()
    """What it was made with or from that differs: it is told, and makes no result another one."""
    examples: int = 0
    """Examples that were compared, 0 for a run that has none."""

    @property
    def same(self) -> bool:
        return not self.words

    def __str__(self) -> str:
        equal = f"equal, {self.examples:,} examples" if self.examples else "equal"
        return f"{self.path}: {'; '.join(self.words) or equal}"


def arm_at(given: str, scale: str) -> str:
    """``DATASET/MODEL/ARM/seedN`` from that, or from a path that leads to its folder."""
    below = given.strip("/").removeprefix(f"{artefacts.RESULTS.format(scale=scale)}/")
    return below.removeprefix("runs/")


def records_of(published: Path, arm: str) -> dict[str, RunRecord]:
    """The published records of ``arm`` (``DATASET/MODEL/ARM/seedN``, below the scale's ``runs``) by their paths.

    Raises ``ValueError`` where there is none, and names the likest arms.
    """
    lines = read_lines(published / folder.RECORDS)
    found = {path: record for path, record in lines.items() if str(Path(path).parent) == f"runs/{arm}"}
    if not found:
        known = sorted({str(Path(path).parent).removeprefix("runs/") for path in lines if "/seed" in path})
        near = ", ".join(sorted(get_close_matches(arm, known, n=3, cutoff=0)))
        raise ValueError(f"{published} has no records of an arm {arm!r}; the likest of its {len(known)} are {near}")
    return {path: RunRecord.model_validate(record) for path, record in sorted(found.items())}


def targets(scale: str, records: Mapping[str, RunRecord]) -> list[str]:
    """What to ask Snakemake for: the records of one arm."""
    return [f"{artefacts.RESULTS.format(scale=scale)}/{path}" for path in records]


def brought_back(results: Path, records: Mapping[str, RunRecord]) -> str | None:
    """The first of ``records`` that lies in ``results`` to the millisecond as it is published, if one does."""
    there = (path for path in records if (results / path).is_file())
    return next((path for path in there if read_record(results / path) == records[path]), None)


def compare_runs(published: Path, results: Path, records: Mapping[str, RunRecord]) -> list[Comparison]:
    """Compare the runs of ``results`` with ``records``, those of an arm in ``published``; both are scale's results.

    Compared are metrics, costs but for seconds, memory and device, predictions, outcomes and attacks of every example, and
    the SHA-256 of weights where both have a manifest. A run that is missing, that cannot be read, that contradicts itself or
    its path, that has other settings, or that is the published one itself, brought back by ``tools/resume.py``, is not the
    same.
    """
    return [_compare(path, record, published, results) for path, record in records.items()]


def _compare(path: str, record: RunRecord, published: Path, results: Path) -> Comparison:
    if not (results / path).is_file():
        return Comparison(path, ("not run again",))
    try:
        again = read_record(results / path)
        contradictions.check_record(Path(path), again)
        if again == record:
            return Comparison(path, ("the published run itself, to the millisecond, and no rerun",))
        other = [*_values(_identity(record), _identity(again)), *_values(record.settings, again.settings)]
        if other:
            return Comparison(path, (f"no rerun of the published run: {'; '.join(other)}",))
        words = [
            *_metrics(record, again),
            *_values(lasting_cost(record.cost), lasting_cost(again.cost)),
            *_weights(record, published, results),
        ]
        examples = 0
        if folder.has_outcomes(path):
            examples, different = _outcomes(path, record, again, published, results)
            words = different + words
    except ValueError as error:
        return Comparison(path, (str(error),))
    return Comparison(path, tuple(words), tuple(_values(_made(record), _made(again))), examples)


def _values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Every key whose values differ, in words."""
    return [
        f"{key} {before.get(key)!r}, now {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _identity(record: RunRecord) -> dict[str, Any]:
    named = {key: getattr(record, key) for key in ("scale", "method", "schema_version")}
    return named | {f"model.{key}": value for key, value in record.model.model_dump().items()}


def _made(record: RunRecord) -> dict[str, Any]:
    """What a run was made with and from: device, code, versions, and its inputs by the SHA-256 of their manifests."""
    made: dict[str, Any] = {"device": record.cost.get("device"), "code": record.provenance.get("code")}
    for part, name in (("versions", ""), ("runtime", "runtime."), ("inputs", "")):
        found = record.provenance.get(part)
        for key, value in (found if isinstance(found, dict) else {}).items():
            if key not in ("outcomes", "record"):
                made[f"{name}{key}"] = str(value)[:12] if part == "inputs" else value
    return made


def _metrics(record: RunRecord, again: RunRecord) -> list[str]:
    said = []
    for name in sorted(record.metrics.keys() | again.metrics.keys()):
        before, after = record.metrics.get(name), again.metrics.get(name)
        if before is None or after is None or not rates.agree(before, after):
            said.append(f"{name} {_value(before)}, now {_value(after)}")
    return said


def _value(metric: Metric | None) -> str:
    return "none" if metric is None or metric.value is None else f"{metric.value:.10g}"


def _weights(record: RunRecord, published: Path, results: Path) -> list[str]:
    """The weights that a training wrote, where they are others by the two manifests."""
    if record.kind not in WEIGHTS:
        return []
    place = contradictions.place_of(WEIGHTS[record.kind], record)
    if not ((published / place).is_file() and (results / place).is_file()):
        return []
    before, after = (
        {
            name: str(hashed)[:12]
            for name, hashed in read_json(root / place).get("files", {}).items()
            if "safetensors" in name
        }
        for root in (published, results)
    )
    return _values(before, after)


def _outcomes(path: str, record: RunRecord, again: RunRecord, published: Path, results: Path) -> tuple[int, list[str]]:
    """How many examples there are, and what happened otherwise to them, with the difference of the rates on the same ones."""
    places = [(results / folder.outcomes(path), again), (published / folder.outcomes(path), record)]
    after, before = (rates.read_outcomes(place) for place, _ in places)
    if set(after.columns) != set(before.columns) or list(after["id"]) != list(before["id"]):
        raise ValueError("its outcomes are of other examples, or have other columns, than the published run's")
    rates.check_record(str(results / path), again, after)
    compared = [name for name in before.columns if not name.startswith("loss")]
    came_out = [name for name in compared if name.startswith(OUTCOME)]
    said = []
    for what, columns in (("outcome", came_out), ("attack", set(compared) - set(came_out))):
        number = int(_differ(before, after, columns).sum())
        if number:
            said.append(f"{number:,} of {len(before):,} examples have another {what}")
    for name in ATTACK_COLUMNS if record.kind == "attack" else ("accuracy",):
        if said and not rates.agree(record.metrics[name], again.metrics[name]):
            d = paired_difference(*(outcomes_of(of, place, name) for place, of in places))
            said.append(f"{name} differs by {d.estimate:+.4f} [{d.low:.4f}, {d.high:.4f}]")
    return len(before), said


def _differ(before: pd.DataFrame, after: pd.DataFrame, columns: Iterable[str]) -> np.ndarray:
    """Which rows have another value in one of ``columns``, as booleans [rows]; tokens are compared as lists of numbers."""
    differs = np.zeros(len(before), dtype=bool)
    for name in columns:
        pairs = zip(before[name], after[name], strict=True)
        differs |= np.array([not np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs])
    return differs
