"""Rule script: attack one arm's examples and keep what happened to each."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from pathlib import Path
from typing import TYPE_CHECKING

from latreft.attacks.base import attack_metrics, write_outcomes
from latreft.attacks.registry import attack_settings
from latreft.attacks.run import run_attack
from latreft.cli import job_script
from latreft.data.prepared import load_split
from latreft.defenses.saved import load
from latreft.files import remove_with_empty_folders, sha256
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
    settings = attack_settings(params.settings, f"attack {params.attack}")
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job, job.precision():
        model, tokenizer, info = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        inputs = {name: sha256(snakemake.input[name]) for name in ("classifier", "defense", "data")}
        defended = load(snakemake.input.defense, model, classifier_sha256=inputs["classifier"])
        settle(defended.classifier)
        progress = job.progress(f"{params.attack} on {params.arm} ({params.model}, {params.dataset})", "example")
        outcomes = run_attack(
            job.engine,
            defended,
            tokenizer,
            load_split(snakemake.input.data, settings.split),
            params.attack,
            settings,
            params.max_length,
            params.seed,
            progress=progress.update,
            journal=params.journal,
            identity=[inputs, params.code],
        )
        write_outcomes(outcomes, snakemake.output.outcomes)
        write_record(
            RunRecord(
                kind="attack",
                scale=params.scale,
                dataset=params.dataset,
                model=model_info(params.model, info),
                method=params.method,
                arm=params.arm,
                seed=params.seed,
                attack=params.attack,
                settings=settings.model_dump(mode="json"),
                metrics=attack_metrics(outcomes),
                cost=job.cost()
                | {
                    "forwards": sum(outcome.forwards for outcome in outcomes),
                    "backwards": sum(outcome.backwards for outcome in outcomes),
                    "engine": job.engine.name,
                },
                provenance=job.provenance(params.code, inputs | {"outcomes": sha256(snakemake.output.outcomes)}),
            ),
            snakemake.output.record,
        )
        remove_with_empty_folders(Path(params.journal))


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
