"""Go on with a scale that is published in part: ``python tools/resume.py SCALE``; see docs/offline.md.

Brings the published records back to ``results/SCALE`` and prints the records that are still missing, as targets for
Snakemake, one a line, seed 0 first. Weights are not published: ask for those targets, not for ``all``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.artefacts import RESULTS  # noqa: E402
from latreft.cli import one_line_errors  # noqa: E402
from latreft.plans import Plans, load_plans  # noqa: E402
from latreft.published.folder import RECORDS  # noqa: E402
from latreft.published.resume import bring_back, missing  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1, and nothing changed, where results are there that differ from the published ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scale")
    scale = parser.parse_args().scale
    plans = Plans(ROOT, load_plans(ROOT, {"scale": scale}))
    folder = RESULTS.format(scale=scale)
    evidence = ROOT / "published" / scale
    if (evidence / RECORDS).is_file():
        print(f"{bring_back(evidence, ROOT / folder)} files of {evidence} brought back", file=sys.stderr)
    for path in missing(plans, scale, ROOT / folder):
        print(f"{folder}/{path}")


main()
