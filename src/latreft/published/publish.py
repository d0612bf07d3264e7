"""Make ``published/SCALE`` from the results of a finished sweep: checked, compact, and whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from latreft import artefacts
from latreft.config import scale_files
from latreft.files import write_json, write_text
from latreft.per_example import run_of
from latreft.plans import Plans, load_plans
from latreft.published import folder, redraw
from latreft.published.facts import Facts, page
from latreft.published.outcomes import pack
from latreft.published.rates import check_rates
from latreft.published.restore import write_lines
from latreft.published.spent import by_arm
from latreft.records import RunRecord, read_record
from latreft.tables.context import check_inputs

SHARED_CONFIG = ("experiments.yaml", "models.yaml", "claims.yaml", "config.yaml")
"""What every scale's targets read; ``config.yaml``, the paper scale's, because claims about costs do."""


def publish(root: Path, scale: str, results: Path, out: Path, partial: bool = False) -> list[str]:
    """Publish ``results/SCALE`` as ``out/SCALE``, in one rename; what is missing there, as paths below it.

    Tables and figures are built from what is published, not copied, so that :mod:`latreft.published.redraw` makes the
    same ones. Raises ``ValueError`` where files are missing (unless ``partial``), a rate is not that of its examples,
    a run was not made with the configured settings, or records do not belong together.
    """
    plans = Plans(root, load_plans(root, {"scale": scale}))
    source = results / scale
    wanted = folder.contents(plans, scale)
    found = wanted.present(source)
    missing = sorted(path for path in wanted.all() if not (source / path).is_file())
    if missing and not partial:
        raise ValueError(
            f"{source} lacks {len(missing)} of {len(wanted.all())} files that the targets of {scale} want, the first is "
            f"{missing[0]}; finish the sweep, or publish what is there with --partial"
        )
    records = {path: read_record(source / path) for path in found.records}
    check_inputs(records.values())
    check_settings(plans, records)
    checked = check_rates(source, found.records)
    with replaced(out / scale) as stage:
        write_evidence(source, found, stage)
        write_text(stage / folder.SECONDS, by_arm(records.values()).to_csv(index=False, lineterminator="\n"))
        write_config(root, plans, scale, stage / folder.CONFIG)
        unbuilt = write_shown(root, plans, scale, source, found, stage)
        facts = Facts(plans.by_scale[scale], list(records.values()), checked, missing, unbuilt).text()
        before = out / scale / folder.README
        write_text(stage / folder.README, page(before.read_text() if before.is_file() else None, scale, facts))
    return missing


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target``; on success it takes the target's place, on failure it is removed.

    Files of the old folder that are not ours (see ``folder.OWN``) move along.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        stage, old = Path(temporary) / target.name, Path(temporary) / "old"
        stage.mkdir()
        yield stage
        if target.is_dir():
            for path in sorted(target.iterdir()):
                if path.name not in folder.OWN:
                    copied = shutil.copytree if path.is_dir() else shutil.copy2
                    copied(path, stage / path.name)  # type: ignore[operator]
            target.rename(old)
        stage.rename(target)


def write_evidence(source: Path, found: folder.Contents, stage: Path) -> None:
    """Records, outcomes, manifests and scores."""
    write_lines(source, found.records, stage / folder.RECORDS)
    for name, attacks in ((folder.ACCURACY_OUTCOMES, False), (folder.ATTACK_OUTCOMES, True)):
        files = [source / path for path in found.outcomes if Path(path).name.startswith("attack_") == attacks]
        pack(((run_of(read_record(file.with_suffix(".json"))), file) for file in files), stage / name)
    for name, paths in ((folder.MANIFESTS, found.manifests), (folder.SCORES, found.scores)):
        for path in paths:
            (stage / name / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / path, stage / name / path)


def write_config(root: Path, plans: Plans, scale: str, target: Path) -> None:
    """The configuration as it is, and ``settings.json``: what every arm, attack and classifier was told, resolved."""
    target.mkdir()
    own = scale_files(root / "config")[scale]
    for path in (own, *(root / "config" / name for name in SHARED_CONFIG)):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    write_json(target / "settings.json", resolved(plans, scale))


def resolved(plans: Plans, scale: str) -> dict[str, Any]:
    """Settings of every arm (seeds together) with its attacks, and of every classifier."""
    plan = plans.by_scale[scale]
    arms: dict[str, Any] = {}
    for path, arm in plan.all_arms.items():
        w = SimpleNamespace(scale=scale, dataset=arm.dataset, model=arm.model, arm=arm.name, seed=arm.seed)
        attacks = {
            attack: plans.attack_settings(SimpleNamespace(**vars(w), attack=attack))
            for attack in plan.arm_attacks[path]
        }
        entry = arms.setdefault(f"{arm.dataset}/{arm.model}/{arm.name}", {"method": arm.method, "seeds": []})
        entry["seeds"].append(arm.seed)
        entry |= {"settings": plans.arm_settings(w), "attacks": attacks}
    classifiers = {}
    for dataset in plan.scale.settings.datasets:
        for model in plan.scale.models:
            w = SimpleNamespace(scale=scale, dataset=dataset, model=model)
            classifiers[f"{dataset}/{model}"] = {
                "finetune": plans.finetune_settings(w),
                "scores": plans.score_settings(w),
                "evaluation": plans.evaluation_settings(w),
            }
    return {"arms": arms, "classifiers": classifiers}


def check_settings(plans: Plans, records: Mapping[str, RunRecord]) -> None:
    """Raise ``ValueError`` where a run was made with another value of a setting than the configuration has now."""
    given = {
        "finetune": plans.finetune_settings,
        "scores": plans.score_settings,
        "theory": plans.theory_settings,
        "train": plans.arm_settings,
        "cost": plans.arm_settings,
        "accuracy": plans.evaluation_settings,
        "attack": plans.attack_settings,
    }
    for path, record in records.items():
        place = {"scale": record.scale, "dataset": record.dataset, "model": record.model.name}
        w = SimpleNamespace(**place, arm=record.arm, seed=record.seed, attack=record.attack)
        for key, value in given[record.kind](w).items():
            if key in record.settings and record.settings[key] != value:
                raise ValueError(
                    f"{path} was made with {key} {record.settings[key]!r}, the configuration has {value!r}; rerun it, or "
                    "put the configuration back"
                )


def write_shown(root: Path, plans: Plans, scale: str, source: Path, found: folder.Contents, stage: Path) -> list[str]:
    """Tables, figures, verdicts and ``records.csv``, built from ``stage``; the targets that could not be, for want of records.

    Raises ``ValueError`` where what comes back from ``stage`` is not what went in.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        redraw.working_copy(root, stage, copy)
        check_restored(source, copy / artefacts.RESULTS.format(scale=scale), found)
        redraw.build(copy, scale)
        for entry, place in folder.built(scale).items():
            if (copy / place).is_file():
                shutil.copyfile(copy / place, stage / entry)
            elif (copy / place).is_dir():
                shutil.copytree(copy / place, stage / entry)
        wanted = [*plans.tables(scale), *plans.figures(scale), *plans.ledger(scale)]
        return sorted({Path(path).stem for path in wanted if not (copy / path).is_file()})


def check_restored(source: Path, restored: Path, found: folder.Contents) -> None:
    """Raise ``ValueError`` where a restored file is not the source's: outcomes by content, all others by their bytes."""
    for path in found.outcomes:
        if not pq.read_table(source / path).equals(pq.read_table(restored / path)):
            raise ValueError(f"{path} would not come back as it is: it was not written by this project's jobs")
    for path in [*found.records, *found.manifests, *found.scores]:
        if (source / path).read_bytes() != (restored / path).read_bytes():
            raise ValueError(f"{path} would not come back byte for byte: it was not written by this project's jobs")
