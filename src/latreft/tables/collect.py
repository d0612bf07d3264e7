"""From run records to what a target shows: one row a cell, source and metric; what has no record is marked missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from statsmodels.stats.proportion import proportion_confint

RUN = ["scale", "dataset", "model", "method", "arm", "seed", "kind", "attack"]
PLACE = ["place", "panel", "label", "dataset", "model", "method", "arm"]
POINT = [*PLACE, "source", "metric"]
TIDY = [*PLACE, "seed", "source", "metric", "value", "n", "ci_low", "ci_high", "unit", "missing"]
POOLED = [*POINT, "value", "n", "ci_low", "ci_high", "unit", "seeds", "seeds_wanted", "seed_values", "missing"]
CELL_DEFAULTS: dict[str, Any] = {
    "panel": "main", "method": "finetune", "arm": "classifier", "seed": None, "attacks": (),
    "accuracy": True,
}  # fmt: skip
COSTS = (
    "cost_paper_flops_per_example",
    "cost_uniform_flops_per_example",
    "cost_measured_flops_per_example",
    "cost_trainable_parameters",
    "cost_trainable_percent",
    "cost_surrogate_parameters",
)
EXPECTED = {
    "finetune": ("accuracy",),
    "accuracy": ("accuracy",),
    "train": (),
    "cost": COSTS,
    "attack": ("asr", "asr_of_correct", "asr_round_trip", "accuracy_before", "accuracy_after"),
}
"""Metrics that a record of each kind should have; without the record they are shown as missing."""
OWN_DENOMINATOR = ("asr_of_correct", "flips_0_to_1", "flips_1_to_0")
"""Rates over a model's own outcomes: their n may differ between seeds, every other rate's may not."""


def normal_cells(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cells with defaults filled in (a bare data set and model is a clean classifier), each once, in order."""
    normal: list[dict[str, Any]] = []
    for given in cells:
        cell = CELL_DEFAULTS | dict(given)
        cell = {"label": cell["method"]} | cell | {"attacks": tuple(cell["attacks"])}
        if cell not in normal:
            normal.append(cell)
    return normal


def check_records(long_frame: pd.DataFrame, scale: str | None = None) -> pd.DataFrame:
    """``long_frame`` with copies of one record dropped.

    Raises ``ValueError`` for records of two scales, of another scale than ``scale``, or for two different records of
    the same run.
    """
    scales = sorted(long_frame["scale"].unique())
    stray = [found for found in scales if scale is not None and found != scale]
    if stray:
        raise ValueError(f"a record of scale {stray[0]!r} was given to a target of scale {scale!r}")
    if len(scales) > 1:
        raise ValueError(f"records of different scales in one target: {', '.join(scales)}")
    for run, digests in long_frame.groupby(RUN, sort=True)["record"].unique().items():
        if len(digests) > 1:
            raise ValueError(f"{len(digests)} different records of one run: {' '.join(str(part) for part in run)}")
    return long_frame.drop_duplicates([*RUN, "metric"]).reset_index(drop=True)


def sources(cell: Mapping[str, Any]) -> list[str]:
    """The kinds of record that a cell is made of; an attack goes by its own name."""
    if cell["method"] == "finetune":
        return ["finetune"]
    return [*(["accuracy"] if cell["accuracy"] else []), "train", "cost", *cell["attacks"]]


def collect(cells: Iterable[Mapping[str, Any]], long_frame: pd.DataFrame, scale: str | None = None) -> pd.DataFrame:
    """One row a cell, source (finetune, accuracy, train, cost or an attack's name) and metric; columns ``TIDY``.

    ``place`` numbers what is shown in its order, equal for the seeds of one arm. A record that is not there gives rows
    of NaN with ``missing`` set; a metric that a record does not have gives NaN alone. See :func:`check_records` for
    the errors.
    """
    frame = check_records(long_frame, scale)
    runs = {tuple(map(str, run)): rows for run, rows in frame.groupby(RUN[1:], sort=False)}
    places: dict[tuple[str, ...], int] = {}
    rows: list[dict[str, Any]] = []
    for cell in normal_cells(cells):
        shown = {key: str(cell[key]) for key in PLACE[1:]}
        place = places.setdefault(tuple(shown.values()), len(places))
        for source in sources(cell):
            kind, attack = (source, "") if source in EXPECTED and source != "attack" else ("attack", source)
            for seed in _seeds(cell, runs, kind, attack):
                run = tuple(str(cell[key]) for key in ("dataset", "model", "method", "arm"))
                found = runs.get((*run, str(seed), kind, attack))
                shared = {"place": place, **shown, "seed": seed, "source": source}
                rows += [shared | row for row in _metrics(found, kind)]
    tidy = pd.DataFrame(rows, columns=TIDY)
    return tidy.astype({"value": float, "n": "Int64", "ci_low": float, "ci_high": float, "missing": bool})


