"""Table 2: how many texts each data set has before and after filtering, and in each split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from latreft.files import read_json
from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.render import NONE, Table

FILE = "table_dataset_stats.csv"
COLUMNS = {
    "train_raw": "Train raw",
    "train_distinct": "Train distinct",
    "train_filtered": "Train filtered",
    "ft_train": "Fine-tuning",
    "attack": "Attack",
    "tuning": "Tuning",
    "validation_raw": "Val. raw",
    "validation_distinct": "Val. distinct",
    "validation_filtered": "Val. filtered",
    "validation": "Evaluated",
}
PAPER_COLUMNS = {
    "train_raw": "train_raw", "train_filtered": "train_filtered", "ft_train": "ft_train", "attack": "attack",
    "validation_raw": "val_raw", "validation_filtered": "val_filtered",
}  # fmt: skip
NOTE = (
    "Distinct: usable texts, one copy each. Filtered: of those, the texts within the length bounds, and in training "
    "none that validation has too. A data set without validation texts sets some of its training texts aside."
)


def build(context: Context) -> Table:
    """The table, one row a data manifest, in the order given. Counts are texts."""
    manifests = [_manifest(path) for path in context.manifests]
    frame = pd.DataFrame([_counts(manifest) for manifest in manifests], columns=["dataset", "seed", *COLUMNS])
    frame = frame.astype(dict.fromkeys(["seed", *COLUMNS], "Int64"))
    rows = []
    for counts in frame.to_dict("records"):
        row = {"Data set": context.name("datasets", counts["dataset"])}
        rows.append(row | {title: _text(counts[key]) for key, title in COLUMNS.items()})
    display = pd.DataFrame(rows, columns=["Data set", *COLUMNS.values()])
    frame.insert(0, "scale", context.scale)
    if paper.shown(context):
        frame, display = _with_paper(context, frame, display)
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=f"{context.title}. {context.scale_words}. Numbers of texts.",
        frame=frame,
        display=display,
        notes=[NOTE, *([paper.NOTE] if paper.shown(context) else [])],
    )


def _manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = read_json(path)
    absent = sorted({"name", "origin", "splits"} - set(manifest))
    if absent:
        raise ValueError(f"{path} is not a data manifest: {', '.join(absent)} missing")
    return manifest


def _counts(manifest: dict[str, Any]) -> dict[str, Any]:
    """One row of raw numbers; what a data set does not have stays empty."""
    origin, splits = manifest["origin"], manifest["splits"]
    counts = {"dataset": manifest["name"], "seed": manifest.get("seed")}
    for split in ("train", "validation"):
        counts |= {f"{split}_{key}": origin.get(split, {}).get(key) for key in ("raw", "distinct", "filtered")}
    drawn = ("ft_train", "attack", "tuning", "validation")
    return counts | {split: splits.get(split, {}).get("rows") for split in drawn}


def _text(count: Any) -> str:
    return NONE if pd.isna(count) else f"{int(count):,}"


def _with_paper(context: Context, frame: pd.DataFrame, display: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    numbers = paper.read(context, FILE)
    names = [paper.names_of(context, "datasets", dataset) for dataset in frame["dataset"]]
    for key, column in PAPER_COLUMNS.items():
        values = pd.array([paper.number(numbers, column, dataset=name) for name in names]).astype("Int64")
        frame = frame.assign(**{f"paper_{key}": values})
        display = display.assign(**{f"paper: {COLUMNS[key]}": [_text(value) for value in values]})
    return frame, display
