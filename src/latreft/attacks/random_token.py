"""RandomToken [A.5]: draw all N tokens anew until the prediction flips, else keep those of the highest loss."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from latreft.attacks.base import AttackSettings, Encode, Found, Survives, highest, predictions
from latreft.engine.interface import TokenSearch


class Settings(AttackSettings):
    """The paper's strength: up to 500 draws, stopped at the first flip."""

    kind: Literal["random_token"] = "random_token"
    draws: int = Field(default=500, ge=1)
    stop_at_flip: bool = True


def attack(
    search: TokenSearch,
    *,
    label: int,
    allowed: Tensor,
    encode: Encode,
    generator: torch.Generator,
    settings: Settings,
    survives: Survives | None = None,
) -> Found:
    """Draw rows of N tokens, each uniform over the allowed ones, and keep the first flip or the highest loss.

    Draws run ``batch_size`` at a time; the result and the counts are those of running them one by one. With
    ``survives``, a draw that does not survive is used up without a forward pass; if none survives, the first is
    reported.
    """
    choices = allowed.nonzero().flatten()
    rows = choices[torch.randint(len(choices), (settings.draws, settings.tokens), generator=generator)]
    best, best_loss = 0, float("-inf")
    iterations, forwards = settings.draws, 0

    for chunk in torch.arange(settings.draws).split(settings.batch_size):
        if survives is not None:
            chunk = chunk[survives(rows[chunk])]
        if not len(chunk):
            continue
        losses, logits = search.losses(rows[chunk])
        flips = (predictions(logits) != label).nonzero().flatten().tolist()
        stop = settings.stop_at_flip and bool(flips)
        losses = losses[: flips[0] + 1] if stop else losses
        forwards += len(losses)
        chosen = highest(losses)
        if stop:
            chosen, iterations = flips[0], int(chunk[flips[0]]) + 1
        if stop or losses[chosen].float().item() > best_loss:
            best, best_loss = int(chunk[chosen]), losses[chosen].float().item()
        if stop:
            break

    without_survivor = iterations - forwards
    if not forwards:
        best_loss = search.losses(rows[:1])[0].float().item()
        forwards = 1
    return Found(tuple(rows[best].tolist()), best_loss, iterations, forwards, without_survivor=without_survivor)
