"""The paper's method: latent adversarial training of a low-rank edit, attacked through a pruned surrogate.

[Eq. 2, Algorithm 1]: the backbone is frozen, the window's hidden states at the attack layer are perturbed within a
ball, and only R, W, b at the ReFT layer are trained.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch.nn import functional as F

from latreft.circuits.allocation import Rule, keep_mask, kept_neurons
from latreft.defenses.base import AdversarialSettings, Trained, Training
from latreft.interventions import pgd
from latreft.interventions.edits import Edits, Order, ReftEdit
from latreft.interventions.reft import LoReFT, Start
from latreft.interventions.surrogate import prune
from latreft.models.classifier import Classifier, parameter_count
from latreft.models.precision import settle
from latreft.training import Losses


class Settings(AdversarialSettings):
    """LAT-ReFT. Defaults where the paper is silent: ℓ∞ ball, α = ε/K, zero start, identity ReFT.

    ``surrogate``: ``exact`` prunes the whole sequence's passes, ``window`` only the defended positions'.
    """

    attack_layer: int
    reft_layer: int
    rank: Annotated[int, Field(ge=1)] = 64
    window: Annotated[int, Field(ge=1)] = 20
    epsilon: Annotated[float, Field(gt=0)]
    epsilon_scaling: Literal["constant", "sqrt"] = "constant"
    steps: Annotated[int, Field(ge=1)] = 8
    step_size: Annotated[float, Field(gt=0)] | None = None
    norm: pgd.Norm = "linf"
    start: pgd.Start = "zero"
    reft_start: Start = "identity"
    same_layer_order: Order = "perturb_then_reft"
    pruning_ratio: Annotated[float, Field(ge=0, le=1)] = 0.25
    pruning_rule: Rule = "act_grad"
    surrogate: Literal["exact", "window"] = "exact"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01

    @property
    def radius(self) -> float:
        """ε of the ball; ``sqrt`` scales it with √(20/L), as an arm that separates radius from window length."""
        return self.epsilon if self.epsilon_scaling == "constant" else self.epsilon * math.sqrt(20 / self.window)

    @property
    def perturbs_before_edit(self) -> bool:
        """Whether the perturbed state is still to be edited.

        If so, the ball is around the full model's clean states [Eq. 4]. If not, it is around the defended model's own
        states, for otherwise the perturbation would overwrite the defense.
        """
        if self.attack_layer == self.reft_layer:
            return self.same_layer_order == "perturb_then_reft"
        return self.attack_layer < self.reft_layer


def surrogate_of(run: Training, settings: Settings) -> Classifier:
    """The model on which the inner attack runs: pruned, or the full one at ratio 0 [Sec. 4.2]."""
    if settings.pruning_ratio == 0:
        return run.classifier
    mask = keep_mask(settings.pruning_rule, run.scores, settings.pruning_ratio, run.seed)
    return prune(run.classifier, kept_neurons(mask))


def train(run: Training, settings: Settings) -> Trained:
    """Algorithm 1. Line numbers are the paper's."""
    model, engine = run.classifier, run.engine
    model.requires_grad_(False)  # line 1
    settle(model)
    dtype = torch.promote_types(model.dtype, torch.float32)
    reft = LoReFT(model.width, settings.rank, start=settings.reft_start, seed=run.seed, dtype=dtype).to(model.device)
    edit = ReftEdit(settings.reft_layer, reft)
    defended = Edits(reft=edit, order=settings.same_layer_order)
    ball = pgd.Ball(settings.norm, settings.radius)
    step_size = settings.step_size or settings.radius / settings.steps
    surrogate = surrogate_of(run, settings)
    batches = run.batches(settings)

    def losses_at(step: int) -> Losses:
        batch = batches.at(step)
        with reft.built_once():
            full = engine.prepare(model, batch, settings.window)
            hidden = full.hidden(settings.attack_layer)  # line 2
            if surrogate is model:
                inner = full
            else:  # line 4
                prefix_of = model if settings.surrogate == "window" else None
                inner = engine.prepare(surrogate, batch, settings.window, prefix_of)
            base = hidden if settings.perturbs_before_edit else None
            start = ball.start(hidden.shape, settings.start, run.generator(step), hidden)
            delta = inner.ascend(  # line 5
                defended,
                settings.attack_layer,
                base,
                start,
                batch.labels,
                ball,
                steps=settings.steps,
                step_size=step_size,
            )
            logits = full.logits_each(defended, defended.perturbed(settings.attack_layer, delta, base))  # lines 3 and 6
            clean = F.cross_entropy(logits[0], batch.labels)
            adversarial = F.cross_entropy(logits[1], batch.labels)
            total = clean + settings.lambda_adv * adversarial  # line 7
        return Losses(total, batch.tokens.numel(), {"clean": clean.item(), "adversarial": adversarial.item()})

    optimizer = torch.optim.AdamW(reft.parameter_groups(settings.weight_decay), lr=settings.learning_rate)
    summary = run.fit(reft, optimizer, losses_at, settings, batches)  # line 8
    return Trained(
        kind="reft",
        weights=reft.weights(),
        details={"layer": settings.reft_layer, "window": settings.window},
        summary=summary,
        trainable=reft.trained_parameters(),
        surrogate_parameters=parameter_count(surrogate),
        metrics={"edit_norm": edit_norm(run, settings, reft)},
    )


@torch.no_grad()
def edit_norm(run: Training, settings: Settings, reft: LoReFT) -> float:
    """Mean ‖Φ(h) − h‖ over ‖h‖ in the windows of one clean batch: 0 up to rounding means that the defense does nothing."""
    batch = run.batches(settings).at(0)
    prepared = run.engine.prepare(run.classifier, batch, settings.window)
    hidden = prepared.hidden(settings.reft_layer)[prepared.mask].float()
    change = torch.linalg.vector_norm(reft(hidden) - hidden, dim=-1) / torch.linalg.vector_norm(hidden, dim=-1)
    ratio = change.mean().item()
    if not ratio > 1e-6:
        run.log("warning: the trained edit equals the identity; this defense changes nothing")
    return ratio
