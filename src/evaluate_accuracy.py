"""Rule script: clean accuracy of one arm on the validation split."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.defenses.saved import load
from latreft.evaluation import accuracy, write_outcomes
from latreft.files import sha256
from latreft.job import start
from latreft.models.loading import load_classifier
from latreft.models.precision import settle
from latreft.records import RunRecord, model_info, write_record

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: classifier, defense, data; ``output``: record, outcomes; ``params``: see attack.smk."""
    params = snakemake.params
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job, job.precision():
        model, tokenizer, info = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        inputs = {name: sha256(snakemake.input[name]) for name in ("classifier", "defense", "data")}
        defended = load(snakemake.input.defense, model, classifier_sha256=inputs["classifier"])
        settle(defended.classifier)
        result = accuracy(job, defended, tokenizer, snakemake.input.data, params.settings)
        write_outcomes(result.outcomes, snakemake.output.outcomes)
        write_record(
            RunRecord(
                kind="accuracy",
                scale=params.scale,
                dataset=params.dataset,
                model=model_info(params.model, info),
                method=params.method,
                arm=params.arm,
                seed=params.seed,
                settings=dict(params.settings),
                metrics=result.metrics,
                cost=job.cost(),
                provenance=job.provenance(params.code, inputs | {"outcomes": sha256(snakemake.output.outcomes)}),
            ),
            snakemake.output.record,
        )


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
