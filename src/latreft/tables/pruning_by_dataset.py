"""Table 6: pruning ratio of the surrogate by data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import attack_table, rate_columns, significant
from latreft.tables.render import Table

FILE = "table_pruning_by_dataset.csv"
PAPER_COLUMNS = {"accuracy": "clean_accuracy", "gcg": "asr_gcg"}


def build(context: Context) -> Table:
    """The table; its paper columns only at the paper scale. A cell's label is its pruning ratio, a fraction."""
    numbers = paper.read(context, FILE) if paper.shown(context) else None

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        pruned = significant(100 * float(cell["label"]), 3)
        return {"Data set": context.name("datasets", cell["dataset"]), "Pruned %": pruned.removesuffix(".0")}

    def paper_value(cell: Mapping[str, Any], column: str) -> float:
        assert numbers is not None
        dataset = paper.names_of(context, "datasets", cell["dataset"])
        return paper.number(numbers, column, dataset=dataset, pruning_ratio_percent=100 * float(cell["label"]))

    models = sorted({context.name("models", cell["model"]) for cell in context.places})
    return attack_table(
        context, lead, rate_columns(context, PAPER_COLUMNS), paper_value, [f"Model: {', '.join(models)}."]
    )
