# Scales, plans, and the functions by which rules find their inputs and settings.
from functools import cache

from snakemake.exceptions import WorkflowError

from latreft import artefacts
from latreft.code_hash import code_hash
from latreft.config import load_models, load_scale, read_yaml, scale_files
from latreft.experiments import load_plan
from latreft.settings import SettingsError

ROOT = Path(workflow.basedir)
CONFIG = ROOT / "config"
ENVIRONMENT = "../../environment.yml"
TARGET_SCALE = config.get("scale", "paper")


def load_plans():
    """Every scale's plan. Values given with --config or --configfile change the scale that they name (`scale=`)."""
    try:
        models = load_models(CONFIG)
        plans = {}
        for name, path in scale_files(CONFIG).items():
            values = read_yaml(path)
            if values.get("scale") != name:
                raise SettingsError(f"{path}: scale is {values.get('scale')!r}; a file of this name must say {name!r}")
            if name == TARGET_SCALE:
                values |= config
            plans[name] = load_plan(load_scale(values, models, str(path.relative_to(ROOT))), CONFIG / "experiments.yaml")
        if TARGET_SCALE not in plans:
            scale = load_scale(dict(config), models, "--configfile")
            plans[TARGET_SCALE] = load_plan(scale, CONFIG / "experiments.yaml")
        return plans
    except SettingsError as error:
        raise WorkflowError(str(error)) from None


PLANS = load_plans()
SCALES = sorted(PLANS)

wildcard_constraints:
    scale="|".join(SCALES),
    scale_folder="(?:(?:" + "|".join(SCALES) + ")/)?",
    dataset="[a-z0-9_]+",
    model="[a-z0-9_.-]+",
    arm="[a-z0-9_.]+",
    seed=r"\d+",
    attack="[a-z0-9_]+",
    table="[a-z0-9_]+",
    figure="[a-z0-9_]+",


def plan_of(wildcards):
    return PLANS[wildcards.scale]


def scale_of(wildcards):
    return plan_of(wildcards).scale


def arm_of(wildcards):
    w = wildcards
    try:
        return plan_of(w).arm(f"{w.dataset}/{w.model}/{w.arm}/seed{w.seed}")
    except SettingsError as error:
        raise WorkflowError(str(error)) from None


@cache
def code(script, *modules):
    """Hash of the code that a rule runs: a changed comment changes nothing, a changed line of it all that use it."""
    return code_hash(ROOT / "src" / script, modules)


def runtime(wildcards):
    """How jobs run at this scale."""
    s = scale_of(wildcards).settings
    return {
        "device": s.device,
        "engine": s.engine,
        "autocast": s.autocast,
        "threads": s.threads,
        "warm_start": s.warm_start,
        "checkpoint_seconds": s.checkpoint_seconds,
    }


def device_resource(rule, name, fallback):
    """A rule's resource at a scale: `resources.RULE.NAME` of the scale's file, else a fallback."""

    def value(wildcards, attempt=1):
        return scale_of(wildcards).settings.resources.get(rule, {}).get(name, fallback)

    return value


def gpus(wildcards):
    """One GPU a job, none where the scale runs on CPUs."""
    return 0 if scale_of(wildcards).settings.device == "cpu" else 1


def threads_of(wildcards):
    return scale_of(wildcards).settings.threads


def max_length(wildcards):
    return scale_of(wildcards).settings.datasets[wildcards.dataset].max_length


def model_dtype(wildcards):
    return scale_of(wildcards).models[wildcards.model].dtype


def checkpoint(wildcards, name):
    """Where a long job keeps what it needs to go on: outside the outputs, which Snakemake removes when a job dies."""
    parts = [wildcards.get(key) for key in ("dataset", "model", "arm", "seed", "attack") if wildcards.get(key)]
    return "/".join([artefacts.CHECKPOINTS.format(scale=wildcards.scale), *parts, name])


def log_of(rule, *keys):
    return "/".join(["logs/{scale}", rule, "_".join("{" + key + "}" for key in keys) + ".log"])


def cells_of(plan, target):
    """A target's cells as plain values."""
    return [
        {
            "panel": cell.panel,
            "label": cell.label,
            "dataset": cell.arm.dataset,
            "model": cell.arm.model,
            "method": cell.arm.method,
            "arm": cell.arm.name,
            "seed": cell.arm.seed,
            "attacks": list(cell.attacks),
        }
        for cell in plan.cells(target)
    ]


def arm_records(plan, arm, attacks):
    """The records of one arm: cost, accuracy, and the attacks wanted."""
    place = dict(scale=plan.scale.name, dataset=arm.dataset, model=arm.model, arm=arm.name, seed=arm.seed)
    return [
        artefacts.TRAIN_RECORD.format(**place),
        artefacts.COST_RECORD.format(**place),
        artefacts.ACCURACY_RECORD.format(**place),
        *(artefacts.ATTACK_RECORD.format(**place, attack=attack) for attack in attacks),
    ]


def classifiers(plan):
    return [(dataset, model) for dataset in plan.scale.settings.datasets for model in plan.scale.models]


def target_records(plan, target):
    """The records that a table or figure is built from."""
    settings = plan.target(target)
    found = {}
    for cell in plan.cells(target):
        found.update(dict.fromkeys(arm_records(plan, cell.arm, cell.attacks)))
    if settings.classifiers:
        for dataset, model in classifiers(plan):
            place = dict(scale=plan.scale.name, dataset=dataset, model=model)
            found[artefacts.FINETUNE_RECORD.format(**place)] = None
    return list(found)


def titles(plan):
    """Names that people read."""
    return {
        "models": {name: model.title for name, model in plan.scale.models.items()},
        "datasets": {name: data.title for name, data in plan.scale.settings.datasets.items()},
    }


def table_files(scale):
    return [
        f"{artefacts.TABLE.format(scale=scale, table=table)}.{ending}"
        for table in PLANS[scale].experiments.tables
        for ending in ("csv", "md", "tex")
    ]


def figure_files(scale):
    return [
        f"{artefacts.figure(scale, figure)}.{ending}"
        for figure in PLANS[scale].experiments.figures
        for ending in ("pdf", "png")
    ]
