"""Tables and figures from published evidence, by the workflow's own rules, in a copy where nothing else can run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from latreft import artefacts
from latreft.config import PAPER
from latreft.files import write_text
from latreft.plans import Plans, load_plans
from latreft.published import folder
from latreft.published.restore import restore
from latreft.published.results import Results
from latreft.records import long_form

RULES = ("table", "figure", "records", "judge_claims")
"""The only rules that a redraw may run: none of them trains, attacks or evaluates."""
NEEDED = ("Snakefile", "environment.yml", "workflow", "src", "config", "profiles", "resources/paper")
TEXT = (".csv", ".md", ".tex")


def working_copy(root: Path, published: Path, copy: Path) -> None:
    """The project's code with the published configuration and evidence, in the new folder ``copy``."""
    if copy.is_dir() and any(copy.iterdir()):
        raise ValueError(f"{copy} holds files already; give a new folder")
    for name in NEEDED:
        source, target = root / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    for path in sorted((published / folder.CONFIG).glob("*.yaml")):
        shutil.copy2(path, copy / "config" / path.name)
    restore(published, copy / artefacts.RESULTS.format(scale=published.name))


def build(copy: Path, scale: str) -> Results:
    """Run the rules that show, for all targets whose inputs are there, and collect the records; the results shown.

    Raises ``ValueError`` for records that contradict each other, and with what Snakemake said where a rule fails.
    """
    plans = Plans(copy, load_plans(copy, {"scale": scale}))
    results = Results(plans, scale, copy / artefacts.RESULTS.format(scale=scale))
    records = results.records  # refused here once, not by every job
    wanted = targets(plans, scale, copy)
    if wanted:
        arguments = [
            "--config",
            f"scale={scale}",
            "--allowed-rules",
            *RULES,
            "--rerun-triggers",
            "mtime",
            "--",
            *wanted,
        ]
        said = subprocess.run([sys.executable, "-m", "snakemake", *arguments], cwd=copy, capture_output=True, text=True)
        if said.returncode != 0:
            raise ValueError(f"redrawing {scale} failed: {_reason(said.stdout + said.stderr)}")
    collected = copy / artefacts.RECORDS.format(scale=scale)
    if not collected.is_file():  # the rule wants every record
        write_text(collected, long_form(records.values()).to_csv(index=False, lineterminator="\n"))
    return results


def _reason(said: str) -> str:
    """The lines in which jobs say what is wrong, or the last ones."""
    lines = said.splitlines()
    return " ".join([line for line in lines if line.startswith("error: ")] or lines[-30:])


def targets(plans: Plans, scale: str, root: Path) -> list[str]:
    """The tables, figures, verdicts and collected records of ``scale`` whose inputs are all in ``root``."""
    plan = plans.by_scale[scale]

    def there(paths: Iterable[str]) -> bool:
        return all((root / path).is_file() for path in paths)

    found: list[str] = []
    for table in sorted({Path(path).stem for path in plans.tables(scale)}):
        w = SimpleNamespace(scale=scale, table=table)
        if there([*plans.table_records(w), *plans.table_manifests(w), *plans.table_outcomes(w)]):
            found += [f"{artefacts.TABLE.format(scale=scale, table=table)}{ending}" for ending in TEXT]
    for figure in sorted(plan.offered(plan.experiments.figures)):
        w = SimpleNamespace(scale_folder="" if scale == PAPER else f"{scale}/", figure=figure)
        if there([*plans.figure_records(w), *plans.figure_scores(w)]):
            found += [f"{artefacts.figure(scale, figure)}{ending}" for ending in (".pdf", ".png")]
    claims = plans.claims(scale)
    if there([*claims.records(), *claims.outcomes()]):
        found += plans.ledger(scale)
    if there(plans.all_records(SimpleNamespace(scale=scale))):
        found.append(artefacts.RECORDS.format(scale=scale))
    return found


def changed_settings(root: Path, published: Path) -> list[str]:
    """The published configuration files that are not those of the project any more."""
    return [
        f"config/{path.name}"
        for path in sorted((published / folder.CONFIG).glob("*.yaml"))
        if not (root / "config" / path.name).is_file()
        or (root / "config" / path.name).read_bytes() != path.read_bytes()
    ]
