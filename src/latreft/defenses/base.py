"""What every defense is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.batches import Batches, steps_of
from latreft.engine.interface import Engine, Prepared
from latreft.interventions.edits import Edits
from latreft.models.batch import Batch, Example
from latreft.models.classifier import Classifier
from latreft.models.tokenisation import TextTokenizer
from latreft.settings import Settings
from latreft.training import Checkpoint, Losses, Progress, Summary
from latreft.training import train as run_training

Kind = Literal["none", "reft", "lora", "full"]


class AdversarialSettings(Settings):
    """Settings that all adversarial trainings share. Not stated in the paper, except where a method says so."""

    examples: Annotated[int, Field(ge=1)] = 5000
    epochs: Annotated[float, Field(gt=0)] = 3
    batch_size: Annotated[int, Field(ge=1)] = 32
    group_by_length: bool = False
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = 1.0
    lambda_adv: Annotated[float, Field(ge=0)] = 1.0


@dataclass
class Training:
    """One arm's training: what is trained on what, by which engine, with which seed.

    ``classifier`` is the clean fine-tuned classifier, all weights frozen; the method unfreezes what it trains.
    ``scores`` are the neuron scores [layers, neurons] by rule.
    """

    engine: Engine
    classifier: Classifier
    tokenizer: TextTokenizer
    examples: Sequence[Example]
    scores: dict[str, Tensor]
    seed: int
    max_length: int
    checkpoint: Checkpoint | None = None
    progress: Progress | None = None
    log: Callable[[str], None] = print

    def batches(self, settings: AdversarialSettings) -> Batches:
        """Batches of the first ``settings.examples`` examples, shuffled by the arm's seed."""
        examples = self.examples[: settings.examples]
        return Batches(examples, settings.batch_size, self.seed, self.classifier.device, settings.group_by_length)

    def steps(self, settings: AdversarialSettings) -> int:
        """Optimiser steps of the whole training."""
        return steps_of(min(settings.examples, len(self.examples)), settings.batch_size, settings.epochs)

    def fit(
        self,
        trained: nn.Module,
        optimizer: torch.optim.Optimizer,
        losses_at: Callable[[int], Losses | Iterator[Losses]],
        settings: AdversarialSettings,
        batches: Batches,
    ) -> Summary:
        """Descend on ``losses_at`` for the whole training, resumably; see :func:`latreft.training.train`."""
        return run_training(
            trained,
            optimizer,
            losses_at,
            self.steps(settings),
            checkpoint=self.checkpoint,
            progress=self.progress,
            max_gradient_norm=settings.max_gradient_norm,
            names_at=batches.names,
        )

    def generator(self, step: int) -> torch.Generator:
        """Random numbers of one step, on the CPU: the same on every device, and after a resume."""
        return torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + step)


@dataclass(frozen=True)
class Trained:
    """What was trained, in the form in which it is saved; never a copy of what was not trained.

    ``kind`` says how to load it, ``details`` holds what loading needs besides the weights.
    """

    kind: Kind
    weights: dict[str, Tensor]
    details: dict[str, Any]
    summary: Summary | None
    trainable: int
    surrogate_parameters: int | None = None
    search_flops_per_token: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def flops_per_token(self) -> float | None:
        """Counted FLOPs a trained token: the first step's, and a share of what searching for examples cost."""
        if self.summary is None:
            return None
        return self.summary.flops / self.summary.flop_tokens + self.search_flops_per_token


def clean_and_adversarial(
    prepared: Prepared, batch: Batch, layer: int, delta: Tensor, lambda_adv: float
) -> Iterator[Losses]:
    """L_clean, then λ L_adv of the texts perturbed by ``delta`` at ``layer``, in full passes; tokens count once.

    The clean pass is that of a perturbation of 0: where passes are captured, one graph serves both.
    """

    def loss_of(name: str, perturbation: Tensor, weight: float, tokens: int) -> Losses:
        (logits,) = prepared.training_logits(Edits().perturbed(layer, perturbation))
        loss = F.cross_entropy(logits, batch.labels)
        return Losses(weight * loss, tokens, {name: loss.item()})

    yield loss_of("clean", torch.zeros_like(delta), 1.0, batch.tokens.numel())
    yield loss_of("adversarial", delta, lambda_adv, 0)
