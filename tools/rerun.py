"""Run one published arm again and compare: ``python tools/rerun.py SCALE DATASET/MODEL/ARM/seedN [-- SNAKEMAKE OPTIONS]``.

Runs what its published records take, the classifier included, in ``results/SCALE``, and then says of each record what is
otherwise than in the published one. Seconds and peak memory always are, and are not compared.
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
from latreft.published.configured import other_setting  # noqa: E402
from latreft.published.folder import RECORDS  # noqa: E402
from latreft.published.rerun import compare_runs, records_of, targets  # noqa: E402
from latreft.published.restore import restore  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1 where a record differs, or nothing could be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scale")
    parser.add_argument(
        "arm", metavar="DATASET/MODEL/ARM/seedN", help="as its folder below results/SCALE/runs is called"
    )
    parser.add_argument("--compare", action="store_true", help="run nothing: compare what lies in results/SCALE")
    parser.add_argument("options", nargs="*", help="options of Snakemake, behind --")
    given = parser.parse_args()
    evidence, results = ROOT / "published" / given.scale, ROOT / RESULTS.format(scale=given.scale)
    if not (evidence / RECORDS).is_file():
        raise ValueError(f"{evidence} holds no published records ({RECORDS})")
    records = records_of(evidence, given.arm)
    if not given.compare:
        other = other_setting(Plans(ROOT, load_plans(ROOT, {"scale": given.scale})), records)
        if other:
            raise ValueError(f"not the published arm any more: {other}")
        there = [path for path in records if (results / path).exists()]
        if there:
            raise ValueError(
                f"{results / there[0]} is there already, and would not be made again; move its folder away, or give "
                "--compare if it is a rerun"
            )
        asked = ["--config", f"scale={given.scale}", *given.options, "--", *targets(given.scale, records)]
        if subprocess.run([sys.executable, "-m", "snakemake", *asked], cwd=ROOT).returncode != 0:
            raise ValueError(
                f"{given.arm} was not run to the end: see above; run the same again with --compare once it is"
            )
    with tempfile.TemporaryDirectory() as temporary:
        restore(evidence, Path(temporary))
        found = compare_runs(Path(temporary), results, records)
    for comparison in found:
        print(comparison)
    same = sum(comparison.same for comparison in found)
    print(f"{same} of {len(found)} records of {given.arm} are as they were published")
    if same < len(found):
        raise SystemExit(1)


main()
