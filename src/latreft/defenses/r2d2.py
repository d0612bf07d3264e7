"""R2D2 baseline [A.4, after Howe et al.]: rounds of GCG on training texts, a growing pool, training on samples of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch.nn import functional as F

from latreft.attacks import gcg
from latreft.attacks.base import Found, allowed_tokens, attacked, example_generator, place
from latreft.attacks.run import evaluating, find, groups_of
from latreft.cost.measured import FlopMeter
from latreft.defenses.base import Trained, Training
from latreft.defenses.lat import full_weights
from latreft.engine.interface import Defended
from latreft.interventions.edits import Edits
from latreft.models.batch import Example, collate
from latreft.models.classifier import parameter_count
from latreft.settings import Settings as BaseSettings
from latreft.training import Losses
from latreft.training import train as run_training


class Settings(BaseSettings):
    """R2D2 [A.4]. Attacked are training texts outside the evaluated ones; the paper attacks its attack split."""

    rounds: Annotated[int, Field(ge=1)] = 4
    attacked_per_round: Annotated[int, Field(ge=1)] = 200
    gcg_start: Annotated[int, Field(ge=1)] = 8
    gcg_end: Annotated[int, Field(ge=1)] = 32
    gcg_r_max: Annotated[int, Field(ge=1)] = 8
    top_k: Annotated[int, Field(ge=1)] = 256
    candidates: Annotated[int, Field(ge=1)] = 128
    suffix_tokens: Annotated[int, Field(ge=1)] = 10
    gcg_text: str = "!"
    rank_weight: Annotated[float, Field(ge=0)] = 0.005
    augmented: Annotated[int, Field(ge=1)] = 1000
    adversarial_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    steps_per_round: Annotated[int, Field(ge=1)] = 200
    batch_size: Annotated[int, Field(ge=1)] = 8
    search_batch_size: Annotated[int, Field(ge=1)] = 128
    examples: Annotated[int, Field(ge=1)] = 5000
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = 1.0

    def gcg_rounds(self, number: int) -> int:
        """Rounds of GCG in R2D2's round ``number`` (from 1): k(r) = round(k_start + r/R_max (k_end − k_start))."""
        return round(self.gcg_start + number / self.gcg_r_max * (self.gcg_end - self.gcg_start))


@dataclass(frozen=True)
class Attacked:
    """One attacked text of the pool: its tokens with the suffix, the loss reached, and the round it comes from."""

    id: str
    tokens: tuple[int, ...]
    label: int
    loss: float
    round: int

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Attacked:
        return cls(state["id"], tuple(state["tokens"]), state["label"], state["loss"], state["round"])

    def state(self) -> dict[str, Any]:
        return {"id": self.id, "tokens": list(self.tokens), "label": self.label, "loss": self.loss, "round": self.round}


def pool_weights(pool: Sequence[Attacked], weight: float) -> torch.Tensor:
    """Sampling weights exp(λ (r − max r)); r is a text's rank by loss plus its rank by recency, high being best."""
    count = len(pool)
    by_loss = sorted(range(count), key=lambda i: (pool[i].loss, pool[i].id, pool[i].round))
    by_time = sorted(range(count), key=lambda i: (pool[i].round, i))
    ranks = torch.zeros(count, dtype=torch.float64)
    for order in (by_loss, by_time):
        for rank, index in enumerate(order):
            ranks[index] += rank
    return torch.exp(weight * (ranks - ranks.max()))


def choose(count: int, number: int, generator: torch.Generator) -> list[int]:
    """``number`` different indices below ``count``, or all of them in random order."""
    return torch.randperm(count, generator=generator)[:number].tolist()


def attack_settings(settings: Settings, rounds: int) -> gcg.Settings:
    """GCG as R2D2 runs it."""
    return gcg.Settings(
        rounds=rounds, top_k=settings.top_k, candidates=settings.candidates,
        tokens=settings.suffix_tokens, start=settings.gcg_text, batch_size=settings.search_batch_size,
    )  # fmt: skip


def search_flops(run: Training, settings: Settings, example: Example) -> float:
    """FLOPs of one GCG round on one example, a token of the attacked sequence: counted, not computed."""
    defended = Defended(run.classifier)
    allowed = allowed_tokens(run.tokenizer, run.classifier.vocabulary)
    with evaluating(defended), FlopMeter() as meter:
        generator = example_generator(run.seed, "r2d2-cost", example.id)
        find(run.engine, defended, run.tokenizer, [example], attack_settings(settings, 1), allowed, [generator])
    return meter.flops / (len(example.tokens) + settings.suffix_tokens)


