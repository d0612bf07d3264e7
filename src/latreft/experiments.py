"""Which arms each table and figure wants.

An arm is one trained defense: data set, model, method, the settings in which it differs from the scale's, and seed.
Arms with equal settings are one arm, whichever targets ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from latreft.config import Scale, read_yaml
from latreft.settings import Settings, SettingsError, validate

NAME = re.compile(r"^[a-z0-9_.]+$")


@dataclass(frozen=True)
class Arm:
    """One trained defense. ``name`` is the method and what differs from the scale's settings, fit for a path."""

    dataset: str
    model: str
    method: str
    name: str
    seed: int
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def path(self) -> str:
        return f"{self.dataset}/{self.model}/{self.name}/seed{self.seed}"


@dataclass(frozen=True)
class Cell:
    """What a target shows of one arm: the panel and the place in it (bar, row or point), and the attacks it needs.

    ``accuracy``: whether it needs the accuracy on the whole validation split.
    """

    panel: str
    label: str
    arm: Arm
    attacks: tuple[str, ...]
    accuracy: bool = True

    def place(self) -> dict[str, Any]:
        """Where it is shown and which arm it is, as plain values for a rule's params."""
        arm = self.arm
        return {
            "panel": self.panel, "label": self.label, "dataset": arm.dataset, "model": arm.model, "method": arm.method,
            "arm": arm.name, "seed": arm.seed,
        }  # fmt: skip


class Group(Settings):
    """Arms that a target wants: every combination of data set, model, arm and swept value.

    ``spelled_out`` arms are named after every value given, also where it is the scale's own: a search keeps its arms'
    names when what it has found becomes the scale's setting.
    """

    panel: str = "main"
    datasets: list[str] | Literal["all"]
    models: list[str] | Literal["all", "main"]
    arms: Annotated[list[str | dict[str, Any]], Field(min_length=1)]
    vary: dict[str, str | list[Any]] = {}
    attacks: list[str] = []
    seeds: list[int] | None = None
    accuracy: bool = True
    spelled_out: bool = False


class TargetSettings(Settings):
    """One table or figure: its arms, or the classifiers and scores that it shows. ``scales`` that have it; all if empty."""

    title: str
    scales: list[str] = []
    groups: list[Group] = []
    classifiers: bool = False
    scores: list[str] = []

    def is_for(self, scale: str) -> bool:
        """Whether a scale is to have it."""
        return not self.scales or scale in self.scales

    @property
    def datasets(self) -> set[str]:
        """The data sets that it names."""
        named = [group.datasets for group in self.groups if isinstance(group.datasets, list)]
        return {*self.scores, *(name for names in named for name in names)}


class ExperimentSettings(Settings):
    """``config/experiments.yaml``."""

    tables: dict[str, TargetSettings]
    figures: dict[str, TargetSettings]
    extra: dict[str, TargetSettings] = {}
    """Plain tables, ours and yours: accuracy, attack success and cost of any arms, one row each."""

    def all(self) -> dict[str, TargetSettings]:
        """Every target by its name."""
        return {**self.tables, **self.figures, **self.extra}

    def all_tables(self) -> dict[str, TargetSettings]:
        """Every target that is a table."""
        return {**self.tables, **self.extra}


