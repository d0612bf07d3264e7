"""Theorem 3 on a classifier: PGD on real texts, judged with the gradients of surrogates that `latreft.circuits` prunes.

B texts, L positions of the window, D hidden width, M neurons of a block, K steps, S surrogates. Perturbed is the output of
block ``layer``; the neurons that read it are those of the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from latreft.circuits.allocation import Rule, keep_mask, kept_neurons
from latreft.circuits.scores import activations
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import Edits
from latreft.interventions.surrogate import prune
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier
from latreft.records import Metric
from latreft.theory.bounds import count, median_ratio, share, violations
from latreft.theory.theorem_3 import Gap, alignment

RATIOS = (0.1, 0.25, 0.5, 0.75)
DEFAULT_RATIO = 0.25
EPSILON_SHARE = 0.1
"""ε, as a share of the root mean square of the clean states."""
PROBES = 16
Scores = dict[str, Tensor]


@dataclass(frozen=True)
class Pruning:
    """One surrogate: ``keep`` bool [layers, M]; ``ratio`` of what is ranked together."""

    rule: Rule
    ratio: float
    keep: Tensor


def layer_prunings(scores: Scores, block: int) -> list[Pruning]:
    """The theorem's: neurons of one block (from 0) are ranked and pruned, all other blocks are whole."""
    own = {name: part[block : block + 1] for name, part in scores.items()}
    rules: list[tuple[Rule, int]] = [("act_grad", 0), ("act_diff", 0), ("random", 0), ("random", 1)]
    found = []
    for rule, seed in rules:
        for ratio in RATIOS:
            keep = torch.ones_like(scores["act_grad"], dtype=torch.bool)
            keep[block] = keep_mask(rule, own, ratio, seed)[0]
            found.append(Pruning(rule, ratio, keep))
    return found


def model_prunings(scores: Scores) -> list[Pruning]:
    """The method's: neurons of all blocks are ranked together [Sec. 4.2]."""
    rules: tuple[Rule, ...] = ("act_grad", "act_diff", "random", "random_matched")
    return [Pruning(rule, ratio, keep_mask(rule, scores, ratio, 0)) for rule in rules for ratio in RATIOS]


@dataclass(frozen=True)
class Step:
    """What the full model says at one step: its gradient g [B, L, D] and the losses [B] ``reached`` by a step along its signs.

    Of the blocks behind the perturbation: the neurons' squared act×grad ``mass`` [B, blocks, M], summed over the window. Of
    the first of them: ``size``, the smallest |a| over the window [B, M], and ``response``, ‖∂Z/∂H‖ [B].
    ``through`` [S, B, L, D] is the part of g that goes through the neurons that each surrogate lacks in that block.
    """

    delta: Tensor
    gradient: Tensor
    reached: Tensor
    mass: Tensor
    size: Tensor
    response: Tensor
    through: Tensor


