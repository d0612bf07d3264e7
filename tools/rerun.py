"""Run one published arm again and compare: ``python tools/rerun.py SCALE DATASET/MODEL/ARM/seedN [-- SNAKEMAKE OPTIONS]``.

Runs what its published records take, the classifier included, in ``results/SCALE``, and then says of each record what is
otherwise than in the published one. Seconds and peak memory always are, and are not compared. The same command goes on with
what was stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.artefacts import RESULTS  # noqa: E402
from latreft.cli import one_line_errors  # noqa: E402
from latreft.plans import Plans, load_plans  # noqa: E402
from latreft.preflight import data_faults, model_faults  # noqa: E402
from latreft.published import folder  # noqa: E402
from latreft.published.configured import other_setting  # noqa: E402
from latreft.published.rerun import arm_at, brought_back, compare_runs, records_of, targets  # noqa: E402
from latreft.published.restore import restore  # noqa: E402
from latreft.records import RunRecord  # noqa: E402

DRY = {"-n", "--dry-run", "--dryrun"}


@one_line_errors()
def main() -> None:
    """Exit code 1 where a result differs, or nothing could be compared."""
    here, options = split(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--compare] SCALE DATASET/MODEL/ARM/seedN [-- OPTIONS OF SNAKEMAKE]",
    )
    parser.add_argument("scale")
    parser.add_argument("arm", help="DATASET/MODEL/ARM/seedN, as its folder below results/SCALE/runs is called")
    parser.add_argument("--compare", action="store_true", help="run nothing: compare what lies in results/SCALE")
    given, stray = parser.parse_known_args(here)
    if stray:
        parser.error(f"unknown options: {' '.join(stray)}; those of Snakemake stand behind --")
    if given.compare and options:
        parser.error(f"--compare runs nothing, so Snakemake gets no options: {' '.join(options)}")
    evidence, results = folder.evidence(ROOT / "published", given.scale), ROOT / RESULTS.format(scale=given.scale)
    arm = arm_at(given.arm, given.scale)
    records = records_of(evidence, arm)
    if not given.compare:
        run(given.scale, arm, records, results, options)
        if DRY & set(options):
            return
    with tempfile.TemporaryDirectory() as temporary:
        restore(evidence, Path(temporary))
        found = compare_runs(Path(temporary), results, records)
    for comparison in found:
        print(comparison)
    same = sum(comparison.same for comparison in found)
    print(f"{same} of {len(found)} records of {arm} are as they were published")
    made = dict.fromkeys(word for comparison in found for word in comparison.made)
    if made:
        print(f"made otherwise, which is not counted: {'; '.join(made)}")
    if same < len(found):
        raise SystemExit(1)


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments in front of ``--`` and behind it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def run(scale: str, arm: str, records: dict[str, RunRecord], results: Path, options: list[str]) -> None:
    """Make the records of ``arm`` that are not there. One that is there as published is refused: nothing would be run."""
    plans = load_plans(ROOT, {"scale": scale})
    other = other_setting(Plans(ROOT, plans), records)
    if other:
        raise ValueError(f"not the published arm any more: {other}")
    back = brought_back(results, records)
    if back:
        raise ValueError(
            f"{results / back} is the published one itself, and would not be made again; move {(results / back).parent} away"
        )
    if not DRY & set(options):
        dataset, model, *_ = arm.split("/")
        of = plans[scale].scale
        faults = [*model_faults(model, of.models[model]), *data_faults(dataset, of.settings.datasets[dataset], ROOT)]
        if faults:
            raise ValueError(f"{arm} cannot be run here: {'; '.join(map(str, faults))}")
    asked = ["--config", f"scale={scale}", *options, "--", *targets(scale, records)]
    if subprocess.run([sys.executable, "-m", "snakemake", *asked], cwd=ROOT).returncode != 0:
        raise ValueError(f"{arm} was not run to the end, see above; the same command goes on from there")


main()
