"""Rule script: every record of a scale in one file, one row a metric."""

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.files import write_text
from latreft.records import long_form
from latreft.tables.context import read_records

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input.records``: record files; ``output.csv``: the long form."""
    frame = long_form(read_records(snakemake.input.records))
    write_text(snakemake.output.csv, frame.to_csv(index=False, lineterminator="\n"))


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
