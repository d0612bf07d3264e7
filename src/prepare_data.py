"""Rule script: fetch or generate one data set, clean it, draw its splits, publish them with a manifest."""

from pathlib import Path
from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.data.prepare import prepare
from latreft.data.settings import DatasetSettings
from latreft.settings import validate

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``params``: dataset (its name), settings (plain values); ``output``: manifest, the splits go beside it."""
    name = snakemake.params.dataset
    settings = validate(DatasetSettings, snakemake.params.settings, where=f"data set '{name}'")
    prepare(name, settings, out_dir=Path(snakemake.output.manifest).parent, root=Path.cwd())


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
