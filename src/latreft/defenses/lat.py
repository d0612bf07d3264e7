"""LAT baseline [Eq. 1, A.4]: latent adversarial training of all weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field

from latreft.defenses.base import AdversarialSettings, Trained, Training, clean_and_adversarial
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.classifier import parameter_count
from latreft.training import Losses


class Settings(AdversarialSettings):
    """LAT [A.4]: ℓ2 ball over the window, normalised gradient, random start, α = ε/5, 8 steps."""

    attack_layer: int
    window: Annotated[int, Field(ge=1)] = 20
    epsilon: Annotated[float, Field(gt=0)]
    steps: Annotated[int, Field(ge=1)] = 8
    step_share: Annotated[float, Field(gt=0)] = 0.2
    norm: pgd.Norm = "l2_window"
    start: pgd.Start = "random"
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5


def train(run: Training, settings: Settings) -> Trained:
    """Minimise L_clean + λ L_adv over all weights, δ found by PGD on the model of the current step."""
    model, engine = run.classifier, run.engine
    model.requires_grad_(True)
    ball = pgd.Ball(settings.norm, settings.epsilon)
    batches = run.batches(settings)

    def losses_at(step: int) -> Iterator[Losses]:
        batch = batches.at(step)
        prepared = engine.prepare(model, batch, settings.window)
        shape = torch.Size((len(batch), prepared.mask.shape[1], model.width))
        start = ball.start(shape, settings.start, run.generator(step), model.head.weight)
        delta = prepared.ascend(
            Edits(),
            settings.attack_layer,
            None,
            start,
            batch.labels,
            ball,
            steps=settings.steps,
            step_size=settings.step_share * settings.epsilon,
        )
        return clean_and_adversarial(prepared, batch, settings.attack_layer, delta, settings.lambda_adv)

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    summary = run.fit(model, optimizer, losses_at, settings, batches)
    return Trained("full", full_weights(model), {}, summary, parameter_count(model))


def full_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters of a model, on the CPU."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}
