"""What the workflow's rules ask: where inputs lie, which settings a job gets, how it runs. No rule holds logic of its own.

Methods whose only argument is ``w`` are functions of a job's wildcards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from latreft import artefacts
from latreft.claims.wanted import Wanted, load_ledger
from latreft.code_hash import code_hash
from latreft.config import PAPER, ModelSettings, Scale, load_models, load_scale, read_yaml, scale_files
from latreft.data.settings import DatasetSettings, ParquetSource, SampleSource
from latreft.experiments import Arm, Plan, load_plan
from latreft.settings import SettingsError

Wildcards = Any
Job = Callable[[Wildcards], Any]
T = TypeVar("T")


TABLE_FILES = ("csv", "md", "tex")
FIGURE_FILES = ("pdf", "png")
NAMED = ("all", "tables", "figures", "heatmaps", "claims")
"""Targets that are groups of others."""
RUNTIME = ("device", "engine", "compiled", "autocast", "deterministic", "threads")


def load_plans(root: Path, given: Mapping[str, Any]) -> dict[str, Plan]:
    """Every scale's plan; the values ``given`` on the command line change the scale that they name (``scale``).

    A scale that has no file in ``config`` is taken wholly from ``given``. Where the command line names a scale, another
    one that cannot be planned is left out: a new method or data set need not be told to every scale at once.
    """
    folder = root / "config"
    models, experiments, files = load_models(folder), folder / "experiments.yaml", scale_files(folder)
    target = str(given.get("scale", PAPER))
    plans = {}
    for name, path in files.items():
        try:
            own = given if name == target else {}
            plans[name] = load_plan(_file_scale(name, path, own, models, str(path.relative_to(root))), experiments)
        except SettingsError:
            if name == target or "scale" not in given:
                raise
    if target not in plans:
        if len(given) < 2:
            raise SettingsError(f"unknown scale {target!r}; config/ has {', '.join(sorted(files))}")
        plans[target] = load_plan(load_scale(given, models, "--configfile"), experiments)
    defined = _dataset_keys(given).union(*(_dataset_keys(read_yaml(path)) for path in files.values()))
    _check_targets(plans, defined)
    return plans


def _check_targets(plans: Mapping[str, Plan], defined: set[str]) -> None:
    """A data set that a target names must be ``defined`` by some scale: a slip of the pen would silently drop the target.

    A table of the reader's own must not take the name of another target.
    """
    for plan in plans.values():
        experiments = plan.experiments
        taken = sorted(set(experiments.extra) & {*experiments.tables, *experiments.figures})
        if taken:
            raise SettingsError(f"{plan.where}: extra: {taken[0]!r} is already a table or figure; choose another name")
        for target, settings in experiments.all().items():
            unknown = sorted(settings.datasets - defined)
            if unknown:
                raise SettingsError(
                    f"{plan.where}: {target}: unknown data set {unknown[0]!r}; "
                    f"the scales define {', '.join(sorted(defined))}"
                )


def _dataset_keys(values: Mapping[str, Any]) -> set[str]:
    """The data sets that a scale's file names, whether or not the scale can be planned."""
    datasets = values.get("datasets")
    return set(map(str, datasets)) if isinstance(datasets, Mapping) else set()


def _file_scale(
    name: str, path: Path, given: Mapping[str, Any], models: Mapping[str, ModelSettings], where: str
) -> Scale:
    """The scale of a file, with the values ``given`` in place of the file's."""
    values = read_yaml(path)
    if values.get("scale") != name:
        raise SettingsError(f"{where}: key 'scale' has value {values.get('scale')!r}; this file must say {name!r}")
    changed = sorted(set(given) - {"scale"})
    where = f"{where} with --config {', '.join(changed)}" if changed else where
    return load_scale(values | dict(given), models, where)


