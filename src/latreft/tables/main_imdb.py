"""Table 1: every method on IMDB, its clean accuracy, attack success rates, trained share and training cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import attack_table, cost_columns, cost_note, rate_columns
from latreft.tables.render import Table

FILE = "table_main_imdb.csv"
PAPER_COLUMNS = {"accuracy": "accuracy", "random_token": "asr_random_token", "gcg": "asr_gcg"}


def build(context: Context) -> Table:
    """The table; its paper columns only at the paper scale."""
    columns = rate_columns(context, PAPER_COLUMNS) + cost_columns("tflops_per_step")
    numbers = paper.read(context, FILE) if paper.shown(context) else None

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        return {"Model": context.name("models", cell["model"]), "Method": context.name("methods", cell["method"])}

    def paper_value(cell: Mapping[str, Any], column: str) -> float:
        assert numbers is not None
        method = paper.METHODS.get(cell["method"], cell["method"])
        return paper.number(numbers, column, model=paper.names_of(context, "models", cell["model"]), method=method)

    return attack_table(context, lead, columns, paper_value, [cost_note(context)])
