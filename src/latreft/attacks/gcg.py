"""Greedy coordinate gradient [A.5]: each round, the best of a few single-token substitutions that the gradient likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

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
    restarts: int = Field(default=0, ge=0)
    """Further searches, each from N random tokens; the highest loss of all is reported."""


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
    """Maximise one example's loss over N tokens by one search and ``restarts`` more; what came of the best is reported.

    With ``stop_at_flip`` there is no further search after one that ended in a flip; with ``survives``, tokens that
    survive count more than any that do not. Passes and rounds are those of all searches.
    """
    ends: list[End] = []
    for number in range(1 + settings.restarts):
        kind = settings.start if number == 0 else RANDOM
        start = start_tokens(kind, settings.tokens, allowed, encode, generator, survives)  # [N]
        ends.append(search_from(start, search, label, allowed, generator, settings, survives))
        if settings.stop_at_flip and ends[-1].flipped:
            break
    best = max(ends, key=lambda end: (end.lasting, end.found.loss)).found
    return replace(best, **{name: sum(getattr(end.found, name) for end in ends) for name in SPENT})


RANDOM = "random"
STARTS_DRAWN = 64
"""Random starts among which one that survives decode → encode is looked for."""
SPENT = ("iterations", "forwards", "backwards", "without_survivor")


class End(NamedTuple):
    """How one search ended: what it found, whether that survives decode → encode, whether it stopped at a flip."""

    found: Found
    lasting: bool
    flipped: bool


def search_from(
    start: Tensor,
    search: TokenSearch,
    label: int,
    allowed: Tensor,
    generator: torch.Generator,
    settings: Settings,
    survives: Survives | None,
) -> End:
    """One search from ``start`` [N]: the best tokens of all rounds, the start included.

    The best candidate is taken even where it is worse than the present tokens. With ``survives``, the candidates that
    do not survive are dropped; a round without a survivor keeps its tokens and is counted. If nothing ever survives,
    the start is reported. A start that does not survive itself ("!!!!!!!!!!" is fewer tokens in many vocabularies)
    leaves few candidates that do: " !" is a better one then.
    """
    current = start
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

    found = Found(tuple(best.tolist()), best_loss, rounds, forwards, rounds, without_survivor)
    return End(found, lasting, lasting and prediction != label)


def strongest(search: TokenSearch, candidates: Tensor) -> tuple[Tensor, float, int]:
    """Run candidates [C, N]; the tokens [N], loss (nats) and prediction of the one with the highest loss."""
    losses, logits = search.losses(candidates)
    chosen = highest(losses)
    return candidates[chosen], losses[chosen].float().item(), int(predictions(logits[chosen, None]))


def start_tokens(
    kind: str, count: int, allowed: Tensor, encode: Encode, generator: torch.Generator, survives: Survives | None = None
) -> Tensor:
    """The first ``count`` tokens [N]: of a text that is one allowed token (else ``SettingsError``), or random.

    With ``survives``, the first of several random starts that survives; the first of all where none does.
    """
    if kind == RANDOM:
        choices = allowed.nonzero().flatten()
        rows = 1 if survives is None else STARTS_DRAWN
        drawn = choices[torch.randint(len(choices), (rows, count), generator=generator)]
        return drawn[0 if survives is None else int(survives(drawn).int().argmax())]
    ids = encode(kind)
    if len(ids) != 1 or not allowed[ids[0] : ids[0] + 1].any():
        raise SettingsError(
            f"key 'start' of the attack has value {kind!r}, which this tokenizer reads as ids {list(ids)}; "
            "it must be one non-special token: choose another text (as '!', ' !' or 'x'), or start: random"
        )
    return torch.tensor(ids * count)


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
