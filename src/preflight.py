"""Rule script: check what a scale needs before anything long begins."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from latreft.cli import job_script, say
from latreft.gpu import visible_cards
from latreft.plans import load_plans
from latreft.preflight import check

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``params``: scale, config (values of the command line). Prints a line for each thing missing, and fails then."""
    root = Path(snakemake.params.root)
    plan = load_plans(root, dict(snakemake.params.config))[snakemake.params.scale]
    faults = check(plan.scale, root, Path("results"), len(visible_cards()))
    for fault in faults:
        say(f"error: {fault}", snakemake.log[0])
    if faults:
        sys.exit(1)
    print(f"scale {plan.scale.name}: everything that it needs is here")


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
