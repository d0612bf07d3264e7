"""Rule script: the verdict on every claim of the paper, from records, as CSV, Markdown and LaTeX."""

from typing import TYPE_CHECKING

from latreft.claims.ledger import build
from latreft.claims.quantities import Measured
from latreft.claims.runs import read_runs
from latreft.claims.settings import ledger
from latreft.claims.verdict import judge
from latreft.cli import job_script
from latreft.tables.render import write

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: records, outcomes; ``params``: scale, caption, ledger, arms, costs, main_model, models, code."""
    params = snakemake.params
    claims = ledger(params.ledger, "config/claims.yaml")
    runs = read_runs(snakemake.input.records, snakemake.input.outcomes, params.scale)
    judged = judge(claims, Measured(runs, params.arms, params.costs, params.main_model, params.models))
    write(build(judged, params.scale, params.caption), snakemake.output.csv, snakemake.output.md, snakemake.output.tex)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
