"""All checks of one classifier: random instances first, then real texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from latreft.engine.reference import FullPrepared
from latreft.models.batch import Batch, Example, collate
from latreft.models.classifier import Classifier
from latreft.records import Metric
from latreft.theory import proposition_1, surrogates, theorem_1, theorem_2, theorem_3
from latreft.theory.real_heads import real_heads, replaced

WINDOW, ATTACKED = 20, 10
"""L and k of the paper's experiments; texts too short for them have shorter ones."""


def attacked_layer(layers: int) -> int:
    """The layer that is perturbed: a sixth of the depth, about where the paper attacks, with a block behind it."""
    return min(max(1, layers // 6), layers - 1)


def unpadded(examples: Sequence[Example], tokens: int) -> Batch:
    """The examples cut to the length of the shortest, ``tokens`` at most."""
    length = min(tokens, *(len(example.tokens) for example in examples))
    return collate([Example(one.id, one.tokens[:length], one.label) for one in examples])


def check_all(
    model: Classifier, examples: Sequence[Example], scores: dict[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, Metric]:
    """Metrics of every theorem; ``settings`` are :class:`latreft.config.TheorySettings`, ``scores`` the neurons'.

    At least two texts, of two tokens or more. A metric over no trials is left out.
    """
    trials, seed = settings["trials"], settings["seed"]

    def generator(part: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * seed + part)

    batch = unpadded(examples, settings["tokens"]).to(model.device)
    window, attacked = min(WINDOW, batch.length), min(ATTACKED, batch.length - 1)
    changed = replaced(batch, attacked, model.vocabulary, generator(0))
    real = real_heads(model, batch, changed, trials, generator(1))
    layer = attacked_layer(model.layers)
    clean, moved = (FullPrepared(model, each, attacked).hidden(layer).double().cpu() for each in (batch, changed))
    attack = surrogates.Attack(model, batch, window, layer, settings["steps"])
    on_random = theorem_3.check_random(trials, generator(5))
    on_real = surrogates.check(attack, scores, trials, generator(6))
    found = (
        theorem_1.check(theorem_1.random_trials(trials, generator(2)), real)
        | theorem_2.check(trials, generator(3), real, attacked)
        | proposition_1.check(trials, generator(4), clean, moved - clean)
        | on_random
        | on_real
        | {"thm3_violations": summed(on_random["thm3_violations"], on_real["thm3_violations"])}
    )
    return {name: metric for name, metric in found.items() if metric.n != 0}


def summed(*counts: Metric) -> Metric:
    """Counts of different trials as one."""
    return Metric(value=sum(c.value for c in counts), unit="count", n=sum(c.n or 0 for c in counts))
