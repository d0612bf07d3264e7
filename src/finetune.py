"""Rule script: fine-tune a base model into the clean classifier of one data set [A.1]."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from latreft.batches import Batches, steps_of
from latreft.cli import job_script
from latreft.data.prepared import load_split
from latreft.files import fingerprint, sha256
from latreft.interventions.edits import Edits
from latreft.job import start
from latreft.models.classifier import Classifier, parameter_count
from latreft.models.loading import load_base, save_classifier
from latreft.models.tokenisation import TextTokenizer
from latreft.records import Metric, ModelInfo, RunRecord, write_record
from latreft.training import Checkpoint, Losses, linear_decay, train

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: base, data (manifests); ``output``: manifest, head, weights, record; ``params``: see train.smk."""
    params, settings = snakemake.params, snakemake.params.settings
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job:
        torch.manual_seed(settings["seed"])
        base, hf_tokenizer, family, revision = load_base(snakemake.input.base, params.dtype, params.layers)
        model = Classifier(base, family)
        model.initialise_head(settings["seed"])
        model.to(job.device).requires_grad_(True)
        tokenizer = TextTokenizer(hf_tokenizer)
        rows = load_split(snakemake.input.data, "ft_train")
        examples = tokenizer.examples(rows["id"], rows["text"], rows["label"], params.max_length)
        size, seed = settings["batch_size"], settings["seed"]
        batches = Batches(examples, size, seed, job.device, settings["group_by_length"])
        inputs = {"base": sha256(snakemake.input.base), "data": sha256(snakemake.input.data)}

        def losses_at(step: int) -> Losses:
            batch = batches.at(step)
            (logits,) = job.engine.prepare(model, batch, 1).training_logits(Edits())
            return Losses(F.cross_entropy(logits, batch.labels), batch.tokens.numel())

        accumulate = settings["accumulate"]
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
        )
        checkpoint = Checkpoint(
            Path(params.checkpoint),
            fingerprint([settings, inputs, params.code, params.max_length, job.runtime.autocast]),
            params.execution["checkpoint_seconds"],
            job.log,
        )
        label = f"fine-tune {params.model} on {params.dataset}"
        with job.precision():
            summary = train(
                model,
                optimizer,
                losses_at,
                steps_of(len(examples), settings["batch_size"] * accumulate, settings["epochs"]),
                checkpoint=checkpoint,
                progress=job.progress(label, "step"),
                schedule=linear_decay,
                max_gradient_norm=settings["max_gradient_norm"],
                accumulate=accumulate,
                names_at=batches.names,
            )
        stored = {"name": params.model, "revision": revision, "dtype": settings["saved_as"]}
        save_classifier(model, hf_tokenizer, snakemake.output.manifest, **stored)
        count = parameter_count(model)
        write_record(
            RunRecord(
                kind="finetune",
                scale=params.scale,
                dataset=params.dataset,
                model=ModelInfo(name=params.model, family=family.name, revision=revision, parameters=count),
                method="finetune",
                arm="classifier",
                seed=settings["seed"],
                settings=dict(settings),
                metrics={"final_loss": Metric(value=summary.history[-1]["loss"], unit="nats")},
                cost=job.cost()
                | {
                    "training_seconds": round(summary.seconds, 3),
                    "trainable_parameters": count,
                    "flops_per_token": summary.flops / summary.flop_tokens,
                },
                provenance=job.provenance(params.code, inputs),
            ),
            snakemake.output.record,
        )
        checkpoint.remove()


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
