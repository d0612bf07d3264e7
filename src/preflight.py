"""Rule script: check what a scale needs before anything long begins."""

from pathlib import Path
from typing import TYPE_CHECKING

from latreft.cli import one_line_errors
from latreft.gpu import visible_cards
from latreft.plans import load_plans
from latreft.preflight import check

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@one_line_errors()
def main(snakemake: "Snakemake") -> None:
    """``params``: scale, config (values of the command line). Prints one line; fails where something is missing."""
    root = Path(snakemake.params.root)
    plan = load_plans(root, dict(snakemake.params.config))[snakemake.params.scale]
    check(plan.scale, root, Path("results"), len(visible_cards()))
    print(f"scale {plan.scale.name}: everything that it needs is here")


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
