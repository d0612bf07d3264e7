"""Rule script: train one arm and publish its weights, its manifest and its record."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from latreft.circuits.scores import load_scores
from latreft.cli import job_script
from latreft.data.prepared import load_split
from latreft.defenses.base import Training
from latreft.defenses.registry import defense_module
from latreft.defenses.saved import checked, save
from latreft.files import fingerprint, sha256
from latreft.job import start
from latreft.models.loading import load_classifier
from latreft.records import Metric, RunRecord, model_info, write_record
from latreft.settings import validate
from latreft.training import Checkpoint

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: classifier, data, scores; ``output``: manifest, weights, record; ``params``: see train.smk."""
    params = snakemake.params
    method = defense_module(params.method, params.arm)
    settings = validate(method.Settings, params.settings, f"{params.arm}: settings")
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job:
        torch.manual_seed(params.seed)
        model, tokenizer, info = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        rows = load_split(snakemake.input.data, "ft_train").iloc[: getattr(settings, "examples", None)]
        inputs = {
            "classifier": sha256(snakemake.input.classifier),
            "data": sha256(snakemake.input.data),
            "scores": sha256(snakemake.input.scores),
        }
        identity = [params.settings, params.seed, inputs, params.code, params.max_length, dict(params.runtime)]
        every_seconds = params.execution["checkpoint_seconds"]
        checkpoint = Checkpoint(Path(params.checkpoint), fingerprint(identity), every_seconds, job.log)
        run = Training(
            engine=job.engine,
            classifier=model,
            tokenizer=tokenizer,
            examples=tokenizer.examples(rows["id"], rows["text"], rows["label"], params.max_length),
            scores=load_scores(snakemake.input.scores),
            seed=params.seed,
            max_length=params.max_length,
            checkpoint=checkpoint,
            progress=job.progress(f"{params.arm} ({params.model}, {params.dataset}, seed {params.seed})", "step"),
            log=job.log,
        )
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        with job.precision():
            returned = method.train(run, settings)
        trained = checked(returned, model, shapes, f"src/latreft/defenses/{params.method}.py: train")
        save(trained, snakemake.output.manifest, classifier_sha256=inputs["classifier"])
        metrics = {name: Metric(value=value, unit="value") for name, value in trained.metrics.items()}
        if trained.summary is not None:
            last = trained.summary.history[-1]
            metrics |= {f"final_{name}": Metric(value=v, unit="nats") for name, v in last.items() if name != "step"}
            metrics["steps"] = Metric(value=trained.summary.steps, unit="steps")
        write_record(
            RunRecord(
                kind="train",
                scale=params.scale,
                dataset=params.dataset,
                model=model_info(params.model, info),
                method=params.method,
                arm=params.arm,
                seed=params.seed,
                settings=settings.model_dump(mode="json"),
                metrics=metrics,
                cost=job.cost()
                | {
                    "training_seconds": 0.0 if trained.summary is None else round(trained.summary.seconds, 3),
                    "trainable_parameters": trained.trainable,
                    "surrogate_parameters": trained.surrogate_parameters,
                    "flops_per_token": trained.flops_per_token,
                    "engine": job.engine.name,
                },
                provenance=job.provenance(params.code, inputs),
            ),
            snakemake.output.record,
        )
        checkpoint.remove()


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
