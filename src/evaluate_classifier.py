"""Rule script: accuracy of one clean classifier on the validation split, added to the record of its fine-tuning."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.engine.interface import Defended
from latreft.evaluation import accuracy, write_outcomes
from latreft.files import sha256
from latreft.job import start
from latreft.models.loading import load_classifier
from latreft.models.precision import settle
from latreft.records import read_record, write_record

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: classifier, training (its record), data; ``output``: record, outcomes; ``params``: see attack.smk."""
    params = snakemake.params
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job, job.precision():
        model, tokenizer, _ = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        settle(model)
        result = accuracy(job, Defended(model), tokenizer, snakemake.input.data, params.settings)
        write_outcomes(result.outcomes, snakemake.output.outcomes)
        trained = read_record(snakemake.input.training)
        changes = {
            "metrics": trained.metrics | result.metrics,
            "provenance": trained.provenance
            | {"evaluation": {"code": params.code, "outcomes": sha256(snakemake.output.outcomes)}},
        }
        write_record(trained.model_copy(update=changes), snakemake.output.record)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
