"""Table 5: the main model on EnronSpam and PasswordMatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import attack_table, rate_columns
from latreft.tables.render import Table

FILE = "table_pythia_other_datasets.csv"
PAPER_COLUMNS = {"accuracy": "accuracy", "random_token": "asr_random_token", "gcg": "asr_gcg"}


def build(context: Context) -> Table:
    """The table; its paper columns only at the paper scale."""
    numbers = paper.read(context, FILE) if paper.shown(context) else None

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        dataset, method = context.name("datasets", cell["dataset"]), context.name("methods", cell["method"])
        return {"Data set": dataset, "Method": method}

    def paper_value(cell: Mapping[str, Any], column: str) -> float:
        assert numbers is not None
        dataset = paper.names_of(context, "datasets", cell["dataset"])
        return paper.number(numbers, column, dataset=dataset, method=paper.METHODS.get(cell["method"], cell["method"]))

    models = sorted({context.name("models", cell["model"]) for cell in context.places})
    return attack_table(
        context, lead, rate_columns(context, PAPER_COLUMNS), paper_value, [f"Model: {', '.join(models)}."]
    )
