"""Table 1: every method on IMDB, its clean accuracy, attack success rates, trained share and training cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latreft.tables import paper
from latreft.tables.context import Context
from latreft.tables.layout import attack_table, cost_columns, rate_columns
from latreft.tables.render import Table

FILE = "table_main_imdb.csv"
PAPER_COLUMNS = {"accuracy": "accuracy", "random_token": "asr_random_token", "gcg": "asr_gcg"}
COST_NOTE = (
    "TFLOP are per training example of 512 tokens, by three ledgers: the paper's formulas (App. E), one rule for every "
    "method alike, and the operators counted while it ran"
)


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

    return attack_table(context, lead, columns, paper_value, [f"{COST_NOTE}{engine_words(context)}."])


def engine_words(context: Context) -> str:
    """The engine whose operators were counted: one that reuses prefixes runs fewer."""
    runtimes = (record.provenance.get("runtime", {}) for record in context.records if record.kind == "train")
    engines = sorted({runtime["engine"] for runtime in runtimes if "engine" in runtime})
    return f", by the engine {' and '.join(engines)}" if engines else ""
