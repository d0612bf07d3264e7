"""What the configuration tells every run, and whether the runs at hand were told the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from latreft.plans import Plans
from latreft.records import RunRecord


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


def other_setting(plans: Plans, records: Mapping[str, RunRecord]) -> str | None:
    """The first run (``records`` go by path) that was made with another value of a setting than is configured, in words."""
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
                return f"{path} was made with {key} {record.settings[key]!r}, the configuration has {value!r}"
    return None
