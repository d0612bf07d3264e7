"""Rule script: bring one base model to disk (hub, GGUF or random weights) and publish its manifest."""

from typing import TYPE_CHECKING

from latreft.cli import job_script
from latreft.data.prepared import load_split
from latreft.models.loading import make_base
from latreft.models.shape import check_shape

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@job_script
def main(snakemake: "Snakemake") -> None:
    """``params``: model (its name), settings (plain values); ``input.data``: manifests that a tokenizer learns from."""
    model, settings = snakemake.params.model, snakemake.params.settings
    if settings["source"]["kind"] == "random":
        check_shape(settings["family"], settings["source"]["shape"], f"config/models.yaml: {model}.source.shape")
    texts = [text for manifest in snakemake.input.data for text in load_split(manifest, "ft_train")["text"]]
    make_base(model, settings, texts, snakemake.output.manifest)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