@dataclass(frozen=True)
class Plans:
    """The plans of all scales, seen by rules."""

    root: Path
    by_scale: Mapping[str, Plan]

    # --- scales, arms, settings ---

    def plan(self, w: Wildcards) -> Plan:
        return self._plan(w.scale)

    def _plan(self, name: str) -> Plan:
        if name not in self.by_scale:
            raise SettingsError(
                f"scale {name} cannot be planned; to see why: snakemake --config scale={name} -n -- all; "
                f"planned are {', '.join(sorted(self.by_scale))}"
            )
        return self.by_scale[name]

    def scale(self, w: Wildcards) -> Scale:
        return self.plan(w).scale

    def arm(self, w: Wildcards) -> Arm:
        return self.plan(w).arm(f"{w.dataset}/{w.model}/{w.arm}/seed{w.seed}")

    def method(self, w: Wildcards) -> str:
        return self.arm(w).method

    def dataset(self, w: Wildcards) -> DatasetSettings:
        return _known(self.scale(w).settings.datasets, w.dataset, "data set", self.scale(w))

    def model(self, w: Wildcards) -> ModelSettings:
        return _known(self.scale(w).models, w.model, "model", self.scale(w))

    def dataset_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.dataset(w).model_dump(mode="json")

    def model_settings(self, w: Wildcards) -> dict[str, Any]:
        wanted = {"family", "layers", "source", "dtype"}
        return self.model(w).model_dump(mode="json", include=wanted)

    def finetune_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.scale(w).finetune(w.dataset, w.model).model_dump()

    def score_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.scale(w).settings.scores.model_dump()

    def theory_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.scale(w).settings.theory.model_dump()

    def evaluation_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.scale(w).settings.evaluation.model_dump() | {"max_length": self.max_length(w)}

    def arm_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.plan(w).settings_of(self.arm(w)).model_dump(mode="json")

    def attack_settings(self, w: Wildcards) -> dict[str, Any]:
        return self.scale(w).attack(w.dataset, w.model, w.attack).model_dump(mode="json")

    def max_length(self, w: Wildcards) -> int:
        return self.dataset(w).max_length

    def dtype(self, w: Wildcards) -> str:
        return self.model(w).dtype

    def layers(self, w: Wildcards) -> int:
        return self.model(w).layers

    # --- how jobs run ---

    def code(self, script: str, *modules: str) -> str:
        """Hash of the code that a rule runs; see :mod:`latreft.code_hash`."""
        return _code(self.root / "src" / script, modules)

    def model_code(self, script: str) -> Job:
        """The hash for a rule that runs a model: of the families only the model's own is code of the job."""
        return lambda w: self.code(script, self._family(w))

    def training_code(self, w: Wildcards) -> str:
        return self.code("train_defense.py", f"latreft.defenses.{self.method(w)}", self._family(w))

    def attack_code(self, w: Wildcards) -> str:
        kind = self.scale(w).attack_kind(w.attack)
        return self.code("attack.py", f"latreft.attacks.{kind}", self._family(w))

    def _family(self, w: Wildcards) -> str:
        return f"latreft.models.families.{self.model(w).family}"

    def runtime(self, w: Wildcards) -> dict[str, Any]:
        """Device, engine, precision, threads: how a job runs, as far as its numbers may depend on it."""
        s = self.scale(w).settings
        return {name: getattr(s, name) for name in RUNTIME}

    def execution(self, w: Wildcards, threads: int) -> dict[str, Any]:
        """How a job runs, as far as its numbers do not depend on it.

        Snakemake compares no params that are made from ``threads``: a change of these values reruns nothing.
        """
        s = self.scale(w).settings
        return {name: getattr(s, name) for name in ("warm_start", "checkpoint_seconds", "jobs_per_gpu")}

    def threads(self, w: Wildcards) -> int:
        return self.scale(w).settings.threads

    def gpus(self, w: Wildcards) -> int:
        """One GPU a job; none where the scale runs on CPUs."""
        return 0 if self.scale(w).settings.device == "cpu" else 1

    def resource(self, rule: str, name: str, fallback: int) -> Job:
        """A rule's resource: ``resources.RULE.NAME`` of the scale's file, else ``fallback``."""

        def value(w: Wildcards) -> int:
            given: Mapping[str, Mapping[str, int]] = self.scale(w).settings.resources  # type: ignore[assignment]
            return given.get(rule, {}).get(name, fallback)

        return value

    def checkpoint(self, name: str) -> Job:
        """Where a long job keeps what it needs to go on: outside its outputs, which Snakemake removes when it dies."""

        def path(w: Wildcards) -> str:
            keys = ("dataset", "model", "arm", "seed", "attack")
            parts = [str(w.get(key)) for key in keys if w.get(key) is not None]
            return str(Path(artefacts.CHECKPOINTS.format(scale=w.scale), *parts, name))

        return path

    # --- what is built from what ---

    def source_files(self, w: Wildcards) -> list[str]:
        """The local files that a data set is made from: a changed one makes it anew. Hub sets are pinned instead."""
        settings = self.dataset(w)
        place = settings.length.tokenizer.partition(":")[2]
        files = local_files(Path(place)) if place else []
        source = settings.source
        if isinstance(source, ParquetSource):
            files += local_files(Path(source.path))
        if isinstance(source, SampleSource):
            sample = self.root / (source.path or f"resources/sample/{w.dataset}.parquet")
            files += local_files(sample.relative_to(Path.cwd()) if sample.is_relative_to(Path.cwd()) else sample)
        return [str(path) for path in files]

    def tokenizer_texts(self, w: Wildcards) -> list[str]:
        """A random-weight model's tokenizer learns from the scale's data sets; other models need no data."""
        scale = self.scale(w)
        if self.model(w).source.kind != "random":
            return []
        return [artefacts.DATA.format(scale=w.scale, dataset=name) for name in scale.settings.datasets]

    def table_records(self, w: Wildcards) -> list[str]:
        return target_records(self.plan(w), w.table)

    def table_manifests(self, w: Wildcards) -> list[str]:
        """Table 2 is built from the data manifests, other tables from none."""
        if w.table != "dataset_stats":
            return []
        return [artefacts.DATA.format(scale=w.scale, dataset=name) for name in self.scale(w).settings.datasets]

    def table_outcomes(self, w: Wildcards) -> list[str]:
        """The differences between arms are built from what happened to each attacked example, other tables from records."""
        if w.table != "differences":
            return []
        return attack_outcomes(target_records(self.plan(w), w.table))

    def all_records(self, w: Wildcards) -> list[str]:
        """Every record of a scale."""
        plan = self.plan(w)
        found: dict[str, None] = {}
        for path, arm in plan.all_arms.items():
            accuracy = path in plan.arms_of_known_accuracy
            found.update(dict.fromkeys(arm_records(plan, arm, plan.arm_attacks[path], accuracy)))
        of_classifiers = classifier_records(plan, artefacts.FINETUNE_RECORD, artefacts.SCORES_RECORD)
        return [*found, *of_classifiers, theory_record(plan)]

    def figure_plan(self, w: Wildcards) -> Plan:
        """The paper scale's figures lie in ``figures/`` itself, the others in a folder of their scale."""
        return self._plan(w.scale_folder.rstrip("/") or PAPER)

    def figure_records(self, w: Wildcards) -> list[str]:
        plan = self.figure_plan(w)
        return target_records(plan, w.figure) + scored(plan, w.figure, artefacts.SCORES_RECORD)

    def figure_scores(self, w: Wildcards) -> list[str]:
        return scored(self.figure_plan(w), w.figure, artefacts.SCORES)

    def figure_code(self, w: Wildcards) -> str:
        plan = self.figure_plan(w)
        self._check_kind(plan, w.figure, plan.experiments.figures, "figure")
        module = "heatmaps" if w.figure.startswith("heatmaps_") else w.figure
        return self.code("make_figure.py", self._module("plots", module, "figures"))

    def table_code(self, w: Wildcards) -> str:
        plan = self.plan(w)
        self._check_kind(plan, w.table, plan.experiments.all_tables(), "table")
        return self.code("make_table.py", self._module("tables", self.table_builder(w), "tables"))

    def _check_kind(self, plan: Plan, name: str, targets: Mapping[str, Any], kind: str) -> None:
        """A table asked for as a figure, or the other way round, is answered with where it lies."""
        if name not in targets:
            plan.target(name)  # or there is none of that name
            files = " and ".join(self.by_name(plan.scale.name)[name])
            raise SettingsError(f"{plan.where}: {name} is no {kind}; its files are {files}")

    def _module(self, package: str, name: str, section: str) -> str:
        """The module that makes a table or figure, or an error that says where it is looked for."""
        path = f"src/latreft/{package}/{name}.py"
        if not (self.root / path).is_file():
            plain = "; a plain table of arms belongs under extra and needs none" if section == "tables" else ""
            raise SettingsError(f"config/experiments.yaml: {section}.{name}: there is no {path}{plain}")
        return f"latreft.{package}.{name}"

    def table_builder(self, w: Wildcards) -> str:
        """The module that builds a table; those under ``extra`` are plain tables of their arms."""
        return "arms" if w.table in self.plan(w).experiments.extra else w.table

    @cached_property
    def _wanted(self) -> dict[str, Wanted]:
        folder = self.root / "config"
        ledger, models = load_ledger(folder), frozenset(load_models(folder))
        return {name: Wanted(ledger, plan, models) for name, plan in self.by_scale.items()}

    def claims(self, scale: str) -> Wanted:
        """What the verdicts on the paper's claims need at a scale."""
        return self._wanted[self._plan(scale).scale.name]

    def paper_costs(self, scale: str) -> dict[str, dict[str, Any]]:
        """The models of the paper scale and the settings of its methods, if a claim judged at ``scale`` counts with them."""
        return self.claims(scale).costs(self.root / "config")

    def ledger(self, scale: str) -> list[str]:
        """The verdicts on the paper's claims at a scale."""
        return _files(artefacts.CLAIMS.format(scale=scale), TABLE_FILES)

    def tables(self, scale: str) -> list[str]:
        """All tables of a scale."""
        return self._offered(scale, self.by_scale[scale].experiments.all_tables())

    def figures(self, scale: str) -> list[str]:
        """All figures of a scale."""
        return self._offered(scale, self.by_scale[scale].experiments.figures)

    def _offered(self, scale: str, targets: Mapping[str, Any]) -> list[str]:
        """The files of those targets that a scale is offered."""
        files = self.by_name(scale)
        return [path for name in self.by_scale[scale].offered(targets) for path in files[name]]

    def by_name(self, scale: str) -> dict[str, list[str]]:
        """The files of every table and figure, by its name; asking for one that the scale is not offered says why."""
        experiments = self.by_scale[scale].experiments
        tables = {name: _files(artefacts.TABLE.format(scale=scale, table=name), TABLE_FILES)
                  for name in experiments.all_tables()}  # fmt: skip
        figures = {name: _files(artefacts.figure(scale, name), FIGURE_FILES) for name in experiments.figures}
        return tables | figures

    def unnamed(self, scale: str, w: Wildcards) -> list[str]:
        """No target goes by a name that is nothing's."""
        known = ", ".join([*NAMED, *sorted(self.by_name(scale))])
        raise SettingsError(f"no target is called {w.unknown!r}; there are {known}, and the path of every file")

    def refused(self, w: Wildcards) -> list[str]:
        """No path of a scale that is not planned can be made."""
        self._plan(w.unknown)
        raise AssertionError("rules of a planned scale make its paths")

    def heatmaps(self, scale: str) -> list[str]:
        """The figures that show neuron scores."""
        return [path for path in self.figures(scale) if Path(path).name.startswith("heatmaps_")]


