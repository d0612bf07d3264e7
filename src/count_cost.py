"""Rule script: what one training step of an arm costs, by the paper's formulas, by one uniform rule, and as counted."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.cost.ledgers import ledgers
from latreft.cost.paper import NORMAL_TOKENS
from latreft.cost.shapes import from_config
from latreft.files import check_manifest, read_json, sha256
from latreft.records import RunRecord, read_record, write_record

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: record (of the training), classifier; ``output``: record; ``params``: code, config (its file)."""
    trained, config = read_record(snakemake.input.record), Path(snakemake.params.config)
    check_manifest(snakemake.input.classifier, config.name)
    counted = trained.cost.get("flops_per_token")
    costs = ledgers(
        trained.method,
        from_config(SimpleNamespace(**read_json(config))),
        settings=trained.settings,
        trainable=trained.cost["trainable_parameters"],
        surrogate_parameters=trained.cost.get("surrogate_parameters"),
        measured_flops_per_example=None if counted is None else counted * NORMAL_TOKENS,
    )
    if trained.cost.get("surrogate_parameters") is not None:
        costs["surrogate_parameters"] = trained.cost["surrogate_parameters"]
    record = trained.model_dump() | {"kind": "cost", "metrics": {}, "cost": costs}
    record["provenance"] = {"code": snakemake.params.code, "inputs": {"record": sha256(snakemake.input.record)}}
    write_record(RunRecord.model_validate(record), snakemake.output.record)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
