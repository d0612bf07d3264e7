"""A plain table, for a target under ``extra``: any arms, one row each, with accuracy, attack success and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables.context import Context
from latreft.tables.layout import attack_table, cost_columns, cost_note, rate_columns
from latreft.tables.render import Table


def build(context: Context) -> Table:
    """The table of the cells, in the order in which ``config/experiments.yaml`` gives them."""

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        return {
            "Data set": context.name("datasets", cell["dataset"]),
            "Model": context.name("models", cell["model"]),
            "Arm": str(cell["label"]) if cell["label"] != cell["method"] else context.name("methods", cell["method"]),
        }

    return attack_table(context, lead, rate_columns(context, {}) + cost_columns(), notes=[cost_note(context)])