def _seeds(cell: Mapping[str, Any], runs: Mapping[tuple[str, ...], Any], kind: str, attack: str) -> list[Any]:
    """The cell's seed; where it names none, every seed that has a record."""
    if cell["seed"] is not None:
        return [cell["seed"]]
    own = tuple(str(cell[key]) for key in ("dataset", "model", "method", "arm"))
    return [run[4] for run in runs if run[:4] == own and run[5:] == (kind, attack)] or [None]


def _metrics(found: pd.DataFrame | None, kind: str) -> list[dict[str, Any]]:
    """Rows of one run: the expected metrics first, then whatever else its record has."""
    nothing = {"value": float("nan"), "n": None, "ci_low": float("nan"), "ci_high": float("nan"), "unit": ""}
    if found is None:
        return [{"metric": name} | nothing | {"missing": True} for name in EXPECTED[kind]]
    own = {
        row["metric"]: {key: (None if pd.isna(row[key]) else row[key]) for key in nothing}
        for row in found.to_dict("records")
    }
    names = [*EXPECTED[kind], *sorted(set(own) - set(EXPECTED[kind]))]
    return [{"metric": name} | own.get(name, nothing) | {"missing": False} for name in names]


def wilson_at(rate: float, n: int) -> tuple[float, float]:
    """95% Wilson interval at a mean rate, which need not be a whole number of ``n`` examples."""
    low, high = proportion_confint(rate * n, n, alpha=0.05, method="wilson")
    return max(0.0, min(float(low), rate)), min(1.0, max(float(high), rate))


def pool_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a place, source and metric: the mean over seeds; columns ``POOLED``.

    A rate's interval is Wilson's at the mean rate with the n of ONE seed (the smallest, where denominators differ by
    nature): seeds share their examples, so more seeds are no more examples. ``seeds`` were found of ``seeds_wanted``;
    ``seed_values`` lists each seed's value. ``missing`` is set where no seed has a value and a record is missing.
    """
    rows = [
        dict(zip(POINT, point, strict=True)) | _pool(group)
        for point, group in frame.groupby(POINT, sort=False, dropna=False)
    ]
    pooled = pd.DataFrame(rows, columns=POOLED)
    kinds = {"value": float, "n": "Int64", "ci_low": float, "ci_high": float, "missing": bool}
    return pooled.astype(kinds)  # type: ignore[arg-type]


def _pool(group: pd.DataFrame) -> dict[str, Any]:
    found = group[group["value"].notna()]
    seeds = {"seeds": len(found), "seeds_wanted": len(group)}
    if found.empty:
        empty = {"value": float("nan"), "n": None, "ci_low": float("nan"), "ci_high": float("nan"), "unit": ""}
        return empty | seeds | {"seed_values": "", "missing": bool(group["missing"].any())}
    if len(found) == 1:
        only = found.iloc[0]
        values = {key: only[key] for key in ("value", "n", "ci_low", "ci_high", "unit")}
        return values | seeds | {"seed_values": repr(float(only["value"])), "missing": False}
    values = {"value": float(found["value"].mean()), "n": _shared_n(found), "unit": found["unit"].iloc[0]}
    low, high = float("nan"), float("nan")
    if values["unit"] == "rate":
        low, high = wilson_at(values["value"], int(values["n"]))
    listed = ";".join(repr(float(value)) for value in found["value"])
    return values | {"ci_low": low, "ci_high": high} | seeds | {"seed_values": listed, "missing": False}


def _shared_n(found: pd.DataFrame) -> int | None:
    """The n of one seed; raises ``ValueError`` where seeds that share their examples were run on different numbers."""
    sizes = sorted({int(n) for n in found["n"].dropna()})
    first = found.iloc[0]
    if len(sizes) > 1 and first["unit"] == "rate" and first["metric"] not in OWN_DENOMINATOR:
        raise ValueError(
            f"{first['dataset']} {first['model']} {first['arm']}: seeds were evaluated on different numbers of "
            f"examples ({', '.join(map(str, sizes))}) in {first['source']} {first['metric']}; rerun the odd one"
        )
    return sizes[0] if sizes else None


def sizes(pooled: pd.DataFrame, titles: Mapping[str, str], metrics: Sequence[str] = ("asr", "accuracy")) -> str:
    """How many examples stand behind the rates shown, for captions: ``n = 100 (GCG), 22,253 (accuracy)``."""
    shown = pooled[pooled["metric"].isin(metrics) & pooled["n"].notna()]
    parts: dict[str, list[str]] = {}
    for source, group in shown.groupby("source", sort=False):
        counts = sorted({int(n) for n in group["n"]})
        text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        parts.setdefault(text, []).append(titles.get(str(source), str(source)))
    return "n = " + ", ".join(f"{n} ({', '.join(names)})" for n, names in parts.items()) if parts else "no runs yet"
