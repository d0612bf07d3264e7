"""What the verdicts of one scale need: the claims judged there, the arms they name, and the files of their runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from latreft import artefacts
from latreft.claims.settings import Arithmetic, ArmName, Ledger, Rates, Scores, Theory, ledger
from latreft.config import load_models, load_scale, read_yaml
from latreft.experiments import Cell, Plan
from latreft.settings import SettingsError

FILE = "config/claims.yaml"
Q = TypeVar("Q", Arithmetic, Scores, Theory)


def load_ledger(folder: Path) -> Ledger:
    """The ledger of ``claims.yaml``."""
    return ledger(read_yaml(folder / "claims.yaml"), FILE)


@dataclass(frozen=True)
class Wanted:
    """A ledger at the scale of ``plan``; ``models`` are all that ``models.yaml`` defines."""

    ledger: Ledger
    plan: Plan
    models: frozenset[str]
    _expanded: dict[str, list[Cell]] = field(default_factory=dict)

    @cached_property
    def rates(self) -> list[tuple[str, Rates]]:
        """The quantities made of rates that are judged at this scale, with their claims."""
        judged = self.ledger.judged(self.plan.scale.name)
        return [(key, rates) for key, claim in judged.items() for rates in claim.rates()]

    @cached_property
    def arms(self) -> dict[str, dict[str, Any]]:
        """Name of an arm → its ``cells`` as plain values, or why this scale has none (``absent``).

        Raises ``SettingsError`` where a claim names a target, panel, data set, label, model or attack that
        ``experiments.yaml`` does not have.
        """
        found: dict[str, dict[str, Any]] = {}
        for key, rates in self.rates:
            for name in rates.arms:
                try:
                    cells, absent = self._cells(self.ledger.arms[name], rates.of)
                except SettingsError as error:
                    raise SettingsError(f"{FILE}: claims.{key}: arm {name}: {error}") from None
                found[name] = {"cells": [cell.place() for cell in cells], "absent": absent}
        return found

    def _cells(self, arm: ArmName, of: str) -> tuple[list[Cell], str]:
        """The cells of an arm, or why this scale has none."""
        target = self.plan.experiments.all().get(arm.target)
        if target is None:
            known = ", ".join(self.plan.experiments.all())
            raise SettingsError(f"no target is called {arm.target!r}; targets are {known}")
        if arm.model not in ("main", "all", *self.models):
            raise SettingsError(f"unknown model {arm.model!r}; models are {', '.join(sorted(self.models))}")
        scale = self.plan.scale
        if not self.plan.offered({arm.target: target}):
            return [], f"the {scale.name} scale is not offered {arm.target}"
        if arm.model not in ("main", "all", *scale.models):
            return [], f"the {scale.name} scale has no model {arm.model}"
        cells, absent = self._chosen(arm)
        for cell in cells:
            _narrowed([cell], "result", of, lambda one: (*(["accuracy"] if one.accuracy else []), *one.attacks))
        return cells, absent

    def _chosen(self, arm: ArmName) -> tuple[list[Cell], str]:
        """Of the target's cells those that the arm names, narrowed key by key, so that an error says which key it is."""
        scale = self.plan.scale
        cells = _narrowed(self._cells_of(arm.target), "panel", arm.panel, lambda cell: cell.panel)
        cells = _narrowed(cells, "data set", arm.dataset, lambda cell: cell.arm.dataset)
        if arm.model != "all":
            model = scale.settings.main_model if arm.model == "main" else arm.model
            cells = [cell for cell in cells if cell.arm.model == model]
            if not cells:
                return [], f"{arm.target} does not show {model} at the {scale.name} scale"
        if arm.label == "all":
            return cells, ""
        if self._swept(arm) and arm.label not in {cell.label for cell in cells}:
            return [], f"the {scale.name} scale does not sweep {arm.label} in {arm.target}"
        return _narrowed(cells, "label", arm.label, lambda cell: cell.label), ""

    def _cells_of(self, target: str) -> list[Cell]:
        """All cells of a target, expanded once."""
        if target not in self._expanded:
            self._expanded[target] = self.plan.cells(target)
        return self._expanded[target]

    def _swept(self, arm: ArmName) -> bool:
        """Whether a grid of the scale says which labels the arm's panel has: a label need not be there at each scale."""
        groups = self.plan.experiments.all()[arm.target].groups
        return any(
            isinstance(values, str) for group in groups if group.panel == arm.panel for values in group.vary.values()
        )

    def costs(self, folder: Path) -> dict[str, dict[str, Any]]:
        """What arithmetic counts from (:func:`paper_costs`), where a claim asks for it."""
        return paper_costs(folder) if self._quantities(Arithmetic) else {}

    # --- files ---

    def records(self) -> list[str]:
        """The records behind the verdicts."""
        of_rates = self._of_rates(
            artefacts.ACCURACY_RECORD, artefacts.ATTACK_RECORD, [rates for _, rates in self.rates]
        )
        return list(dict.fromkeys([*of_rates, *self._scores(), *self._theory()]))

    def outcomes(self) -> list[str]:
        """The per-example outcomes that arms are compared by: of rates alone none."""
        compared = [rates for _, rates in self.rates if rates.kind != "rate"]
        return self._of_rates(artefacts.ACCURACY_OUTCOMES, artefacts.ATTACK_OUTCOMES, compared)

    def _of_rates(self, accuracy: str, attack: str, wanted: list[Rates]) -> list[str]:
        """A file of every run that ``wanted`` rates are of, each once; ``accuracy`` and ``attack`` say where it lies."""
        found: dict[str, None] = {}
        for rates in wanted:
            template = accuracy if rates.of == "accuracy" else attack
            for cell in (cell for name in rates.arms for cell in self.arms[name]["cells"]):
                found[template.format(scale=self.plan.scale.name, attack=rates.of, **cell)] = None
        return list(found)

    def _scores(self) -> list[str]:
        scale = self.plan.scale
        models = {"all": list(scale.models), "main": [scale.settings.main_model]}
        return [
            artefacts.SCORES_RECORD.format(scale=scale.name, dataset=dataset, model=model)
            for scores in self._quantities(Scores)
            for dataset in scores.datasets
            for model in models[scores.models]
            if dataset in scale.settings.datasets
        ]

    def _theory(self) -> list[str]:
        settings = self.plan.scale.settings
        record = artefacts.theory_record(self.plan.scale.name, settings.datasets, settings.main_model)
        return [record] if self._quantities(Theory) else []

    def _quantities(self, kind: type[Q]) -> list[Q]:
        judged = self.ledger.judged(self.plan.scale.name).values()
        return [each for claim in judged for each in claim.quantities.values() if isinstance(each, kind)]


def _narrowed(cells: list[Cell], what: str, wanted: str, of: Any) -> list[Cell]:
    """The cells that have ``wanted``; an error that lists what there is where none has."""
    had = [of(cell) if isinstance(of(cell), tuple) else (of(cell),) for cell in cells]
    found = [cell for cell, values in zip(cells, had, strict=True) if wanted in values]
    if cells and not found:
        known = dict.fromkeys(value for values in had for value in values)
        raise SettingsError(f"no {what} {wanted!r}; there are {', '.join(known)}")
    return found


def paper_costs(folder: Path) -> dict[str, dict[str, Any]]:
    """Model of the paper scale → its ``title``, and the ``methods``' settings there, for its first data set.

    Nothing where that scale's file cannot be read: a fault in it stops no other scale.
    """
    try:
        scale = load_scale(read_yaml(folder / "config.yaml"), load_models(folder), "config/config.yaml")
    except (SettingsError, FileNotFoundError):
        return {}
    dataset = next(iter(scale.settings.datasets))
    return {
        name: {
            "title": scale.models[name].title,
            "methods": {
                method: scale.method(dataset, name, method).model_dump(mode="json") for method in scale.settings.methods
            },
        }
        for name in scale.settings.models
    }
