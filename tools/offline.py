"""Pack the workflow for a machine without a network: ``python tools/offline.py SCALE FOLDER``; see docs/offline.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft import offline  # noqa: E402
from latreft.artefacts import RESULTS  # noqa: E402
from latreft.cli import one_line_errors  # noqa: E402
from latreft.plans import Plans, load_plans  # noqa: E402
from latreft.published.resume import missing  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1 and one line where something that is to be packed is not here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale")
    parser.add_argument("folder", type=Path, help="where the parts are written")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help=f"Python of the other machine ({here})")
    parser.add_argument("--there", nargs="*", default=[], metavar="PACKAGE", help="what it has, or can do without")
    parser.add_argument("--part-mb", type=int, default=1000, help="size of a part at most, in 10^6 bytes (1000)")
    given = parser.parse_args()
    if given.part_mb < 1:
        parser.error(f"--part-mb is {given.part_mb}; it must be 1 or more")
    plans = Plans(ROOT, load_plans(ROOT, {"scale": given.scale}))
    plan = plans.by_scale[given.scale]
    offline.check_sources(ROOT)
    offline.check_data(plan, ROOT)
    full, bare = offline.wanted_packages(ROOT / "pyproject.toml", plan.scale)
    results = RESULTS.format(scale=given.scale)
    targets = [f"{results}/{path}" for path in missing(plans, given.scale, ROOT / results)]
    if not targets:
        raise ValueError(f"nothing of {given.scale} is missing in {ROOT / results}: there is nothing to pack for")
    with tempfile.TemporaryDirectory() as temporary:
        packages = Path(temporary) / "packages"
        names = offline.needed(full, given.there, given.python)
        offline.gather([*names, *offline.besides(bare, given.there)], given.python, packages)
        for part in offline.pack(ROOT, given.scale, packages, targets, given.folder.resolve(), given.part_mb * 10**6):
            print(f"{part}: {part.stat().st_size / 1e6:.1f} MB")


main()
