"""Rule script: score every MLP neuron of a clean classifier [Eq. 3, Eq. 8], and the neurons kept at 25% pruning."""

from latreft.warm import warm_start

warm_start(snakemake)  # type: ignore[name-defined]  # noqa: F821

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from latreft.circuits.allocation import keep_mask
from latreft.circuits.scores import neuron_scores
from latreft.cli import job_script
from latreft.data.prepared import drawn, load_split
from latreft.files import atomic, sha256, write_json
from latreft.job import start
from latreft.models.loading import load_classifier
from latreft.records import Metric, RunRecord, model_info, write_record

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``input``: classifier, data; ``output``: manifest, scores, record; ``params``: see circuits.smk."""
    params, settings = snakemake.params, snakemake.params.settings
    with start(params.runtime, snakemake.log[0], params.execution["jobs_per_gpu"]) as job:
        model, tokenizer, info = load_classifier(snakemake.input.classifier, job.device, params.dtype)
        rows = drawn(load_split(snakemake.input.data, "ft_train"), settings["calibration"], settings["seed"])
        examples = tokenizer.examples(rows["id"], rows["text"], rows["label"], params.max_length)
        progress = job.progress(f"score {params.model} on {params.dataset}", "example")
        done = [0]

        def advance(count: int) -> None:
            done[0] += count
            progress.update(done[0], len(examples))

        with job.precision():
            scores = neuron_scores(model, examples, settings["batch_size"], advance)
        ratio = params.heatmap_ratio
        kept = {f"keep_{rule}": keep_mask(rule, scores, ratio, 0).to(torch.uint8) for rule in ("act_grad", "act_diff")}
        with atomic(snakemake.output.scores) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in (scores | kept).items()}, temporary)
        write_json(
            snakemake.output.manifest, {"files": {Path(snakemake.output.scores).name: sha256(snakemake.output.scores)}}
        )
        shares = {
            f"{name}_layer_{layer + 1}": Metric(value=share, unit="share")
            for name, mask in kept.items()
            for layer, share in enumerate(mask.float().mean(dim=1).tolist())
        }
        inputs = {"classifier": sha256(snakemake.input.classifier), "data": sha256(snakemake.input.data)}
        write_record(
            RunRecord(
                kind="scores",
                scale=params.scale,
                dataset=params.dataset,
                model=model_info(params.model, info),
                method="scores",
                arm="classifier",
                seed=settings["seed"],
                settings=dict(settings) | {"heatmap_ratio": ratio, "neurons": list(scores["act_grad"].shape)},
                metrics=shares,
                cost=job.cost(),
                provenance=job.provenance(params.code, inputs),
            ),
            snakemake.output.record,
        )


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
