"""CAT baseline [A.4]: continuous adversarial training, token embeddings perturbed, LoRA trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field

from latreft.defenses.base import AdversarialSettings, Trained, Training, clean_and_adversarial
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.adapter import add_lora, lora_weights, merged_adapters
from latreft.models.classifier import Classifier, parameter_count
from latreft.models.precision import settle
from latreft.models.quantisation import quantise_backbone, wants_four_bits
from latreft.training import Losses


class Settings(AdversarialSettings):
    """CAT [A.4]: LoRA r 16 α 32 on all linear layers, 4-bit backbone, ε 0.05 per token, 10 steps of 0.005."""

    lora_rank: Annotated[int, Field(ge=1)] = 16
    lora_alpha: Annotated[int, Field(ge=1)] = 32
    four_bit: Literal["auto", "always", "never"] = "auto"
    epsilon: Annotated[float, Field(gt=0)] = 0.05
    step_size: Annotated[float, Field(gt=0)] = 0.005
    steps: Annotated[int, Field(ge=1)] = 10
    norm: pgd.Norm = "l2_token"
    start: pgd.Start = "zero"
    lambda_adv: Annotated[float, Field(ge=0)] = 0.5
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    batch_size: Annotated[int, Field(ge=1)] = 8


def train(run: Training, settings: Settings) -> Trained:
    """Minimise L_clean + λ L_adv over LoRA and head; δ on the embeddings of every real token."""
    model, engine = run.classifier, run.engine
    four_bit = wants_four_bits(settings.four_bit, model.device)
    total_parameters = parameter_count(model)
    if four_bit:
        quantise_backbone(model)
    adapter = {"rank": settings.lora_rank, "alpha": settings.lora_alpha}
    add_lora(model, **adapter, seed=run.seed)
    merged = merged_adapters(model)
    settle(model)
    ball = pgd.Ball(settings.norm, settings.epsilon)
    batches = run.batches(settings)

    def attacked() -> Classifier:
        """What PGD runs on: the model, without adapters to run in each of its passes where that can be."""
        if merged is None:
            return model
        merged.refresh()
        return merged.classifier

    def losses_at(step: int) -> Iterator[Losses]:
        batch = batches.at(step)
        shape = torch.Size((len(batch), batch.length, model.width))
        start = ball.start(shape, settings.start, run.generator(step), model.head.weight)
        delta = engine.prepare(attacked(), batch, batch.length).ascend(
            Edits(), 0, None, start, batch.labels, ball, steps=settings.steps, step_size=settings.step_size
        )
        prepared = engine.prepare(model, batch, batch.length)
        return clean_and_adversarial(prepared, batch, 0, delta, settings.lambda_adv)

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    summary = run.fit(model, optimizer, losses_at, settings, batches)
    return Trained(
        kind="lora",
        weights=lora_weights(model),
        details=adapter | {"four_bit": four_bit, "parameters": total_parameters},
        summary=summary,
        trainable=sum(p.numel() for p in trained),
    )
