"""What lies where: a published folder, and the results that it is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from latreft import artefacts
from latreft.plans import Plans, arm_file, classifier_records, scored

README = "README.md"
RECORDS = "records.jsonl"
RECORDS_CSV = "records.csv"
SECONDS = "seconds.csv"
ACCURACY_OUTCOMES = "outcomes_accuracy.parquet"
ATTACK_OUTCOMES = "outcomes_attacks.parquet"
MANIFESTS = "manifests"
SCORES = "scores"
CONFIG = "config"
SETTINGS = "config/settings.json"
TABLES = "tables"
FIGURES = "figures"
CLAIMS = ("claims.csv", "claims.md", "claims.tex")
OWN = (
    README, RECORDS, RECORDS_CSV, SECONDS, ACCURACY_OUTCOMES, ATTACK_OUTCOMES, MANIFESTS, SCORES, CONFIG, TABLES, FIGURES, *CLAIMS,
)  # fmt: skip
"""Everything in a published folder that is written by ``tools/publish.py``; other files there are left alone."""
WITH_OUTCOMES = ("finetune.json", "accuracy.json", "attack_*.json")
"""Records that have per-example outcomes beside them, in a parquet file of the record's name."""


def evidence(published: Path, scale: str) -> Path:
    """The published folder of ``scale`` in ``published``; ``ValueError`` where it holds no records."""
    found = published.resolve() / scale
    if not (found / RECORDS).is_file():
        raise ValueError(f"{found} holds no published records ({RECORDS})")
    return found


@dataclass(frozen=True)
class Contents:
    """The files of a scale that are published, as paths below ``results/SCALE``."""

    records: list[str]
    outcomes: list[str]
    manifests: list[str]
    scores: list[str]
    trained: list[str]
    """Manifests of defenses and of neuron scores: published where they are there, never missed."""

    def all(self) -> list[str]:
        """Those that must be there."""
        return [*self.records, *self.outcomes, *self.manifests, *self.scores]

    def present(self, results: Path) -> Contents:
        """Those that are in ``results`` (the folder of the scale); a record counts only with its outcomes beside it."""

        def there(path: str) -> bool:
            return (results / path).is_file()

        records = [path for path in self.records if there(path) and (not has_outcomes(path) or there(outcomes(path)))]
        beside = [outcomes(path) for path in records if has_outcomes(path)]
        rest = (list(filter(there, paths)) for paths in (self.manifests, self.scores, self.trained))
        return Contents(records, beside, *rest)


def contents(plans: Plans, scale: str) -> Contents:
    """What the tables and figures of ``scale`` are made from, and the outcomes behind their rates; sorted."""
    plan = plans.by_scale[scale]
    records = plans.all_records(SimpleNamespace(scale=scale))
    data = [artefacts.DATA.format(scale=scale, dataset=dataset) for dataset in plan.scale.settings.datasets]
    classifiers = classifier_records(plan, artefacts.CLASSIFIER)
    scores = [path for name, _ in plan.targets() for path in scored(plan, name, artefacts.SCORES)]
    beside = [outcomes(path) for path in records if has_outcomes(path)]
    defenses = [arm_file(plan, arm, artefacts.DEFENSE) for arm in plan.all_arms.values()]
    trained = defenses + classifier_records(plan, artefacts.SCORES_MANIFEST)
    return Contents(*(_below(scale, paths) for paths in (records, beside, data + classifiers, scores, trained)))


def has_outcomes(record: str) -> bool:
    """Whether the record at this path has outcomes beside it."""
    return any(Path(record).match(pattern) for pattern in WITH_OUTCOMES)


def outcomes(record: str) -> str:
    """The outcomes beside the record at this path."""
    return str(Path(record).with_suffix(".parquet"))


def _below(scale: str, paths: list[str]) -> list[str]:
    folder = artefacts.RESULTS.format(scale=scale) + "/"
    return sorted({path.removeprefix(folder) for path in paths})


def built(scale: str) -> dict[str, Path]:
    """Published entries that are made from the others, and where in a copy of the project.

    The workflow builds tables, figures, verdicts and ``records.csv``; ``results.describe`` writes the rest.
    """
    results = Path(artefacts.RESULTS.format(scale=scale))
    shown = {TABLES: results / "tables", FIGURES: Path(artefacts.figure(scale, "any")).parent}
    described = {name: Path("published", scale, name) for name in (SECONDS, SETTINGS, README)}
    return {name: results / name for name in (RECORDS_CSV, *CLAIMS)} | shown | described
