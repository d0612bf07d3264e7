"""Rule script: check the theorems [Sec. 5, App. D] on random instances and on a clean classifier."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from typing import TYPE_CHECKING

from latreft.circuits.scores import load_scores
from latreft.cli import job_script
from latreft.data.prepared import drawn, load_split
from latreft.files import sha256
from latreft.job import start
from latreft.models.loading import load_classifier
from latreft.records import RunRecord, model_info, write_record
from latreft.theory.checks import check_all

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: classifier, data, scores; ``output``: record; ``params``: see theory.smk."""
    params, settings = snakemake.params, snakemake.params.settings
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job:
        model, tokenizer, info = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        rows = drawn(load_split(snakemake.input.data, "validation"), settings["examples"], settings["seed"])
        examples = tokenizer.examples(rows["id"], rows["text"], rows["label"], params.max_length)
        metrics = check_all(model, examples, load_scores(snakemake.input.scores), settings)
        for name in ("thm1_violations", "thm2_violations", "thm3_violations", "prop1_relative_error"):
            job.log(f"{name}: {metrics[name].value:.3g} (n = {metrics[name].n})")
        inputs = {name: sha256(snakemake.input[name]) for name in ("classifier", "data", "scores")}
        write_record(
            RunRecord(
                kind="theory",
                scale=params.scale,
                dataset=params.dataset,
                model=model_info(params.model, info),
                method="theory",
                arm="classifier",
                seed=settings["seed"],
                settings=dict(settings) | {"max_length": params.max_length},
                metrics=metrics,
                cost=job.cost(),
                provenance=job.provenance(params.code, inputs),
            ),
            snakemake.output.record,
        )


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