def _files(path: str, endings: tuple[str, ...]) -> list[str]:
    return [f"{path}.{ending}" for ending in endings]


def _known(defined: Mapping[str, T], name: str, what: str, scale: Scale) -> T:
    """The entry called ``name``, or an error that names those there are."""
    if name not in defined:
        raise SettingsError(f"{scale.where}: no {what} is called {name!r}; there are {', '.join(sorted(defined))}")
    return defined[name]


def local_files(path: Path) -> list[Path]:
    """A file, or the files of a folder; none where it does not exist, for the job says better what is wrong."""
    if path.is_dir():
        return sorted(child for child in path.iterdir() if child.is_file())
    return [path] if path.is_file() else []


@cache
def _code(script: Path, modules: tuple[str, ...]) -> str:
    return code_hash(script, modules)


def cells(plan: Plan, target: str) -> list[dict[str, Any]]:
    """A target's cells as plain values, for a rule's params."""
    return [cell.place() | {"attacks": list(cell.attacks), "accuracy": cell.accuracy} for cell in plan.cells(target)]


def titles(plan: Plan, target: str) -> dict[str, dict[str, str]]:
    """Names that people read, of the models and data sets that a target shows: another's name changes nothing there."""
    settings, arms = plan.target(target), plan.arms(target)
    whole = settings.classifiers or not (arms or settings.scores)
    models = {arm.model for arm in arms} if not (whole or settings.scores) else set(plan.scale.models)
    datasets = {*(arm.dataset for arm in arms), *settings.scores} if not whole else set(plan.scale.settings.datasets)
    return {
        "models": {name: model.title for name, model in plan.scale.models.items() if name in models},
        "datasets": {name: data.title for name, data in plan.scale.settings.datasets.items() if name in datasets},
    }


