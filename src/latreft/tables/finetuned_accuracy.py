"""Table 3: validation accuracy of the clean classifiers, data sets by models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import Column, caption, machine, points_of, rate, reported, text_of
from latreft.tables.render import NONE, Table

FILE = "table_finetuned_accuracy.csv"
ACCURACY = Column("Accuracy", "finetune", "accuracy", rate, "validation_accuracy_percent", 0.01)


def build(context: Context) -> Table:
    """The table: every data set and model that has a title, or those of the cells if there are any."""
    if not context.cells:
        titles = (context.titles.get(kind, {}) for kind in ("datasets", "models"))
        context = replace(context, cells=[{"dataset": d, "model": m} for d, m in product(*titles)])
    numbers = paper.read(context, FILE) if paper.shown(context) else None

    def paper_value(cell: Mapping[str, Any], column: str) -> float:
        assert numbers is not None
        dataset, model = (paper.names_of(context, f"{kind}s", cell[kind]) for kind in ("dataset", "model"))
        return paper.number(numbers, column, dataset=dataset, model=model)

    points = points_of(context)
    rows: dict[str, dict[str, str]] = {}
    for place, cell in enumerate(context.places):
        dataset, model = context.name("datasets", cell["dataset"]), context.name("models", cell["model"])
        row = rows.setdefault(dataset, {"Data set": dataset})
        row[model] = text_of(points.get((place, "finetune", "accuracy")), rate)
        if numbers is not None:
            row[f"paper: {model}"] = reported(paper_value(cell, ACCURACY.paper) * ACCURACY.factor, rate)
    display = pd.DataFrame(rows.values()).fillna(NONE)
    ours = [name for name in display.columns if not name.startswith("paper: ")]
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=caption(context),
        frame=machine(context, [ACCURACY], paper_value),
        display=display[ours + [name for name in display.columns if name not in ours]],
        notes=[paper.NOTE] if numbers is not None else [],
    )
