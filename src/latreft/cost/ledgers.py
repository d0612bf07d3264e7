"""The three ledgers side by side: the paper's formulas, one rule for all methods, and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latreft.cost import paper, uniform
from latreft.cost.paper import NORMAL_TOKENS
from latreft.cost.shapes import ModelShape
from latreft.settings import SettingsError


@dataclass(frozen=True)
class Case:
    """One method on one model, as the formulas want it."""

    method: str
    shape: ModelShape
    tokens: int
    settings: Mapping[str, Any]
    trainable: int
    surrogate_parameters: int | None

    def number(self, key: str) -> Any:
        """A setting; a missing one is an error that names it."""
        if self.settings.get(key) is None:
            given = ", ".join(sorted(self.settings)) or "none"
            raise SettingsError(
                f"cost of {self.method}: key '{key}' is missing; it must be given (keys given: {given})"
            )
        return self.settings[key]

    @property
    def searched(self) -> int:
        """GCG rounds of a whole R2D2 run, over all attacked examples."""
        return int(self.number("attacked_per_round")) * sum(self._gcg_rounds())

    @property
    def trained(self) -> int:
        """Training examples of a whole R2D2 run."""
        return int(self.number("rounds") * self.number("steps_per_round") * self.number("batch_size"))

    def _gcg_rounds(self) -> list[int]:
        """GCG rounds in each R2D2 round: the list ``gcg_rounds``, or by ``gcg_start``, ``gcg_end``, ``gcg_r_max``."""
        rounds = int(self.number("rounds"))
        listed = self.settings.get("gcg_rounds")
        if listed is None:
            schedule = [self.number(key) for key in ("gcg_start", "gcg_end", "gcg_r_max")]
            return [paper.gcg_rounds(r, *schedule) for r in range(1, rounds + 1)]
        if len(listed) != rounds:
            raise SettingsError(
                f"cost of {self.method}: key 'gcg_rounds' lists {len(listed)} rounds; 'rounds' is {rounds}"
            )
        return list(listed)


@dataclass(frozen=True)
class Formulas:
    """A method's FLOPs per example by the paper's formula and by the uniform rule."""

    paper: Callable[[Case], float]
    uniform: Callable[[Case], list[uniform.Pass]]


def _layers(case: Case) -> dict[str, Any]:
    return {key: case.number(key) for key in ("attack_layer", "reft_layer", "steps")}


def _surrogate(case: Case) -> float:
    """N_s: the exact count where there is a surrogate, else the paper's estimate."""
    if case.surrogate_parameters is not None:
        return case.surrogate_parameters
    shape = case.shape
    return paper.estimated_surrogate(shape.parameters, shape.mlp_share, case.number("pruning_ratio"))


def _kept_share(case: Case) -> float:
    if case.surrogate_parameters is not None:
        return case.shape.kept_share(case.surrogate_parameters)
    return 1 - float(case.number("pruning_ratio"))


FORMULAS: dict[str, Formulas] = {
    "finetune": Formulas(
        paper=lambda case: paper.finetune(case.shape.parameters, case.tokens),
        uniform=lambda case: uniform.finetune(case.shape, tokens=case.tokens),
    ),
    "lat": Formulas(
        paper=lambda case: paper.lat(case.shape.parameters, case.number("steps"), case.tokens),
        uniform=lambda case: uniform.lat(
            case.shape, tokens=case.tokens, attack_layer=case.number("attack_layer"), steps=case.number("steps")
        ),
    ),
    "cat": Formulas(
        paper=lambda case: paper.cat(case.shape.parameters, case.trainable, case.number("steps"), case.tokens),
        uniform=lambda case: uniform.cat(
            case.shape, tokens=case.tokens, steps=case.number("steps"), lora_parameters=case.trainable
        ),
    ),
    "lat_reft": Formulas(
        paper=lambda case: paper.lat_reft(
            case.shape.parameters, _surrogate(case), case.trainable,
            layers=case.shape.layers, tokens=case.tokens, **_layers(case),
        ),
        uniform=lambda case: uniform.lat_reft(
            case.shape, tokens=case.tokens, trainable=case.trainable, kept_share=_kept_share(case), **_layers(case)
        ),
    ),
    "r2d2": Formulas(
        paper=lambda case: paper.r2d2(
            case.shape.parameters, searched=case.searched, trained=case.trained,
            candidates=case.number("candidates"), tokens=case.tokens,
        ),
        uniform=lambda case: uniform.r2d2(
            case.shape, tokens=case.tokens, searched=case.searched, trained=case.trained,
            candidates=case.number("candidates"),
        ),
    ),
}  # fmt: skip
"""Formulas by the name of the method; one that is not here has none."""


def ledgers(
    method: str,
    shape: ModelShape,
    *,
    tokens: int = NORMAL_TOKENS,
    settings: Mapping[str, Any],
    trainable: int,
    surrogate_parameters: int | None = None,
    measured_flops_per_example: float | None = None,
) -> dict[str, float | None]:
    """FLOPs per training example of ``tokens`` tokens by each ledger, and what is trained.

    The formulas are linear in ``tokens``: at 512 they are Table 1's normalised example. The measured value is handed
    through as it was measured. ``trainable_percent`` is of the classifier's own parameters, adapters not added to
    the denominator. A ``method`` without formulas has ``None`` in both formula ledgers.

    ``settings`` by method, further keys being ignored: finetune none; lat ``attack_layer``, ``steps``; cat ``steps``;
    lat_reft ``attack_layer``, ``reft_layer``, ``steps``, and ``pruning_ratio`` unless ``surrogate_parameters`` is
    given; r2d2 ``rounds``, ``attacked_per_round``, ``steps_per_round``, ``batch_size``, ``candidates``, and
    ``gcg_rounds`` (a list) or ``gcg_start``, ``gcg_end``, ``gcg_r_max``.

    Raises ``SettingsError`` naming a missing key, ``ValueError`` on a layer, share or count that cannot be.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; it must be at least 1")
    if trainable < 0:
        raise ValueError(f"trainable is {trainable}; it must not be negative")
    case = Case(method, shape, tokens, settings, trainable, surrogate_parameters)
    formulas = FORMULAS.get(method)
    return {
        "paper_flops_per_example": float(formulas.paper(case)) if formulas else None,
        "uniform_flops_per_example": float(uniform.total(formulas.uniform(case))) if formulas else None,
        "measured_flops_per_example": measured_flops_per_example,
        "trainable_parameters": trainable,
        "trainable_percent": 100 * trainable / shape.parameters,
    }
