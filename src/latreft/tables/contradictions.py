"""Records that contradict themselves, the place they lie at, or each other: nothing is shown of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from latreft import artefacts
from latreft.records import Metric, RunRecord, rate

TOLERANCE = 1e-9
"""Of a rate and of the ends of its interval, which are computed anew from its count."""
SHARED_INPUTS = {
    "data": ("dataset",),
    "classifier": ("dataset", "model"),
    "scores": ("dataset", "model"),
    "defense": ("dataset", "model", "arm", "seed"),
}
"""A file that runs read → what they have in common where it must be the same file."""
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
    seen: dict[tuple[str | None, ...], tuple[str, Path]] = {}
    for path, record in records.items():
        inputs, own = record.provenance.get("inputs", {}), by_record(record)
        for key, shared in SHARED_INPUTS.items():
            if key not in inputs:
                continue
            found = inputs[key]
            place = [f"seed{own[part]}" if part == "seed" else str(own[part]) for part in shared]
            first, other = seen.setdefault((key, *place), (found, path))
            if first != found:
                raise ValueError(
                    f"records of {' '.join(place)} were made from two versions of its {key}: {other} ({first[:8]}…) and "
                    f"{path} ({found[:8]}…); rerun the older one"
                )
