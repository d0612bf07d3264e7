"""Rule script: one figure from its run records (heatmaps: from score files), as PDF and PNG."""

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.plots import figure_module
from latreft.plots.style import save
from latreft.tables.context import snakemake_context

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``params``: target, title, scale, scale_title, cells, titles; ``input``: records, for heatmaps also scores."""
    context = snakemake_context(snakemake)
    save(figure_module(context.target).draw(context), snakemake.output.pdf, snakemake.output.png)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
