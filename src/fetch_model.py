"""Rule script: bring one base model to disk (hub, GGUF or random weights) and publish its manifest."""

from typing import TYPE_CHECKING

from latreft.cli import one_line_errors
from latreft.data.prepared import load_split
from latreft.models.loading import make_base

if TYPE_CHECKING:
    from snakemake.iocontainers import Snakemake


@one_line_errors()
def main(snakemake: "Snakemake") -> None:
    """``params``: model (its name), settings (plain values); ``input.data``: manifests that a tokenizer learns from."""
    texts = [text for manifest in snakemake.input.data for text in load_split(manifest, "ft_train")["text"]]
    make_base(snakemake.params.model, snakemake.params.settings, texts, snakemake.output.manifest)


main(snakemake)  # type: ignore[name-defined]  # noqa: F821
