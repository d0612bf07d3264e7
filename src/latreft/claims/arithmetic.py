"""What needs no run: FLOPs and parameter counts, from published shapes and the paper scale's settings.

The paper's formulas are those of Appendix E; the uniform rule charges every method for the same things
(:mod:`latreft.cost`). FLOPs are of one normalised training example of 512 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from latreft.cost.ledgers import ledgers
from latreft.cost.shapes import PUBLIC_SHAPES, ModelShape

OURS = "lat_reft"
OTHERS = ("r2d2", "lat", "cat")
TERA = 1e12


@dataclass(frozen=True)
class PaperModel:
    """A model of the paper scale: its published shape, and each method's settings there."""

    shape: ModelShape
    methods: Mapping[str, Mapping[str, Any]]

    def trained(self, method: str) -> int:
        """Parameters that a method trains; CAT's head too."""
        if method == OURS:
            return self.shape.reft_parameters(self.methods[OURS]["rank"])
        if method == "cat":
            return self.shape.lora_parameters(self.methods["cat"]["lora_rank"]) + self.shape.head_parameters
        return self.shape.parameters

    def flops(self, method: str, ledger: str, **changes: Any) -> float:
        """FLOPs of a training example by a ledger, with settings that differ from the scale's."""
        settings = {**self.methods.get(method, {}), **changes}
        row = ledgers(method, self.shape, settings=settings, trainable=self.trained(method))
        value = row[f"{ledger}_flops_per_example"]
        assert value is not None
        return value

    def inner_loop(self, method: str, ledger: str, **changes: Any) -> float:
        """The part of the FLOPs that grows with the PGD steps."""
        return self.flops(method, ledger, **changes) - self.flops(method, ledger, **changes, steps=0)


def paper_model(title: str, methods: Mapping[str, Mapping[str, Any]]) -> PaperModel:
    """The model called ``title``; one without a published shape is a ``ValueError``."""
    if title not in PUBLIC_SHAPES:
        raise ValueError(f"{title} has no published shape; cost/shapes.py has {', '.join(sorted(PUBLIC_SHAPES))}")
    return PaperModel(PUBLIC_SHAPES[title], methods)


# --- the questions, each of one model and ledger ---


def tflops(model: PaperModel, ledger: str, **changes: Any) -> float:
    """TFLOPs of a training example of ours [Table 1]."""
    return model.flops(OURS, ledger, **changes) / TERA


def tflops_over_cheapest(model: PaperModel, ledger: str, **changes: Any) -> float:
    """Ours minus the cheapest other defense, in TFLOPs [Table 1]."""
    others = min(model.flops(method, ledger) for method in OTHERS)
    return (model.flops(OURS, ledger, **changes) - others) / TERA


def saving_against_lat(model: PaperModel, ledger: str, **changes: Any) -> float:
    """Percent of LAT's FLOPs that ours does not need [Sec. 6.2]."""
    return 100 * (1 - model.flops(OURS, ledger, **changes) / model.flops("lat", ledger))


def pgd_share_of_lat(model: PaperModel, ledger: str) -> float:
    """Percent of LAT's FLOPs that PGD takes [Sec. 1]."""
    return 100 * model.inner_loop("lat", ledger) / model.flops("lat", ledger)


def inner_loop_cut(model: PaperModel, ledger: str, **changes: Any) -> float:
    """Percent of the inner loop's FLOPs that pruning saves [Sec. 1]."""
    whole = model.inner_loop(OURS, ledger, pruning_ratio=0)
    return 100 * (1 - model.inner_loop(OURS, ledger, **changes) / whole)


def pruned_ratio(model: PaperModel, ledger: str, **changes: Any) -> float:
    """FLOPs of ours over those without pruning [Sec. 6.4]."""
    return model.flops(OURS, ledger, **changes) / model.flops(OURS, ledger, pruning_ratio=0)


def training_share_of_r2d2(model: PaperModel, ledger: str) -> float:
    """Percent of R2D2's FLOPs that are training and not search [A.4]."""
    return 100 * model.flops("finetune", ledger) / model.flops("r2d2", ledger)


def trained_share(model: PaperModel, ledger: str) -> float:
    """Percent of the classifier's parameters that ours trains [Table 1]."""
    return 100 * model.trained(OURS) / model.shape.parameters


def lora_share(model: PaperModel, ledger: str) -> float:
    """CAT's adapters in percent of the classifier's parameters [App. E]."""
    return 100 * model.shape.lora_parameters(model.methods["cat"]["lora_rank"]) / model.shape.parameters


def mlp_share(model: PaperModel, ledger: str) -> float:
    """Share of the classifier's parameters that lie in MLP blocks [Sec. 4.2]."""
    return model.shape.mlp_share


QUESTIONS: dict[str, Callable[..., float]] = {
    question.__name__: question
    for question in (
        tflops, tflops_over_cheapest, saving_against_lat, pgd_share_of_lat, inner_loop_cut, pruned_ratio,
        training_share_of_r2d2, trained_share, lora_share, mlp_share,
    )
}  # fmt: skip
"""What can be asked, by name."""
PRUNABLE = {"tflops", "tflops_over_cheapest", "saving_against_lat", "inner_loop_cut", "pruned_ratio"}
"""Questions that depend on the pruning ratio."""
COUNTS = {"trained_share", "lora_share", "mlp_share"}
"""Questions about parameters: every ledger answers them alike."""
ACROSS: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "smallest": min, "largest": max}
"""How the values of several models become one."""