@dataclass(frozen=True)
class Plan:
    """The arms of every target at one scale. A target whose data sets the scale lacks is not offered there."""

    scale: Scale
    experiments: ExperimentSettings
    where: str = field(default="config/experiments.yaml")

    def offered(self, targets: Mapping[str, TargetSettings]) -> dict[str, TargetSettings]:
        """Those of ``targets`` that are for this scale and whose data sets it has."""
        have = set(self.scale.settings.datasets)
        return {
            name: target
            for name, target in targets.items()
            if target.is_for(self.scale.name) and target.datasets <= have
        }

    def targets(self) -> Iterator[tuple[str, TargetSettings]]:
        """Every table, figure and extra target that this scale offers, with its settings."""
        yield from self.offered(self.experiments.all()).items()

    def target(self, name: str) -> TargetSettings:
        """The settings of one target."""
        known = self.experiments.all()
        if name not in known:
            raise SettingsError(f"{self.where}: no target is called {name!r}; targets are {', '.join(known)}")
        if not known[name].is_for(self.scale.name):
            scales = ", ".join(known[name].scales)
            raise SettingsError(f"{self.where}: {name} is a target of the scales {scales}, not of {self.scale.name}")
        missing = sorted(known[name].datasets - set(self.scale.settings.datasets))
        if missing:
            raise SettingsError(
                f"{self.where}: {name} shows {missing[0]!r}, a data set that {self.scale.where} does not define; "
                "for another scale's, name it: --config scale=NAME"
            )
        return known[name]

    def cells(self, target: str) -> list[Cell]:
        """All that ``target`` shows, in the order in which it is shown; swept seeds are separate cells."""
        where, cells, searched = f"{self.where}: {target}", list[Cell](), list[Cell]()
        for group in self.target(target).groups:
            expanded = list(self._expand(group, where))
            cells += expanded
            searched += expanded if group.spelled_out else []
        _check_labels(cells, where)
        _check_search(searched, where)
        return cells

    def arms(self, target: str) -> list[Arm]:
        """The arms of ``target``, each once."""
        return list(dict.fromkeys(cell.arm for cell in self.cells(target)))

    @cached_property
    def all_arms(self) -> dict[str, Arm]:
        """Every arm that some target wants, by path."""
        return {cell.arm.path: cell.arm for name, _ in self.targets() for cell in self.cells(name)}

    @cached_property
    def arm_attacks(self) -> dict[str, list[str]]:
        """The attacks that some target wants of each arm, by the arm's path."""
        wanted: dict[str, dict[str, None]] = {}
        for name, _ in self.targets():
            for cell in self.cells(name):
                wanted.setdefault(cell.arm.path, {}).update(dict.fromkeys(cell.attacks))
        return {path: list(attacks) for path, attacks in wanted.items()}

    @cached_property
    def arms_of_known_accuracy(self) -> set[str]:
        """The paths of the arms whose accuracy on the validation split some target wants."""
        return {cell.arm.path for name, _ in self.targets() for cell in self.cells(name) if cell.accuracy}

    def arm(self, path: str) -> Arm:
        """The arm that lies at ``dataset/model/name/seedN``."""
        if path not in self.all_arms:
            raise SettingsError(f"{self.where}: no target of scale {self.scale.name} wants the arm {path}")
        return self.all_arms[path]

    def settings_of(self, arm: Arm) -> Settings:
        """The arm's fully resolved settings."""
        return self.scale.method(arm.dataset, arm.model, arm.method, dict(arm.changes))

    def _names(self, wanted: list[str] | str, known: list[str], what: str, where: str) -> list[str]:
        if wanted == "all":
            return known
        if wanted == "main":
            return [self.scale.settings.main_model]
        assert isinstance(wanted, list)
        for name in wanted:
            if name not in known:
                raise SettingsError(f"{where}: unknown {what} {name!r}; scale {self.scale.name} has {', '.join(known)}")
        return wanted

    def _swept(self, vary: Mapping[str, str | list[Any]]) -> list[dict[str, Any]]:
        """Every combination of the swept values; a name stands for a grid of the scale."""
        combinations: list[dict[str, Any]] = [{}]
        for key, values in vary.items():
            choices = self.scale.grid(values) if isinstance(values, str) else values
            combinations = [before | {key: value} for before in combinations for value in choices]
        return combinations

    def _expand(self, group: Group, where: str) -> Iterator[Cell]:
        settings = self.scale.settings
        for attack in group.attacks:
            if attack not in settings.attacks:
                raise SettingsError(
                    f"{where}: unknown attack {attack!r}; scale {settings.scale} has {', '.join(sorted(settings.attacks))}"
                )
        for dataset in self._names(group.datasets, list(settings.datasets), "data set", where):
            for model in self._names(group.models, list(self.scale.models), "model", where):
                for entry in group.arms:
                    changes = {"method": entry} if isinstance(entry, str) else dict(entry)
                    method = changes.pop("method", None)
                    if method is None:
                        raise SettingsError(f"{where}: an arm needs a method, got {entry!r}")
                    for swept in self._swept(group.vary):
                        label = _label(changes.get("label"), swept) or method
                        own = {key: value for key, value in changes.items() if key != "label"} | swept
                        for seed in settings.seeds if group.seeds is None else group.seeds:
                            arm = self._arm(dataset, model, method, own, seed, where, group.spelled_out)
                            yield Cell(group.panel, label, arm, tuple(group.attacks), group.accuracy)

    def _arm(
        self, dataset: str, model: str, method: str, changes: dict[str, Any], seed: int, where: str, spelled_out: bool
    ) -> Arm:
        """The arm with ``changes``; a change that equals the scale's own setting is none, unless ``spelled_out``."""
        try:
            own = self.scale.method(dataset, model, method)
            changed = self.scale.method(dataset, model, method, changes)
        except SettingsError as error:
            raise SettingsError(f"{where}: arm {method}{f' {changes}' if changes else ''}: {error}") from None
        differing = tuple(
            (key, getattr(changed, key))
            for key in sorted(changes)
            if spelled_out or getattr(changed, key) != getattr(own, key)
        )
        name = "__".join([method, *(f"{key}_{in_a_path(value)}" for key, value in differing)])
        if not NAME.match(name):
            raise SettingsError(
                f"{where}: the arm {name!r} cannot be a path; use letters, digits, '.' and '_' in values"
            )
        return Arm(dataset, model, method, name, seed, differing)