def search(run: Training, settings: Settings, number: int, content: Sequence[Example]) -> list[Attacked]:
    """Attack ``content`` with GCG on the present model; ``content`` is cut so that the suffix fits."""
    defended = Defended(run.classifier)
    attack = attack_settings(settings, settings.gcg_rounds(number))
    allowed = allowed_tokens(run.tokenizer, run.classifier.vocabulary)
    generators = [example_generator(run.seed, f"r2d2-{number}", example.id) for example in content]
    results: dict[int, Found] = {}
    with evaluating(defended):
        for group in groups_of(run.engine, defended, run.tokenizer, content, attack):
            examples, own = [content[i] for i in group], [generators[i] for i in group]
            found = find(run.engine, defended, run.tokenizer, examples, attack, allowed, own)
            results.update(zip(group, found, strict=True))
            if len(results) % 50 < len(group):
                run.log(f"r2d2 round {number}: {len(results)}/{len(content)} texts attacked")
    return [attacked_of(run, example, results[i], number) for i, example in enumerate(content)]


def attacked_of(run: Training, example: Example, found: Found, number: int) -> Attacked:
    """A text with the tokens that round ``number`` found for it."""
    at = place(run.tokenizer, example.tokens, "suffix")
    return Attacked(example.id, attacked(example.tokens, at, found.tokens), example.label, found.loss, number)


def mixture(
    pool: Sequence[Attacked], clean: Sequence[Example], settings: Settings, generator: torch.Generator
) -> list[Example]:
    """The items of one round: ``adversarial_share`` drawn from the pool by weight, the rest clean, shuffled."""
    adversarial = round(settings.augmented * settings.adversarial_share)
    weights = pool_weights(pool, settings.rank_weight)
    drawn = (
        torch.multinomial(weights, adversarial, replacement=True, generator=generator).tolist() if adversarial else []
    )
    items = [Example(pool[i].id, pool[i].tokens, pool[i].label) for i in drawn]
    rest = torch.randint(len(clean), (settings.augmented - adversarial,), generator=generator).tolist()
    items += [clean[i] for i in rest]
    return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]


def train(run: Training, settings: Settings) -> Trained:
    """R rounds: attack, add to the pool, sample a mixture, train all weights on it."""
    model = run.classifier
    model.requires_grad_(True)
    clean = run.examples[: settings.examples]
    room = run.max_length - settings.suffix_tokens
    if room < 1:
        raise ValueError(f"max_length {run.max_length} leaves no room beside {settings.suffix_tokens} suffix tokens")
    content = [Example(e.id, e.tokens[:room], e.label) for e in clean]
    state: dict[str, Any] = {"pool": [], "round": 0, "search_flops_per_token": 0.0}
    items: list[Example] = []

    def begin(number: int) -> bool:
        """Have the pool of round ``number`` and draw its items; True if texts had to be attacked for it."""
        searched = state["round"] < number
        if searched:
            chosen = choose(len(content), settings.attacked_per_round, run.generator(number))
            if number == 1:
                state["search_flops_per_token"] = search_flops(run, settings, content[chosen[0]])
            found = search(run, settings, number, [content[i] for i in chosen])
            state["pool"] = [*state["pool"], *(one.state() for one in found)]
            state["round"] = number
        pool = [Attacked.from_state(one) for one in state["pool"]]
        items[:] = mixture(pool, clean, settings, run.generator(10_000 + number))
        return searched

    def before_step(step: int) -> bool:
        number, within = divmod(step, settings.steps_per_round)
        return begin(number + 1) if within == 0 or not items else False  # a new round, or a resumed one

    def chosen_at(step: int) -> list[Example]:
        start = step % settings.steps_per_round * settings.batch_size
        return [items[(start + i) % len(items)] for i in range(settings.batch_size)]

    def losses_at(step: int) -> Losses:
        batch = collate(chosen_at(step)).to(model.device)
        prepared = run.engine.prepare(model, batch, 1)
        return Losses(F.cross_entropy(prepared.training_logits(Edits())[0], batch.labels), batch.tokens.numel())

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    summary = run_training(
        model,
        optimizer,
        losses_at,
        settings.rounds * settings.steps_per_round,
        checkpoint=run.checkpoint,
        progress=run.progress,
        max_gradient_norm=settings.max_gradient_norm,
        names_at=lambda step: [example.id for example in chosen_at(step)],
        before_step=before_step,
        extra=state,
    )
    searched = sum(settings.gcg_rounds(r + 1) for r in range(settings.rounds)) * settings.attacked_per_round
    trained = settings.rounds * settings.steps_per_round * settings.batch_size
    pool_loss = sum(one["loss"] for one in state["pool"]) / max(1, len(state["pool"]))
    return Trained(
        "full",
        full_weights(model),
        {},
        summary,
        parameter_count(model),
        search_flops_per_token=state["search_flops_per_token"] * searched / trained,
        metrics={"pool_loss": pool_loss},
    )