class Attack:
    """PGD on one batch: ℓ∞, sign steps, from zero."""

    def __init__(self, model: Classifier, batch: Batch, window: int, layer: int, steps: int):
        self.model, self.batch, self.layer, self.steps = model, batch, layer, steps
        self.engine = ReuseEngine(capture=False)  # each surrogate runs a few passes only
        self.prepared = self.engine.prepare(model, batch, window)
        self.window = self.prepared.window
        self.base = self.prepared.hidden(layer)
        self.epsilon = EPSILON_SHARE * self.base.float().square().mean().sqrt().item()
        self.step_size = self.epsilon / steps

    def edits(self, delta: Tensor) -> Edits:
        return Edits().perturbed(self.layer, delta, self.base)

    def losses(self, logits: Tensor) -> Tensor:
        """[B], float64"""
        return F.cross_entropy(logits.double(), self.batch.labels, reduction="none")

    def stepped(self, delta: Tensor, gradient: Tensor) -> Tensor:
        return (delta + self.step_size * gradient.sign()).clamp(-self.epsilon, self.epsilon)

    def trajectory(self, prunings: Sequence[Pruning], generator: torch.Generator) -> list[Step]:
        """The full model's own K steps."""
        delta, found = torch.zeros_like(self.base), []
        for _ in range(self.steps):
            found.append(self._step(delta, prunings, generator))
            delta = self.stepped(delta, found[-1].gradient)
        return found

    def _step(self, delta: Tensor, prunings: Sequence[Pruning], generator: torch.Generator) -> Step:
        delta = delta.detach().requires_grad_(True)
        with activations(self.model) as behind, torch.enable_grad():  # the pass starts behind the perturbation
            loss = self.losses(self.prepared.logits(self.edits(delta))).sum()
        gradient, *slopes = torch.autograd.grad(loss, [delta, *behind], retain_graph=True)

        def back(cotangent: Tensor) -> Tensor:
            """(∂Z/∂H)ᵀ of a cotangent [B, L, M]."""
            return torch.autograd.grad(behind[0], delta, cotangent.to(behind[0].dtype), retain_graph=True)[0]

        pairs = [(a.detach().double(), r.double()) for a, r in zip(behind, slopes, strict=True)]
        omitted = [(~one.keep[self.layer]).to(delta.device) for one in prunings]
        return Step(
            delta=delta.detach(),
            gradient=gradient,
            reached=self.reached(delta, gradient),
            mass=torch.stack([(a * r).square().sum(dim=1) for a, r in pairs], dim=1),
            size=pairs[0][0].abs().amin(dim=1),
            response=_frobenius(back, behind[0], generator),
            through=torch.stack([back(slopes[0] * lacks) for lacks in omitted]) if omitted else delta.new_zeros(0),
        )

    def surrogate_gradients(self, pruning: Pruning, steps: Sequence[Step], window_only: bool) -> list[Tensor]:
        """g^s [B, L, D] of a really pruned model at each step's states."""
        surrogate = prune(self.model, kept_neurons(pruning.keep))
        prepared = self.engine.prepare(surrogate, self.batch, self.window, self.model if window_only else None)
        found = []
        for step in steps:
            delta = step.delta.clone().requires_grad_(True)
            with torch.enable_grad():
                loss = self.losses(prepared.logits(self.edits(delta))).sum()
            found.append(torch.autograd.grad(loss, delta)[0])
        return found

    @property
    def rounding(self) -> float:
        """What rounding may add to a sum of K gaps: the loss is as exact as the logits, a few of their last digits."""
        return 8 * self.steps * torch.finfo(self.model.dtype).eps

    @torch.no_grad()
    def reached(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """The full model's losses [B] behind one step. No projection: the theorem's G is defined without it."""
        return self.losses(self.prepared.logits(self.edits(delta.detach() + self.step_size * gradient.sign())))

    def gap(self, steps: Sequence[Step], gradients: Sequence[Tensor]) -> Tensor:
        """Σ G [B], in nats; 0 where the steps are equal."""
        total = torch.zeros(len(self.batch), dtype=torch.float64, device=self.base.device)
        for step, gradient in zip(steps, gradients, strict=True):
            same = (step.gradient.sign() == gradient.sign()).all(dim=2).all(dim=1)
            total = total + (step.reached - self.reached(step.delta, gradient)).masked_fill(same, 0)
        return total


def _frobenius(back: Callable[[Tensor], Tensor], neurons: Tensor, generator: torch.Generator) -> Tensor:
    """‖∂Z/∂H‖_F [B], estimated with random probes; no smaller than the spectral norm, up to the estimate's error."""
    total = torch.zeros(len(neurons), dtype=torch.float64, device=neurons.device)
    for _ in range(PROBES):
        probe = torch.randn(neurons.shape, generator=generator)
        total = total + back(probe.to(neurons.device)).double().square().sum(dim=(1, 2))
    return (total / PROBES).sqrt()


@dataclass(frozen=True)
class Judged:
    """One surrogate: the theorem's quantities for each text, and how far r^s = P_S r is from true."""

    pruning: Pruning
    found: Gap
    projection_error: float


def judge_layer(attack: Attack, steps: Sequence[Step], prunings: Sequence[Pruning]) -> list[Judged]:
    """Surrogates pruned in the theorem's block, in the window only."""
    judged = []
    for index, pruning in enumerate(prunings):
        gradients = attack.surrogate_gradients(pruning, steps, window_only=True)
        lacks = ~pruning.keep[attack.layer].to(attack.base.device)
        each = list(zip(steps, gradients, strict=True))
        smallest = [step.size.masked_fill(~lacks, torch.inf).amin(dim=1) for step in steps]
        found = Gap(
            gap=attack.gap(steps, gradients),
            mass=torch.stack([(step.mass[:, 0] * lacks).sum(dim=1).sqrt() for step in steps]).sum(dim=0),
            response=torch.stack([step.response for step in steps]).amax(dim=0),
            alignment=torch.stack([alignment(step.gradient.double(), g.double()) for step, g in each]).amax(dim=0),
            smallest=torch.stack(smallest).amin(dim=0),
        )
        apart = [(step.gradient - g).norm().item() for step, g in each]
        missed = [(step.gradient - g - step.through[index]).norm().item() for step, g in each]
        judged.append(Judged(pruning, found, sum(missed) / max(sum(apart), 1e-30)))
    return judged


def omitted_share(steps: Sequence[Step], lacks: Tensor) -> float:
    """Mean over steps and texts of Σ_{pruned} w / Σ w, for ``lacks`` bool [blocks, M], the first blocks behind the attack."""
    lacks = lacks.to(steps[0].mass.device)
    shares = []
    for step in steps:
        mass = step.mass[:, : len(lacks)]
        shares.append((mass * lacks).sum(dim=(1, 2)) / mass.sum(dim=(1, 2)).clamp(min=1e-300))
    return torch.stack(shares).mean().item()


def omitted_mass(steps: Sequence[Step], lacks: Tensor) -> float:
    """Mean over texts of Σ_s M_s, for ``lacks`` as in :func:`omitted_share`."""
    lacks = lacks.to(steps[0].mass.device)
    masses = [(step.mass[:, : len(lacks)] * lacks).sum(dim=(1, 2)).sqrt() for step in steps]
    return torch.stack(masses).sum(dim=0).mean().item()


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> Metric:
    """Spearman's, ties sharing their mean rank; 0 where one of the two never changes."""
    import pandas as pd

    value = pd.Series(first).rank().corr(pd.Series(second).rank())
    return Metric(value=0.0 if pd.isna(value) else float(value), unit="correlation", n=len(first))


def random_omission(mass: Tensor, ratio: float, masks: int) -> tuple[float, float]:
    """Mean share of ``mass`` [M] that random pruning omits, relative to ρ, less 1; and its standard error."""
    like = {"act_grad": mass[None]}
    omitted = [mass[~keep_mask("random", like, ratio, seed)[0]].sum() for seed in range(masks)]
    rho = 1 - keep_mask("random", like, ratio, 0).double().mean().item()
    relative = torch.stack(omitted) / mass.sum() / rho - 1
    return relative.mean().item(), (relative.std() / masks**0.5).item()


def check(attack: Attack, scores: Scores, masks: int, generator: torch.Generator) -> dict[str, Metric]:
    """The theorem on its own block, then the method's pruning of all blocks, then random masks on the block's mass."""
    prunings = layer_prunings(scores, attack.layer)
    steps = attack.trajectory(prunings, generator)
    judged = judge_layer(attack, steps, prunings)
    mass = torch.stack([step.mass[:, 0].sum(dim=0) for step in steps]).sum(dim=0).cpu()
    error, deviation = random_omission(mass, DEFAULT_RATIO, masks)
    return (
        bound_metrics(attack, judged)
        | layer_shares(steps, judged, attack.layer)
        | method_metrics(attack, steps, model_prunings(scores))
        | {
            "thm3_random_relative_error": Metric(value=abs(error), unit="ratio", n=masks),
            "thm3_random_standard_error": Metric(value=deviation, unit="ratio", n=masks),
        }
    )


def bound_metrics(attack: Attack, judged: Sequence[Judged], factor: float = 1.0) -> dict[str, Metric]:
    """The bound, each text and surrogate a trial. ``factor`` multiplies it."""
    gap = torch.cat([one.found.gap for one in judged])
    bound = factor * torch.cat([one.found.bound(attack.step_size) for one in judged])
    smallest = torch.cat([one.found.smallest for one in judged])
    errors = torch.tensor([one.projection_error for one in judged])
    means = [(one.found.gap.mean().item(), one.found.mass.mean().item()) for one in judged]
    return {
        "thm3_violations": count(violations(gap, bound + attack.rounding), len(gap)),
        "thm3_assumption_2_share": share(smallest > 0),
        "thm3_rank_correlation": rank_correlation(*zip(*means, strict=True)),
        "thm3_slack_median": median_ratio(bound, gap.clamp(min=0)),
        "thm3_smallest_activation": Metric(value=smallest.median().item(), unit="value", n=len(smallest)),
        "thm3_negative_gap_share": share(gap < 0),
        "thm3_projection_error": Metric(value=errors.median().item(), unit="ratio", n=len(errors)),
    }


def at_default(prunings: Sequence[Pruning], rule: Rule) -> int:
    """Which pruning is the first by ``rule`` at the paper's ratio."""
    return next(i for i, one in enumerate(prunings) if one.rule == rule and one.ratio == DEFAULT_RATIO)


def layer_shares(steps: Sequence[Step], judged: Sequence[Judged], block: int) -> dict[str, Metric]:
    """What the paper's ratio omits in the theorem's block by rule, over ρ."""
    prunings, found = [one.pruning for one in judged], {}
    for rule in ("act_grad", "act_diff"):
        lacks = ~prunings[at_default(prunings, rule)].keep[block : block + 1]
        value = omitted_share(steps, lacks) / lacks.double().mean().item()
        found[f"thm3_{rule}_share"] = Metric(value=value, unit="ratio", n=len(steps) * len(steps[0].gradient))
    return found


def method_metrics(attack: Attack, steps: Sequence[Step], prunings: Sequence[Pruning]) -> dict[str, Metric]:
    """The gap and the mass of all blocks behind the perturbation, for surrogates as the method prunes them."""
    behind = [~one.keep[attack.layer :] for one in prunings]
    gaps = [
        attack.gap(steps, attack.surrogate_gradients(one, steps, window_only=False)).mean().item() for one in prunings
    ]
    found = {
        "thm3_rank_correlation_all_layers": rank_correlation(gaps, [omitted_mass(steps, lacks) for lacks in behind])
    }
    texts = len(attack.batch)
    for rule in ("act_grad", "act_diff", "random", "random_matched"):
        index = at_default(prunings, rule)
        value = omitted_share(steps, behind[index]) / DEFAULT_RATIO
        found[f"thm3_{rule}_share_all_layers"] = Metric(value=value, unit="ratio", n=len(steps) * texts)
        found[f"thm3_{rule}_gap"] = Metric(value=gaps[index], unit="nats", n=texts)
    return found