def arm_file(plan: Plan, arm: Arm, template: str, attack: str = "") -> str:
    """A file of one arm."""
    return template.format(
        scale=plan.scale.name, dataset=arm.dataset, model=arm.model, arm=arm.name, seed=arm.seed, attack=attack
    )


def arm_records(plan: Plan, arm: Arm, attacks: tuple[str, ...] | list[str], accuracy: bool = True) -> list[str]:
    """The records of one arm: training, cost, accuracy if wanted, and the attacks wanted."""
    fixed = [artefacts.TRAIN_RECORD, artefacts.COST_RECORD, *([artefacts.ACCURACY_RECORD] if accuracy else [])]
    return [
        *(arm_file(plan, arm, template) for template in fixed),
        *(arm_file(plan, arm, artefacts.ATTACK_RECORD, attack) for attack in attacks),
    ]


def classifier_records(plan: Plan, *templates: str) -> list[str]:
    """Records of every model on every data set."""
    return [
        template.format(scale=plan.scale.name, dataset=dataset, model=model)
        for template in templates
        for dataset in plan.scale.settings.datasets
        for model in plan.scale.models
    ]


def theory_record(plan: Plan) -> str:
    """The record of the theorems' checks."""
    settings = plan.scale.settings
    return artefacts.theory_record(plan.scale.name, settings.datasets, settings.main_model)


def target_records(plan: Plan, target: str) -> list[str]:
    """The records that a table or figure is built from."""
    found: dict[str, None] = {}
    for cell in plan.cells(target):
        found.update(dict.fromkeys(arm_records(plan, cell.arm, cell.attacks, cell.accuracy)))
    shown = classifier_records(plan, artefacts.FINETUNE_RECORD) if plan.target(target).classifiers else []
    return [*found, *shown]


def attack_outcomes(records: list[str]) -> list[str]:
    """The per-example outcomes beside those of ``records`` that are an attack's."""
    attacks = [Path(path) for path in records if Path(path).name.startswith("attack_")]
    return [str(path.with_suffix(".parquet")) for path in attacks]


def scored(plan: Plan, target: str, template: str) -> list[str]:
    """A file of every classifier whose neuron scores a target shows."""
    return [
        template.format(scale=plan.scale.name, dataset=dataset, model=model)
        for dataset in plan.target(target).scores
        for model in plan.scale.models
    ]