def _label(told: str | None, swept: Mapping[str, Any]) -> str:
    """The values that are swept; behind a label of the arm's own each with its key's name."""
    if told is None:
        return ", ".join(map(str, swept.values()))
    return ", ".join([told, *(f"{key.replace('_', ' ')} {value}" for key, value in swept.items())])


def _check_labels(cells: Iterable[Cell], where: str) -> None:
    """A label of a panel must not stand for two arms of one data set and model."""
    arms: dict[tuple[str, ...], str] = {}
    for cell in cells:
        arm = cell.arm
        first = arms.setdefault((cell.panel, cell.label, arm.dataset, arm.model), arm.name)
        if first != arm.name:
            raise SettingsError(
                f"{where}: panel {cell.panel!r} shows two arms as {cell.label!r} ({arm.dataset}, {arm.model}): {first} and "
                f"{arm.name}; give them different labels"
            )


def _check_search(cells: Iterable[Cell], where: str) -> None:
    """The arms of a search must name the same settings of a method: what one leaves to the scale would change with it."""
    named: dict[str, tuple[str, ...]] = {}
    for cell in cells:
        arm = cell.arm
        keys = tuple(key for key, _ in arm.changes)
        first = named.setdefault(arm.method, keys)
        if first != keys:
            raise SettingsError(
                f"{where}: of two {arm.method} arms one says {', '.join(first) or 'nothing'}, the other "
                f"{', '.join(keys) or 'nothing'}; with spelled_out all of a method's arms must say the same settings"
            )


def in_a_path(value: Any) -> str:
    """A setting's value as arms are named after it: numbers without an exponent."""
    return format(Decimal(repr(value)), "f") if isinstance(value, float) else str(value)


def load_plan(scale: Scale, path: Path) -> Plan:
    """The plan of ``scale`` from ``experiments.yaml``, every target expanded once, so that faults show at once."""
    plan = Plan(scale, validate(ExperimentSettings, read_yaml(path), str(path)), str(path))
    _ = plan.all_arms
    _check_attacks(plan)
    return plan


def _check_attacks(plan: Plan) -> None:
    """An attack must leave room for content in what the classifier reads."""
    wanted = {(plan.all_arms[path].dataset, plan.all_arms[path].model, name)
              for path, names in plan.arm_attacks.items() for name in names}  # fmt: skip
    for dataset, model, name in sorted(wanted):
        most = plan.scale.settings.datasets[dataset].max_length
        tokens = plan.scale.attack(dataset, model, name).tokens
        if tokens >= most:
            raise SettingsError(
                f"{plan.scale.where}: attacks.{name}: tokens {tokens} leave no room in max_length {most} of {dataset}"
            )
