"""Section B.3: an attack in front of the text, on a defense of the window at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import attack_table, rate_columns
from latreft.tables.render import Table

FILE = "figure_values.csv"
COLUMN = "y"


def build(context: Context) -> Table:
    """The table. The paper prints one number, of its own method; it is shown at the paper scale only."""
    numbers = paper.read(context, FILE) if paper.shown(context) else None

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        return {"Method": context.name("methods", cell["method"])}

    def paper_value(cell: Mapping[str, Any], column: str) -> float:
        assert numbers is not None
        if cell["method"] != "lat_reft":
            return float("nan")
        return paper.number(numbers, column, figure_id="text_prefix_attack")

    models = sorted({context.name("models", cell["model"]) for cell in context.places})
    datasets = sorted({context.name("datasets", cell["dataset"]) for cell in context.places})
    notes = [
        f"Model: {', '.join(models)}. Data set: {', '.join(datasets)}. GCG's tokens stand behind the text, Prefix GCG's in front."
    ]
    if paper.shown(context):
        notes.append("The paper does not name the data set of its number.")
    return attack_table(context, lead, rate_columns(context, {"prefix_gcg": COLUMN}), paper_value, notes)
