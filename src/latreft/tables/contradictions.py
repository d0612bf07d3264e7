"""Records that contradict themselves, the place they lie at, or each other: nothing is shown of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from latreft import artefacts
from latreft.records import Metric, RunRecord, rate

TOLERANCE = 1e-9
"""Of a rate and of the ends of its interval, which are computed anew from its count."""
REMEDY = "the file was changed or moved: put it back, or rerun its run"


def check(records: Mapping[Path, RunRecord]) -> None:
    """Raise ``ValueError`` at the first contradiction in ``records``, which go by their paths (any folder may lead there)."""
    for path, record in records.items():
        check_record(path, record)
    check_inputs(records)


def check_record(path: Path, record: RunRecord) -> None:
    """Raise ``ValueError`` where the record in the file ``path`` is another run's, or has a rate that no counts give."""
    own = by_record(record)
    for key, said in by_path(path).items():
        if own[key] != said:
            raise ValueError(f"{path}: {key} is {own[key]} in the record and {said} by its path; {REMEDY}")
    for name, metric in record.metrics.items():
        fault = impossible(metric)
        if fault is not None:
            raise ValueError(f"{path}: {name} is {metric.value} with n = {metric.n}, {fault}; {REMEDY}")


def by_path(path: Path) -> dict[str, str | None]:
    """What a record's path says of its run: kind, data set, model, arm and attack, and the seed of an arm.

    Raises ``ValueError`` where ``artefacts`` puts no record.
    """
    for kind, template in artefacts.RECORD_OF.items():
        below = re.escape(template.removeprefix(f"{artefacts.RESULTS}/"))
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", below)
        found = re.search(f"(?:^|/){pattern}$", path.as_posix())
        if found:
            return {"kind": kind, "arm": "classifier", "attack": None} | found.groupdict()
    raise ValueError(f"{path}: no record has its place there; docs/records.md says where each kind lies")


def by_record(record: RunRecord) -> dict[str, str | None]:
    """The same, as the record itself says it."""
    return {
        "kind": record.kind, "dataset": record.dataset, "model": record.model.name, "arm": record.arm,
        "seed": str(record.seed), "attack": record.attack,
    }  # fmt: skip


def place_of(template: str, record: RunRecord) -> str:
    """The path, below the scale's folder, of a file of ``artefacts`` that belongs to the record's run."""
    return template.removeprefix(f"{artefacts.RESULTS}/").format(**by_record(record))


def manifests(record: RunRecord) -> dict[str, tuple[str, str]]:
    """The manifests that a run read: path below the scale's folder → key of its inputs, and SHA-256."""
    inputs = record.provenance.get("inputs", {})
    named = {key: template for key, template in artefacts.MANIFEST_OF.items() if key in inputs}
    return {place_of(template, record): (key, inputs[key]) for key, template in named.items()}


def impossible(metric: Metric) -> str | None:
    """Why no counts give a metric that has an interval; ``None`` where they do, and for a metric without one."""
    if metric.ci_low is None and metric.ci_high is None:
        return None
    if metric.n is None or metric.n < 1 or not 0 <= metric.value <= 1:
        return "which is no share of at least one example"
    right = rate(round(metric.value * metric.n), metric.n)
    if abs(metric.value - right.value) > TOLERANCE:
        return f"which is no whole number of examples ({metric.value * metric.n:.10g})"
    given, wilson = (metric.ci_low, metric.ci_high), (right.ci_low, right.ci_high)
    if any(a is None or b is None or abs(a - b) > TOLERANCE for a, b in zip(given, wilson, strict=True)):
        return f"of which the 95% Wilson interval is {list(wilson)}, not {list(given)}"
    return None


def check_inputs(records: Mapping[Path, RunRecord]) -> None:
    """Raise ``ValueError`` where records of one data set, classifier or arm and seed were made from different files of it."""
    seen: dict[str, tuple[str, Path]] = {}
    for path, record in records.items():
        own = by_record(record)
        for manifest, (key, found) in manifests(record).items():
            first, other = seen.setdefault(manifest, (found, path))
            if first != found:
                shared = re.findall(r"{(\w+)}", artefacts.MANIFEST_OF[key].removeprefix(artefacts.RESULTS))
                place = [f"seed{own[part]}" if part == "seed" else str(own[part]) for part in shared]
                raise ValueError(
                    f"records of {' '.join(place)} were made from two versions of its {key}: {other} ({first[:8]}…) and "
                    f"{path} ({found[:8]}…); rerun the older one"
                )
