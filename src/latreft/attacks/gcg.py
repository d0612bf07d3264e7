"""Greedy coordinate gradient [A.5]: each round, the best of a few single-token substitutions that the gradient likes."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from latreft.attacks.base import AttackSettings, Encode, Found, Survives, highest, predictions
from latreft.engine.interface import TokenSearch
from latreft.settings import SettingsError


class Settings(AttackSettings):
    """The paper's strength: 10 rounds, 128 of the 10 × 256 most promising substitutions a round."""

    kind: Literal["gcg"] = "gcg"
    rounds: int = Field(default=10, ge=1)
    top_k: int = Field(default=256, ge=1)
    """Replacement tokens considered at each position."""
    candidates: int = Field(default=128, ge=1)
    """Substitutions that are run in each round."""
    start: str = "!"
    """A text that is one token, repeated N times; or ``random``: N tokens drawn for each example."""


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
    """Maximise one example's loss over N tokens; the best tokens of all rounds, the start included, are reported.

    The best candidate is taken even where it is worse than the present tokens. With ``survives``, the candidates that
    do not survive are dropped; a round without a survivor keeps its tokens and is counted. If nothing ever survives,
    the start is reported. A start that does not survive itself ("!!!!!!!!!!" is fewer tokens in many vocabularies)
    leaves few candidates that do: " !" is a better one then.
    """
    current = start_tokens(settings, allowed, encode, generator)  # [N]
    _, loss, prediction = strongest(search, current[None])
    lasting = survives is None or bool(survives(current[None])[0])
    best, best_loss = current, loss
    forwards, rounds, without_survivor = 1, 0, 0

    while rounds < settings.rounds and not (settings.stop_at_flip and lasting and prediction != label):
        rounds += 1
        gradient = search.gradient(current)  # [N, V]
        pool = promising(gradient, allowed, settings.top_k)  # [N, k]
        candidates = substitutions(current, pool, settings.candidates, generator)  # [C, N]
        if survives is not None:
            candidates = candidates[survives(candidates)]
        forwards += 1 + len(candidates)
        if not len(candidates):
            without_survivor += 1
            continue
        current, loss, prediction = strongest(search, candidates)
        if loss > best_loss or not lasting:
            best, best_loss, lasting = current, loss, True

    return Found(tuple(best.tolist()), best_loss, rounds, forwards, backwards=rounds, without_survivor=without_survivor)


def strongest(search: TokenSearch, candidates: Tensor) -> tuple[Tensor, float, int]:
    """Run candidates [C, N]; the tokens [N], loss (nats) and prediction of the one with the highest loss."""
    losses, logits = search.losses(candidates)
    chosen = highest(losses)
    return candidates[chosen], losses[chosen].float().item(), int(predictions(logits[chosen, None]))


def start_tokens(settings: Settings, allowed: Tensor, encode: Encode, generator: torch.Generator) -> Tensor:
    """The first tokens [N]; a start text that is not one allowed token is a ``SettingsError``."""
    if settings.start == "random":
        choices = allowed.nonzero().flatten()
        return choices[torch.randint(len(choices), (settings.tokens,), generator=generator)]
    ids = encode(settings.start)
    if len(ids) != 1 or not allowed[ids[0] : ids[0] + 1].any():
        raise SettingsError(
            f"key 'start' of the attack has value {settings.start!r}, which this tokenizer reads as ids {list(ids)}; "
            "it must be one non-special token: choose another text (as '!', ' !' or 'x'), or start: random"
        )
    return torch.tensor(ids * settings.tokens)


def promising(gradient: Tensor, allowed: Tensor, top_k: int) -> Tensor:
    """The ``top_k`` allowed tokens of each position that raise the loss most to first order: [N, k] on the CPU.

    The substitution of token v at position i changes the loss by gradient[i, v] less a constant of the position. The
    present token may be among them. Equal gradients: lowest id first, on every device.
    """
    scores = gradient.float().masked_fill(~allowed.to(gradient.device), float("-inf"))
    k = min(top_k, int(allowed.sum()))
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k].cpu()


def substitutions(current: Tensor, pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` of the N × k single substitutions of ``pool`` [N, k] in ``current`` [N], without replacement: [C, N].

    All of them if there are no more than ``count``; in the order of positions, then of promise.
    """
    k = pool.shape[1]
    drawn = torch.arange(pool.numel())
    if count < pool.numel():
        drawn = torch.randperm(pool.numel(), generator=generator)[:count].sort().values
    candidates = current.repeat(len(drawn), 1)
    candidates[torch.arange(len(drawn)), drawn // k] = pool.flatten()[drawn]
    return candidates
