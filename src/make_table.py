"""Rule script: one table from its run records, as CSV, Markdown and LaTeX."""

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.tables import table_builder
from latreft.tables.context import snakemake_context
from latreft.tables.render import write

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``params``: target, builder, title, scale, scale_title, cells, titles; ``input``: records (or manifests), paper."""
    context = snakemake_context(snakemake)
    table = table_builder(snakemake.params.builder)(context)
    write(table, snakemake.output.csv, snakemake.output.md, snakemake.output.tex)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
